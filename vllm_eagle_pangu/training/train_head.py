# SPDX-License-Identifier: Apache-2.0
"""Stage `head`: train an EAGLE-3 head on prepared answers, from what the target has learnt.

By training-time test: the head is unrolled K times on its own states, as drafting will (EAGLE-3
paper, section 3.2), or on masked rows, if it is to draft K tokens in one pass (P-EAGLE). It learns
by soft cross-entropy to the target's distribution over the draft vocabulary at every rollout step,
weighted by `step_decay ** k`.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig

from vllm_eagle_pangu.config import refusal
from vllm_eagle_pangu.training.config import HeadConfig
from vllm_eagle_pangu.training.head import (
    OF_TARGET,
    EagleHead,
    RolloutKeys,
    draft_vocabulary,
    head_config,
    save_head,
)
from vllm_eagle_pangu.training.hidden_states import PackedBatch, PackedRows, Teacher, load_rows
from vllm_eagle_pangu.training.run_folder import Ranks
from vllm_eagle_pangu.training.training_run import Figures, TrainingRun

# Rows whose logits stay in the cache.
CHUNK = 512


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
    config: HeadConfig, teacher: Teacher, prepared: Path, folder: Path, seed: int, ranks: Ranks
) -> EagleHead:
    """Train until the budget is used up, resuming from `folder/state.pt` if it is there.

    `prepared` holds the answers and the target's hidden states. At every save the checkpoint is
    written to `folder/draft`, and the acceptance on held-out answers measured.
    """
    sizes = teacher.config.vocab_size, config.draft_vocab_size
    target_ids = ranks.one_after_first(lambda: draft_vocabulary(prepared, *sizes))
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
    inputs = {f"target_model.{key}": getattr(shape, key) for key in OF_TARGET}
    for key in ("intermediate_size", "draft_vocab_size", "taps"):
        inputs[f"head.{key}"] = getattr(config, key)
    # Folders of before do not name it.
    inputs["head.parallel"] = config.parallel or None
    forward, steps = head, config.rollout_steps
    if config.compile:
        torch._dynamo.config.recompile_limit = 4 * steps
        forward = torch.compile(head, dynamic=False)

    def learn(step: int, _progress: float) -> tuple[int, Figures]:
        batch = batches.batch(step * ranks.size + ranks.rank).to(teacher.device)
        with torch.autocast(teacher.device.type, dtype=torch.bfloat16):
            loss, matches = rollout_loss(forward, teacher, batch, steps, config.step_decay)
        loss.backward()
        shares = {f"match_{step}": share for step, share in enumerate(matches)}
        return batch.tokens.numel(), {"loss": float(loss.detach()), **shares}

    def save() -> Figures:
        save_head(head, folder / "draft")
        return measure_acceptance(head, teacher, held_out.all(), steps)

    TrainingRun(config, head, folder, inputs, ranks).train(learn, save)
    return head.eval()


def rollout(head: EagleHead, teacher: Teacher, batch: PackedBatch, steps: int) -> Iterator[Tensor]:
    """Normed states [B, A, H] of each rollout step, for `head.lm_head`; `head` may be compiled.

    The anchor at position t drafts, at step k, the token at t + k + 2; anchors are 0 .. T - K - 2.
    Steps behind the first one read the text and the head's states, or nothing but masks.
    """
    anchors = batch.tokens.shape[1] - steps - 1
    taps = batch.states[:, :anchors, :-1].flatten(2)
    hidden = head.fc(taps.to(head.fc.weight.dtype))
    embeds = teacher.embedding(batch.tokens[:, 1:]).to(hidden.dtype)
    mask = None
    if head.mask_hidden is not None:
        token = torch.tensor(head.config.ptd_token_id, device=hidden.device)
        masked = teacher.embedding(token), head.fc(head.mask_hidden.to(head.fc.weight.dtype))
        mask = [of_mask.to(hidden.dtype).expand_as(hidden) for of_mask in masked]
    past = RolloutKeys.over(batch.document[:, :anchors])
    for step in range(steps):
        positions = torch.arange(step, step + anchors, device=hidden.device)
        part = embeds[:, step : step + anchors]
        if step and mask is not None:
            part, hidden = mask
        hidden, normed, past = head(part, hidden, positions, past)
        yield normed


def rollout_targets(
    teacher: Teacher, last: Tensor, target_ids: Tensor, rows: int = 1024
) -> tuple[Tensor, Tensor]:
    """The target's next-token distributions over the draft vocabulary.

    Args:
        last: [N, H_t] states behind all layers.
        target_ids: [V_d] int64, of each draft id.

    Returns:
        probabilities renormalised over the draft vocabulary [N, V_d] bfloat16, and the target's
        most likely token [N] int64, which perhaps cannot be drafted.
    """
    probs, best = [], []
    for part in last.split(rows):
        logits = teacher.logits(part)
        best.append(logits.argmax(dim=-1))
        probs.append(logits[:, target_ids].float().softmax(dim=-1).to(torch.bfloat16))
    return torch.cat(probs), torch.cat(best)


def rollout_loss(
    head: EagleHead, teacher: Teacher, batch: PackedBatch, steps: int, step_decay: float
) -> tuple[Tensor, list[float]]:
    """Loss of a K-step rollout, and per step the share of places with the target's top token.

    Those tokens carry loss that the target spoke, in the anchor's document; where its most likely
    one cannot be drafted there is none, and it counts as a miss.
    """
    with torch.no_grad():
        last = batch.states[:, 1:-1, -1]
        found = rollout_targets(teacher, last.flatten(0, 1), head.target_ids)
    probs, best = (part.unflatten(0, last.shape[:2]) for part in found)
    losses, matches = [], []
    for step, normed in enumerate(rollout(head, teacher, batch, steps)):
        anchors = normed.shape[1]
        part, named = slice(step, step + anchors), slice(step + 2, step + 2 + anchors)
        wanted = best[:, part].flatten()
        same = batch.document[:, named] == batch.document[:, :anchors]
        spoken = (batch.spoken[:, named] & same).flatten()
        usable = (spoken & torch.isin(wanted, head.target_ids)).float()
        total, chosen = ChunkedCrossEntropy.apply(
            normed.flatten(0, 1), head.lm_head.weight, probs[:, part].flatten(0, 1), usable, CHUNK
        )
        losses.append(step_decay**step * total / usable.sum().clamp_min(1.0))
        right = (head.target_ids[chosen] == wanted) & spoken
        matches.append(float(right.sum() / spoken.sum().clamp_min(1)))
    scale = sum(step_decay**step for step in range(steps))
    return torch.stack(losses).sum() / scale, matches


@torch.inference_mode()
def measure_acceptance(
    head: EagleHead, teacher: Teacher, batches: Iterable[PackedBatch], steps: int, width: int = 4
) -> dict[str, float]:
    """Acceptance over all answers of `batches`, by the walk of chain drafting, without an engine.

    Of a greedy answer an engine would accept just as much, for greedy acceptance depends on the
    true tokens alone; of a sampled one about so.

    Returns:
        held_out_k, the share of places where rollout step k names the target's token; tau_chain,
        tokens per target forward with chains of K drafts, bonus included; tau_top, the same if a
        draft counted whenever the token is among the head's best `width`.
    """
    hits, tops = [], []
    for batch in batches:
        walk = rollout(head, teacher, batch.to(teacher.device), steps)
        found = [head.lm_head(normed).topk(width).indices for normed in walk]
        best = head.target_ids[torch.stack(found)].cpu()  # [K, B, A, width]
        anchors = best.shape[2]
        # [K, B, A]: the token that step k is to name, where it is of the same answer.
        windows = (part[:, 2:].unfold(1, anchors, 1) for part in (batch.tokens, batch.document))
        named, of = (window.transpose(0, 1) for window in windows)
        document = batch.document[:, :anchors]
        right = (best == named[..., None]) & (of == document)[..., None]
        # [B, A]: whether the token after a place is spoken, and is the root.
        after = slice(1, anchors + 1)
        root = batch.spoken[:, after] & (batch.document[:, after] == document)
        for row, answers in enumerate(document):
            for answer in answers[root[row]].unique():
                places = root[row] & (answers == answer)
                hits.append(right[:, row, places, 0])
                tops.append(right[:, row, places].any(-1))
    shares = torch.cat(hits, 1).float().mean(1).tolist()
    return {
        **{f"held_out_{step}": share for step, share in enumerate(shares)},
        "tau_chain": _tokens_per_forward(hits),
        "tau_top": _tokens_per_forward(tops),
    }


def _tokens_per_forward(answers: list[Tensor]) -> float:
    """answers: of each [K, N] bool, row k column i: draft k from place i is right."""
    tokens = forwards = 0
    for right in answers:
        lengths = right.long().cumprod(0).sum(0).tolist()
        place = 0
        while place < len(lengths):
            place += lengths[place] + 1
            forwards += 1
        tokens += place
    return tokens / forwards


class ChunkedCrossEntropy(torch.autograd.Function):
    """Soft cross-entropy in chunks that stay in the cache, with each row's most likely class.

    On two CPU cores this is about twice as fast as torch's linear + cross_entropy for V of some
    thousands; torch 2.13's linear_cross_entropy gives no most likely class.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, row_weights: Tensor, rows: int
    ) -> tuple[Tensor, Tensor]:
        """Sum over rows of row_weights * CE(targets, softmax(hidden @ weight.T)).

        Gradients are made here, so that the [N, V] logits never exist as a whole.

        Args:
            hidden: [N, H]; weight: [V, H].
            targets: [N, V] probabilities; row_weights: [N] float32; rows: of a chunk.

        Returns:
            scalar float32 loss, and each row's most likely class [N] int64.
        """
        low, low_weight = hidden.to(torch.bfloat16), weight.to(torch.bfloat16)
        grad_hidden = torch.empty_like(low)
        grad_weight = torch.zeros_like(weight, dtype=torch.float32)
        best = torch.empty(hidden.shape[0], dtype=torch.int64, device=hidden.device)
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        for start in range(0, hidden.shape[0], rows):
            part = slice(start, start + rows)
            wanted, scale = targets[part], row_weights[part, None]
            log_probs = torch.log_softmax((low[part] @ low_weight.T).float(), dim=-1)
            best[part] = log_probs.argmax(dim=-1)
            total -= ((wanted.float() * log_probs).sum(-1, keepdim=True) * scale).sum()
            grad = log_probs.exp_().sub_(wanted).mul_(scale).to(torch.bfloat16)
            grad_hidden[part] = grad @ low_weight
            grad_weight += grad.T @ low[part]
        ctx.save_for_backward(grad_hidden.to(hidden.dtype), grad_weight.to(weight.dtype))
        ctx.mark_non_differentiable(best)
        return total, best

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor, _: Tensor) -> tuple[Tensor, Tensor, None, None, None]:  # type: ignore[override]
        grad_hidden, grad_weight = ctx.saved_tensors
        return grad_hidden * grad_loss, grad_weight * grad_loss, None, None, None
