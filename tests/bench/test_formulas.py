# SPDX-License-Identifier: Apache-2.0
"""E7's formulas, against values worked out by hand."""

import pytest

from vllm_eagle_pangu.measure.statistics import acceptance_rate, expected_tokens


def test_alpha_is_the_share_of_tried_tokens_that_were_accepted():
    # Three drafts of two tokens: both, one, none accepted. Tried: 2 + 2 + 1.
    assert acceptance_rate(accepted=3, drafts=3, full_drafts=1) == 3 / 5
    assert acceptance_rate(accepted=0, drafts=0, full_drafts=0) is None
    assert acceptance_rate(accepted=4, drafts=2, full_drafts=2) == 1.0


@pytest.mark.parametrize(
    ("alpha", "length", "tokens"),
    [(0.0, 4, 1.0), (0.5, 1, 1.5), (0.5, 3, 1.875), (0.8, 2, 2.44), (1.0, 6, 7.0)],
)
def test_expected_tokens_of_a_chain(alpha, length, tokens):
    assert expected_tokens(alpha, length) == pytest.approx(tokens)
