# SPDX-License-Identifier: Apache-2.0
"""How exact an implementation of tree_attention has to be: measured against float64, and torch."""

from collections.abc import Callable
from typing import Any

import torch

from vllm_eagle_pangu.kernels.tree_attention.call import AttentionCall
from vllm_eagle_pangu.kernels.tree_attention.reference import tree_attention


def attend(inputs: dict[str, Any], dtype: torch.dtype) -> torch.Tensor:
    """The definition, computed in `dtype` by plain torch.

    `inputs` as of `cases.make_inputs`; rows of no request keep the values of `output`.
    """
    output = inputs["output"].to(dtype, copy=True)
    tree_attention(AttentionCall(**inputs | {"output": output}), dtype)
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
