# SPDX-License-Identifier: Apache-2.0
"""Figures from records, against values worked out by hand."""

import pytest

from vllm_eagle_pangu.bench.groups import Group
from vllm_eagle_pangu.bench.records import Key
from vllm_eagle_pangu.bench.statistics import answers_of, speedups, summary
from vllm_eagle_pangu.measure.method import tree
from vllm_eagle_pangu.measure.statistics import percentile

METHOD = tree((4, 5, 16))
KEY = Key("E1", "g", METHOD.name, 0.0, "a", 0, 0)


def record(prompt, repeat, seconds, tokens=10, drafts=0, accepted=0, output=(1, 2), **key):
    return {
        **KEY._replace(prompt=prompt, repeat=repeat, **key)._asdict(),
        "output_tokens": tokens,
        "seconds": seconds,
        "drafts": drafts,
        "accepted": accepted,
        "output_ids": list(output),
        "ttft_ms": 5.0,
        "tpot_ms": 2.0,
        "steps_ms": [1.0, 3.0],
    }


# Two prompts, two repeats. The machine was half as fast in the second repeat.
PLAIN = [
    *(record("a", 0, 1.0), record("a", 1, 2.0)),
    *(record("b", 0, 2.0, tokens=20), record("b", 1, 4.0, tokens=20)),
]
TREE = [
    *(
        record("a", repeat, seconds, drafts=3, accepted=7)
        for repeat, seconds in ((0, 0.5), (1, 1.0))
    ),
    *(
        record("b", repeat, seconds, tokens=20, drafts=5, accepted=9, output=(1, 3))
        for repeat, seconds in ((0, 0.5), (1, 4.0))
    ),
]


def test_percentiles_are_interpolated():
    assert percentile([4, 1, 3, 2], 50) == 2.5
    assert percentile([1, 2, 3, 4, 5], 90) == pytest.approx(4.6)
    assert percentile([7], 99) == 7
    assert percentile([1, 2], 100) == 2


def test_tau_is_over_all_drafts_and_counts_the_bonus():
    assert summary(TREE, [])["tau"] == 1 + (7 + 7 + 9 + 9) / (3 + 3 + 5 + 5)
    assert summary(PLAIN, [])["tau"] is None


def test_tokens_per_second_take_the_median_repeat_of_each_prompt():
    assert summary(PLAIN, [])["tokens_per_s"] == 30 / (1.5 + 3.0)
    assert summary(TREE, [])["tokens_per_s"] == 30 / (0.75 + 2.25)


def test_speedups_are_paired_within_a_repeat():
    by_repeat, by_prompt = speedups(TREE, PLAIN)
    # Repeat 0: 30/1.0 against 30/3.0; repeat 1: 30/5.0 against 30/6.0.
    assert by_repeat == pytest.approx([3.0, 1.2])
    # a: 2 and 2; b: 4 and 1.
    assert by_prompt == pytest.approx([2.0, 2.5])


def test_the_summary_states_the_spread():
    row = summary(TREE, PLAIN)
    assert (row["speedup_min"], row["speedup_max"]) == pytest.approx((1.2, 3.0))
    assert row["speedup"] == pytest.approx(2.1)
    assert row["prompt_mean"] == pytest.approx(2.25)
    assert row["prompt_p90"] == pytest.approx(2.45)
    assert (row["same_as_plain"], row["prompts"], row["repeats"]) == (1, 2, 2)
    assert row["step_ms"] == 2.0


def test_without_plain_there_is_no_ratio():
    assert "speedup" not in summary(TREE, [])


def test_an_answer_that_plain_lacks_is_not_compared():
    plain = [record("a", 1, 2.0)]
    assert speedups(TREE, plain) == ([2.0], [2.0])
    assert summary(TREE, plain)["same_as_plain"] == 1


def test_answers_are_of_one_group_and_hold_no_errors():
    records = [
        record("a", 0, 1.0),
        {**KEY._replace(prompt="b")._asdict(), "error": "none"},
        record("a", 0, 1.0, group="other"),
        record("a", 0, 1.0, method="other"),
        record("a", 0, 1.0, temperature=1.0),
    ]
    assert answers_of(records, Group("E1", "g", (METHOD,), ()), METHOD) == records[:1]
