# SPDX-License-Identifier: Apache-2.0
"""vllm-ascend's proposer as what it is here: the loader of the head and owner of its groups."""

from typing import Any, NoReturn

from vllm_ascend.spec_decode import AscendEagleProposer

from vllm_eagle_pangu.compat.lent import lent


class TreeAscendProposer(AscendEagleProposer):
    """Of the class that vllm-ascend's runner asserts; trees are drafted by `step.draft`."""

    def _propose(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise AssertionError("a chain would be drafted where the runner drafts trees")

    def dummy_run(self, *args: Any, **kwargs: Any) -> None:
        """One pass over as many rows, where vllm-ascend's makes one for each drafted token."""
        with lent(self, num_speculative_tokens=1):
            super().dummy_run(*args, **kwargs)
