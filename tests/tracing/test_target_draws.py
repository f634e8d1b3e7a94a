# SPDX-License-Identifier: Apache-2.0
"""Replay against the target: context correctness, which a dump alone cannot show."""

import argparse
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

from vllm_eagle_pangu.core.paths import AcceptedPaths
from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.tracing import command
from vllm_eagle_pangu.tracing.dump import FailedStep, write_dump
from vllm_eagle_pangu.tracing.target_draws import INVARIANT

from ..reference.decoder import OracleDecoder
from ..trees import tree_of_parents
from .replaying import replay

PROMPT = list(b"def tree(")


@pytest.fixture(scope="module")
def step(tiny_pangu: Path, tiny_head: Path):
    """A greedy step of the oracle that accepted something, with the tokens before it."""
    trace = OracleDecoder(tiny_pangu, tiny_head).tree(PROMPT, 24, TreeShape(2, 3, 6))
    step = next(step for step in trace.steps if len(step.path) > 2)
    return step, trace.tokens[: step.start - len(PROMPT) + 1]


@pytest.fixture
def failed(step) -> FailedStep:
    made, output = step
    tree = tree_of_parents(
        torch.tensor([made.tree.tokens]),
        torch.tensor([made.tree.parent]),
        max_depth=3,
        score=torch.tensor([made.tree.score]),
    )
    unused = 4 - len(made.path)
    return FailedStep(
        requests=["greedy"],
        prompt_token_ids=[PROMPT],
        output_token_ids=[output],
        prefix_len=[made.start],
        greedy=[True],
        tree=tree,
        draws=made.logits.argmax(-1)[None],
        path=AcceptedPaths(
            rows=torch.tensor([made.path + [0] * unused]),
            length=torch.tensor([len(made.path) - 1]),
            output=torch.tensor([made.emitted + [-1] * unused]),
        ),
    )


def run_command(path: Path | None, target: Path) -> int:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args([str(path), "--target", str(target)]))


def draw_another_bonus(failed: FailedStep) -> tuple[int, int]:
    """Wherever the bonus stands, so that the dump agrees with itself. Returns its row and token."""
    length = int(failed.path.length[0])
    row = int(failed.path.rows[0, length])
    wrong = (int(failed.draws[0, row]) + 77) % 256
    failed.draws[0, row] = failed.path.output[0, length] = wrong
    return row, wrong


def test_the_targets_own_draws_are_right(failed: FailedStep, tmp_path: Path, tiny_pangu: Path):
    path = write_dump(tmp_path, RuntimeError(), failed)
    assert run_command(path, tiny_pangu) == 0


def test_a_draw_from_a_wrong_context_is_found_only_with_the_target(
    failed: FailedStep, tmp_path: Path, tiny_pangu: Path, capsys
):
    row, wrong = draw_another_bonus(failed)
    path = write_dump(tmp_path, RuntimeError(), failed)
    assert replay(path) == []
    assert run_command(path, tiny_pangu) == 1
    out = capsys.readouterr().out
    assert f"BROKEN {INVARIANT}" in out and f"rows {row}: {wrong} was drawn" in out


def test_sampled_draws_have_no_right_answer(failed: FailedStep, tmp_path: Path, tiny_pangu, capsys):
    failed.greedy = [False]
    draw_another_bonus(failed)
    assert run_command(write_dump(tmp_path, RuntimeError(), failed), tiny_pangu) == 0
    assert "0 of 1 requests are known and greedy" in capsys.readouterr().out


def test_a_folder_without_a_model_is_refused(failed: FailedStep, tmp_path: Path, capsys):
    assert run_command(write_dump(tmp_path, RuntimeError(), failed), tmp_path / "none") == 2
    assert "none" in capsys.readouterr().err
