# SPDX-License-Identifier: Apache-2.0
"""Every way to attend trees with Ascend's operators equals the definition, on their stand-ins."""

import random
from typing import Any

import pytest
import torch

from vllm_eagle_pangu.kernels.tree_attention import AttentionRows, tree_attention
from vllm_eagle_pangu.kernels.tree_attention.cases import NPU_SHAPE, make_inputs, verify_case
from vllm_eagle_pangu.kernels.tree_attention.comparison import (
    assert_as_exact_as_torch,
    rows_of_requests,
)
from vllm_eagle_pangu.kernels.tree_attention.npu_splitfuse import HIDDEN

from .npu_cases import random_case
from .operator_calls import Calls

IMPLEMENTATIONS = ("npu", "npu_torch_tree", "npu_splitfuse", "npu_padded")


def attended(inputs: dict[str, Any], implementation: str) -> torch.Tensor:
    """The rows that are due; the others must be as they were."""
    inputs = inputs | {"output": inputs["output"].clone()}
    tree_attention(**inputs, implementation=implementation)
    due = rows_of_requests(inputs)
    assert inputs["output"][~due].isnan().all()
    return inputs["output"][due]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.usefixtures("any_dtype")
def test_float32_equals_the_definition_on_random_trees(implementation: str, seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(12):
        inputs = make_inputs(random_case(draw, torch.float32), draw.randint(0, 2**30))
        pages = [x.clone() for x in (inputs["pages"].key, inputs["pages"].value)]
        expected = attended(inputs, "reference")
        torch.testing.assert_close(attended(inputs, implementation), expected)
        for before, after in zip(pages, (inputs["pages"].key, inputs["pages"].value), strict=True):
            torch.testing.assert_close(after, before, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16), ids=str)
def test_error_is_at_most_twice_that_of_torch(
    implementation: str, dtype: torch.dtype, seed: int
) -> None:
    draw = random.Random(seed)
    for _ in range(12):
        inputs = make_inputs(random_case(draw, dtype), draw.randint(0, 2**30))
        # FIA rounds each part before they merge.
        roundings = 1 if implementation in ("npu", "npu_torch_tree") else 0
        assert_as_exact_as_torch(
            lambda **x: tree_attention(**x, implementation=implementation), inputs, roundings
        )


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_nothing_is_called_without_requests(implementation: str) -> None:
    inputs = make_inputs(verify_case("none", (), (), dtype=torch.bfloat16, **NPU_SHAPE))
    tree_attention(**inputs, implementation=implementation)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.usefixtures("any_dtype")
def test_a_row_that_sees_nothing_becomes_0(implementation: str) -> None:
    """Of its tree; the prefix, where there is one, is seen by all."""
    inputs = make_inputs(verify_case("blind", (0, 130), (9, 9), **NPU_SHAPE))
    inputs["rows"].visible[:, 4:] = False
    got = attended(inputs, implementation)
    torch.testing.assert_close(got, attended(inputs, "reference"))
    assert not got[4:9].any() and got[13:].all()


@pytest.mark.parametrize("implementation", ("npu", "npu_torch_tree"))
@pytest.mark.usefixtures("any_dtype")
def test_a_block_table_may_point_nowhere_where_there_is_no_prefix(implementation: str) -> None:
    inputs = make_inputs(verify_case("empty", (0, 130), (9, 9), **NPU_SHAPE | {"room": False}))
    assert inputs["rows"].block_table[0, 0] == -1
    torch.testing.assert_close(attended(inputs, implementation), attended(inputs, "reference"))


def test_an_additive_mask_hides_all_behind_a_requests_keys() -> None:
    inputs = make_inputs(
        verify_case("shorter", (3, 130), (7, 7), dtype=torch.bfloat16, **NPU_SHAPE)
    )
    with Calls() as calls:
        tree_attention(**inputs, implementation="npu_splitfuse")
    assert (calls.made[0].arguments["mask"][:7, 10:] == HIDDEN).all()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_what_waits_for_the_device_is_made_once_per_pass(
    implementation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layers of a pass share their rows."""
    inputs = make_inputs(verify_case("layers", (130,), (20,), dtype=torch.bfloat16, **NPU_SHAPE))
    first = attended(inputs, implementation)
    monkeypatch.setattr(AttentionRows, "once", lambda rows, key, make: rows.derived[key])
    assert torch.equal(attended(inputs, implementation), first)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_causal_mask_in_a_trees_place_is_seen(implementation: str) -> None:
    """The cases above have branches."""
    inputs = make_inputs(verify_case("branches", (130,), (20,), dtype=torch.bfloat16, **NPU_SHAPE))
    expected = attended(inputs, "reference")
    torch.testing.assert_close(attended(inputs, implementation), expected, rtol=0.02, atol=0.02)
    inputs["rows"].visible[:] = torch.ones(20, 20).tril().bool()
    inputs["key"].nan_to_num_(0.0)
    inputs["value"].nan_to_num_(0.0)
    inputs["rows"].derived.clear()
    assert (attended(inputs, implementation) - expected).abs().max() > 0.1


def test_a_tree_mask_in_sparse_mode_3_comes_out_as_a_triangle() -> None:
    """What a ragged call over pages would do with a tree's mask: be silently wrong."""
    inputs = make_inputs(verify_case("branches", (0,), (20,), dtype=torch.bfloat16, **NPU_SHAPE))
    mask = torch.ones(2048, 2048, dtype=torch.bool)
    mask[:20, :20] = ~inputs["rows"].visible[0]
    rows = [inputs[name].nan_to_num(0.0) for name in ("query", "key", "value")]
    got, _ = torch.ops.npu.npu_fused_infer_attention_score(
        *rows,
        atten_mask=mask,
        actual_seq_lengths=[20],
        actual_seq_lengths_kv=[20],
        num_heads=4,
        num_key_value_heads=2,
        scale=inputs["scale"],
        input_layout="TND",
        sparse_mode=3,
    )
    assert (got - attended(inputs, "reference")).abs().max() > 0.1
    inputs["rows"].visible[:] = torch.ones(20, 20).tril().bool()
    inputs |= dict(zip(("query", "key", "value"), rows, strict=True))
    torch.testing.assert_close(got, attended(inputs, "reference"), rtol=0.02, atol=0.02)
