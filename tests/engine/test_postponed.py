# SPDX-License-Identifier: Apache-2.0
"""What the head puts off, against a plain list of every request's rows."""

import random

import numpy as np
import pytest
import torch

from vllm_eagle_pangu.core.request import RequestView
from vllm_eagle_pangu.step import postponed as module
from vllm_eagle_pangu.step.postponed import Postponed
from vllm_eagle_pangu.step.view import BatchView

GROUP = 0


def view_of(committed: dict[str, int], slots: torch.Tensor) -> BatchView:
    """A batch in which every request goes on by one token."""
    starts = np.arange(len(committed) + 1)
    return BatchView(
        requests=[RequestView(n, at, at + 1, 99, False, True) for n, at in committed.items()],
        tokens=np.zeros((len(committed), 1), np.int32),
        host_query_start=starts,
        token_ids=torch.zeros(len(committed), dtype=torch.int32),
        positions=torch.tensor(list(committed.values())),
        query_start=torch.from_numpy(starts).int(),
        slots={GROUP: slots},
        block_tables={GROUP: torch.arange(len(committed))[:, None].int()},
    )


@pytest.fixture
def short_runs(monkeypatch):
    monkeypatch.setattr(module, "RUN", 4)
    monkeypatch.setattr(module, "ROWS", 12)
    monkeypatch.setattr(module, "KEPT", 20)


@pytest.mark.parametrize("seed", range(5))
def test_every_request_reads_what_it_put_off_once_and_in_order(short_runs, seed):
    choose, waits = random.Random(seed), Postponed()
    committed, unread, read = dict.fromkeys("abcdefg", 10), {name: [] for name in "abcdefg"}, 0
    for step in range(400):
        finished = [name for name in committed if choose.random() < 0.01]
        waits.began([], finished)
        for name in finished:
            # The same id may come again.
            committed[name], unread[name] = choose.randrange(5), []
        batch = {name: committed[name] for name in committed if choose.random() < 0.97}
        if not batch:
            continue
        names = list(batch)
        slots = torch.arange(len(batch)) + 1000 * step
        view, tokens = view_of(batch, slots), torch.randint(99, (len(batch),))
        taps = torch.rand(len(batch), 3)
        drafted = [
            place for place in range(len(batch)) if choose.random() < choose.choice((0, 0.3))
        ]
        later = [place for place in range(len(batch)) if place not in drafted]
        oldest = waits.oldest(view, later)
        assert len(oldest) <= 1
        assert all(len(unread[name]) <= 20 + len(committed) for name in batch)
        for extension, states in waits.take(view, sorted([*drafted, *oldest]), GROUP):
            rows = extension.rows
            for place, request in enumerate(extension.requests):
                mine = slice(*extension.query_start[place : place + 2])
                found = zip(
                    rows.tokens[mine].tolist(),
                    rows.positions[mine].tolist(),
                    rows.slots[mine].tolist(),
                    states[mine].tolist(),
                    strict=True,
                )
                assert list(found) == unread[names[request]]
                assert extension.seq_lens[place] == batch[names[request]]
                assert extension.block_table[place].tolist() == [request]
                read += len(unread[names[request]])
        for place in [*drafted, *oldest]:
            unread[names[place]] = []
        waits.forget([names[place] for place in drafted])
        if later:
            waits.add(view, later, tokens, taps, GROUP)
        for place in later:
            row = tokens[place].item(), batch[names[place]], slots[place].item()
            unread[names[place]].append((*row, taps[place].tolist()))
        for name in batch:
            committed[name] += 1
    assert read > 300


def test_what_nobody_will_read_does_not_stay(short_runs):
    """Neither a preempted request's rows, nor those of one that was read otherwise."""
    waits = Postponed()
    committed = dict.fromkeys("ab", 10)
    for step in range(100):
        waits.began([], [])
        batch = committed if step < 5 else {"b": committed["b"]}
        view = view_of(batch, torch.arange(len(batch)))
        later = list(range(len(batch)))
        waits.take(view, waits.oldest(view, later), GROUP)
        waits.add(view, later, torch.zeros(len(batch)), torch.rand(len(batch), 3), GROUP)
        for name in batch:
            committed[name] += 1
    kept = sum(len(run.steps) for run in waits._runs)
    assert "a" not in waits._waiting and kept <= 20 + 2 * module.RUN
    waits.forget(["b"])
    assert not waits._runs
