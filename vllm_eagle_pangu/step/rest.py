# SPDX-License-Identifier: Apache-2.0
"""Rests: while no tree is in sight, steps are plain decoding's, which the drafter misses."""

from collections.abc import Mapping
from dataclasses import dataclass

from vllm_eagle_pangu.core.policy import StepReport


@dataclass(frozen=True)
class Unseen:
    """A step of a rest that nobody watches, `rows` tokens of `batch` requests: no stage runs."""

    batch: int
    rows: int

    def report(self, seconds: Mapping[str, float]) -> StepReport:
        """See `Accepted`."""
        return StepReport(self.batch, self.rows, (), (), None, None, seconds)
