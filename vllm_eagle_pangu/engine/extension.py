# SPDX-License-Identifier: Apache-2.0
"""The rows of the drafter's extend pass, of those requests that the head can still draft for."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch

from vllm_eagle_pangu.engine.tree_step import TreeStep
from vllm_eagle_pangu.engine.uploads import upload
from vllm_eagle_pangu.kernels.draft_batch import DraftRows


@dataclass(frozen=True)
class TreesOfExtension:
    """T trees of a step whose accepted rows are extended by; `places: [T]` among the requests."""

    # [T] on the device
    requests: torch.Tensor
    places: torch.Tensor
    prefix_len: torch.Tensor
    # The same on the host.
    host_places: Sequence[int]
    host_prefix_lens: Sequence[int]


@dataclass(frozen=True)
class Extension:
    """K requests of the batch, ascending, and their rows; `query_start: [K+1]` on the host."""

    rows: DraftRows
    requests: list[int]
    query_start: np.ndarray
    # Whether a request of the batch is left out.
    is_part: bool

    @classmethod
    def of(cls, rows: DraftRows, query_start: np.ndarray, requests: list[int]) -> "Extension":
        """Of the rows of a whole batch, `query_start: [B+1]`, those of `requests`."""
        if len(requests) == len(query_start) - 1:
            return cls(rows, requests, query_start, is_part=False)
        counts = np.diff(query_start)[requests]
        starts = np.concatenate(([0], counts.cumsum()))
        spans = [range(query_start[r], query_start[r + 1]) for r in requests]
        there = upload(
            rows.tokens.device,
            index=list(chain.from_iterable(spans)),
            requests=requests,
            starts=starts,
            dropped=query_start[requests] - starts[:-1],
        )
        index = there["index"]
        part = DraftRows(
            tokens=rows.tokens[index],
            positions=rows.positions[index],
            hidden_rows=rows.hidden_rows[index],
            slots=rows.slots[index],
            query_start=there["starts"],
            sample_rows=rows.sample_rows[there["requests"]] - there["dropped"],
        )
        return cls(part, requests, starts, is_part=True)

    def trees(self, step: TreeStep) -> TreesOfExtension | None:
        """The step's trees whose requests are among these; None where there is none."""
        if not self.is_part:
            return TreesOfExtension(
                step.requests,
                step.requests,
                step.prefix_len,
                step.host_requests,
                step.host_prefix_lens,
            )
        place_of = {request: place for place, request in enumerate(self.requests)}
        kept = [tree for tree, request in enumerate(step.host_requests) if request in place_of]
        if not kept:
            return None
        requests = [step.host_requests[tree] for tree in kept]
        places = [place_of[request] for request in requests]
        lens = [step.host_prefix_lens[tree] for tree in kept]
        there = upload(step.requests.device, requests=requests, places=places, lens=lens)
        return TreesOfExtension(there["requests"], there["places"], there["lens"], places, lens)
