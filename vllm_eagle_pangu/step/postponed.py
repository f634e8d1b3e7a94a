# SPDX-License-Identifier: Apache-2.0
"""Tokens that the head has not read yet, as nothing was to be drafted behind them."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from vllm_eagle_pangu.core.request import RequestView
from vllm_eagle_pangu.core.uploads import upload
from vllm_eagle_pangu.kernels.draft_batch import DraftRows
from vllm_eagle_pangu.step.extend import Extension
from vllm_eagle_pangu.step.stages import Observer
from vllm_eagle_pangu.step.view import BatchView

# A request reads them at the latest when it has so many.
KEPT = 256
# Rows that one pass of the head reads, but for a single request's.
ROWS = 1024
# Steps of one run, whose rows are dropped together.
RUN = 64


# Of one step, a row for each of n requests: token, position, slot: `[n] int64`; taps: `[n, ...]`.
_Rows = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class _Run:
    """Consecutive steps, from number `since` on, each of which put off a row of the same requests.

    `ids`: of these, by row.
    """

    ids: Sequence[str]
    since: int
    steps: list[_Rows] = field(default_factory=list)

    @property
    def until(self) -> int:
        """Number of the step behind the last one."""
        return self.since + len(self.steps)


@dataclass
class _Waiting:
    """`since`: number of the step of its first unread token, where a run begins; `until`: behind
    its last unread token, but for those of the run that goes on."""

    since: int
    until: int


class Postponed(Observer):
    """What the head has yet to read, till a tree is wanted."""

    def __init__(self) -> None:
        self._runs: deque[_Run] = deque()
        # The last of them, while it goes on.
        self._open: _Run | None = None
        self._waiting: dict[str, _Waiting] = {}
        # Number of the step that runs.
        self._step = 0

    def began(self, started: Sequence[str], finished: Sequence[str]) -> None:
        """See `Observer`: finished requests need nothing any more."""
        self._step += 1
        self.forget(finished)

    def forget(self, requests: Sequence[str]) -> None:
        """What these put off need not be read any more."""
        if self._waiting.keys().isdisjoint(requests):
            return
        self._end_run()
        for request in requests:
            self._waiting.pop(request, None)
        self._forget_read()

    def add(
        self,
        view: BatchView,
        requests: Sequence[int],
        next_tokens: torch.Tensor,  # [B] int64
        taps: torch.Tensor,  # [N, taps * H_t]
        group: int,
    ) -> None:
        """Put off the only row of each of `requests`."""
        ids = [view.requests[place].id for place in requests]
        run = self._open
        if run is None or run.until != self._step or len(run.steps) == RUN or run.ids != ids:
            run = self._begin_run([view.requests[place] for place in requests])
        rows: _Rows = (next_tokens, view.positions, view.slots[group], taps)
        if len(requests) < view.rows:
            there = upload(view.device, requests=requests, rows=view.host_query_start[[*requests]])
            row = there["rows"]
            rows = (next_tokens[there["requests"]], rows[1][row], rows[2][row], taps[row])
        run.steps.append(rows)

    def _begin_run(self, requests: Sequence[RequestView]) -> _Run:
        self._end_run()
        # Who is in the batch is read within so many steps: the others were preempted.
        most = KEPT + len(self._waiting)
        late = [name for name, each in self._waiting.items() if self._step - each.since > most]
        self.forget(late)
        for request in requests:
            waiting = self._waiting.get(request.id)
            if waiting is None or waiting.until != request.committed:
                # A preempted request starts anew; it was in a step that read its tokens since.
                self._waiting[request.id] = _Waiting(self._step, request.committed)
        self._open = _Run([request.id for request in requests], self._step)
        self._runs.append(self._open)
        return self._open

    def _end_run(self) -> None:
        if self._open is not None:
            for request in self._waiting.keys() & self._open.ids:
                self._waiting[request].until += len(self._open.steps)
        self._open = None

    def oldest(self, view: BatchView, requests: Sequence[int]) -> list[int]:
        """The one of `requests` that has put off the most, if that is enough; else none."""
        if not self._runs or self._step - self._runs[0].since < KEPT:
            return []
        unread = {place: self._unread(view.requests[place].id) for place in requests}
        place = max(unread, key=unread.__getitem__, default=0)
        return [place] if unread.get(place, 0) >= KEPT else []

    def take(
        self, view: BatchView, requests: Sequence[int], group: int
    ) -> list[tuple[Extension, torch.Tensor]]:
        """What `requests`, ascending, have to read, with its taps, in passes; they wait no more."""
        places = [place for place in requests if view.requests[place].id in self._waiting]
        if not places:
            return []
        self._end_run()
        passes, together, size = [], list[int](), 0
        for place in places:
            request = view.requests[place]
            if self._waiting[request.id].until != request.committed:
                # A preempted request has read everything anew.
                del self._waiting[request.id]
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
        return 0 if waiting is None else self._step - waiting.since

    def _pass(
        self, view: BatchView, requests: Sequence[int], group: int
    ) -> tuple[Extension, torch.Tensor]:
        row_of = {view.requests[place].id: row for row, place in enumerate(requests)}
        waiting = [self._waiting.pop(name) for name in row_of]
        # By run: whose rows, and the rows.
        owners, parts = [], list[_Rows]()
        for run in self._runs:
            wanted = [
                (place, row_of[name])
                for place, name in enumerate(run.ids)
                if name in row_of and waiting[row_of[name]].since <= run.since
            ]
            if wanted:
                places, owner = zip(*wanted, strict=True)
                owners.append(np.tile(owner, len(run.steps)))
                parts.append(_rows_of(run, upload(view.device, places=places)["places"]))
        owner = np.concatenate(owners)
        query_start = np.concatenate(([0], np.bincount(owner).cumsum()))
        there = upload(
            view.device,
            order=owner.argsort(kind="stable"),
            requests=requests,
            starts=query_start,
        )
        order, starts = there["order"], there["starts"]
        tokens, positions, slots, taps = (
            torch.cat(each)[order] for each in zip(*parts, strict=True)
        )
        extension = Extension(
            rows=DraftRows(
                tokens=tokens,
                positions=positions,
                hidden_rows=torch.arange(len(owner), device=view.device),
                slots=slots,
                query_start=starts,
                sample_rows=starts[1:] - 1,
            ),
            requests=requests,
            query_start=query_start,
            seq_lens=np.array([each.until for each in waiting]),
            block_table=view.block_tables[group].index_select(0, there["requests"]),
            trees=None,
        )
        return extension, taps

    def _forget_read(self) -> None:
        """Runs before any that is waited for."""
        least = min((each.since for each in self._waiting.values()), default=self._step + 1)
        while self._runs and self._runs[0].until <= least:
            self._runs.popleft()


def _rows_of(run: _Run, places: torch.Tensor) -> _Rows:
    """The rows at `places` of each of its steps, one step behind the other."""
    tokens, positions, slots, taps = (
        torch.stack(each)[:, places].flatten(0, 1) for each in zip(*run.steps, strict=True)
    )
    return tokens, positions, slots, taps
