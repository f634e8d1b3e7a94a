# SPDX-License-Identifier: Apache-2.0
"""Target draws at tree rows with vLLM's own sampler, under each request's own parameters."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch.nn.functional import pad
from vllm.v1.outputs import LogprobsTensors
from vllm.v1.sample.sampler import Sampler

from vllm_eagle_pangu.core.uploads import upload
from vllm_eagle_pangu.engine.request_sampling import RequestSampling
from vllm_eagle_pangu.kernels.indices import index_range
from vllm_eagle_pangu.step.place import PlacedTrees

# Rows x vocabulary from which on greedy draws on CPU follow the walk: a level costs about 0.2 ms
# of calls, a million logits about 1 ms, and the walk reads one row of a tree per level.
WALK_FROM = 2**21


@dataclass(frozen=True)
class Draws:
    """Target draws at the rows of logits, R of them.

    `tokens: [R] int64`: -1 at rows where none was made: no walk comes there.
    `logprobs`: one row per draw of a call in which somebody asked for them, in the order of the
    draws; None where nobody did.
    `order: [R] int64`: the row of `logprobs` that belongs to a row of logits; 0 where none does.
    """

    tokens: torch.Tensor
    logprobs: LogprobsTensors | None
    order: torch.Tensor

    def logprobs_of(self, rows: torch.Tensor) -> LogprobsTensors | None:
        """The logprobs of emitted tokens; `rows: [B, n] int64`, anything where none was emitted.

        Returns `B * n` rows, as `RejectionSampler.parse_output` filters them.
        """
        if self.logprobs is None:
            return None
        drawn = self.order[rows.flatten()]
        return LogprobsTensors(
            *(None if field is None else field[drawn] for field in self.logprobs)
        )


@dataclass(frozen=True)
class _Call:
    """What one call of the sampler gave for these rows of logits; `tokens: [rows] int64`."""

    rows: Sequence[int]
    tokens: torch.Tensor
    logprobs: LogprobsTensors | None


@dataclass(frozen=True)
class _Rows:
    """The rows of logits, to be drawn from in calls of vLLM's sampler."""

    sampler: Sampler
    logits: torch.Tensor  # [R, V], the rows of a request together: root, then its nodes
    params: RequestSampling

    def draw(
        self, rows: Sequence[int], request: list[int], paths: list[list[int]] | None = None
    ) -> _Call:
        device = self.logits.device
        if isinstance(rows, range):
            logits = self.logits[rows.start : rows.stop]
        else:
            logits = self.logits.index_select(0, upload(device, rows=rows)["rows"])
        metadata = self.params.by_row(request, paths, device)
        output = self.sampler(logits=logits, sampling_metadata=metadata)
        return _Call(rows, output.sampled_token_ids[:, 0].long(), output.logprobs_tensors)


def draw(
    sampler: Sampler,
    logits: torch.Tensor,  # [R, V], the rows of a request together: root, then its nodes
    params: RequestSampling,
    counts: Sequence[int],  # rows per request
    trees: PlacedTrees,  # requests without one have one row
    most_rows: int,  # of one call of the sampler; at least one per request
) -> Draws:
    """Draw from the target's distribution at every row that the walk can come to.

    A request is drawn at all its rows where that is cheap, else level by level along its walk: a
    draw costs a sort of the vocabulary under top-p, and the walk needs few of them. Along the walk
    a request's own generator makes one draw per emitted token, as in plain decoding: the same
    seed, the same text.
    """
    first_row = [0, *accumulate(counts)]
    rows = _Rows(sampler, logits, params)
    walking = _walkers(params, counts, logits)
    calls = _draw_everywhere(rows, first_row, set(walking), most_rows)
    if walking:
        calls += _draw_along_walks(rows, first_row, walking, trees)
    return _gathered(calls, logits)


def _walkers(params: RequestSampling, counts: Sequence[int], logits: torch.Tensor) -> list[int]:
    """The requests that are drawn along their walks."""
    requests = range(len(counts))
    following = [request for request in requests if params.follows_path(request)]
    if logits.device.type != "cpu":
        # A level costs a wait for the device there, which is dearer than the rows it saves.
        return following
    greedy = params.metadata.all_greedy and not params.wants_logprobs
    if greedy and not following and logits.numel() < WALK_FROM:
        return []
    return list(requests)


