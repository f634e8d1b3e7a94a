# SPDX-License-Identifier: Apache-2.0
"""Extend: the head's K/V by the tokens that the step committed, and the roots of the next trees."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from vllm_eagle_pangu.core.ops import Ops
from vllm_eagle_pangu.core.uploads import upload
from vllm_eagle_pangu.kernels.draft_batch import DraftRows
from vllm_eagle_pangu.kernels.indices import index_range, spans
from vllm_eagle_pangu.step.accept import Accepted
from vllm_eagle_pangu.step.head import Head, Limits, TargetStates
from vllm_eagle_pangu.step.rows import ChainRows
from vllm_eagle_pangu.step.unread import Unread


@dataclass
class Extension:
    """The head's rows of K requests of the batch; tree requests have D+1 each, padded.

    On the host, `[K]`: `requests`, ascending, and `counts`, rows of each. `group`: the KV cache
    group of the head's layers. What only a pass over all of the rows needs is made when it asks.
    """

    accepted: Accepted
    requests: Sequence[int]
    rows: DraftRows
    counts: np.ndarray
    group: int
    limits: Limits

    @cached_property
    def seq_lens(self) -> np.ndarray:
        """`[K]` on the host: the position behind each request's last row."""
        views = self.accepted.placed.view.requests
        committed = np.array([views[request].committed for request in self.requests])
        return np.minimum(committed + self.counts, self.limits.max_len)

    @cached_property
    def block_table(self) -> torch.Tensor:
        """`[K, P] int32`."""
        view = self.accepted.placed.view
        block_table = view.block_tables[self.group]
        if len(self.requests) == view.batch_size:
            return block_table
        return block_table[upload(view.device, requests=self.requests)["requests"]]

    @cached_property
    def trees(self) -> ChainRows | None:
        """The D+1 rows of each tree request, as a chain behind its committed prefix; None where
        there are none."""
        view, trees = self.accepted.placed.view, self.accepted.placed.trees
        if trees is None:
            return None
        scheduled = [tree.request for tree in trees.scheduled]
        places, there, prefix_len = trees.requests, trees.requests, trees.prefix_len
        if len(self.requests) < view.batch_size:
            place_of = {request: place for place, request in enumerate(self.requests)}
            scheduled = [request for request in scheduled if request in place_of]
            if not scheduled:
                return None
            sent = upload(
                view.device,
                places=[place_of[request] for request in scheduled],
                requests=scheduled,
                prefix_len=[view.requests[request].committed for request in scheduled],
            )
            places, there, prefix_len = sent["places"], sent["requests"], sent["prefix_len"]
        return ChainRows.of(
            view.block_tables[self.group].index_select(0, there),
            prefix_len,
            self.rows.query_start[places].int(),
            self.limits.depth + 1,
            self.limits.prefix_start(prefix_len),
            covers_batch=len(scheduled) == len(self.requests),
        )


@dataclass(frozen=True)
class Extended:
    """K requests whose next trees can be grown, and what they are grown from.

    `requests: [K]` on the host, ascending. On the device: `root_tokens`, `prefix_len` (rows of the
    head's committed K/V): `[K] int64`; `last`, `state: [K, H]`, see `head.States`; `block_table:
    [K, P] int32`; `read_from: [K] int32`, the first of those rows that may be attended, None for
    all of them.
    """

    requests: Sequence[int]
    root_tokens: torch.Tensor
    prefix_len: torch.Tensor
    last: torch.Tensor
    state: torch.Tensor
    block_table: torch.Tensor
    read_from: torch.Tensor | None = None

    def of(self, places: Sequence[int]) -> "Extended":
        """Those at `places` among the K, in that order."""
        if list(places) == list(range(len(self.requests))):
            return self
        there = upload(self.last.device, places=places)["places"]
        tensors = {name: x[there] for name, x in vars(self).items() if isinstance(x, torch.Tensor)}
        return Extended([self.requests[place] for place in places], **tensors)


def extend(
    accepted: Accepted,
    target: TargetStates,
    requests: Sequence[int],
    unread: Unread,
    enough: int,
    head: Head,
    limits: Limits,
    ops: Ops,
) -> Extended | None:
    """Have the head read the committed tokens, and say from what to grow trees for `requests`.

    These are ascending; None without any, and a head that can read later then may, till `enough`
    rows wait.
    """
    view, group = accepted.placed.view, head.group
    # Requests whose new rows may be attended by a draft, their own or one with their prefix.
    # Whoever is too long for a tree stays so, and nobody's tree reads what is written behind.
    reading = [
        place for place, request in enumerate(view.requests) if limits.reaches(request.committed)
    ]
    if not reading:
        return None
    extension = extension_of(accepted, reading, group, limits, ops)
    rows = extension.rows
    if head.rowwise:
        # Prompts of requests that come together wait for a step: a rest may come first.
        is_enough = unread.count >= enough
        first = unread.add(rows, target.taps)
        if not requests and not is_enough:
            return None
        hidden = unread.read(head)[first:]
    else:
        taps = torch.cat(tuple(target.taps), dim=-1)[rows.hidden_rows]
        last, state = head.extend(extension, taps, target.attention)
    if not requests:
        return None
    sample, block_table = rows.sample_rows, view.block_tables[group]
    if len(requests) < view.batch_size:
        there = upload(view.device, requests=requests, places=np.searchsorted(reading, requests))
        sample, block_table = sample[there["places"]], block_table[there["requests"]]
    tokens, positions = rows.tokens[sample], rows.positions[sample]
    read_from = None
    if head.rowwise:
        if unread.missed.any:
            read_from = unread.missed.starts(block_table, positions)
        start, _ = spans(len(requests), 1, 1, view.device)
        prefix_start = limits.prefix_start(positions, read_from)
        alone = ChainRows.of(block_table, positions, start, 1, prefix_start)
        last, state = head.level(tokens, positions, hidden[sample], alone)
    else:
        last, state = last[sample], state[sample]
    return Extended(
        requests=requests,
        root_tokens=tokens,
        prefix_len=positions + 1,
        last=last,
        state=state,
        block_table=block_table,
        read_from=read_from,
    )


