# SPDX-License-Identifier: Apache-2.0
"""A traced engine writes what it did, and dumps what it knew when a step fails."""

import json
from pathlib import Path

import pytest

from vllm_eagle_pangu.step import checks, drafter
from vllm_eagle_pangu.step import step as step_module
from vllm_eagle_pangu.tracing import reader, replay
from vllm_eagle_pangu.tracing.dumped import read_dump
from vllm_eagle_pangu.tracing.replay import WALK

pytestmark = pytest.mark.engine

PROMPTS = [list(b"the quick brown fox"), list(b"over the lazy dog"), list(range(40, 120))]
SMALL = {"max_model_len": 256, "max_num_batched_tokens": 64, "max_num_seqs": 4}


@pytest.fixture
def traced(engine, tiny_pangu, tiny_head, tree_config_of, tmp_path):
    """An engine with traces; keywords add keys of ours."""

    def start(**keys):
        spec = tree_config_of(tiny_head, (3, 3, 9), trace_dir=str(tmp_path), **keys)
        return engine(tiny_pangu, spec, **SMALL)

    return start


def test_a_trace_holds_every_step_and_request(traced, tmp_path):
    with traced() as running:
        outputs = running.generate(PROMPTS, max_tokens=20)
    run = reader.find_run(tmp_path)
    records = list(reader.read_run(run))
    steps = [record for record in records if record["kind"] == "step"]
    requests = [record for record in records if record["kind"] == "request"]
    assert sorted(record["prompt_tokens"] for record in requests) == sorted(map(len, PROMPTS))
    for record in requests:
        own = [step for step in steps if step["request"] == record["request"]]
        text = [token for step in own for token in step["emitted"]]
        # The first token is sampled behind the prompt, and a last one left over, without a tree.
        expected = outputs[[len(p) for p in PROMPTS].index(record["prompt_tokens"])][1:]
        assert text[: len(expected)] == expected[: len(text)] and len(text) >= len(expected) - 1
        assert record["steps"] == len(own)
        assert record["tau"] == pytest.approx(len(text) / len(own), abs=1e-4)
        # Its own last step, though the scheduler tells of the end at the next one.
        if len(text) >= len(expected):
            assert own[-2]["time_us"] < record["ended_us"] <= own[-1]["time_us"]
        else:
            assert own[-1]["time_us"] < record["ended_us"]
        for step in own:
            assert step["shape"] == {"width": 3, "depth": 3, "nodes": 9}
            path = step["accepted_rows"]
            assert [step["tokens"][row] for row in path[1:]] == step["emitted"][:-1]
    times = steps[-1]["stage_us"]
    stages = {name: value for name, value in times.items() if name not in ("step_us", "between_us")}
    assert {"verify_us", "draft_us", "accept_us", "commit_us", "place_us"} <= stages.keys()
    assert all(value > 0 for value in stages.values())
    assert times["step_us"] == pytest.approx(sum(stages.values()), rel=0.01)
    manifest = reader.read_manifest(run)
    assert manifest["ended_at"] is not None and not manifest["truncated"]
    assert manifest["configuration"]["method"]["tree_width"] == 3


def test_a_rate_below_one_traces_the_requests_of_its_share(traced, tmp_path):
    with traced(trace_sample_rate=0.4) as running:
        running.generate(PROMPTS * 8, max_tokens=6)
        tracer = running.runner.tracer
        wanted = tracer.writer.config.samples
    run = reader.find_run(tmp_path)
    seen = {record["request"] for record in reader.read_run(run)}
    assert 0 < len(seen) < 24 and all(map(wanted, seen))


def test_without_traces_nobody_watches(engine, tiny_pangu, tiny_head, tree_config_of):
    with engine(tiny_pangu, tree_config_of(tiny_head, (3, 3, 9)), **SMALL) as running:
        assert running.runner.tracer is None
        assert running.runner.stages.observers == ()


def flip_a_mask_bit(tree):
    """The last node no longer sees its parent."""
    last = int(tree.valid[0].sum()) - 1
    tree.visible[0, last, int(tree.parent[0, last])] ^= True


def give_a_wrong_parent(tree):
    """The last node of a deeper level hangs below the root."""
    deep = int((tree.depth[0] >= 2).nonzero()[-1])
    tree.parent[0, deep] = 0


def corrupt_a_path_index(paths):
    """The first accepted row becomes its neighbour."""
    chosen = int((paths.length > 0).nonzero()[0])
    row = paths.rows[chosen, 1]
    paths.rows[chosen, 1] = row - 1 if row > 1 else row + 1


def planted_in_trees(change):
    def plant(monkeypatch):
        place = step_module.place

        def faulty(*arguments):
            placed = place(*arguments)
            if placed.trees is not None and bool((placed.trees.tree.depth >= 2).any()):
                change(placed.trees.tree)
            return placed

        monkeypatch.setattr(step_module, "place", faulty)

    return plant


def planted_in_paths(monkeypatch):
    accept = step_module.accept

    def faulty(*arguments):
        accepted = accept(*arguments)
        if accepted.trees is not None and bool((accepted.trees.paths.length > 0).any()):
            corrupt_a_path_index(accepted.trees.paths)
        return accepted

    monkeypatch.setattr(step_module, "accept", faulty)


@pytest.mark.parametrize(
    ("plant", "invariant"),
    [
        (planted_in_trees(flip_a_mask_bit), "tree: a row sees itself and its ancestors"),
        (planted_in_trees(give_a_wrong_parent), "tree: a node is one deeper than its parent"),
        (planted_in_paths, None),
    ],
    ids=["a flipped mask bit", "a wrong parent", "a corrupted path index"],
)
def test_a_planted_fault_leaves_a_dump_whose_replay_names_the_invariant(
    traced, tmp_path, monkeypatch, plant, invariant
):
    plant(monkeypatch)
    broken = pytest.raises(Exception, match=r"tree: |path: ")
    with traced(verify_mode="reference") as running, broken:
        running.generate(PROMPTS, max_tokens=20)
    (dump,) = Path(tmp_path).glob("*/dumps/*.json")
    found = {finding.invariant for finding in replay.check(read_dump(dump))}
    if invariant is None:
        paths = {invariant for invariant in found if invariant.startswith("path: ")}
        assert paths - {WALK} and WALK in paths
    else:
        assert invariant in found
    record = json.loads(dump.read_text())
    assert record["failure"]["invariant"] in found
    assert record["requests"][0]["prompt_token_ids"] in PROMPTS


def test_performance_mode_checks_a_sample_of_the_steps(traced, monkeypatch):
    planted_in_trees(flip_a_mask_bit)(monkeypatch)
    monkeypatch.setattr(checks, "CHECK_EVERY", 3)
    broken = pytest.raises(Exception, match="tree: a row sees itself and its ancestors")
    with traced() as running, broken:
        running.generate(PROMPTS, max_tokens=20)
    assert running.runner.stages.checks.steps == 3


def test_an_exception_of_the_engine_leaves_a_dump_of_a_sound_step(traced, tmp_path, monkeypatch):
    def fails(*arguments, **keywords):
        raise RuntimeError("out of luck")

    with traced() as running:
        running.generate(PROMPTS[:1], max_tokens=4)
        monkeypatch.setattr(drafter, "grow", fails)
        with pytest.raises(Exception, match="out of luck"):
            running.generate(PROMPTS, max_tokens=20)
    (dump,) = Path(tmp_path).glob("*/dumps/*.json")
    assert replay.check(read_dump(dump)) == []
    assert "out of luck" in json.loads(dump.read_text())["failure"]["message"]
