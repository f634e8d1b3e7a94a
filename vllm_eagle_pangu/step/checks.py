# SPDX-License-Identifier: Apache-2.0
"""The invariants of a step, asserted while it runs: of every step, or of one in so many."""

from dataclasses import dataclass

from vllm_eagle_pangu.core.paths import path_invariants
from vllm_eagle_pangu.step.accept import Accepted
from vllm_eagle_pangu.step.place import Placed

# Checking waits for the device.
CHECK_EVERY = 1024


@dataclass
class Checks:
    """`always`: every step's trees and paths; otherwise the trees of one step in `CHECK_EVERY`."""

    always: bool
    steps: int = 0

    def check(self, result: object) -> None:
        """What a stage gave. Raises AssertionError naming the invariant that does not hold."""
        if isinstance(result, Placed):
            self._placed(result)
        elif isinstance(result, Accepted):
            self._accepted(result)

    def _placed(self, placed: Placed) -> None:
        if placed.trees is None:
            return
        self.steps += 1
        if self.always or self.steps % CHECK_EVERY == 0:
            placed.trees.check()

    def _accepted(self, accepted: Accepted) -> None:
        if self.always and accepted.placed.trees is not None and accepted.trees is not None:
            tree, walked = accepted.placed.trees.tree, accepted.trees
            for invariant, held in path_invariants(walked.paths, tree, walked.draws).items():
                assert bool(held.all()), invariant
