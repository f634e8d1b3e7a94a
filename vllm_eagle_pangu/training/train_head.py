# SPDX-License-Identifier: Apache-2.0
"""Stage `head`: train an EAGLE-3 head with training-time test (EAGLE-3 paper, section 3.2).

Each step unrolls the head K times on its own states, as drafting will, and takes soft
cross-entropy to the target's distribution over the draft vocabulary at every rollout step,
weighted by `step_decay ** k`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vllm_eagle_pangu.training.budget import Budget, learning_rate_factor
from vllm_eagle_pangu.training.config import HeadConfig
from vllm_eagle_pangu.training.cross_entropy import chunked_soft_cross_entropy
from vllm_eagle_pangu.training.draft_vocabulary import DraftVocabulary
from vllm_eagle_pangu.training.head import EagleHead, HeadShape, RolloutKeys
from vllm_eagle_pangu.training.optimizers import MuonWithAdamW
from vllm_eagle_pangu.training.progress import ProgressLog
from vllm_eagle_pangu.training.run_state import Position, load_state, save_state
from vllm_eagle_pangu.training.teacher import Teacher, TeacherStates

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
    """A fresh head whose output rows start as the target's own."""
    head = EagleHead(shape)
    for name, parameter in head.named_parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.02)
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            torch.nn.init.zeros_(parameter)
    with torch.no_grad():
        head.lm_head.weight.copy_(
            teacher.output_weight[vocabulary.target_ids.to(teacher.device)].float()
        )
    return head


def rollout_targets(
    teacher: Teacher, last: Tensor, vocabulary: DraftVocabulary, rows: int = 1024
) -> tuple[Tensor, Tensor]:
    """The target's next-token distributions over the draft vocabulary.

    Args:
        last: [N, H_t] normed final states.

    Returns:
        probabilities renormalised over the draft vocabulary [N, V_d] bfloat16, and the draft
        id of the target's most likely token [N] int64, -1 where it cannot be drafted.
    """
    weight = teacher.output_weight
    target_ids = vocabulary.target_ids.to(last.device)
    draft_ids = torch.full((vocabulary.vocab_size,), -1, device=last.device)
    draft_ids[target_ids] = torch.arange(len(target_ids), device=last.device)
    probs, best = [], []
    for part in last.split(rows):
        logits = part @ weight.T
        best.append(draft_ids[logits.argmax(dim=-1)])
        drafted = logits[:, target_ids].float()
        probs.append(torch.softmax(drafted, dim=-1).to(torch.bfloat16))
    return torch.cat(probs), torch.cat(best)


def rollout_loss(
    head: EagleHead,
    advance: Advance,
    teacher: Teacher,
    vocabulary: DraftVocabulary,
    tokens: Tensor,
    steps: int,
    step_decay: float,
) -> tuple[Tensor, list[float]]:
    """Loss of a K-step rollout, and per step the share of rows with the target's top token.

    The anchor at position t predicts, at step k, the token at t + k + 2; anchors are
    0 .. T - K - 1. Rows whose top target token cannot be drafted carry no loss and count as
    misses.

    Args:
        tokens: [B, T]
    """
    states: TeacherStates = teacher.read(tokens)
    anchors = tokens.shape[1] - steps
    with torch.no_grad():
        probs, best = rollout_targets(teacher, states.last[:, 1:].flatten(0, 1), vocabulary)
    probs = probs.unflatten(0, (tokens.shape[0], -1))
    best = best.unflatten(0, (tokens.shape[0], -1))
    embeds = teacher.embedding(tokens[:, 1:])
    hidden = head.fc(states.taps[:, :anchors])
    past, losses, matches = RolloutKeys(), [], []
    for step in range(steps):
        part = slice(step, step + anchors)
        positions = torch.arange(step, step + anchors, device=tokens.device)
        hidden, normed, past = advance(embeds[:, part], hidden, positions, past)
        wanted = best[:, part].flatten()
        usable = (wanted >= 0).float()
        total, chosen = chunked_soft_cross_entropy(
            normed.flatten(0, 1), head.lm_head.weight, probs[:, part].flatten(0, 1), usable
        )
        losses.append(step_decay**step * total / usable.sum().clamp_min(1.0))
        matches.append(float((chosen == wanted).float().mean()))
    scale = sum(step_decay**step for step in range(steps))
    return torch.stack(losses).sum() / scale, matches


def train_head(
    config: HeadConfig,
    teacher: Teacher,
    vocabulary: DraftVocabulary,
    batch_at: Callable[[int], Tensor],
    folder: Path,
    seed: int,
    export: Callable[[EagleHead], None],
) -> EagleHead:
    """Train until the budget is used up, resuming from `folder/state.pt` if it is there.

    `batch_at(step)` gives the tokens [B, T] of a step; `export` writes the checkpoint and is
    called at every save.
    """
    torch.manual_seed(seed)
    head = build_head(head_shape(config, teacher.config), teacher, vocabulary)
    head.to(teacher.device)
    optimizer = MuonWithAdamW(head, config.matrix_lr, config.other_lr)
    position = Position()
    saved = load_state(folder)
    if saved is not None:
        position, parts = saved
        head.load_state_dict(parts["head"])
        optimizer.load_state_dict(parts["optimizer"])
    budget = Budget(config.max_tokens, config.max_minutes)
    log = ProgressLog(folder / "log.csv", config.log_every, position.step)
    advance: Advance = head.advance
    if config.compile:
        torch._dynamo.config.recompile_limit = 4 * config.rollout_steps
        advance = torch.compile(head.advance, dynamic=False)
    progress = budget.progress(position.tokens, position.seconds)
    last_save = position.seconds
    while progress < 1.0:
        started = time.monotonic()
        tokens = batch_at(position.step).to(teacher.device)
        with torch.autocast(teacher.device.type, dtype=torch.bfloat16):
            loss, matches = rollout_loss(
                head, advance, teacher, vocabulary, tokens, config.rollout_steps, config.step_decay
            )
        loss.backward()
        optimizer.step(learning_rate_factor(progress, config.warmup, config.hold), 1.0)
        position.step += 1
        position.tokens += tokens.numel()
        position.seconds += time.monotonic() - started
        progress = budget.progress(position.tokens, position.seconds)
        shares = {f"match_{step}": share for step, share in enumerate(matches)}
        log.add(position, progress, {"loss": float(loss.detach()), **shares})
        if progress >= 1.0 or position.seconds - last_save >= 60 * config.save_minutes:
            export(head)
            save_state(folder, position, head=head.state_dict(), optimizer=optimizer.state_dict())
            last_save = position.seconds
    return head.eval()
