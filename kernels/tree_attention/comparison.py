# SPDX-License-Identifier: Apache-2.0
"""How exact an implementation of tree_attention has to be: measured against float64, and torch."""

from collections.abc import Callable
from typing import Any

import torch


def attend(inputs: dict[str, Any], dtype: torch.dtype) -> torch.Tensor:
    """The definition, computed in `dtype` by plain torch.

    `inputs` as of `cases.make_inputs`; rows of no request keep the values of `output`.
    """
    x = {name: inputs[name].to(dtype) for name in ("query", "key", "value")}
    output = inputs["output"].to(dtype)
    pages, rows = inputs["pages"], inputs["rows"]
    paged = pages.read(slice(None))
    block_size, group = pages.shape[2], output.shape[1] // pages.shape[1]
    for t in range(len(rows.prefix_len)):
        prefix, q0, queries, k0, keys = (
            int(getattr(rows, name)[t])
            for name in ("prefix_len", "query_start", "query_count", "key_start", "key_count")
        )
        start = 0 if rows.prefix_start is None else int(rows.prefix_start[t])
        sees = rows.visible[t, :queries, :keys]
        unseen = ~sees.any(dim=0)[:, None, None]
        slots = torch.arange(start, prefix, device=output.device)
        blocks = rows.block_table[t][slots // block_size].long()
        past_key, past_value = (past[blocks, :, slots % block_size].to(dtype) for past in paged)
        k = torch.cat([past_key, x["key"][k0 : k0 + keys].masked_fill(unseen, 0)])
        v = torch.cat([past_value, x["value"][k0 : k0 + keys].masked_fill(unseen, 0)])
        k, v = (y.repeat_interleave(group, dim=1).transpose(0, 1) for y in (k, v))
        mask = torch.cat([sees.new_ones(queries, prefix - start), sees], dim=1)
        scores = x["query"][q0 : q0 + queries].transpose(0, 1) @ k.mT * inputs["scale"]
        weights = scores.masked_fill(~mask, -torch.inf).softmax(-1).nan_to_num(0.0)
        output[q0 : q0 + queries] = (weights @ v).transpose(0, 1)
    return output


def rows_of_requests(inputs: dict[str, Any]) -> torch.Tensor:
    """`[N] bool`: the rows that an output is due for."""
    due = torch.zeros(inputs["output"].shape[0], dtype=torch.bool)
    rows = inputs["rows"]
    for start, count in zip(rows.query_start.tolist(), rows.query_count.tolist(), strict=True):
        due[start : start + count] = True
    return due


def assert_as_exact_as_torch(
    run: Callable[..., None], inputs: dict[str, Any], roundings: int = 0
) -> None:
    """`run(**inputs)`: at most twice the error of plain torch in the inputs' dtype.

    `roundings`: how often more than once a result is rounded to that dtype. Rows of no request must
    stay as they were: NaN.
    """
    exact = attend(inputs, torch.float64)
    plain = attend(inputs, inputs["query"].dtype).double()
    run(**inputs)
    due = rows_of_requests(inputs).to(exact.device)
    assert inputs["output"][~due].isnan().all()
    rounding = torch.finfo(inputs["query"].dtype).eps / 2 * _largest(exact[due])
    allowed = 2 * _largest(plain[due] - exact[due]) + 1e-6 + roundings * rounding
    error = _largest(inputs["output"].double()[due] - exact[due])
    assert error <= allowed, (error, allowed)


def _largest(errors: torch.Tensor) -> float:
    return errors.abs().max().item() if errors.numel() else 0.0
