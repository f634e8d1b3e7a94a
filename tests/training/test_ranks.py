# SPDX-License-Identifier: Apache-2.0
"""Two ranks of a torchrun on gloo do what one process does; where one dies, all end, and go on."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file

from vllm_eagle_pangu.training.run_folder import Ranks, check_inputs

from .commands import (
    PATIENCE_S,
    TORCHRUN,
    command,
    family,
    finish,
    finish_here,
    kill,
    started,
    states,
    wait_until,
    write_config,
)
from .prepared import HEAD, prepare

# Of hidden states, so many that some are still to be written when the second rank is killed.
ROWS = 1600
SECTION = HEAD | {"length": 32, "max_tokens": 8 * 64, "save_minutes": 0.0}
ANSWERS = {
    "samples": 24,
    "max_tokens": 12,
    "batch": 1,
    "max_model_len": 64,
    "kv_cache_bytes": 1 << 24,
}

# The stages, with the head that each rank ends with.
KEEP_HEADS = """
import sys
from pathlib import Path
import torch
from vllm_eagle_pangu.checked import checked, read_yaml
from vllm_eagle_pangu.training import stages
from vllm_eagle_pangu.training.config import TrainConfig

def kept(*args):
    head = train_head(*args)
    torch.save(head.state_dict(), Path(sys.argv[2]) / f"head-{args[-1].rank}.pt")
    return head