def _draw_everywhere(
    rows: _Rows, first_row: list[int], left_out: set[int], most_rows: int
) -> list[_Call]:
    """All rows of the other requests, `most_rows` at a time."""
    spans = [(r, range(*ends)) for r, ends in enumerate(pairwise(first_row)) if r not in left_out]
    request = [request for request, span in spans for _ in span]
    # A slice of all rows is no copy.
    chosen = [row for _, span in spans for row in span] if left_out else range(first_row[-1])
    return [
        rows.draw(chosen[start : start + most_rows], request[start : start + most_rows])
        for start in range(0, len(request), most_rows)
    ]


def _draw_along_walks(
    rows: _Rows, first_row: list[int], requests: list[int], trees: PlacedTrees
) -> list[_Call]:
    calls: list[_Call] = []
    paths: dict[int, list[int]] = {request: [] for request in requests}
    # Tree row where each walk stands; requests whose walk has ended leave.
    standing = dict.fromkeys(requests, 0)
    with_tree = [r for r in requests if first_row[r + 1] - first_row[r] > 1]
    links = links_of(trees) if with_tree else {}
    while standing:
        calls.append(
            rows.draw(
                [first_row[request] + row for request, row in standing.items()],
                list(standing),
                [paths[request] for request in standing],
            )
        )
        following: dict[int, int] = {}
        if not links.keys().isdisjoint(standing):
            for request, token in zip(standing, wait_for(calls[-1].tokens), strict=True):
                child = links.get(request, {}).get((standing[request], token))
                if child is not None:
                    following[request] = child
                    paths[request].append(token)
        standing = following
    return calls


def links_of(trees: PlacedTrees) -> dict[int, dict[tuple[int, int], int]]:
    """By request of the batch, then by a row of its tree and a token, the lowest child of the row
    that carries the token; waits for the device."""
    links = {}
    rows = zip(trees.tree.tokens.tolist(), trees.tree.parent.tolist(), strict=True)
    for tree, nodes, (tokens, parent) in zip(trees.scheduled, trees.nodes, rows, strict=True):
        links[tree.request] = {(parent[n], tokens[n]): n for n in range(nodes, 0, -1)}
    return links


def wait_for(tokens: torch.Tensor) -> list[int]:
    """Drawn tokens on the host. Off the CPU this waits for the target's forward."""
    return tokens.tolist()


def _gathered(calls: list[_Call], logits: torch.Tensor) -> Draws:
    count, device = logits.shape[0], logits.device
    if len(calls) == 1 and calls[0].rows == range(count):
        (call,) = calls
        return Draws(call.tokens, call.logprobs, index_range(count, device))
    drawn = [row for call in calls for row in call.rows]
    asked = [call for call in calls if call.logprobs is not None]
    order = [0] * count
    for position, row in enumerate(row for call in asked for row in call.rows):
        order[row] = position
    sent = upload(device, drawn=drawn, order=order)
    tokens = torch.full((count,), -1, device=device)
    tokens.index_copy_(0, sent["drawn"], torch.cat([call.tokens for call in calls]))
    given = [call.logprobs for call in asked]
    return Draws(tokens, _concatenate(given) if given else None, sent["order"])


def _concatenate(parts: list[LogprobsTensors]) -> LogprobsTensors:
    """Calls differ in width where requests ask for logprobs of their own (`logprob_token_ids`)."""
    width = max(part.logprobs.shape[1] for part in parts)
    wider = [(0, width - part.logprobs.shape[1]) for part in parts]
    pairs = list(zip(parts, wider, strict=True))
    return LogprobsTensors(
        torch.cat([pad(part.logprob_token_ids, more) for part, more in pairs]),
        torch.cat([pad(part.logprobs, more, value=-torch.inf) for part, more in pairs]),
        torch.cat([part.selected_token_ranks for part in parts]),
    )
