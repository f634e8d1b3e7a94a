# SPDX-License-Identifier: Apache-2.0
"""What promises are worth: by many trees, and soon another where the head becomes another."""

import numpy as np
import pytest

from vllm_eagle_pangu.core.kept import Kept


def shares(kept: Kept, chance: float, steps: int, trees: int, seed: int = 0) -> list[float]:
    """After each step that was to emit two tokens a tree: one, and another two by `chance`."""
    came = trees + 2 * np.random.default_rng(seed).binomial(trees, chance, steps)
    found = []
    for emitted in came:
        kept.saw(trees, float(emitted), 2.0 * trees)
        found.append(kept.share)
    return found


def test_what_nobody_has_kept_yet_is_believed():
    assert Kept().share == 1


def test_a_few_unlucky_trees_say_little():
    assert min(shares(Kept(), 0.0, steps=8, trees=1)) > 0.9


@pytest.mark.parametrize("trees", [1, 2, 8, 32])
def test_chance_moves_it_little_however_few_requests_there_are(trees):
    late = shares(Kept(), 0.5, steps=4000, trees=trees)[1000:]
    assert np.mean(late) == pytest.approx(1, abs=0.02)
    assert np.std(late) < 0.03


@pytest.mark.parametrize("trees", [1, 32])
def test_a_head_that_is_never_right_any_more_is_soon_known(trees):
    kept = Kept()
    shares(kept, 0.5, steps=2000, trees=trees)
    found = shares(kept, 0.0, steps=100, trees=trees)
    assert found[-1] < 0.75 and kept.late[1] == pytest.approx(2 * trees, rel=0.01)


@pytest.mark.parametrize("seed", range(4))
def test_many_trees_soon_tell_what_steps_of_another_batch_keep(seed):
    """Regression: by steps, not trees, 320 trees at a fifth below what was kept told half of it."""
    kept = Kept()
    shares(kept, 0.5, steps=2000, trees=8, seed=seed)
    assert 0.8 < shares(kept, 0.3, steps=10, trees=32, seed=seed + 9)[-1] < 0.885


def test_half_of_what_was_missing_is_forgotten():
    kept = Kept()
    before = shares(kept, 0.0, steps=1000, trees=4)[-1]
    kept.forget_half()
    assert kept.share == pytest.approx((1 + before) / 2)
