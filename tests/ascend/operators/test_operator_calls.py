# SPDX-License-Identifier: Apache-2.0
"""Our calls against the operators' real schemas; and every argument of them counts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map_only

from vllm_eagle_pangu.kernels.kv_commit import commit_pages
from vllm_eagle_pangu.kernels.kv_commit.cases import PagesCase, make_page_inputs
from vllm_eagle_pangu.kernels.tree_attention import tree_attention
from vllm_eagle_pangu.kernels.tree_attention.cases import NPU_SHAPE, make_inputs, verify_case

from .operator_calls import Call, Calls
from .stand_ins import UndocumentedError

CASE = verify_case("ragged", (130, 3), (9, 5), gap=1, dtype=torch.bfloat16, **NPU_SHAPE)
PREFIX, TREE = "npu_fused_infer_attention_score TND", "npu_fused_infer_attention_score BSND"
MERGE, SPLITFUSE = "npu_attention_update", "_npu_paged_attention_splitfuse"
WRITE, SCATTER = "_npu_reshape_and_cache", "npu_scatter_pa_kv_cache"
CALLS = {
    "npu": [PREFIX, TREE, MERGE],
    "npu_torch_tree": [PREFIX, MERGE],
    "npu_splitfuse": [SPLITFUSE],
    "npu_padded": [TREE],
}
WRITES = {"npu": WRITE, "npu_a5": SCATTER}


def attended(implementation: str) -> torch.Tensor:
    inputs = make_inputs(CASE)
    tree_attention(**inputs, implementation=implementation)
    return inputs["output"]


def written(implementation: str) -> torch.Tensor:
    inputs = make_page_inputs(PagesCase("written", layers=2))
    commit_pages(**inputs, implementation=implementation)
    pages = inputs["layers"].pages
    return torch.stack([side for pair in pages for side in (pair.key, pair.value)])


@dataclass(frozen=True)
class Mutation:
    """`argument` of `operator` becomes what `change` makes of it and of the call's arguments."""

    run: Callable[[str], torch.Tensor]
    implementation: str
    operator: str
    argument: str
    change: Callable[[Any, dict[str, Any]], Any]
    what: str

    def __call__(self, call: Call) -> None:
        if call.name == self.operator:
            old = call.arguments.get(self.argument)
            call.arguments[self.argument] = self.change(old, call.arguments)


def shorter(lengths: list[int], _: Any) -> list[int]:
    return [max(1, length - 1) for length in lengths]


def counts(ends: list[int], _: Any) -> list[int]:
    return [b - a for a, b in zip([0, *ends], ends, strict=False)]


def causal(mask: torch.Tensor, _: Any) -> torch.Tensor:
    return torch.ones_like(mask).triu(mask.shape[-1] - mask.shape[-2] + 1)


