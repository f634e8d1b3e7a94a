# SPDX-License-Identifier: Apache-2.0
"""README's own-model commands, as README has them, on the demo pair.

In `make test` those that need no installation; all of them, in an environment of their own, in
`make test-own-model`.
"""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from vllm_eagle_pangu.serving import needs

from .conftest import plain_environment
from .readme_commands import HEAD, ROOT, TARGET, completion, own_model_commands

pytestmark = pytest.mark.skipif(not needs.runs_on_cpu(), reason="README's commands are for a CPU")

STEPS = ["python3", "pip install", "eagle-pangu doctor", "eagle-pangu serve", "curl"]
fresh_only = pytest.mark.skipif(
    "OWN_MODEL_FRESH" not in os.environ, reason="3.5 GB: make test-own-model"
)


def test_readme_says_how_to_get_from_nothing_to_an_answer():
    commands = own_model_commands()
    assert list(commands) == STEPS
    for step in ("doctor", "serve"):
        assert f"{step} {TARGET} {HEAD}" in commands[f"eagle-pangu {step}"]


def on_port(command: str, port: int) -> list[str]:
    """A serve command's words, on another port than README's."""
    return shlex.split(command.replace("--port 8000", f"--port {port}"))


@pytest.mark.engine
def test_readmes_serve_command_answers_readmes_curl(serving, port):
    commands = own_model_commands()
    program, *words = on_port(commands["eagle-pangu serve"], port)
    environment = plain_environment()
    with serving([str(Path(sys.executable).with_name(program)), *words], environment) as server:
        assert completion(commands["curl"], port)
        drafts, accepted = server.counters()
        assert accepted > 0 and drafts > 0
    assert server.group is None, "it was ended"


@fresh_only
@pytest.mark.engine
def test_readmes_commands_work_on_a_fresh_machine(tmp_path, serving, port):
    commands = own_model_commands()
    folder = tmp_path / "clone"
    ignored = shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__", "results")
    shutil.copytree(ROOT, folder, ignore=ignored)
    environment = plain_environment()

    def shell(command: str) -> subprocess.CompletedProcess[str]:
        activate = ". own/bin/activate; " if (folder / "own").exists() else ""
        print(f"$ {command}", flush=True)
        done = subprocess.run(
            ["bash", "-ec", activate + command],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        print(done.stdout, flush=True)
        return done

    for step in ("python3", "pip install"):
        assert shell(commands[step]).returncode == 0
    exports: list[str] = []
    # A third time where somebody took the machine's memory meanwhile.
    for _ in range(3):
        examined = shell(" && ".join([*exports, commands["eagle-pangu doctor"]]))
        mends = [line.partition("; mend: ")[2] for line in examined.stdout.splitlines()]
        mends = [mend for mend in mends if mend]
        assert examined.returncode == (1 if mends else 0), "each fault has its mend"
        for mend in mends:
            if mend.startswith("export "):
                exports.append(mend)
            else:
                assert shell(mend).returncode == 0
    assert not mends
    # `serve` needs none of the exports.
    program, *words = on_port(commands["eagle-pangu serve"], port)
    with serving([str(folder / "own" / "bin" / program), *words], environment) as server:
        print(server.log.read_text().splitlines()[0])
        print(completion(commands["curl"], port))
        assert server.counters()[1] > 0
