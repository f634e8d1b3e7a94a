# SPDX-License-Identifier: Apache-2.0
"""What replay says of dumps without a fault, and of dumps that know little."""

from pathlib import Path

import pytest
import torch

from vllm_eagle_pangu.tracing.dump import FailedStep

from .replaying import cache_slots, dumped, replay, run_command
from .steps import walk, whole_step


@pytest.mark.parametrize("seed", range(4))
def test_a_sound_step_replays_without_a_finding(tmp_path: Path, capsys, seed: int):
    failed = whole_step(batch=3, seed=seed)
    assert int(failed.path.length.min()) >= 2, "paths worth the name"
    path = dumped(tmp_path, failed)
    assert replay(path) == []
    assert run_command(path) == 0
    out = capsys.readouterr().out
    assert "RuntimeError: planted" in out
    assert "no invariant breaks" in out
    assert "not known" not in out


def test_a_cut_tree_and_draws_of_the_walk_alone_are_sound(tmp_path: Path):
    """The scheduler may cut trees, and sampling draws only where the walk comes."""
    failed = whole_step()
    counts = torch.tensor([4, 1])
    failed.tree, failed.count = failed.tree.cut(counts - 1), counts
    failed.scheduled_token_ids = [failed.tree.tokens[0, 1:4].tolist(), []]
    failed.path = walk(failed.tree, failed.draws)
    walked = torch.zeros_like(failed.draws, dtype=torch.bool).scatter_(1, failed.path.rows, True)
    failed.draws = failed.draws.where(walked, -1)
    (cache,) = failed.caches
    # What lies behind the scheduled rows belongs to the next request of the batch.
    cache.linear_slots = cache.linear_slots.where(torch.arange(17) < counts[:, None], 999)
    cache.commit_slots = cache_slots(failed)
    assert replay(dumped(tmp_path, failed)) == []


def test_what_is_not_known_is_said_and_not_checked(tmp_path: Path, capsys):
    failed = whole_step()
    bare = FailedStep(requests=failed.requests, tree=failed.tree)
    path = dumped(tmp_path, bare)
    assert run_command(path) == 0
    out = capsys.readouterr().out
    for name in ("path", "draws", "token_ids", "prefix_len", "commit_slots", "block_ids"):
        assert f"not known: {name} of request-0, request-1" in out
    assert "not known: tree" not in out
