# SPDX-License-Identifier: Apache-2.0
"""A fault planted in slots, tokens or counts, dumped and replayed: what it breaks is named."""

from collections.abc import Callable
from pathlib import Path

import pytest

from vllm_eagle_pangu.tracing import cache_invariants
from vllm_eagle_pangu.tracing.dump import FailedStep
from vllm_eagle_pangu.tracing.replay import SCHEDULED_ROWS, SCHEDULED_TOKENS

from .replaying import FAULTY, OTHER, accepted_rows, dumped, findings_by_name, replay, run_command
from .steps import BLOCK_SIZE, SHAPE, whole_step

# Each plants a fault and returns the first row that offends.


def two_slots_swapped(failed: FailedStep) -> int:
    first, second = accepted_rows(failed)[:2]
    slots = failed.caches[0].commit_slots[FAULTY]
    slots[first], slots[second] = slots[second].clone(), slots[first].clone()
    return first


def rejected_row_committed(failed: FailedStep) -> int:
    row = next(r for r in range(SHAPE.rows - 1, 0, -1) if r not in accepted_rows(failed))
    slots = failed.caches[0]
    slots.commit_slots[FAULTY, row] = slots.linear_slots[FAULTY, 9]
    return row


def root_committed(failed: FailedStep) -> int:
    slots = failed.caches[0]
    slots.commit_slots[FAULTY, 0] = slots.linear_slots[FAULTY, 0]
    return 0


def slot_of_a_strange_block(failed: FailedStep) -> int:
    row = accepted_rows(failed)[0]
    failed.caches[0].commit_slots[FAULTY, row] = 99 * BLOCK_SIZE
    return row


def slot_written_twice(failed: FailedStep) -> int:
    first, second = accepted_rows(failed)[:2]
    slots = failed.caches[0].commit_slots[FAULTY]
    slots[second] = slots[first]
    return first


def linear_slots_off_by_one(failed: FailedStep) -> int:
    failed.caches[0].linear_slots[FAULTY] += 1
    return 0


def root_of_another_position(failed: FailedStep) -> int:
    failed.prefix_len[FAULTY] -= 1
    failed.caches = ()
    return 0


def prefix_beyond_the_tokens(failed: FailedStep) -> int:
    failed.output_token_ids[FAULTY].pop()
    return 0


def scheduled_another_tree(failed: FailedStep) -> int:
    failed.scheduled_token_ids[FAULTY][4] += 1
    return 5


def scheduled_more_than_is_valid(failed: FailedStep) -> int:
    failed.count[FAULTY] -= 3
    return 14


CACHE_FAULTS = {
    two_slots_swapped: cache_invariants.ACCEPTED,
    rejected_row_committed: cache_invariants.REJECTED,
    root_committed: cache_invariants.REJECTED,
    slot_of_a_strange_block: cache_invariants.BLOCKS,
    slot_written_twice: cache_invariants.ONCE,
    linear_slots_off_by_one: cache_invariants.LINEAR,
    root_of_another_position: cache_invariants.ROOT,
    prefix_beyond_the_tokens: cache_invariants.ROOT,
    scheduled_another_tree: SCHEDULED_TOKENS,
    scheduled_more_than_is_valid: SCHEDULED_ROWS,
}


@pytest.mark.parametrize("plant", CACHE_FAULTS, ids=lambda plant: plant.__name__)
def test_a_fault_in_the_commit_is_named_with_its_row(tmp_path: Path, plant: Callable):
    failed = whole_step()
    row = plant(failed)
    path = dumped(tmp_path, failed)
    assert findings_by_name(path)[CACHE_FAULTS[plant]].rows[0] == row
    assert run_command(path) == 1


def test_a_slot_that_two_requests_write_is_named(tmp_path: Path):
    failed = whole_step()
    slots = failed.caches[0].commit_slots
    slots[FAULTY, accepted_rows(failed)[0]] = slots[OTHER].max()
    found = {finding.invariant: finding for finding in replay(dumped(tmp_path, failed))}
    assert "request-0" in found[cache_invariants.ONCE].detail
    assert "request-1" in found[cache_invariants.ONCE].detail
