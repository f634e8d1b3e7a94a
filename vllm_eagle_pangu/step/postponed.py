# SPDX-License-Identifier: Apache-2.0
"""Tokens that the head has not read yet, as nothing was to be drafted behind them."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from vllm_eagle_pangu.core.uploads import upload
from vllm_eagle_pangu.kernels.draft_batch import DraftRows
from vllm_eagle_pangu.step.extend import Extension
from vllm_eagle_pangu.step.stages import Observer
from vllm_eagle_pangu.step.view import BatchView

# A request reads them at the latest when it has so many.
KEPT = 256
# Rows that one pass of the head reads, but for a single request's.
ROWS = 1024


@dataclass(frozen=True)
class _Tokens:
    """One token of n requests: `tokens`, `positions`, `slots: [n] int64`, `taps: [n, taps * H_t]`.

    `row_of`: by request id.
    """

    row_of: dict[str, int]
    tokens: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    taps: torch.Tensor


@dataclass
class _Waiting:
    """`since`: number of the step of its first unread token; `until`: behind the last one's."""

    since: int
    until: int


class Postponed(Observer):
    """What the head has yet to read, a step's tokens together, till a tree is wanted."""

    def __init__(self) -> None:
        self._steps: deque[_Tokens] = deque()
        # Of the first of them, counted from the start of the engine.
        self._first = 0
        self._waiting: dict[str, _Waiting] = {}

    def began(self, started: Sequence[str], finished: Sequence[str]) -> None:
        """See `Observer`: finished requests need nothing any more."""
        for request in finished:
            self._waiting.pop(request, None)

    def add(
        self,
        view: BatchView,
        requests: Sequence[int],
        next_tokens: torch.Tensor,  # [B] int64
        taps: torch.Tensor,  # [N, taps * H_t]
        group: int,
    ) -> None:
        """Put off the only row of each of `requests`."""
        number = self._first + len(self._steps)
        row_of = {}
        for row, place in enumerate(requests):
            request = view.requests[place]
            row_of[request.id] = row
            waiting = self._waiting.get(request.id)
            if waiting is None or waiting.until != request.committed:
                # A preempted request starts anew.
                waiting = self._waiting[request.id] = _Waiting(number, request.committed)
            waiting.until += 1
        read = (next_tokens, view.positions, view.slots[group], taps)
        if len(requests) < view.rows:
            there = upload(view.device, requests=requests, rows=view.host_query_start[[*requests]])
            places, rows = there["requests"], there["rows"]
            read = (next_tokens[places], *(tensor[rows] for tensor in read[1:]))
        self._steps.append(_Tokens(row_of, *read))

    def oldest(self, view: BatchView, requests: Sequence[int]) -> list[int]:
        """The one of `requests` that has put off the most, if that is enough; else none."""
        if len(self._steps) < KEPT:
            return []
        unread = {place: self._unread(view.requests[place].id) for place in requests}
        place = max(unread, key=unread.__getitem__, default=0)
        return [place] if unread.get(place, 0) >= KEPT else []

    def take(
        self, view: BatchView, requests: Sequence[int], group: int
    ) -> list[tuple[Extension, torch.Tensor]]:
        """What `requests`, ascending, have to read, with its taps, in passes; they wait no more."""
        passes, together, size = [], list[int](), 0
        for place in requests:
            request = view.requests[place]
            waiting = self._waiting.get(request.id)
            if waiting is None or waiting.until != request.committed:
                # A preempted request has read everything anew.
                self._waiting.pop(request.id, None)
                continue
            count = self._unread(request.id)
            if together and size + count > ROWS:
                passes.append(self._pass(view, together, group))
                together, size = [], 0
            together.append(place)
            size += count
        if together:
            passes.append(self._pass(view, together, group))
        self._forget_read()
        return passes

    def _unread(self, request: str) -> int:
        """Steps since its first unread token."""
        waiting = self._waiting.get(request)
        return 0 if waiting is None else self._first + len(self._steps) - waiting.since

    def _pass(
        self, view: BatchView, requests: Sequence[int], group: int
    ) -> tuple[Extension, torch.Tensor]:
        ids = [view.requests[place].id for place in requests]
        waiting = [self._waiting.pop(name) for name in ids]
        begin = min(each.since for each in waiting) - self._first
        steps = list(self._steps)[begin:]
        starts = np.cumsum([0, *(len(step.row_of) for step in steps)])
        found = [
            [
                starts[i] + step.row_of[name]
                for i, step in enumerate(steps)
                if i + begin + self._first >= each.since and name in step.row_of
            ]
            for name, each in zip(ids, waiting, strict=True)
        ]
        query_start = np.cumsum([0, *map(len, found)])
        there = upload(
            view.device, rows=np.concatenate(found), requests=requests, starts=query_start
        )
        rows, starts_there = there["rows"], there["starts"]
        read = {
            name: torch.cat([getattr(step, name) for step in steps])[rows]
            for name in ("tokens", "positions", "slots", "taps")
        }
        extension = Extension(
            rows=DraftRows(
                tokens=read["tokens"],
                positions=read["positions"],
                hidden_rows=torch.arange(len(rows), device=view.device),
                slots=read["slots"],
                query_start=starts_there,
                sample_rows=starts_there[1:] - 1,
            ),
            requests=requests,
            query_start=query_start,
            seq_lens=np.array([each.until for each in waiting]),
            block_table=view.block_tables[group].index_select(0, there["requests"]),
            trees=None,
        )
        return extension, read["taps"]

    def _forget_read(self) -> None:
        """Steps before any that is waited for."""
        after = self._first + len(self._steps)
        least = min((each.since for each in self._waiting.values()), default=after)
        while self._first < least:
            self._steps.popleft()
            self._first += 1
