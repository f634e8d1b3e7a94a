# SPDX-License-Identifier: Apache-2.0
from hypothesis import given
from hypothesis import strategies as st

from vllm_eagle_pangu.core.shares import share_out

ROWS = st.integers(0, 3000)
WANTED = st.lists(st.integers(0, 128), max_size=200)


@given(ROWS, WANTED)
def test_no_tree_gets_more_than_it_wants_and_no_row_is_left_that_one_wants(rows, wanted):
    shares = share_out(rows, wanted)
    assert len(shares) == len(wanted)
    assert all(0 <= share <= want for share, want in zip(shares, wanted, strict=True))
    assert sum(shares) == min(rows, sum(wanted))


@given(ROWS, WANTED)
def test_a_tree_that_gets_less_than_it_wants_gets_as_much_as_any_other(rows, wanted):
    shares = share_out(rows, wanted)
    for share, want in zip(shares, wanted, strict=True):
        if share < want:
            assert share >= max(shares) - 1


@given(ROWS, WANTED, st.randoms())
def test_what_a_tree_gets_does_not_depend_on_who_came_first(rows, wanted, rng):
    shares = share_out(rows, wanted)
    order = rng.sample(range(len(wanted)), len(wanted))
    shuffled = share_out(rows, [wanted[tree] for tree in order])
    assert sorted(shuffled) == sorted(shares)
    assert all(abs(s - shares[tree]) <= 1 for s, tree in zip(shuffled, order, strict=True))
