# SPDX-License-Identifier: Apache-2.0
"""Stage `head`: train an EAGLE-3 head with training-time test (EAGLE-3 paper, section 3.2).

Each step unrolls the head K times on its own states, as drafting will, and takes soft
cross-entropy to the target's distribution over the draft vocabulary at every rollout step,
weighted by `step_decay ** k`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vllm_eagle_pangu.config import refusal
from vllm_eagle_pangu.training.budget import Budget, learning_rate_factor
from vllm_eagle_pangu.training.config import HeadConfig
from vllm_eagle_pangu.training.cross_entropy import chunked_cross_entropy
from vllm_eagle_pangu.training.draft_vocabulary import DraftVocabulary
from vllm_eagle_pangu.training.evaluate import measure_acceptance
from vllm_eagle_pangu.training.head import EagleHead, HeadShape, RolloutKeys
from vllm_eagle_pangu.training.hidden_states import load_rows
from vllm_eagle_pangu.training.optimizers import MuonWithAdamW
from vllm_eagle_pangu.training.packed_rows import PackedBatch, PackedRows
from vllm_eagle_pangu.training.progress import ProgressLog
from vllm_eagle_pangu.training.ranks import Ranks
from vllm_eagle_pangu.training.rollout_attention import causal_mask
from vllm_eagle_pangu.training.run_state import Position, load_state, save_state
from vllm_eagle_pangu.training.teacher import Teacher

Advance = Callable[[Tensor, Tensor, Tensor, RolloutKeys], tuple[Tensor, Tensor, RolloutKeys]]


def head_shape(config: HeadConfig, target: Any) -> HeadShape:
    """The head's sizes: the target's, but for the MLP, the draft vocabulary and the taps."""
    rope = target.rope_parameters or {}
    return HeadShape(
        hidden_size=target.hidden_size,
        target_hidden_size=target.hidden_size,
        intermediate_size=config.intermediate_size,
        heads=target.num_attention_heads,
        kv_heads=target.num_key_value_heads,
        head_dim=target.head_dim,
        vocab_size=target.vocab_size,
        draft_vocab_size=config.draft_vocab_size,
        taps=config.taps,
        rope_theta=float(rope.get("rope_theta", 10000.0)),
        max_positions=target.max_position_embeddings,
        rms_norm_eps=target.rms_norm_eps,
    )


def build_head(shape: HeadShape, teacher: Teacher, vocabulary: DraftVocabulary) -> EagleHead:
    """A fresh head that starts with what the target has learnt.

    Its output rows are the target's, its layer is the target's last one where the shapes agree,
    and `fc` passes on the last tap.
    """
    head, target = EagleHead(shape), teacher.model.model
    for parameter in head.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.02)
    size, last = shape.hidden_size, target.layers[-1].state_dict()
    with torch.no_grad():
        rows = vocabulary.target_ids.to(teacher.device)
        head.lm_head.weight.copy_(teacher.output_weight[rows].float())
        head.norm.weight.copy_(target.norm.weight.float())
        head.fc.weight.zero_()[:, -shape.target_hidden_size :].fill_diagonal_(1.0)
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


def rollout_targets(
    teacher: Teacher, last: Tensor, vocabulary: DraftVocabulary, rows: int = 1024
) -> tuple[Tensor, Tensor]:
    """The target's next-token distributions over the draft vocabulary.

    Args:
        last: [N, H_t] states behind all layers.

    Returns:
        probabilities renormalised over the draft vocabulary [N, V_d] bfloat16, and the draft
        id of the target's most likely token [N] int64, -1 where it cannot be drafted.
    """
    target_ids = vocabulary.target_ids.to(last.device)
    draft_ids = torch.full((vocabulary.vocab_size,), -1, device=last.device)
    draft_ids[target_ids] = torch.arange(len(target_ids), device=last.device)
    probs, best = [], []
    for part in last.split(rows):
        logits = teacher.logits(part)
        best.append(draft_ids[logits.argmax(dim=-1)])
        drafted = logits[:, target_ids].float()
        probs.append(torch.softmax(drafted, dim=-1).to(torch.bfloat16))
    return torch.cat(probs), torch.cat(best)


def rollout_loss(
    head: EagleHead,
    advance: Advance,
    teacher: Teacher,
    vocabulary: DraftVocabulary,
    batch: PackedBatch,
    steps: int,
    step_decay: float,
) -> tuple[Tensor, list[float]]:
    """Loss of a K-step rollout, and per step the share of places with the target's top token.

    The anchor at position t predicts, at step k, the token at t + k + 2; anchors are
    0 .. T - K - 2. Those tokens carry loss that the target spoke, in the anchor's document; where
    its most likely one cannot be drafted there is none, and it counts as a miss.
    """
    anchors = batch.tokens.shape[1] - steps - 1
    document = batch.document[:, :anchors]
    with torch.no_grad():
        last = batch.states[:, 1:-1, -1]
        probs, best = rollout_targets(teacher, last.flatten(0, 1), vocabulary)
    probs, best = (found.unflatten(0, last.shape[:2]) for found in (probs, best))
    embeds = teacher.embedding(batch.tokens[:, 1:])
    hidden = head.fc(batch.states[:, :anchors, :-1].flatten(2))
    past, losses, matches = RolloutKeys(causal_mask(document)), [], []
    for step in range(steps):
        part, named = slice(step, step + anchors), slice(step + 2, step + 2 + anchors)
        positions = torch.arange(step, step + anchors, device=hidden.device)
        hidden, normed, past = advance(embeds[:, part], hidden, positions, past)
        wanted = best[:, part].flatten()
        spoken = (batch.spoken[:, named] & (batch.document[:, named] == document)).flatten()
        usable = (spoken & (wanted >= 0)).float()
        total, chosen = chunked_cross_entropy(
            normed.flatten(0, 1), head.lm_head.weight, probs[:, part].flatten(0, 1), usable
        )
        losses.append(step_decay**step * total / usable.sum().clamp_min(1.0))
        right = (chosen == wanted) & spoken
        matches.append(float(right.sum() / spoken.sum().clamp_min(1)))
    scale = sum(step_decay**step for step in range(steps))
    return torch.stack(losses).sum() / scale, matches


def _check_shape(saved: dict[str, Any], shape: HeadShape, folder: Path) -> None:
    ours = {field.name for field in fields(HeadConfig)}
    for size, value in asdict(shape).items():
        if saved.get(size) != value:
            raise refusal(
                f"head.{size}" if size in ours else f"target_model.{size}",
                value,
                f"the head in {folder} has {saved[size]!r}",
                "put that back, or remove the folder to train from nothing",
            )


def train_head(
    config: HeadConfig,
    teacher: Teacher,
    vocabulary: DraftVocabulary,
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
        raise refusal(
            "head.held_out", config.held_out, f"there are {rows} answers", "ask for more samples"
        )
    batches = PackedRows(prepared, range(training), config.length, config.batch, seed)
    held_out = PackedRows(prepared, range(training, rows), config.length, config.batch, seed)
    torch.manual_seed(seed)
    head = build_head(head_shape(config, teacher.config), teacher, vocabulary)
    head.to(teacher.device)
    optimizer = MuonWithAdamW(head, config.matrix_lr, config.other_lr)
    position = Position()
    saved = load_state(folder)
    if saved is not None:
        position, parts = saved
        _check_shape(parts.get("shape", asdict(head.shape)), head.shape, folder)
        head.load_state_dict(parts["head"])
        optimizer.load_state_dict(parts["optimizer"])
    budget = Budget(config.max_tokens, config.max_minutes)
    log = ProgressLog(folder / "log.csv", config.log_every, position.step)
    growth = ProgressLog(folder / "acceptance.csv", 1, position.step)
    advance: Advance = head.advance
    if config.compile:
        torch._dynamo.config.recompile_limit = 4 * config.rollout_steps
        advance = torch.compile(head.advance, dynamic=False)
    progress = budget.progress(position.tokens, position.seconds)
    last_save = position.seconds
    while progress < 1.0:
        started = time.monotonic()
        batch = batches.batch(position.step * ranks.size + ranks.rank).to(teacher.device)
        with torch.autocast(teacher.device.type, dtype=torch.bfloat16):
            loss, matches = rollout_loss(
                head, advance, teacher, vocabulary, batch, config.rollout_steps, config.step_decay
            )
        loss.backward()
        ranks.average([p.grad for p in head.parameters() if p.grad is not None])
        optimizer.step(learning_rate_factor(progress, config.warmup, config.hold), 1.0)
        position.step += 1
        position.tokens += batch.tokens.numel() * ranks.size
        position.seconds += time.monotonic() - started
        progress = ranks.from_first(budget.progress(position.tokens, position.seconds))
        shares = {f"match_{step}": share for step, share in enumerate(matches)}
        if not ranks.first:
            continue
        log.add(position, progress, {"loss": float(loss.detach()), **shares})
        if progress >= 1.0 or position.seconds - last_save >= 60 * config.save_minutes:
            export(head)
            found = measure_acceptance(
                head, teacher, vocabulary, held_out.all(), config.rollout_steps
            )
            growth.add(position, progress, found.figures())
            save_state(
                folder,
                position,
                shape=asdict(head.shape),
                head=head.state_dict(),
                optimizer=optimizer.state_dict(),
            )
            last_save = position.seconds
    ranks.meet()
    return head.eval()
