# SPDX-License-Identifier: Apache-2.0
"""Extend: the head's K/V by the tokens that the step committed, and the roots of the next trees."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import torch

from vllm_eagle_pangu.core.ops import Ops
from vllm_eagle_pangu.core.uploads import upload
from vllm_eagle_pangu.kernels.draft_batch import DraftRows
from vllm_eagle_pangu.kernels.indices import causal
from vllm_eagle_pangu.step.accept import Accepted
from vllm_eagle_pangu.step.head import Head, Limits, TargetStates
from vllm_eagle_pangu.step.rows import ChainRows

if TYPE_CHECKING:
    from vllm_eagle_pangu.step.postponed import Postponed


@dataclass(frozen=True)
class Extension:
    """The head's rows of K requests of the batch; tree requests have D+1 each, padded.

    On the host: `requests: [K]`, ascending; `query_start: [K+1]`, first row of each; `seq_lens:
    [K]`, the position behind its last row.

    `block_table: [K, P] int32`. `trees`: the rows of tree requests, as a chain behind their
    prefixes; None where there are none.
    """

    rows: DraftRows
    requests: Sequence[int]
    query_start: np.ndarray
    seq_lens: np.ndarray
    block_table: torch.Tensor
    trees: ChainRows | None


@dataclass(frozen=True)
class Extended:
    """K requests whose next trees can be grown, and what they are grown from.

    `requests: [K]` on the host, ascending. On the device: `root_tokens`, `prefix_len` (rows of the
    head's committed K/V): `[K] int64`; `last`, `state: [K, H]`, see `head.States`; `block_table:
    [K, P] int32`.
    """

    requests: Sequence[int]
    root_tokens: torch.Tensor
    prefix_len: torch.Tensor
    last: torch.Tensor
    state: torch.Tensor
    block_table: torch.Tensor

    def of(self, places: Sequence[int]) -> "Extended":
        """Those at `places` among the K, in that order."""
        if list(places) == list(range(len(self.requests))):
            return self
        there = upload(self.last.device, places=places)["places"]
        return Extended(
            [self.requests[place] for place in places],
            self.root_tokens[there],
            self.prefix_len[there],
            self.last[there],
            self.state[there],
            self.block_table[there],
        )


def extend(
    accepted: Accepted,
    target: TargetStates,
    requests: Sequence[int],
    others: Sequence[int],
    postponed: "Postponed",
    head: Head,
    limits: Limits,
    ops: Ops,
) -> Extended | None:
    """Run the head over the committed tokens, so that trees for `requests` can be grown.

    Of `others`, which could have trees and are to have none, a single token is put off until they
    are to have one. None without `requests`.
    """
    view, group = accepted.placed.view, head.group
    later = _single_tokens(accepted, others)
    due = sorted([*requests, *postponed.oldest(view, later)])
    for unread, taps in postponed.take(view, due, group):
        head.extend(unread, taps, target.attention)
    # Requests whose new rows may be attended by a draft, their own or one with their prefix.
    # Whoever is too long for a tree stays so, and nobody's tree reads what is written behind.
    put_off = set(later)
    now = [
        place
        for place, request in enumerate(view.requests)
        if place not in put_off and limits.reaches(request.committed)
    ]
    if not now and not later:
        return None
    postponed.forget([view.requests[place].id for place in now])
    taps = torch.cat(tuple(target.taps), dim=-1)
    if later:
        postponed.add(view, later, accepted.paths.output[:, 0], taps, group)
    if not now:
        return None
    extension = extension_of(accepted, now, group, limits, ops)
    last, state = head.extend(extension, taps[extension.rows.hidden_rows], target.attention)
    if not requests:
        return None
    places = np.searchsorted(now, requests)
    there = upload(view.device, requests=requests, places=places)
    sample = extension.rows.sample_rows[there["places"]]
    return Extended(
        requests=requests,
        root_tokens=extension.rows.tokens[sample],
        prefix_len=extension.rows.positions[sample] + 1,
        last=last[sample],
        state=state[sample],
        block_table=view.block_tables[group].index_select(0, there["requests"]),
    )


def _single_tokens(accepted: Accepted, requests: Sequence[int]) -> Sequence[int]:
    """Those of `requests` that went on by one token."""
    view = accepted.placed.view
    if view.rows == view.batch_size:
        return requests
    rows = np.diff(view.host_query_start).tolist()
    return [place for place in requests if rows[place] == 1]


def extension_of(
    accepted: Accepted, requests: Sequence[int], group: int, limits: Limits, ops: Ops
) -> Extension:
    """The head's rows of `requests`, ascending; `group`: the KV cache group of its layers."""
    placed = accepted.placed
    view, path_rows = placed.view, limits.depth + 1
    counts = np.diff(view.host_query_start)
    committed = np.array([request.committed for request in view.requests])
    tree_requests = [] if placed.trees is None else [t.request for t in placed.trees.scheduled]
    counts[tree_requests] = path_rows
    query_start = np.concatenate(([0], counts.cumsum()))
    is_tree = torch.zeros(view.batch_size, dtype=torch.bool, device=view.device)
    if placed.trees is not None:
        is_tree.index_fill_(0, placed.trees.requests, True)
    rows = ops.draft_batch(
        input_ids=view.token_ids,
        positions=view.positions,
        query_start=view.query_start,
        is_tree=is_tree,
        paths=accepted.paths,
        next_tokens=_next_tokens(accepted),
        linear_slots=view.slots[group],
        depth=limits.depth,
        rows=int(query_start[-1]),
    )
    # Rows past the head's last position feed no draft; their rotary position must exist.
    rows.positions.clamp_(max=limits.max_len - 1)
    block_table = view.block_tables[group]
    if len(requests) < view.batch_size:
        rows = _rows_of(rows, query_start, requests)
        counts, committed = counts[requests], committed[requests]
        query_start = np.concatenate(([0], counts.cumsum()))
        block_table = block_table[upload(view.device, requests=requests)["requests"]]
    return Extension(
        rows=rows,
        requests=requests,
        query_start=query_start,
        seq_lens=np.minimum(committed + counts, limits.max_len),
        block_table=block_table,
        trees=_tree_rows(accepted, requests, rows.query_start, group, limits),
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


def _rows_of(rows: DraftRows, query_start: np.ndarray, requests: Sequence[int]) -> DraftRows:
    """Of the rows of a whole batch, `query_start: [B+1]`, those of `requests`."""
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
    return DraftRows(
        tokens=rows.tokens[index],
        positions=rows.positions[index],
        hidden_rows=rows.hidden_rows[index],
        slots=rows.slots[index],
        query_start=there["starts"],
        sample_rows=rows.sample_rows[there["requests"]] - there["dropped"],
    )


def _tree_rows(
    accepted: Accepted,
    requests: Sequence[int],
    query_start: torch.Tensor,  # [K+1]
    group: int,
    limits: Limits,
) -> ChainRows | None:
    """The D+1 rows of each tree request among `requests`: a chain behind its committed prefix."""
    view, trees = accepted.placed.view, accepted.placed.trees
    if trees is None:
        return None
    scheduled = [tree.request for tree in trees.scheduled]
    places, there, prefix_len = trees.requests, trees.requests, trees.prefix_len
    if len(requests) < view.batch_size:
        place_of = {request: place for place, request in enumerate(requests)}
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
    start, path_rows = query_start[places].int(), limits.depth + 1
    count = torch.full_like(start, path_rows)
    return ChainRows(
        block_table=view.block_tables[group].index_select(0, there),
        prefix_len=prefix_len.int(),
        query_start=start,
        query_count=count,
        key_start=start,
        key_count=count,
        visible=causal(path_rows, view.device).expand(len(scheduled), -1, -1),
        covers_batch=len(scheduled) == len(requests),
        prefix_start=limits.prefix_start(prefix_len),
    )


def requests_to_draft(accepted: Accepted, limits: Limits) -> list[int]:
    """Requests with a sampled root, room and use for a tree, and no chain-only feature."""
    requests = zip(accepted.placed.view.requests, _emitted(accepted), strict=True)
    return [
        place
        for place, (request, emitted) in enumerate(requests)
        if not request.is_partial
        and request.may_draft
        and limits.reaches(request.length)
        # The last token comes from the root alone.
        and request.may_emit - emitted > 1
    ]


def _emitted(accepted: Accepted) -> list[int]:
    """Tokens by request; off the host, the one that there is at least."""
    output = accepted.paths.output
    if accepted.trees is None or output.device.type != "cpu":
        return [1] * output.shape[0]
    return (output >= 0).sum(dim=1).tolist()
