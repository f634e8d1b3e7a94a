# SPDX-License-Identifier: Apache-2.0
"""The demo's figures: near-ties, rates, acceptance lengths and tables."""

import math

import pytest

from vllm_eagle_pangu.demo import report, table, ties
from vllm_eagle_pangu.demo.measure import Completion, Record


@pytest.mark.parametrize(
    ("value", "unit"),
    [(1.0, 2**-7), (9.5, 0.0625), (-15.9, 0.0625), (16.0, 0.125), (0.75, 2**-8), (0.0, 0.0)],
)
def test_unit_in_last_place_is_the_distance_between_bfloat16_neighbours(value: float, unit: float):
    assert ties.unit_in_last_place(value) == unit


def test_unit_in_last_place_agrees_with_torchs_bfloat16():
    import torch

    for value in (0.3, 3.0, 12.0, 100.0):
        low = torch.tensor(value, dtype=torch.bfloat16)
        high = torch.nextafter(low, torch.tensor(math.inf, dtype=torch.bfloat16))
        assert ties.unit_in_last_place(value) == (high - low).item()


@pytest.mark.parametrize(
    ("logits", "near"),
    [
        ({7: 12.0, 8: 12.0}, True),
        ({7: 12.0, 8: 11.875}, True),
        ({7: 12.0, 8: 11.8125}, False),
        # The winner is a third token: both must be close to it.
        ({5: 12.0, 7: 11.9375, 8: 11.9375}, True),
        ({5: 12.0, 7: 11.9375, 8: 10.0}, False),
        ({7: 12.0, 5: 11.0}, False),
    ],
)
def test_only_tokens_within_two_units_of_the_best_logit_are_a_near_tie(logits, near):
    assert ties.classify(3, plain=7, other=8, logits=logits).near_tie is near


@pytest.mark.parametrize(
    ("plain", "other", "position"),
    [
        ([1, 2, 3], [1, 2, 3], None),
        ([1, 2, 3], [1, 9, 3], 1),
        ([1, 2, 3], [1, 2], 2),
        ([], [], None),
    ],
)
def test_first_difference(plain, other, position):
    assert ties.first_difference(plain, other) == position


def completion(seconds: float, tokens: int = 10) -> Completion:
    return Completion("", [1], list(range(tokens)), seconds)


def test_rate_takes_the_median_run_of_each_prompt():
    slow_once = [completion(1.0), completion(1.0), completion(9.0)]
    record = Record("plain", {0: slow_once, 1: [completion(3.0)]})

    assert record.tokens_per_second() == 20 / 4.0


def test_tau_counts_the_bonus_token_and_is_absent_without_speculation():
    assert Record("tree", drafts=100, accepted=250).tau() == 3.5
    assert Record("plain").tau() is None


def test_table_aligns_the_first_column_left_and_the_others_right():
    text = table.render(["method", "x"], [["tree", "1.5"], ["a chain", "12"]])

    assert text.splitlines() == [
        "method     x",
        "-------  ---",
        "tree     1.5",
        "a chain   12",
    ]


def test_comparison_counts_identical_tied_and_wrong_outputs():
    runs = {index: [completion(1.0)] for index in range(4)}
    records = {"plain": Record("plain", runs), "tree": Record("tree", runs, 10, 30)}
    tied = ties.classify(3, 7, 8, {7: 12.0, 8: 12.0})
    wrong = ties.classify(5, 7, 8, {7: 12.0, 8: 9.0})

    text = report.comparison(records, {"plain": {}, "tree": {0: tied, 2: wrong}}, True)

    row = next(line for line in text.splitlines() if line.startswith("tree "))
    assert row.split(maxsplit=4) == ["tree", "10.0", "1.00", "4.00", row.split(maxsplit=4)[4]]
    assert row.endswith("2 of 4, 1 part at a near-tie, 1 WRONG")
    assert "tree, prompt 0: parts at token 3 (7 or 8)" in text
    assert "3.0000 apart" in text


def test_completion_shows_where_the_prompt_ends():
    text = report.completion("x = 1\ndef f(a):", "  # sum\n    return a\n", [3, 1])

    assert text.splitlines() == [
        "  | x = 1",
        "  | def f(a):  # sum",
        "  >     return a",
        "  (4 tokens streamed in 2 chunks)",
    ]
