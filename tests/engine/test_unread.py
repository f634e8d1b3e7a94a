# SPDX-License-Identifier: Apache-2.0
"""What a head reads later, against a plain dictionary of what each slot should hold."""

import random

import pytest
import torch

from vllm_eagle_pangu.kernels.draft_batch import DraftRows
from vllm_eagle_pangu.kernels.indices import index_range
from vllm_eagle_pangu.step.unread import ENOUGH, FEW, MULTIPLE, Unread

WIDTHS = (3, 3, 3)


class Pages:
    """A head whose K/V of a row is the row itself."""

    def __init__(self):
        self.slots, self.sizes = {}, []

    def read(self, tokens, positions, slots, taps):
        self.sizes.append(len(tokens))
        written = [slot for slot in slots.tolist() if slot >= 0]
        assert len(written) == len(set(written)), "a slot is written once, in whatever order"
        values = zip(tokens.tolist(), positions.tolist(), taps.tolist(), strict=True)
        for slot, row in zip(slots.tolist(), values, strict=True):
            if slot >= 0:
                self.slots[slot] = row
        return taps.clone()


def step_of(choose, count, generator):
    """A step's rows, as many as `count`, of a batch that may have more; some are padding."""
    rows = count + choose.randrange(3)
    taps = [torch.rand(rows, width, generator=generator) for width in WIDTHS]
    every = index_range(len(taps[0]), taps[0].device)
    whole = len(every) == count and choose.random() < 0.5
    picked = every if whole else torch.randint(len(every), (count,), generator=generator)
    # Few slots, so that they come again, but never twice in one step.
    slots = torch.randperm(2 * ENOUGH * 4, generator=generator)[:count]
    if choose.random() < 0.3:
        slots[choose.randrange(count)] = -1
    numbers = torch.randint(1000, (2, count), generator=generator)
    empty = torch.zeros(0, dtype=torch.int64)
    return DraftRows(numbers[0], numbers[1], picked, slots, empty, empty), taps


@pytest.mark.parametrize("seed", range(8))
def test_each_slot_holds_the_last_row_that_was_meant_for_it(seed):
    choose, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    unread, pages, expected, reads = Unread(), Pages(), {}, 0
    for _ in range(60):
        rows, taps = step_of(choose, choose.choice((1, 2, 7, 20, 33, 150)), generator)
        first = unread.add(rows, taps)
        states = torch.cat(taps, dim=1)[rows.hidden_rows]
        values = zip(rows.tokens.tolist(), rows.positions.tolist(), states.tolist(), strict=True)
        for slot, row in zip(rows.slots.tolist(), values, strict=True):
            if slot >= 0:
                expected[slot] = row
        if unread.count >= ENOUGH or choose.random() < 0.2:
            read = unread.read(pages)
            assert torch.equal(read[first : first + len(states)], states)
            assert unread.count == 0 and pages.slots == expected
            reads += 1
    assert reads >= 10 and max(pages.sizes) > ENOUGH
    assert all(size <= FEW or size % MULTIPLE == 0 for size in pages.sizes)