def extension_of(
    accepted: Accepted, requests: Sequence[int], group: int, limits: Limits, ops: Ops
) -> Extension:
    """The rows of `requests`, ascending, for a head in KV cache group `group`."""
    view, trees = accepted.placed.view, accepted.placed.trees
    counts = np.diff(view.host_query_start)
    if trees is None:
        rows = _rows_without_trees(accepted, group)
    else:
        counts[[tree.request for tree in trees.scheduled]] = limits.depth + 1
        is_tree = torch.zeros(view.batch_size, dtype=torch.bool, device=view.device)
        rows = ops.draft_batch(
            input_ids=view.token_ids,
            positions=view.positions,
            query_start=view.query_start,
            is_tree=is_tree.index_fill_(0, trees.requests, True),
            paths=accepted.paths,
            next_tokens=_next_tokens(accepted),
            linear_slots=view.slots[group],
            depth=limits.depth,
            rows=int(counts.sum()),
        )
    if len(requests) < view.batch_size:
        rows, counts = _of_requests(rows, counts, requests), counts[requests]
    # Rows past the head's last position feed no draft; their rotary position must exist.
    rows.positions = rows.positions.clamp(max=limits.max_len - 1)
    return Extension(accepted, requests, rows, counts, group, limits)


def _rows_without_trees(accepted: Accepted, group: int) -> DraftRows:
    """`draft_batch` where the head reads the batch's own rows, with the token behind each."""
    view, tokens = accepted.placed.view, _next_tokens(accepted)
    ends = view.query_start[1:].long() - 1
    if view.rows > view.batch_size:
        tokens = view.token_ids.roll(-1).long().index_copy_(0, ends, tokens)
    return DraftRows(
        tokens=tokens,
        positions=view.positions,
        hidden_rows=index_range(view.rows, view.device),
        slots=view.slots[group],
        query_start=view.query_start.long(),
        sample_rows=ends,
    )


def _next_tokens(accepted: Accepted) -> torch.Tensor:
    """`[B] int64`: the token behind each plain request's rows, drawn or the prompt's next."""
    view, drawn = accepted.placed.view, accepted.paths.output[:, 0]
    partial = [i for i, request in enumerate(view.requests) if request.is_partial]
    if not partial:
        return drawn
    behind = [
        view.requests[i].committed + view.host_query_start[i + 1] - view.host_query_start[i]
        for i in partial
    ]
    known = upload(view.device, requests=partial, tokens=view.tokens[partial, behind])
    return drawn.index_copy(0, known["requests"], known["tokens"])


def _of_requests(rows: DraftRows, counts: np.ndarray, requests: Sequence[int]) -> DraftRows:
    """Of the rows of a whole batch, `counts: [B]` each, those of `requests`."""
    owner = np.repeat(np.arange(len(counts)), counts)
    starts = np.concatenate(([0], counts[requests].cumsum()))
    there = upload(
        rows.tokens.device,
        index=np.flatnonzero(np.isin(owner, requests)),
        requests=requests,
        starts=starts,
        dropped=np.searchsorted(owner, requests) - starts[:-1],
    )
    index = there["index"]
    return DraftRows(
        tokens=rows.tokens[index],
        positions=rows.positions[index],
        hidden_rows=rows.hidden_rows[index],
        slots=rows.slots[index],
        query_start=there["starts"],
        sample_rows=rows.sample_rows[there["requests"]] - there["dropped"],
    )


def requests_to_draft(accepted: Accepted, limits: Limits) -> list[int]:
    """Requests with a sampled root, room and use for a tree, and no chain-only feature."""
    requests, length = accepted.placed.view.requests, accepted.paths.length
    # Off the host, the least that there is.
    nodes = length.tolist() if length.device.type == "cpu" else [0] * len(requests)
    return [
        place
        for place, (request, accepted_nodes) in enumerate(zip(requests, nodes, strict=True))
        if not request.is_partial
        and request.may_draft
        and limits.reaches(request.length)
        # Beside the nodes' tokens a step emits one more, and the last comes from the root alone.
        and request.may_emit - accepted_nodes > 2
    ]
