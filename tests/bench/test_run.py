# SPDX-License-Identifier: Apache-2.0
"""Whose a folder is, what a bad configuration ends with, and which prompts ship."""

import json
from dataclasses import replace

import pytest

from vllm_eagle_pangu.bench import run as run_module
from vllm_eagle_pangu.bench.config import BenchConfig, PromptConfig
from vllm_eagle_pangu.bench.records import open_records
from vllm_eagle_pangu.cli import main
from vllm_eagle_pangu.demo import pair

CONFIG = BenchConfig(repeats=1)


def test_a_folder_with_records_is_taken_only_to_resume(tmp_path):
    run_module._claim(tmp_path, CONFIG, resume=False)
    open_records(tmp_path).close()
    with pytest.raises(ValueError, match="holds records; pass --resume"):
        run_module._claim(tmp_path, CONFIG, resume=False)
    run_module._claim(tmp_path, CONFIG, resume=True)


def test_records_of_another_configuration_are_not_resumed(tmp_path):
    run_module._claim(tmp_path, CONFIG, resume=False)
    with pytest.raises(ValueError, match="records are of another configuration"):
        run_module._claim(tmp_path, replace(CONFIG, tokens=5), resume=True)
    run_module._claim(tmp_path, replace(CONFIG, out="elsewhere"), resume=True)


def test_a_bad_configuration_ends_with_2_and_its_mend(tmp_path, capsys):
    path = tmp_path / "bench.yaml"
    path.write_text(json.dumps({"repeats": 0}))
    assert main(["bench", f"--config={path}", f"--out={tmp_path}"]) == 2
    assert "repeats=0: must be at least 1; set" in capsys.readouterr().err


def test_instructions_without_a_path_are_those_that_ship(tmp_path):
    config = replace(CONFIG, prompts=PromptConfig(source="instructions", count=5, choice="first"))
    bench = run_module.plan(config, pair.find().target, tmp_path, tmp_path)
    assert [prompt.id for prompt in bench.prompts] == [f"instruction-{n:03d}" for n in range(5)]
