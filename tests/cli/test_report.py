# SPDX-License-Identifier: Apache-2.0
"""The demo's figures: rates, acceptance lengths, verdicts and tables."""

from vllm_eagle_pangu import ties
from vllm_eagle_pangu.demo import report
from vllm_eagle_pangu.demo.client import Completion, Record
from vllm_eagle_pangu.measure.files import aligned


def completion(seconds: float, tokens: int = 10) -> Completion:
    return Completion([1], list(range(tokens)), seconds)


def test_rate_takes_the_median_run_of_each_prompt():
    slow_once = [completion(1.0), completion(1.0), completion(9.0)]
    record = Record("plain", {0: slow_once, 1: [completion(3.0)]})

    assert record.tokens_per_second() == 20 / 4.0


def test_tau_counts_the_bonus_token_and_is_absent_without_speculation():
    assert Record("tree", drafts=100, accepted=250).tau() == 3.5
    assert Record("plain").tau() is None


def test_table_aligns_the_first_column_left_and_the_others_right():
    text = aligned(["method", "x"], [["tree", "1.5"], ["a chain", "12"]])

    assert text.splitlines() == [
        "method     x",
        "-------  ---",
        "tree     1.5",
        "a chain   12",
    ]


def test_comparison_counts_identical_tied_and_wrong_outputs():
    runs = {index: [completion(1.0)] for index in range(4)}
    records = {"plain": Record("plain", runs), "tree": Record("tree", runs, 10, 30)}
    rounding = ties.rounding([({7: 12.0, 8: 9.0}, {7: 12.125, 8: 9.0})])
    tied = ties.judge([1, 7], [1, 8], [{1: 9.0}, {7: 12.0, 8: 11.75}], rounding.bound)
    wrong = ties.judge([1, 7], [1, 8], [{1: 9.0}, {7: 12.0, 8: 9.0}], rounding.bound)

    differing = {"plain": {}, "tree": {0: tied, 2: wrong}}
    text = report.comparison(records, rounding, differing, True)

    row = next(line for line in text.splitlines() if line.startswith("tree "))
    assert row.split(maxsplit=4) == ["tree", "10.0", "1.00", "4.00", row.split(maxsplit=4)[4]]
    assert row.endswith("2 of 4, 1 part at a near-tie, 1 WRONG")
    assert "move by 0.0625 on average, 0.1250 at p99, 0.1250 at most" in text
    assert "tree, prompt 0: parts at token 1 (7 or 8)" in text and "0.2500: near-tie" in text
    assert "token 1 lies 3.0000 behind: WRONG" in text