train_head, stages.train_head = stages.train_head, kept
stages.run_stages(checked(TrainConfig, read_yaml(Path(sys.argv[1]))))
"""


@pytest.fixture
def config(tmp_path, tiny_llama):
    """The training file of a run with these sections."""

    def make(name: str, **sections) -> Path:
        general = {"run_dir": str(tmp_path / name), "target_model": str(tiny_llama), "threads": 1}
        return write_config(tmp_path / f"{name}.yaml", **general, **sections)

    return make


@pytest.fixture
def asking(tmp_path) -> dict:
    """Section `answers` that asks questions of a file."""
    lines = [json.dumps({"prompt": f"what comes after {i}?"}) for i in range(24)]
    (tmp_path / "asked.jsonl").write_text("\n".join(lines))
    return ANSWERS | {"prompts": str(tmp_path / "asked.jsonl")}


def prepared_rows(folder: Path, count: int) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(0, 256, (count, 40), generator=generator)
    prepare(folder, [row[: 20 + i % 21].tolist() for i, row in enumerate(rows)], 4)


def files(folder: Path) -> dict[str, bytes]:
    """Without the state of `datasets`, which has a fingerprint of the process."""
    kept = (path for path in folder.iterdir() if path.is_file() and path.name != "state.json")
    return {path.name: path.read_bytes() for path in kept}


def rank(process: subprocess.Popen, number: int) -> psutil.Process:
    """The process of a torchrun that has this rank."""
    below = psutil.Process(process.pid).children()
    found = [one for one in below if one.environ().get("RANK") == str(number)]
    assert len(found) == 1
    return found[0]


def ends_without_a_trace(process: subprocess.Popen, processes: list[psutil.Process]) -> str:
    """Holds it to end with an error, and to leave none of its processes; what it said."""
    said = process.communicate(timeout=PATIENCE_S)[1]
    assert process.returncode not in (0, None)
    _, alive = psutil.wait_procs(processes, timeout=PATIENCE_S / 5)
    assert not alive
    return said


def test_both_ranks_end_with_one_head(config, tmp_path):
    prepared_rows(tmp_path / "run" / "prepared", 60)
    (tmp_path / "script.py").write_text(KEEP_HEADS)
    script = [str(tmp_path / "script.py"), str(config("run", head=SECTION)), str(tmp_path)]
    subprocess.run([sys.executable, *TORCHRUN, *script], timeout=PATIENCE_S, check=True)
    heads = [torch.load(tmp_path / f"head-{number}.pt") for number in (0, 1)]
    for name, weight in heads[0].items():
        assert torch.equal(weight, heads[1][name]), name
    exported = load_file(tmp_path / "run" / "head" / "draft" / "model.safetensors")
    assert torch.equal(exported["fc.weight"], heads[0]["fc.weight"].bfloat16())
    # Two batches of 64 tokens a step, of a budget of 512.
    rows = (tmp_path / "run" / "head" / "acceptance.csv").read_text().splitlines()
    steps = [row.split(",")[:2] for row in rows[1:]]
    assert steps == [[str(step), str(128 * step)] for step in (1, 2, 3, 4)]


def test_a_rank_killed_while_states_are_written_ends_all_and_the_command_goes_on(config, tmp_path):
    for name in ("alone", "two"):
        prepared_rows(tmp_path / name / "prepared", ROWS)
    finish_here(config("alone", head=SECTION))
    two, prepared = config("two", head=SECTION), tmp_path / "two" / "prepared"
    for number in (0, 1):
        before = len(states(prepared))
        with started(command(two, *TORCHRUN)) as process:
            wait_until(lambda found=before: len(states(prepared)) > found + 100, process)
            written, processes = len(states(prepared)), family(process)
            kill(rank(process, number))
            # Till torchrun ends it, the other one may well write all of its share.
            ends_without_a_trace(process, processes)
        assert before < written < ROWS
    finish(two, *TORCHRUN)
    alone = tmp_path / "alone" / "prepared"
    assert files(prepared / "hidden_states") == files(alone / "hidden_states")
    assert files(prepared) == files(alone)
    assert (tmp_path / "two" / "head" / "draft" / "config.json").exists()


def test_a_corpus_and_a_target_are_made_by_the_first_rank_alone(tmp_path):
    target = {"hidden_size": 32, "intermediate_size": 48, "layers": 1, "heads": 1, "kv_heads": 1}
    target |= {"sequence_length": 32, "long_sequence_length": 32, "tokens_per_step": 64}
    target |= {"max_tokens": 4 * 64, "save_minutes": 0.0, "log_every": 1, "compile": False}
    corpus = {"packages": ["jinja2"], "vocab_size": 300, "held_out_prompts": 2}
    general = {"run_dir": str(tmp_path / "run"), "threads": 1}
    config = write_config(tmp_path / "two.yaml", **general, corpus=corpus, target=target)
    argv = command(config, *TORCHRUN)
    said = subprocess.run(argv, timeout=PATIENCE_S, check=True, capture_output=True, text=True)
    made = [line for line in said.stdout.splitlines() if line.startswith(("corpus ", "step "))]
    assert [line.split()[:2] for line in made if line.startswith("step")] == (
        [["step", str(step)] for step in (1, 2, 3, 4)]
    )
    assert len([line for line in made if "files held out" in line]) == 1
    assert (tmp_path / "run" / "target" / "model" / "config.json").exists()


@pytest.mark.engine
def test_a_rank_killed_while_it_answers_ends_its_engine_and_the_answers_are_the_same(
    config, asking, tmp_path
):
    finish(config("alone", answers=asking))
    two, parts = config("two", answers=asking), tmp_path / "two" / "prepared" / "parts"
    with started(command(two, *TORCHRUN)) as process:
        wait_until(lambda: len(list(parts.glob("*.json"))) > 0, process)
        processes = family(process)
        assert len(processes) > 4, "torchrun, two ranks, and their engines"
        kill(rank(process, 1))
        ends_without_a_trace(process, processes)
    finish(two, *TORCHRUN)
    alone = tmp_path / "alone" / "prepared"
    assert files(parts) == files(alone / "parts") and len(files(parts)) == 6
    assert files(parts.parent) == files(alone)


@pytest.mark.parametrize("wrong", ["prompts", "inputs"])
def test_an_error_of_the_first_rank_ends_the_other_without_a_launchers_help(
    wrong, config, asking, tmp_path
):
    """`inputs` are compared by the first rank alone: the other waits for it."""
    if wrong == "prompts":
        asking |= {"prompts": str(tmp_path / "none.jsonl")}
    else:
        check_inputs(tmp_path / "run" / "prepared", {"target": "another"}, Ranks())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    argv = command(config("run", answers=asking))
    environments = [os.environ | shared | {"RANK": number} for number in ("0", "1")]
    with started(argv, env=environments[0]) as first, started(argv, env=environments[1]) as other:
        said = first.communicate(timeout=PATIENCE_S)[1]
        other.communicate(timeout=PATIENCE_S)
    assert first.returncode == 2 and other.returncode not in (0, None)
    assert {"prompts": "none.jsonl", "inputs": "was prepared with another"}[wrong] in said
