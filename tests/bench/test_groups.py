# SPDX-License-Identifier: Apache-2.0
"""How methods interleave, and how a group is cut to the engines that fit."""

from collections import Counter

from vllm_eagle_pangu.bench.groups import PROMPTS_PER_BLOCK, Group, rounds
from vllm_eagle_pangu.measure.method import PLAIN, chain, own_chain, tree
from vllm_eagle_pangu.measure.prompts import Prompt

PROMPTS = tuple(Prompt(f"p{i}", ("x",)) for i in range(2 * PROMPTS_PER_BLOCK + 1))
METHODS = (PLAIN, chain(2), tree((4, 5, 16)))


def group(methods=METHODS, prompts=PROMPTS):
    return Group("E1", "g", methods, prompts)


def test_every_method_takes_a_block_before_the_next_block_comes():
    order = list(rounds(group(), repeats=2))
    for start in range(0, len(order), len(METHODS)):
        same = order[start : start + len(METHODS)]
        assert {(repeat, block) for repeat, _, block in same} == {(same[0][0], same[0][2])}
        assert {method for _, method, _ in same} == set(METHODS)
    answered = Counter((r, m, p) for r, m, block in order for p in block)
    assert set(answered.values()) == {1}
    assert len(answered) == 2 * len(METHODS) * len(PROMPTS)


def test_who_begins_changes_from_block_to_block():
    order = list(rounds(group(), repeats=2))
    assert [m for _, m, _ in order[:: len(METHODS)]] == [
        *(METHODS[0], METHODS[1], METHODS[2]),
        *(METHODS[1], METHODS[2], METHODS[0]),
    ]


def test_parts_fit_the_engines_and_each_has_plain():
    methods = (PLAIN, *(tree((4, 5, nodes)) for nodes in (4, 8, 12, 16, 20)))
    parts = group(methods).cut(4)
    assert [part.name for part in parts] == ["g-1", "g-2"]
    assert [len(part.methods) for part in parts] == [4, 3]
    assert all(part.methods[0] == PLAIN for part in parts)
    assert Counter(m for part in parts for m in part.methods[1:]) == Counter(methods[1:])
    assert group(methods).cut(6) == [group(methods)]
    uneven = (*methods, chain(2), chain(4))
    assert [len(part.methods) for part in group(uneven).cut(4)] == [4, 3, 3]


def test_the_speculative_configurations_of_the_methods():
    assert PLAIN.speculative_config("head", "traces") is None
    assert chain(4).speculative_config("head", "traces") == {
        "method": "eagle3",
        "model": "head",
        "num_speculative_tokens": 4,
    }
    assert own_chain(4).speculative_config("head")["tree_policy"] == "chain"
    assert tree((4, 5, 16), window=128).speculative_config("head", "traces") == {
        "method": "eagle_pangu",
        "model": "head",
        "num_speculative_tokens": 16,
        "tree_width": 4,
        "tree_depth": 5,
        "drafter_window": 128,
        "trace_dir": "traces",
    }
