# SPDX-License-Identifier: Apache-2.0
"""What trees hold and take at their peak beside the model, for vLLM's memory profile to see.

The masks of a step and the candidates of its trees are not counted: a few KiB per request.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from vllm.logger import init_logger

from vllm_eagle_pangu.step.rows import LayerScratch

# A child of vLLM's logger, which has the handlers and the level that the user chose.
logger = init_logger(f"vllm.{__name__}")

MIB = 1 << 20


@dataclass(frozen=True)
class StepMemory:
    """K/V scratch, held for as long as the engine lives, and the most logits of one step.

    `target`, `drafter`: by layer, all with as many rows. `target_logits`, `head_logits`: rows,
    vocabulary.
    """

    target: Sequence[LayerScratch]
    drafter: Sequence[LayerScratch]
    target_logits: tuple[int, int]
    head_logits: tuple[int, int]
    dtype: torch.dtype

    @property
    def scratch_bytes(self) -> int:
        return sum(scratch.nbytes for scratch in (*self.target, *self.drafter))

    def logits(self, device: torch.device) -> list[torch.Tensor]:
        """As much memory as the logits that live at a step's peak: the head's beside the target's.

        What sampling adds is in the dummy run of the sampler.
        """
        shapes = (self.target_logits, self.head_logits)
        return [torch.empty(shape, dtype=self.dtype, device=device) for shape in shapes]

    def log(self, kv_cache_bytes: int | None) -> None:
        """State the sizes, once. `kv_cache_bytes`: the KV cache's where the user gave it."""
        budget = (
            "within vLLM's memory budget"
            if kv_cache_bytes is None
            else f"on top of the {kv_cache_bytes / MIB:.1f} MiB given for the KV cache"
        )
        logger.info_once(
            "eagle_pangu: K/V scratch of trees, %s: target %s, drafter %s; "
            "logits of a step: at most %s of the target, %s of the head",
            budget,
            _scratch_size(self.target),
            _scratch_size(self.drafter),
            self._logits_size(self.target_logits),
            self._logits_size(self.head_logits),
        )

    def _logits_size(self, shape: tuple[int, int]) -> str:
        rows, vocabulary = shape
        return f"{rows * vocabulary * self.dtype.itemsize / MIB:.1f} MiB ({rows} rows)"


def _scratch_size(layers: Sequence[LayerScratch]) -> str:
    size, rows = sum(scratch.nbytes for scratch in layers) / MIB, layers[0].key.shape[0]
    return f"{size:.1f} MiB ({rows} rows in each of {len(layers)} layers)"
