# SPDX-License-Identifier: Apache-2.0
"""Stage `head`: train an EAGLE-3 head on prepared answers, from what the target has learnt."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaConfig

from vllm_eagle_pangu.config import refusal
from vllm_eagle_pangu.training.config import HeadConfig
from vllm_eagle_pangu.training.head import OF_TARGET, EagleHead, head_config
from vllm_eagle_pangu.training.hidden_states import PackedRows, load_rows
from vllm_eagle_pangu.training.rollout import measure_acceptance, rollout_loss
from vllm_eagle_pangu.training.run_folder import Ranks
from vllm_eagle_pangu.training.teacher import Teacher
from vllm_eagle_pangu.training.training_run import Figures, TrainingRun


def build_head(config: LlamaConfig, teacher: Teacher, target_ids: Tensor) -> EagleHead:
    """A fresh head that starts with what the target has learnt.

    Its output rows are the target's, its layer is the target's last one where the shapes agree,
    and `fc` passes on the last tap.
    """
    head, target = EagleHead(config, target_ids), teacher.model.model
    for parameter in head.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.02)
    size, last = config.hidden_size, target.layers[-1].state_dict()
    with torch.no_grad():
        head.lm_head.weight.copy_(teacher.output_weight[target_ids].float())
        head.norm.weight.copy_(target.norm.weight.float())
        head.fc.weight.zero_()[:, -size:].fill_diagonal_(1.0)
        head.midlayer.hidden_norm.weight.copy_(last.pop("input_layernorm.weight"))
        for name, parameter in head.midlayer.named_parameters():
            theirs, ours = last.get(name), parameter
            if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
                # Of [embedding, hidden state] the target's layer knows the second half.
                parameter[:, :size] *= 0.25
                ours = parameter[:, size:]
            if theirs is not None and theirs.shape == ours.shape:
                ours.copy_(theirs)
            elif name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter.zero_()
    return head


def train_head(
    config: HeadConfig,
    teacher: Teacher,
    target_ids: Tensor,
    prepared: Path,
    folder: Path,
    seed: int,
    export: Callable[[EagleHead], None],
    ranks: Ranks,
) -> EagleHead:
    """Train until the budget is used up, resuming from `folder/state.pt` if it is there.

    `prepared` holds the answers and the target's hidden states; `export` writes the checkpoint and
    is called at every save, together with the acceptance on held-out answers.
    """
    rows = len(load_rows(prepared))
    training = rows - config.held_out
    if training < 1:
        problem = f"there are {rows} answers"
        raise refusal("head.held_out", config.held_out, problem, "ask for more samples")
    batches, held_out = (
        PackedRows(prepared, part, config.length, config.batch, seed)
        for part in (range(training), range(training, rows))
    )
    torch.manual_seed(seed)
    shape = head_config(config, teacher.config)
    head = build_head(shape, teacher, target_ids).to(teacher.device)
    sizes = ("intermediate_size", "draft_vocab_size", "taps")
    inputs = {f"target_model.{key}": getattr(shape, key) for key in OF_TARGET} | {
        f"head.{key}": getattr(config, key) for key in sizes
    }
    forward = head
    if config.compile:
        torch._dynamo.config.recompile_limit = 4 * config.rollout_steps
        forward = torch.compile(head, dynamic=False)

    def learn(step: int, _progress: float) -> tuple[int, Figures]:
        batch = batches.batch(step * ranks.size + ranks.rank).to(teacher.device)
        with torch.autocast(teacher.device.type, dtype=torch.bfloat16):
            loss, matches = rollout_loss(
                forward, teacher, batch, config.rollout_steps, config.step_decay
            )
        loss.backward()
        shares = {f"match_{step}": share for step, share in enumerate(matches)}
        return batch.tokens.numel(), {"loss": float(loss.detach()), **shares}

    def save() -> Figures:
        export(head)
        return measure_acceptance(head, teacher, held_out.all(), config.rollout_steps)

    TrainingRun(config, head, folder, inputs, ranks).train(learn, save)
    return head.eval()
