# SPDX-License-Identifier: Apache-2.0
"""Whether a dump's greedy draws are the target's: context correctness, by transformers."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from vllm_eagle_pangu import ties
from vllm_eagle_pangu.models.pangu_as_llama import text_logits
from vllm_eagle_pangu.tracing.dumped import DumpedRequest, Finding

INVARIANT = "context: a greedy draw is what the target says after the row's path"


def check_target_draws(requests: Sequence[DumpedRequest], target: Path) -> Iterator[Finding]:
    """Check the draws along each path against the model in folder `target`; all are `checkable`.

    Engines decode in bfloat16, the check in float32: how far bfloat16 moves the target's logits
    here, over all tokens of these requests, says how far behind the best a draw may lie.

    Needs transformers; raises ValueError or OSError for a folder that `text_logits` cannot read.
    """
    known = [(request, *_path_tokens(request)) for request in requests]
    texts = [tokens for _, tokens, _ in known]
    exact, low = (
        [*map(text_logits(target, dtype), texts)] for dtype in (torch.float32, torch.bfloat16)
    )
    bound = ties.rounding(zip(_highest(exact), _highest(low), strict=True)).bound
    for (request, _, rows), logits in zip(known, exact, strict=True):
        assert request.draws is not None
        for row, row_logits in zip(rows, logits[-len(rows) :], strict=True):
            drawn, best = int(request.draws[0, row]), int(row_logits.argmax())
            behind = float(row_logits[best] - row_logits[drawn])
            # -1: nothing was drawn there, which the path's own invariants report.
            if drawn != -1 and behind > bound:
                detail = (
                    f"{drawn} was drawn, {behind:.2f} behind the target's best token {best}; "
                    f"bfloat16 explains {bound:.2f}"
                )
                yield request.finding(INVARIANT, [row], detail)
                break


def checkable(request: DumpedRequest) -> bool:
    """Whether the dump knows enough of a request, and its draws have but one right answer."""
    needed = ("token_ids", "prefix_len", "tree", "draws", "path")
    return bool(request.greedy) and all(map(request.knows, needed))


def _highest(logits: list[torch.Tensor]) -> list[ties.Logits]:
    values, tokens = torch.cat(logits).topk(ties.TOP)
    rows = zip(tokens.tolist(), values.tolist(), strict=True)
    return [dict(zip(*row, strict=True)) for row in rows]


def _path_tokens(request: DumpedRequest) -> tuple[list[int], list[int]]:
    """The prefix and the tokens along the path, as far as it is one; and the path's rows."""
    tree, accepted = request.tree, request.accepted
    assert tree is not None and accepted is not None and request.token_ids is not None
    rows = [0]
    for row in accepted[1:]:
        is_node = 0 < row < tree.rows and tree.valid[0, row]
        if not is_node or tree.parent[0, row] != rows[-1]:
            break
        rows.append(row)
    prefix = request.token_ids[: request.prefix_len]
    return [*prefix, *tree.tokens[0, rows].tolist()], rows
