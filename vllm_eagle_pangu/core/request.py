# SPDX-License-Identifier: Apache-2.0
"""A request, as a step and its policy see it."""

from typing import NamedTuple


class RequestView(NamedTuple):
    """One request as the step finds it.

    `committed`: tokens whose K/V is in the pages. `length`: tokens known, prompt and output.
    `may_emit`: how many may follow. `is_partial`: rows of its prompt are left for later steps, and
    nothing is drawn for it. `may_draft`: nothing that it asks for needs a chain. `temperature`:
    of its draws, 0 where it is greedy.
    """

    id: str
    committed: int
    length: int
    may_emit: int
    is_partial: bool
    may_draft: bool
    temperature: float = 0.0
