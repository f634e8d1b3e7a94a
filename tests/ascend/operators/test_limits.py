# SPDX-License-Identifier: Apache-2.0
"""What an operator's document rules out is refused: name, value, limit, mend."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from vllm_eagle_pangu.kernels.tree_attention import prepare, tree_attention
from vllm_eagle_pangu.kernels.tree_attention.cases import NPU_SHAPE, make_inputs, verify_case
from vllm_eagle_pangu.kernels.tree_attention.npu_limits import AttentionLayer, refuse_beyond_limits

LAYER = AttentionLayer(heads=32, kv_heads=8, head_size=128, block_size=128, dtype=torch.bfloat16)
ALL = ("npu", "npu_torch_tree", "npu_splitfuse", "npu_padded")
PARTS, SPLITFUSE, PADDED = ("npu", "npu_torch_tree"), ("npu_splitfuse",), ("npu_padded",)
# The implementations, one value beyond a limit, and what the message says of it.
BEYOND: list[tuple[tuple[str, ...], dict[str, Any], str]] = [
    (ALL, {"dtype": torch.float32}, "dtype=torch.float32 must be float16 or bfloat16"),
    (ALL, {"heads": 30}, "heads=30 must be a multiple of kv_heads=8"),
    (ALL, {"heads": 264, "kv_heads": 264}, "heads=264 must be at most 256"),
    (ALL, {"heads": 130, "kv_heads": 2}, "heads / kv_heads=65.0 must be at most 64"),
    (PARTS, {"head_size": 96}, "head_size=96 must be 64, 128 or 192"),
    (PARTS, {"head_size": 256}, "head_size=256 must be 64, 128 or 192"),
    (PARTS, {"block_size": 64}, "block_size=64 must be 128, 256, 384 or 512"),
    (PARTS, {"block_size": 640}, "block_size=640 must be"),
    (PARTS, {"requests": 4097}, "requests=4097 must be at most 4096"),
    (SPLITFUSE, {"block_size": 256}, "block_size=256 must be at most 128"),
    (SPLITFUSE, {"head_size": 192}, r"block_size \* head_size=24576 must be at most 16384"),
    (SPLITFUSE, {"heads": 256}, r"heads \* head_size=32768 must be at most 16384"),
    (SPLITFUSE, {"requests": 2001}, "requests=2001 must be at most 2000"),
    (PADDED, {"block_size": 64}, "block_size=64 must be 128, 256, 384 or 512"),
    (PADDED, {"head_size": 72}, "head_size=72 must be a multiple of 16, at most 512"),
    (PADDED, {"head_size": 528}, "head_size=528 must be"),
    (PADDED, {"head_size": 256, "heads": 256}, r"heads \* head_size=65536 must be less than 65535"),
    (PADDED, {"requests": 65537}, "requests=65537 must be at most 65536"),
]


@pytest.mark.parametrize("implementation", ALL)
def test_a_usual_layer_is_within_the_limits(implementation: str) -> None:
    refuse_beyond_limits(implementation, LAYER, 256)


@pytest.mark.parametrize(
    ("implementation", "change", "message"),
    [(name, change, message) for names, change, message in BEYOND for name in names],
)
def test_beyond_a_limit_is_refused_by_name(
    implementation: str, change: dict[str, Any], message: str
) -> None:
    sizes = {name: value for name, value in change.items() if name != "requests"}
    with pytest.raises(ValueError, match=message) as refused:
        refuse_beyond_limits(implementation, replace(LAYER, **sizes), change.get("requests", 1))
    assert "PANGU_FORCE_EAGER_ATTN=1" in str(refused.value)


@pytest.mark.parametrize("implementation", ALL)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": torch.float32}, "dtype=torch.float32"),
        ({"starts": (0,)}, "prefix_start, a window, is not supported"),
        ({"heads_in_slots": False}, "strides=.* must be those of a contiguous tensor"),
    ],
)
def test_a_call_beyond_the_limits_is_refused(
    implementation: str, change: dict[str, Any], message: str
) -> None:
    options = NPU_SHAPE | {"dtype": torch.bfloat16} | change
    with pytest.raises(ValueError, match=message):
        tree_attention(
            **make_inputs(verify_case("beyond", (100,), (3,), **options)),
            implementation=implementation,
        )


@pytest.mark.parametrize("implementation", (*SPLITFUSE, *PADDED))
def test_a_block_table_without_room_for_the_tree_is_refused(implementation: str) -> None:
    inputs = make_inputs(verify_case("full", (120,), (20,), dtype=torch.bfloat16, **NPU_SHAPE))
    table = inputs["rows"].block_table[:, :1].contiguous()
    inputs["rows"] = replace(inputs["rows"], block_table=table)
    with pytest.raises(ValueError, match="140 keys, and a block table of 1 pages holds 128"):
        tree_attention(**inputs, implementation=implementation)


@pytest.mark.parametrize("implementation", ALL)
def test_torch_npu_is_there_or_named(implementation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(implementation, torch.bfloat16)
    monkeypatch.setitem(__import__("sys").modules, "torch_npu", None)
    with pytest.raises(RuntimeError, match="needs torch_npu"):
        prepare(implementation, torch.bfloat16)
