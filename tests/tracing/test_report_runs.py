# SPDX-License-Identifier: Apache-2.0
"""Runs for the report's tests: real trees, made and walked by the project's own ops."""

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from vllm_eagle_pangu.core.draft import TreeGrower
from vllm_eagle_pangu.core.ops import Ops
from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.core.tree import TreeBatch
from vllm_eagle_pangu.tracing.config import TraceConfig
from vllm_eagle_pangu.tracing.lines import StepEntry
from vllm_eagle_pangu.tracing.reader import find_run
from vllm_eagle_pangu.tracing.report.recording import read_recording
from vllm_eagle_pangu.tracing.report.statistics import statistics_of
from vllm_eagle_pangu.tracing.writer import TraceWriter

from .steps import walk

VOCABULARY = 5000
FIRST_ROOT = 7
SMALL, WIDE = TreeShape(4, 5, 16), TreeShape(8, 8, 64)


def guesses(rows: int, width: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities and tokens `[rows, W]` of a drafter that is sure at times, best first."""
    sharpness = 0.5 + 5 * torch.rand(rows, 1, generator=generator)
    logits = sharpness * torch.randn(rows, 4 * width, generator=generator)
    scores = logits.log_softmax(-1).topk(width).values
    tokens = torch.rand(rows, VOCABULARY, generator=generator).topk(width).indices
    return scores, tokens


def grown(roots: Sequence[int], shape: TreeShape, generator: torch.Generator) -> TreeBatch:
    """One tree per root."""
    batch, width = len(roots), shape.width
    grower = TreeGrower(shape, Ops.bind("reference"))
    grower.grow(*guesses(batch, width, generator))
    for _ in range(shape.depth - 1):
        scores, tokens = guesses(batch * width, width, generator)
        grower.grow(scores.view(batch, width, width), tokens.view(batch, width, width))
    return grower.finish(torch.tensor(roots))


def target_draws(tree: TreeBatch, generator: torch.Generator) -> torch.Tensor:
    """`[B, R]` of a target that agrees with the drafter's probabilities, a little less often."""
    draws = torch.randint(VOCABULARY, tree.tokens.shape, generator=generator)
    for b, row in torch.cartesian_prod(*map(torch.arange, tree.tokens.shape)).tolist():
        left = float(torch.rand(1, generator=generator)) / 0.9
        for child in range(row + 1, tree.rows):
            if tree.parent[b, child] == row and tree.valid[b, child]:
                left -= float((tree.score[b, child] - tree.score[b, row]).exp())
                if left < 0:
                    draws[b, row] = tree.tokens[b, child]
                    break
    return draws


def write_run(
    folder: Path, shape: TreeShape, requests: Sequence[str] = ("a", "b"), steps: int = 6
) -> Path:
    """A run of `requests` side by side for `steps` engine steps; the same at every call."""
    generator = torch.Generator().manual_seed(0)
    batch = len(requests)
    roots, prefixes, lines = [FIRST_ROOT] * batch, list(range(20, 20 + batch)), []
    for number in range(1, steps + 1):
        tree = grown(roots, shape, generator)
        paths = walk(tree, target_draws(tree, generator))
        times = torch.tensor([150.0, 4000.0, 2500.0]) * (1 + torch.rand(3, generator=generator))
        prepare, verify, draft = times.tolist()
        stage_us = {"prepare_us": prepare, "verify_us": verify, "draft_us": draft}
        for b, request in enumerate(requests):
            rows, length = int(tree.node_count[b]) + 1, int(paths.length[b])
            line: dict[str, Any] = {
                "schema": 1,
                "kind": "step",
                "step": number,
                "request": request,
                "time_us": 9000 * number,
                "batch_size": batch,
                "prefix_tokens": prefixes[b],
                "shape": {"width": shape.width, "depth": shape.depth, "nodes": shape.nodes},
                "tokens": tree.tokens[b, :rows].tolist(),
                "parents": tree.parent[b, :rows].tolist(),
                "scores": tree.score[b, :rows].tolist(),
                "accepted_rows": paths.rows[b, : length + 1].tolist(),
                "emitted": paths.output[b, : length + 1].tolist(),
                "stage_us": stage_us | {"step_us": prepare + verify + draft + 200.0},
            }
            lines.append(json.dumps(line) + "\n")
            roots[b], prefixes[b] = line["emitted"][-1], prefixes[b] + length + 1
    folder.mkdir(parents=True)
    write_manifest(folder, {"tree_width": shape.width})
    (folder / "steps.jsonl").write_text("".join(lines))
    return folder


def write_manifest(folder: Path, configuration: dict[str, Any]) -> None:
    manifest = {"schema": 1, "run": "generated", "configuration": configuration}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_a_generated_run_is_one_that_the_report_reads(tmp_path: Path):
    recording = read_recording(write_run(tmp_path / "run", WIDE, steps=4))
    assert [(step.number, step.request) for step in recording.steps[:3]] == [
        (1, "a"),
        (1, "b"),
        (2, "a"),
    ]
    assert {step.nodes for step in recording.steps} == {WIDE.nodes}
    statistics = statistics_of(recording)
    # A child is drafted for its probability, and the target agrees: neither none nor all.
    assert 1.5 < statistics.tau < 6
    assert statistics.ranks[0].value > statistics.ranks[1].value


def test_a_run_of_the_trace_writer_is_one_that_the_report_reads(tmp_path: Path):
    generator = torch.Generator().manual_seed(0)
    tree = grown([FIRST_ROOT, 8], SMALL, generator)
    paths = walk(tree, target_draws(tree, generator))
    writer = TraceWriter(TraceConfig(str(tmp_path)), {"tree_width": 4})
    writer.request_started("a")
    times = {"draft_us": 5.04}
    writer.step(StepEntry(0, 1, 2, ["a", "b"], [20, 21], [SMALL] * 2, tree, paths, times))
    writer.request_ended("a", prompt_tokens=19, output_tokens=1)
    writer.close()

    recording = read_recording(find_run(tmp_path))
    first, second = recording.steps
    assert (first.number, first.request, second.request, first.batch_size) == (1, "a", "b", 2)
    assert (first.tokens, second.parents) == (tree.tokens[0].tolist(), tree.parent[1].tolist())
    assert len(first.accepted) - 1 == int(paths.length[0])
    assert first.stage_us == {"draft": 5.0}
    assert [request.name for request in recording.requests] == ["a"]
    assert recording.manifest["configuration"] == {"tree_width": 4}


def test_every_root_is_the_bonus_token_of_the_step_before(tmp_path: Path):
    steps = read_recording(write_run(tmp_path / "run", SMALL, ["a"])).steps
    for before, step in pairwise(steps):
        assert step.tokens[0] == before.emitted[-1]
        assert step.prefix_tokens == before.prefix_tokens + len(before.emitted)
