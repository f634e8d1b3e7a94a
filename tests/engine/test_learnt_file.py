# SPDX-License-Identifier: Apache-2.0
"""What adaptive trees learnt is there for the next engine of the same pair."""

import json
import logging
import math
from contextlib import contextmanager

import pytest
import torch

from vllm_eagle_pangu.config import TreeConfig
from vllm_eagle_pangu.core.adaptive import AdaptiveShapes
from vllm_eagle_pangu.core.policy import FixedShape
from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.engine import learnt_file as module
from vllm_eagle_pangu.engine.learnt_file import LearntFile, learnt_file
from vllm_eagle_pangu.env import LEARNT_DIR, learnt_dir
from vllm_eagle_pangu.kernels.cache_folder import CACHE_DIR

from ..tiny_pair import write_tiny_head

pytestmark = pytest.mark.engine

PROMPTS = [list(b"the quick brown fox"), list(b"over")]
SMALL = {"max_model_len": 256, "max_num_batched_tokens": 64, "max_num_seqs": 3}
TOKENS = 60


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(LEARNT_DIR, str(tmp_path / "learnt"))
    return tmp_path / "learnt"


class Log(logging.Handler):
    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.said = []

    def emit(self, record):
        self.said.append(record.getMessage())


@contextmanager
def log(level: int):
    """What was said so far, whoever configured vLLM's loggers."""
    logger, handler, before = module.logger, Log(level), module.logger.level
    logger.addHandler(handler)
    logger.setLevel(level)
    yield handler.said
    logger.setLevel(before)
    logger.removeHandler(handler)


@pytest.fixture
def warnings():
    with log(logging.WARNING) as said:
        yield said


def policy() -> AdaptiveShapes:
    return AdaptiveShapes(TreeShape(2, 3, 5), None)


def test_an_engine_starts_from_what_the_last_one_learnt(
    engine, tiny_pangu, tiny_head, tree_config_of, folder
):
    spec = tree_config_of(tiny_head, (4, 4, 16), tree_policy="adaptive")
    found = []
    for _ in range(2):
        with engine(tiny_pangu, spec, **SMALL) as trees:
            shapes = trees.runner.step.policy
            found.append((shapes.learnt(), trees.generate(PROMPTS, max_tokens=TOKENS)))
    (nothing, expected), (known, again) = found
    assert not nothing["looks"]["by_power"] and known["looks"]["by_power"] and again == expected
    (file,) = folder.iterdir()
    kept = json.loads(file.read_text())
    assert kept["learnt"]["_plans"] > known["_plans"] > 0
    assert {str(tiny_pangu), str(tiny_head)} == {kept["of"][of][0] for of in ("target", "head")}


def test_what_decodes_otherwise_starts_from_nothing(
    engine, tiny_pangu, tree_config_of, folder, tmp_path, monkeypatch
):
    """Another head in the same place, and whatever else takes other times."""
    head = write_tiny_head(tmp_path / "head")
    spec = tree_config_of(head, (4, 4, 16), tree_policy="adaptive")
    with engine(tiny_pangu, spec, **SMALL) as trees:
        runner, shapes = trees.runner, trees.runner.step.policy
        # Who is killed from here on loses what was learnt since.
        runner.learnt._due = math.inf
        trees.generate(PROMPTS, max_tokens=TOKENS)
        assert not folder.exists()
        runner.learnt._due = 0.0
        trees.generate(PROMPTS, max_tokens=2)
        runner.learnt._writer.join()
        path = runner.learnt.path
        assert path.exists() and learnt_file(shapes, runner).path == path
        others = set()
        for change in (
            lambda: next(head.glob("*.safetensors")).touch(),
            lambda: monkeypatch.setattr(runner, "tree_config", TreeConfig(tree_depth=2)),
            lambda: monkeypatch.setattr(runner.vllm_config.load_config, "load_format", "dummy"),
            lambda: monkeypatch.setattr(torch, "get_num_threads", lambda: 63),
        ):
            change()
            others.add(learnt_file(shapes, runner).path)
        assert len(others - {path}) == 4
        # Trees of one shape learn nothing, and nobody has to keep anything.
        assert learnt_file(FixedShape(shapes.largest), runner) is None
        monkeypatch.setenv(LEARNT_DIR, "")
        assert learnt_file(shapes, runner).path is None


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"of": 1}', '{"of": {"a": 2}, "learnt": {}}', '{"of": {"a": 1}}']
)
def test_a_file_that_is_no_such_thing_is_told_of_and_learnt_anew(content, folder, warnings):
    file = LearntFile(policy(), folder, {"a": 1})
    file.path.parent.mkdir()
    file.path.write_text(content)
    file.read()
    (said,) = warnings
    assert str(file.path) in said and "start anew" in said
    file.policy.plan([None])
    file.close()
    other = LearntFile(policy(), folder, {"a": 1})
    other.read()
    assert len(warnings) == 1 and other.policy.decided()


def test_a_folder_that_cannot_be_written_to_is_told_of_once_and_costs_nothing_else(
    tmp_path, warnings
):
    (tmp_path / "file").touch()
    file = LearntFile(policy(), tmp_path / "file", {})
    for _ in range(2):
        file.policy.plan([None])
        file.close()
    (said,) = warnings
    assert LEARNT_DIR in said and str(tmp_path / "file") in said


def test_nothing_is_written_where_nothing_was_learnt(folder):
    file = LearntFile(policy(), folder, {})
    file.close()
    assert not folder.exists()
    file.policy.plan([None])
    # The clock begins with the first step.
    assert not file.stepped() and not file.stepped()
    file._due = 0.0
    assert file.stepped() and not file.stepped()
    file.close()
    file.path.unlink()
    file._due = 0.0
    assert file.stepped()
    file.close()
    assert [*folder.iterdir()] == []
    file.policy.plan([None])
    file.close()
    assert [*folder.iterdir()] == [file.path]


def test_the_log_says_where_trees_pay_whenever_that_changes():
    file = LearntFile(policy(), None, {})
    with log(logging.INFO) as said:
        for batch in (1, 1, 4, 4):
            file.policy.plan([None] * batch)
            file.say()
        file.policy.looks.by_power[2].pays = False
        file.say()
        file.close()
    lines = [line.partition("without): ")[2] for line in said]
    nothing = "(? against ?)"
    assert lines == [
        f"1: drafted {nothing}",
        f"1: drafted {nothing}, 4: drafted {nothing}",
        f"1: drafted {nothing}, 4: none {nothing}",
    ]


def test_where_it_is_kept(monkeypatch, tmp_path):
    monkeypatch.setenv(CACHE_DIR, str(tmp_path))
    monkeypatch.delenv(LEARNT_DIR)
    assert learnt_dir() == tmp_path / "learnt"
    monkeypatch.setenv(LEARNT_DIR, "here")
    assert str(learnt_dir()) == "here"
    monkeypatch.setenv(LEARNT_DIR, "")
    assert learnt_dir() is None
