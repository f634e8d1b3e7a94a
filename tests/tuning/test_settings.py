# SPDX-License-Identifier: Apache-2.0
import os
import pickle
from argparse import ArgumentParser
from types import SimpleNamespace

import pytest

from vllm_eagle_pangu.cli import main
from vllm_eagle_pangu.demo import pair
from vllm_eagle_pangu.demo.pair import Pair
from vllm_eagle_pangu.env import LEARNT_DIR
from vllm_eagle_pangu.measure.prompts import read_texts, spread
from vllm_eagle_pangu.measure.server import server_environment
from vllm_eagle_pangu.tuning import command
from vllm_eagle_pangu.tuning.command import add_arguments, run
from vllm_eagle_pangu.tuning.engines import environment
from vllm_eagle_pangu.tuning.settings import MAX_PROMPTS, Settings, encode

PARTS = ["--model", "T", "--head", "H"]


def arguments(*words: str):
    parser = ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(words)


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "one", "id": 1}\n\n{"prompt": "two"}\n')
    return str(path)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--batch-sizes", "1,x"], "--batch-sizes='1,x': must be whole numbers"),
        (["--batch-sizes", "4,4"], "--batch-sizes='4,4': must be different"),
        (["--batch-sizes", "0"], "--batch-sizes='0': .* 1 or more"),
        (["--tokens", "8"], "--tokens=8: .*set it to 16 or more"),
        (["--temperature", "-1"], "--temperature=-1.0: must be between 0 and 2"),
        (["--out", "tuned.txt"], "--out='tuned.txt': must end in .json"),
        (["--engine-args", "dtype=float32"], "--engine-args='dtype=float32': must be a JSON"),
        (["--engine-args", '{"max_num_seqs": 4}'], "max_num_seqs=4: .*it is the batch size"),
        (["--engine-args", '{"speculative_config": {}}'], "it is what is being tuned"),
        (["--model", ""], "--model='': is needed; give it, or --pair demo or"),
    ],
)
def test_bad_arguments_are_named_with_their_mend(prompts, words, message):
    with pytest.raises(ValueError, match=message):
        Settings.from_arguments(arguments(*PARTS, "--prompts", prompts, *words))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no prompt"),
        ('{"prompt": "a"}\n{"text": "b"}\n', "line 2 holds no prompt"),
        ('{"prompt": 7}\n', "line 1"),
        ("no json\n", "line 1"),
    ],
)
def test_bad_prompt_files_are_named(tmp_path, text, message):
    path = tmp_path / "prompts.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_texts(str(path))


def test_command_reports_a_missing_prompt_file_on_stderr_and_returns_2(tmp_path, capsys):
    missing = str(tmp_path / "none.jsonl")
    assert main(["tune", *PARTS, "--prompts", missing]) == 2
    said = capsys.readouterr().err
    assert f"eagle-pangu tune: eagle_pangu: --prompts='{missing}': cannot be read" in said


def test_a_pair_fills_in_what_is_missing_and_leaves_what_was_given(prompts):
    settings = Settings.from_arguments(
        arguments("--pair", "demo", "--prompts", prompts, "--engine-args", '{"dtype": "float32"}')
    )
    assert settings.model.endswith("target") and settings.head.endswith("draft")
    assert settings.prompts == prompts
    assert settings.engine_args["dtype"] == "float32"
    assert "kv_cache_memory_bytes" in settings.engine_args


def test_a_pair_is_asked_as_its_users_ask_it(prompts, monkeypatch, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    there = Pair(tmp_path, tmp_path, tmp_path / "config.json", chat=True)
    monkeypatch.setattr(pair, "find", {"smollm2": there}.__getitem__)
    assert Settings.from_arguments(arguments("--pair", "smollm2")).chat
    own = arguments("--pair", "smollm2", "--prompts", prompts)
    assert not Settings.from_arguments(own).chat, "they may hold the template already"
    assert Settings.from_arguments(arguments(*PARTS, "--prompts", prompts, "--chat")).chat


def test_a_pair_that_is_not_there_is_named(prompts):
    with pytest.raises(FileNotFoundError, match=r"no such pair: .*none/target.* demo or smollm2"):
        Settings.from_arguments(arguments("--pair", "none"))


def test_a_chat_needs_a_template(prompts):
    demo = pair.find()
    settings = Settings(str(demo.target), str(demo.draft), prompts, chat=True)
    with pytest.raises(ValueError, match=r"--chat=True: .*no chat template; leave it out"):
        encode(settings, 8)


def test_settings_hold_what_was_said_and_cross_to_the_measuring_process(prompts):
    words = [*PARTS, "--prompts", prompts, "--batch-sizes", "2,8", "--sweep"]
    settings = Settings.from_arguments(arguments(*words))
    assert settings == Settings("T", "H", prompts, batch_sizes=(2, 8), sweep=True)
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_the_users_environment_wins_but_for_the_one_process_and_traces(prompts):
    settings = Settings("T", "H", prompts)
    given = {
        "VLLM_LOGGING_LEVEL": "INFO",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        "EAGLE_PANGU_TRACE_DIR": "traces",
    }
    chosen = environment(given, settings)
    assert chosen["VLLM_LOGGING_LEVEL"] == "INFO"
    assert chosen["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert not chosen["EAGLE_PANGU_TRACE_DIR"]
    assert "HF_HUB_OFFLINE" not in chosen, "T and H may be names on the hub"


def test_what_adaptive_trees_learn_is_left_where_a_server_looks_for_it(prompts):
    settings = Settings("T", "H", prompts)
    assert LEARNT_DIR not in environment({}, settings)
    assert environment({LEARNT_DIR: "there"}, settings)[LEARNT_DIR] == "there"
    assert server_environment()[LEARNT_DIR] == "", "what else is measured starts from nothing"


def test_prompts_are_taken_from_all_over_the_file(prompts):
    assert read_texts(prompts) == ["one", "two"]
    assert spread(range(100), 4, 0) == [0, 25, 50, 75]
    assert len(spread(range(MAX_PROMPTS + 1), MAX_PROMPTS, 0)) == MAX_PROMPTS
    assert spread("ab", 5, 0) == ["a", "b"]


def test_the_measuring_process_is_given_the_settings_and_its_code_returned(prompts, monkeypatch):
    started = {}

    class Started:
        exitcode = 7

        def __init__(self, target, args):
            started.update(target=target, settings=args[0])

        def start(self):
            started["one process"] = os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"]

        def join(self):
            pass

    monkeypatch.setattr(os, "environ", dict(os.environ))
    new = SimpleNamespace(Process=Started)
    monkeypatch.setattr(command.multiprocessing, "get_context", {"spawn": new}.__getitem__)
    words = [*PARTS, "--prompts", prompts, "--tokens", "32"]
    assert run(arguments(*words)) == 7
    assert started["target"] is command.measure and started["settings"].tokens == 32
    assert started["one process"] == "0"
