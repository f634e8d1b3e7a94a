# SPDX-License-Identifier: Apache-2.0
"""Whether a dump's greedy draws are the target's: context correctness, by the oracle's forward."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from vllm_eagle_pangu.tracing.dumped import DumpedRequest, Finding

INVARIANT = "context: a greedy draw is what the target says after the row's path"
# Engines decode in bfloat16, the oracle in float32: draws this near the best are ties.
NEAR_TIE = 0.5


def check_target_draws(requests: Sequence[DumpedRequest], target: Path) -> Iterator[Finding]:
    """Check the draws along every greedy request's path against the model in folder `target`.

    Needs transformers; raises ValueError or OSError for a folder that the oracle cannot read.
    """
    from vllm_eagle_pangu.reference.cache import CommittedCache
    from vllm_eagle_pangu.reference.target import ReferenceTarget

    model = ReferenceTarget(target)
    for request in requests:
        if not checkable(request):
            continue
        tokens, rows = _path_tokens(request)
        positions = torch.arange(len(tokens))[None]
        cache = CommittedCache().branch(1)
        logits, _ = model.forward(torch.tensor([tokens]), positions, cache)
        yield from _compare(request, rows, logits[0, -len(rows) :])


def checkable(request: DumpedRequest) -> bool:
    """Whether the dump knows enough of a request, and its draws have but one right answer."""
    known = (request.token_ids, request.prefix_len, request.tree, request.draws, request.path)
    return bool(request.greedy) and all(part is not None for part in known)


def _path_tokens(request: DumpedRequest) -> tuple[list[int], list[int]]:
    """The prefix and the tokens along the path, as far as it is one; and the path's rows."""
    tree, path = request.tree, request.path
    assert tree is not None and path is not None and request.token_ids is not None
    rows = [0]
    for row in path.accepted[1:]:
        if row not in tree.nodes or tree.parent[row] != rows[-1]:
            break
        rows.append(row)
    prefix = request.token_ids[: request.prefix_len]
    return [*prefix, *(tree.tokens[row] for row in rows)], rows


def _compare(request: DumpedRequest, rows: list[int], logits: torch.Tensor) -> Iterator[Finding]:
    assert request.draws is not None
    for row, row_logits in zip(rows, logits, strict=True):
        drawn, best = request.draws[row], int(row_logits.argmax())
        # -1: nothing was drawn there, which the path's own invariants report.
        if drawn in (best, -1):
            continue
        behind = float(row_logits[best] - row_logits[drawn])
        if behind > NEAR_TIE:
            detail = f"{drawn} was drawn, {behind:.2f} behind the target's best token {best}"
            yield request.finding(INVARIANT, [row], detail)
            return
