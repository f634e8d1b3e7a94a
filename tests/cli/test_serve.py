# SPDX-License-Identifier: Apache-2.0
"""`eagle-pangu serve`: the line it stands for, and the server that it becomes."""

import json
import shlex
import signal
import sys
from pathlib import Path

import psutil
import pytest

from vllm_eagle_pangu.kernels.cache_folder import CACHE_DIR
from vllm_eagle_pangu.serving import command, needs

from .conftest import plain_environment
from .readme_commands import HEAD, TARGET, completion, own_model_commands

cpu_only = pytest.mark.skipif(not needs.runs_on_cpu(), reason="of vLLM's CPU build")


def speculative(flags: tuple[str, ...]) -> dict:
    return json.loads(flags[flags.index("--speculative-config") + 1])


def test_the_line_says_everything_that_the_server_is_given():
    plan = command.plan("T", "H", ["--port", "8000", "--chat-template", "a b"], {})
    words = shlex.split(plan.line())
    variables = dict(word.split("=", 1) for word in words[: len(plan.environment)])
    assert variables == dict(plan.environment)
    assert [Path(words[len(variables)]).name, *words[len(variables) + 1 :]] == [
        *("vllm", "serve", "T"),
        *plan.flags,
    ]
    assert plan.flags[-4:] == ("--port", "8000", "--chat-template", "a b")
    assert speculative(plan.flags) == {"method": "eagle_pangu", "model": "H"}


@cpu_only
def test_a_machine_of_few_cores_gets_what_it_needs(monkeypatch):
    monkeypatch.setattr(needs, "cores", lambda: 2)
    plan = command.plan("T", "H", [], {"LD_PRELOAD": "mine.so"})
    assert "--distributed-executor-backend=uni" in plan.flags
    assert plan.environment["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert any(flag.startswith("--gpu-memory-utilization=0.") for flag in plan.flags)
    if needs.needs_openmp():
        library, mine = plan.environment["LD_PRELOAD"].split(":")
        assert Path(library).name == "libiomp5.so" and Path(library).is_file()
        assert mine == "mine.so"


@cpu_only
def test_vllm_does_not_try_to_load_what_it_compiled_before():
    """Regression: it cannot, and every second start of a server ended in a stack overflow."""
    assert command.plan("T", "H", [], {}).environment[needs.SAVED_COMPILE] == "0"


def test_many_cores_keep_engine_and_worker_apart(monkeypatch):
    monkeypatch.setattr(needs, "cores", lambda: 64)
    plan = command.plan("T", "H", [], {})
    assert "--distributed-executor-backend=uni" not in plan.flags
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in plan.environment


@pytest.mark.parametrize(
    "flag", ["--distributed-executor-backend=mp", "--distributed_executor_backend"]
)
def test_the_users_executor_wins(monkeypatch, flag):
    monkeypatch.setattr(needs, "cores", lambda: 2)
    plan = command.plan("T", "H", [flag, "mp"], {})
    assert "--distributed-executor-backend=uni" not in plan.flags
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in plan.environment


@cpu_only
@pytest.mark.parametrize("words", [["--distributed_executor_backend=uni"], [needs.EXECUTOR, "uni"]])
def test_a_user_who_says_uni_gets_the_variable_that_it_takes(monkeypatch, words):
    monkeypatch.setattr(needs, "cores", lambda: 2)
    plan = command.plan("T", "H", words, {})
    assert plan.environment["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert sum("uni" in word for word in plan.flags) == 1


def test_the_users_environment_wins():
    given = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        "LD_PRELOAD": "/opt/libgomp.so",
        "VLLM_CPU_KVCACHE_SPACE": "4",
        needs.SAVED_COMPILE: "1",
    }
    plan = command.plan("T", "H", [], given)
    assert not plan.environment
    assert not any(flag.startswith("--gpu-memory-utilization") for flag in plan.flags)


@pytest.mark.parametrize("flag", ["--gpu-memory-utilization", "--kv-cache-memory-bytes"])
def test_the_users_memory_wins(flag):
    flags = command.plan("T", "H", [f"{flag}=1"], {}).flags
    assert [word for word in flags if "memory" in word] == [f"{flag}=1"]


@pytest.mark.parametrize("spelling", ["--speculative-config", "--speculative_config", "-sc"])
@pytest.mark.parametrize("joined", [True, False])
def test_the_users_speculative_config_is_merged_with_the_head(spelling, joined):
    value = '{"tree-width": 3, "method": "eagle3"}'
    words = [f"{spelling}={value}"] if joined else [spelling, value]
    flags = command.plan("T", "H", [*words, "--port", "1"], {}).flags
    assert speculative(flags) == {"model": "H", "tree_width": 3, "method": "eagle3"}
    assert flags.count("--speculative-config") == 1 and flags[-2:] == ("--port", "1")


@pytest.mark.parametrize(
    ("value", "problem"),
    [("{", "must be a JSON object"), ("3", "must be"), ('{"model": "X"}', "another head than H")],
)
def test_a_speculative_config_that_cannot_be_merged_is_refused(value, problem, run_python):
    words = ("-m", "vllm_eagle_pangu.cli", "serve", "T", "H", "--speculative-config", value)
    done = run_python(*words)
    assert done.returncode == 2
    assert problem in done.stderr and "Traceback" not in done.stderr


@pytest.mark.engine
@cpu_only
def test_serve_works_where_the_vllm_command_is_broken(nameless, serving, port):
    """vllm-cpu's command dies of PackageNotFoundError: vllm; SIGTERM ends the server with all."""
    words = [str(nameless), "-m", "vllm_eagle_pangu.cli", "serve", str(TARGET), str(HEAD)]
    words += ["--served-model-name", "own", "--port", str(port), "--enforce-eager"]
    with serving(words, plain_environment(VLLM_CPU_KVCACHE_SPACE="1")) as server:
        assert completion(own_model_commands()["curl"], port)
        drafts, accepted = server.counters()
        assert accepted > 0 and drafts > 0
        printed = server.log.read_text().splitlines()
        assert " vllm serve " in printed[0]
        assert "the vllm command does not work here" in printed[1]
        process = server.group.process
        assert Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")[1:3] == [
            b"-m",
            b"vllm.entrypoints.openai.api_server",
        ]
        others = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGTERM)
        process.wait(600)
        _, left = psutil.wait_procs(others, timeout=600)
        assert not left


def test_a_head_is_needed(run_python):
    done = run_python("-m", "vllm_eagle_pangu.cli", "serve", "T", python=sys.executable)
    assert done.returncode == 2
    assert "HEAD" in done.stderr


def test_a_published_model_and_its_head_are_served_by_name(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE_DIR, str(tmp_path))
    fetched = tmp_path / "models" / "smollm2"
    fetched.mkdir(parents=True)
    (fetched / "config.json").write_text("{}")
    target, head = command.folders("smollm2", "smollm2")
    assert target == str(fetched) and (Path(head) / "model.safetensors").is_file()
    assert command.folders("some/target", "some/head") == ("some/target", "some/head")
