# SPDX-License-Identifier: Apache-2.0
"""Differing outputs are judged by the target's measured rounding, token by token."""

import math

import pytest

from vllm_eagle_pangu import ties


def moved_by(*moves: float) -> ties.Rounding:
    """Measured where the second of two tokens moved by so much at each position."""
    return ties.rounding([({1: 9.0, 2: 3.0 + move}, {1: 9.0, 2: 3.0}) for move in moves])


def test_rounding_is_what_logits_of_the_same_position_and_token_move_by():
    pairs = [
        # Tokens that only one evaluation lists say nothing.
        ({1: 9.0, 2: 8.5, 3: 0.0}, {1: 9.0, 2: 8.625, 4: 7.0}),
        ({5: 4.0, 6: 3.0}, {5: 4.25, 6: 3.0}),
    ]

    assert ties.rounding(pairs) == ties.Rounding(
        compared=2, mean=0.375 / 4, p99=0.25, most=0.25, close=1
    )


def test_p99_leaves_out_one_move_in_a_hundred():
    measured = moved_by(*[0.125] * 49, 0.5)

    assert (measured.p99, measured.most) == (0.125, 0.5)


def test_a_shift_of_all_logits_of_a_position_is_no_rounding():
    """vLLM 0.23 gives log-probabilities for prompts where it gives logits while decoding."""
    logits = {1: 9.0, 2: 8.5, 3: 4.25}
    log_probabilities = {1: -0.25, 2: -0.75, 3: -4.875}

    assert ties.rounding([(logits, log_probabilities)]).most == 0.125


@pytest.mark.parametrize(
    ("logits", "near"),
    [
        ({7: 12.0, 8: 12.0}, True),
        ({7: 12.0, 8: 11.75}, True),
        ({7: 12.0, 8: 11.6875}, False),
        # The winner is a third token: both must be close to it.
        ({5: 12.0, 7: 11.875, 8: 11.875}, True),
        ({5: 12.0, 7: 11.875, 8: 10.0}, False),
        ({5: 12.0, 7: 10.0, 8: 11.875}, False),
        # Plain decoding's token is not even listed.
        ({8: 12.0, 5: 11.0}, False),
        ({7: math.nan, 8: math.nan}, False),
    ],
)
def test_both_tokens_of_a_parting_lie_within_twice_the_measured_rounding(logits, near):
    judged = ties.judge([3, 7], [3, 8], [{3: 9.0}, logits], moved_by(0.125).bound)

    assert judged.near_tie is near
    assert (judged.position, judged.plain, judged.other) == (1, 7, 8)


def test_where_nothing_moves_only_an_exact_tie_passes():
    bound = moved_by(0.0, 0.0).bound

    assert ties.judge([7], [8], [{7: 2.0, 8: 2.0}], bound).near_tie
    assert not ties.judge([7], [8], [{7: 2.0, 8: math.nextafter(2.0, 0)}], bound).near_tie


def test_a_parting_is_judged_by_what_the_machine_does_not_by_units():
    """Regression: two units in the last place were a constant of one machine. On another the
    logits of a parting lay 3 units apart, where the target's own moved by 4."""
    judged = ties.judge([7], [8], [{7: 7.0, 8: 7.0 - 3 * 2**-5}], moved_by(0.125).bound)

    assert judged.near_tie


def test_a_wrong_token_behind_a_near_tie_is_found():
    """Regression: only the first difference was judged, and an output that parts stays another."""
    logits = [{7: 12.0, 8: 12.0}, {4: 9.0, 5: 8.9}, {6: 9.0, 2: 3.0}, {6: 9.0}]

    assert ties.judge([7, 1, 1, 1], [8, 4, 6, 6], logits, 0.25).near_tie
    judged = ties.judge([7, 1, 1, 1], [8, 5, 2, 6], logits, 0.25)

    assert judged.wrong == 2 and not judged.near_tie
    assert judged.position == 0