ATTENTION = {
    PREFIX: {
        "query": [("other rows", lambda x, _: x.flip(0).contiguous())],
        "key": [("the values", lambda _, given: given["value"])],
        "value": [("the keys", lambda _, given: given["key"])],
        "scale": [("a tenth more", lambda x, _: x * 1.1)],
        "sparse_mode": [("3, without a mask", lambda *_: 3)],
        "atten_mask": [("any", lambda *_: torch.ones(2048, 2048).bool())],
        "actual_seq_lengths": [("counts", counts)],
        "actual_seq_lengths_kv": [("one less", shorter)],
        "num_heads": [("one less", lambda x, _: x - 1)],
        "num_key_value_heads": [("as many as heads", lambda _, given: given["num_heads"])],
        "block_table": [("other pages", lambda x, _: x.roll(1, 0))],
        "block_size": [("twice", lambda x, _: 2 * x)],
        "input_layout": [("BSND", lambda *_: "BSND")],
        "softmax_lse_flag": [("False", lambda *_: False)],
    },
    TREE: {
        "query": [("other rows", lambda x, _: x.flip(1).contiguous())],
        "key": [("the values", lambda _, given: given["value"])],
        "value": [("the keys", lambda _, given: given["key"])],
        "scale": [("a tenth more", lambda x, _: x * 1.1)],
        "sparse_mode": [("3", lambda *_: 3)],
        "atten_mask": [
            ("none", lambda *_: None),
            ("inverted", lambda x, _: ~x),
            ("causal", causal),
            ("another request's", lambda x, _: x.flip(0)),
        ],
        "num_heads": [("one less", lambda x, _: x - 1)],
        "num_key_value_heads": [("as many as heads", lambda _, given: given["num_heads"])],
    },
    MERGE: {
        "lse": [("swapped", lambda x, _: x[::-1])],
        "local_out": [("swapped", lambda x, _: x[::-1])],
        "update_type": [("2", lambda *_: 2)],
    },
    SPLITFUSE: {
        "query": [("other rows", lambda x, _: x.flip(0).contiguous())],
        "key_cache": [("the values", lambda _, given: given["value_cache"])],
        "value_cache": [("the keys", lambda _, given: given["key_cache"])],
        "block_table": [("other pages", lambda x, _: x.roll(1, 0))],
        "context_lens": [("prefixes", lambda x, given: x - given["seq_len"])],
        "mask": [
            ("none", lambda x, _: torch.zeros_like(x)),
            ("FIA's", lambda x, _: (x < 0).to(x.dtype)),
            ("shorter", lambda x, _: x[:, :-1].contiguous()),
        ],
        "seq_len": [("reversed", lambda x, _: x.flip(0)), ("int64", lambda x, _: x.long())],
        "num_kv_heads": [("as many as heads", lambda _, given: given["num_heads"])],
        "num_heads": [("one less", lambda x, _: x - 1)],
        "scale_value": [("a tenth more", lambda x, _: x * 1.1)],
        "out": [("elsewhere", lambda x, _: torch.empty_like(x))],
    },
}
PADDED = ATTENTION[TREE] | {
    "actual_seq_lengths": [("one less", shorter)],
    "actual_seq_lengths_kv": [("one less", shorter)],
    "block_table": [("other pages", lambda x, _: x.roll(1, 0))],
    "block_size": [("twice", lambda x, _: 2 * x)],
    "input_layout": [("TND", lambda *_: "TND")],
    "atten_mask": [
        *ATTENTION[TREE]["atten_mask"],
        ("narrower", lambda x, _: x[..., :-1].contiguous()),
    ],
}
ROWS = {
    "key": [("the values", lambda _, given: given["value"])],
    "value": [("the keys", lambda _, given: given["key"])],
    "key_cache": [("the values'", lambda _, given: given["value_cache"])],
    "value_cache": [("the keys'", lambda _, given: given["key_cache"])],
}
COMMIT = {
    WRITE: ROWS
    | {
        "slot_indices": [("one on", lambda x, _: x + (x >= 0)), ("int64", lambda x, _: x.long())],
    },
    SCATTER: ROWS
    | {
        "slot_mapping": [("one on", lambda x, _: x + 1), ("a negative", lambda x, _: x - x[0] - 1)],
        "cache_mode": [("the default", lambda *_: "PA_NZ")],
    },
}
MUTATIONS = [
    *(
        Mutation(attended, implementation, operator, argument, change, what)
        for implementation, operators in CALLS.items()
        for operator in operators
        for argument, changes in (
            PADDED if implementation == "npu_padded" else ATTENTION[operator]
        ).items()
        for what, change in changes
    ),
    *(
        Mutation(written, implementation, operator, argument, change, what)
        for implementation, operator in WRITES.items()
        for argument, changes in COMMIT[operator].items()
        for what, change in changes
    ),
]


@pytest.mark.parametrize(
    "mutation", MUTATIONS, ids=lambda m: f"{m.implementation} {m.operator} {m.argument} {m.what}"
)
def test_a_changed_argument_is_refused_or_gives_another_result(mutation: Mutation) -> None:
    expected = mutation.run("reference")
    torch.testing.assert_close(
        mutation.run(mutation.implementation), expected, rtol=0.02, atol=0.02, equal_nan=True
    )
    with Calls(mutation) as calls:
        try:
            got = mutation.run(mutation.implementation)
        except UndocumentedError:
            return
    assert mutation.operator in {call.name for call in calls.made}
    assert not torch.allclose(got, expected, rtol=0.02, atol=0.02, equal_nan=True)


@pytest.mark.parametrize("implementation", CALLS)
def test_the_calls_of_an_implementation(implementation: str) -> None:
    with Calls() as calls:
        attended(implementation)
    assert [call.name for call in calls.made] == CALLS[implementation]
    check_shapes(calls.made)


@pytest.mark.parametrize("implementation", WRITES)
def test_a_commit_calls_once_per_layer(implementation: str) -> None:
    with Calls() as calls:
        written(implementation)
    assert [call.name for call in calls.made] == [WRITES[implementation]] * 2
    check_shapes(calls.made)


def check_shapes(calls: list[Call]) -> None:
    """What torch_npu's own Meta kernels, of those that have one, say of the results."""
    for call in calls:
        if not torch._C._dispatch_has_kernel_for_dispatch_key(call.operator.name(), "Meta"):
            assert call.operator.name().startswith("atb::")
            continue
        arguments = tree_map_only(torch.Tensor, lambda x: x.to("meta"), call.arguments)
        expected = call.operator(**arguments)
        for mine, theirs in zip(call.results, expected or [], strict=True):
            # A result that was not asked for has a size that documents and Meta kernels differ on.
            if mine.numel() > 1:
                assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype), call.name
