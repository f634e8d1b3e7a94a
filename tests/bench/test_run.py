# SPDX-License-Identifier: Apache-2.0
"""Whose a folder is, what is left of a rank's share, and which errors stay an experiment's own."""

import json
from dataclasses import replace

import pytest

from vllm_eagle_pangu.bench import run as run_module
from vllm_eagle_pangu.bench.config import BenchConfig, PromptConfig
from vllm_eagle_pangu.bench.experiments.base import Bench
from vllm_eagle_pangu.bench.groups import Group
from vllm_eagle_pangu.bench.records import open_records, record_file
from vllm_eagle_pangu.bench.sharding import Rank
from vllm_eagle_pangu.cli import main
from vllm_eagle_pangu.demo import pair
from vllm_eagle_pangu.measure.method import PLAIN
from vllm_eagle_pangu.measure.prompts import Conversations, Prompt

from .test_prompts import WordTokenizer

ALONE = Rank(0, 1)
CONFIG = BenchConfig(repeats=1)


def test_a_folder_with_records_is_taken_only_to_resume(tmp_path):
    run_module._claim(tmp_path, CONFIG, ALONE, resume=False)
    open_records(record_file(tmp_path, 0)).close()
    with pytest.raises(ValueError, match="holds records; pass --resume"):
        run_module._claim(tmp_path, CONFIG, ALONE, resume=False)
    run_module._claim(tmp_path, CONFIG, Rank(0, 4), resume=True)


def test_records_of_another_configuration_are_not_resumed(tmp_path):
    run_module._claim(tmp_path, CONFIG, ALONE, resume=False)
    with pytest.raises(ValueError, match="records are of another configuration"):
        run_module._claim(tmp_path, replace(CONFIG, tokens=5), ALONE, resume=True)
    run_module._claim(tmp_path, replace(CONFIG, out="elsewhere"), ALONE, resume=True)


def test_missing_prompts_are_named_by_the_rank_that_owns_them(tmp_path):
    prompts = [Prompt(f"p{i}", i, ("x",)) for i in range(6)]
    talk = Conversations(WordTokenizer(), chat=False)
    bench = Bench(CONFIG, *[tmp_path] * 3, prompts, [], talk)
    group = Group("E1", "batch-1", (PLAIN,), tuple(prompts))
    bench.parts["E1"] = [group]
    file = open_records(record_file(tmp_path, 0))
    for prompt in prompts[:3]:
        key = group.key(PLAIN, prompt, 0, 0)
        # What failed is no prompt that nobody came to.
        content = {"error": "it broke"} if prompt.id == "p0" else {"output_ids": []}
        file.write(json.dumps(key._asdict() | content) + "\n")
    file.close()
    missing = run_module.missing_prompts(bench, Rank(0, 2), range(2))
    assert missing == {0: ["p4"], 1: ["p3", "p5"]}
    assert run_module.missing_prompts(bench, Rank(0, 2), [0]) == {0: ["p4"]}


def test_a_bad_configuration_ends_with_2_and_its_mend(tmp_path, capsys):
    path = tmp_path / "bench.yaml"
    path.write_text(json.dumps({"repeats": 0}))
    assert main(["bench", f"--config={path}", f"--out={tmp_path}"]) == 2
    assert "repeats=0: must be at least 1; set" in capsys.readouterr().err


def test_instructions_without_a_path_are_those_that_ship(tmp_path):
    config = replace(CONFIG, prompts=PromptConfig(source="instructions", count=5, choice="first"))
    bench = run_module.plan(config, pair.find().target, tmp_path, tmp_path)
    assert [prompt.id for prompt in bench.prompts] == [f"instruction-{n:03d}" for n in range(5)]
