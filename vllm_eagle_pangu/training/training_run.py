# SPDX-License-Identifier: Apache-2.0
"""A run that trains until its budget is used up; after a kill it goes on from its last save.

The learning rate follows the budget's progress, so a run cut by the clock has decayed just as well.
"""

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vllm_eagle_pangu.config import refusal
from vllm_eagle_pangu.measure.files import write_csv
from vllm_eagle_pangu.training.config import RunConfig
from vllm_eagle_pangu.training.run_folder import INPUTS_FILE, Ranks, check_inputs, whole_file

STATE_FILE = "state.pt"
# Of what it holds: optimizers number their parameters, here by name.
STATE_VERSION = 2
_NOT_FOR_MUON = ("embed_tokens", "lm_head")

Figures = dict[str, float]


@dataclass
class TrainingRun:
    """Muon on the 2-D weights inside blocks, AdamW on embeddings, output layers, norms and biases.

    Muon (Jordan et al. 2024, torch.optim.Muon) orthogonalises each update; at budgets of some
    ten million tokens it needs about half of AdamW's tokens for the same loss.

    Loads `folder/state.pt` into `model` if it is there. Raises ValueError where that is of other
    `inputs`.
    """

    config: RunConfig
    model: nn.Module
    folder: Path
    inputs: dict[str, Any]
    ranks: Ranks

    def __post_init__(self) -> None:
        matrices, others = list[nn.Parameter](), list[nn.Parameter]()
        for name, parameter in sorted(self.model.named_parameters()):
            inside = parameter.ndim == 2 and not any(key in name for key in _NOT_FOR_MUON)
            (matrices if inside else others).append(parameter)
        self._optimizers: dict[torch.optim.Optimizer, float] = {
            torch.optim.Muon(matrices, weight_decay=0.05): self.config.matrix_lr,
            torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.0): self.config.other_lr,
        }
        # Data order and random draws follow from `step` and the seed.
        self._step, self._tokens, self._seconds = 0, 0, 0.0
        self._rows: dict[str, list[Figures]] = {}
        state = load_state(self.folder)
        if state is None and self.ranks.first:
            (self.folder / INPUTS_FILE).unlink(missing_ok=True)
        check_inputs(self.folder, self.inputs, self.ranks)
        if state is not None:
            self._step, self._tokens, self._seconds = state["position"]
            self._rows = state["rows"]
            self.model.load_state_dict(state["model"])
            for optimizer, saved in zip(self._optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(saved)

    def train(
        self,
        learn: Callable[[int, float], tuple[int, Figures]],
        save: Callable[[], Figures],
    ) -> None:
        """Train until the budget is used up. Writes log.csv, acceptance.csv and state.pt.

        Args:
            learn: leaves the gradients of a step, by its number and the run's progress; gives
                this rank's tokens, and figures for log.csv.
            save: exports the model at every save; gives figures for acceptance.csv, if any.
        """
        config, ranks = self.config, self.ranks
        progress, saved, figures = self._progress(), self._seconds, list[Figures]()
        while progress < 1.0:
            started = time.monotonic()
            tokens, found = learn(self._step, progress)
            found |= self._update(progress)
            self._step += 1
            self._tokens += tokens * ranks.size
            self._seconds += time.monotonic() - started
            progress = ranks.from_first(self._progress())
            if not ranks.first:
                continue
            figures.append(found)
            if self._step % config.log_every == 0:
                means = {key: statistics.fmean(one[key] for one in figures) for key in found}
                self._report("log", progress, means)
                figures = []
            if progress >= 1.0 or self._seconds - saved >= 60 * config.save_minutes:
                if grown := save():
                    self._report("acceptance", progress, grown)
                self._save()
                saved = self._seconds
        ranks.meet()

    def _progress(self) -> float:
        """Fraction of the budget that is used up, in [0, 1]."""
        by_tokens = self._tokens / (self.config.max_tokens or float("inf"))
        by_clock = self._seconds / 60 / (self.config.max_minutes or float("inf"))
        return min(1.0, max(by_tokens, by_clock))

    def _update(self, progress: float) -> Figures:
        """Clip, update, and clear gradients."""
        parameters = [p for p in self.model.parameters() if p.grad is not None]
        self.ranks.average([p.grad for p in parameters])
        norm = nn.utils.clip_grad_norm_(parameters, self.config.max_grad_norm)
        factor = learning_rate_factor(progress, self.config.warmup, self.config.hold)
        for optimizer, peak in self._optimizers.items():
            optimizer.param_groups[0]["lr"] = peak * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return {"grad_norm": float(norm), "lr_factor": factor}

    def _report(self, name: str, progress: float, figures: Figures) -> None:
        """A line for the reader, and a row of `name`.csv for the plot."""
        rows = self._rows.setdefault(name, [])
        before = rows[-1] if rows else {"tokens": 0, "seconds": 0.0}
        spent = max(self._seconds - before["seconds"], 1e-9)
        left = self._seconds * (1.0 - progress) / max(progress, 1e-9) / 60.0
        shown = " ".join(f"{key} {value:.4g}" for key, value in figures.items())
        print(
            f"step {self._step} ({progress:.1%}) tokens {self._tokens / 1e6:.2f}M {shown} "
            f"tok/s {(self._tokens - before['tokens']) / spent:.0f} ETA {left:.1f} min",
            flush=True,
        )
        position = {"step": self._step, "tokens": self._tokens, "seconds": self._seconds}
        rows.append(position | figures)
        short = [{k: v if isinstance(v, int) else f"{v:.6g}" for k, v in r.items()} for r in rows]
        with whole_file(self.folder / f"{name}.csv") as partial:
            write_csv(short, partial)

    def _save(self) -> None:
        state = {
            "version": STATE_VERSION,
            "position": (self._step, self._tokens, self._seconds),
            "rows": self._rows,
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
        }
        with whole_file(self.folder / STATE_FILE) as partial, open(partial, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())


def load_state(folder: Path) -> dict[str, Any] | None:
    """What a run saved last in `folder`; None where it has not saved."""
    path = folder / STATE_FILE
    if not path.exists():
        return None
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    if state.get("version") != STATE_VERSION:
        mend = "remove it to train from nothing"
        raise refusal("run_dir", str(path), "is of an earlier version", mend)
    return state


def learning_rate_factor(progress: float, warmup: float, hold: float) -> float:
    """Linear warm-up over `warmup` of the run, then full until `hold`, then linear to zero."""
    if progress < warmup:
        return max(progress, 1e-3 * warmup) / warmup
    return 1.0 if progress < hold else (1.0 - progress) / (1.0 - hold)
