# SPDX-License-Identifier: Apache-2.0
"""Dividing a step's rows among trees."""

from collections.abc import Sequence


def share_out(rows: int, wanted: Sequence[int]) -> list[int]:
    """How many of `rows` each tree gets: as many as any other, unless it wants fewer.

    `wanted`: rows that each tree could use. All rows are given away while one is wanted; what does
    not divide evenly makes shares differ by one.
    """
    assert rows >= 0 and all(want >= 0 for want in wanted), (rows, wanted)
    shares = [0] * len(wanted)
    by_want = sorted(range(len(wanted)), key=wanted.__getitem__)
    for served, tree in enumerate(by_want):
        shares[tree] = min(wanted[tree], rows // (len(wanted) - served))
        rows -= shares[tree]
    return shares
