# SPDX-License-Identifier: Apache-2.0
"""Environments with vLLM's traps in them, and servers that `eagle-pangu serve` became."""

import os
import re
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from vllm_eagle_pangu.measure.server import ProcessGroup, Server, free_port

# What a user's shell may have set, and the tests' own shell.
VARIABLES = (
    "LD_PRELOAD",
    "VLLM_ENABLE_V1_MULTIPROCESSING",
    "VLLM_CPU_KVCACHE_SPACE",
    "VLLM_USE_AOT_COMPILE",
    "PYTHONPATH",
)


def plain_environment(**variables: str) -> dict[str, str]:
    """A new user's: none of `VARIABLES` but those given; nothing is fetched."""
    kept = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    return kept | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"} | variables


@pytest.fixture(scope="session")
def nameless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with all that is installed here but the distribution "vllm"."""
    folder = tmp_path_factory.mktemp("nameless")
    venv.create(folder, symlinks=True)
    packages = Path(sysconfig.get_path("purelib"))
    libraries = packages.parents[1]
    copied = folder / packages.relative_to(sys.prefix)
    for entry in packages.iterdir():
        if not re.fullmatch(r"vllm-[^-]*\.dist-info", entry.name):
            (copied / entry.name).symlink_to(entry)
    for library in libraries.glob("*.so"):
        (copied.parents[1] / library.name).symlink_to(library)
    return folder / "bin" / "python"


@pytest.fixture
def broken_torchvision(tmp_path: Path) -> Path:
    """A folder for PYTHONPATH with a torchvision whose operators were not loaded, as where its
    library is a CUDA build: what its `_meta_registrations.py` does then.
    """
    module = tmp_path / "broken" / "torchvision" / "__init__.py"
    module.parent.mkdir(parents=True)
    module.write_text(
        "import torch\n"
        "@torch.library.register_fake('torchvision::nms')\n"
        "def meta_nms(boxes, scores, threshold):\n"
        "    return boxes\n"
    )
    return tmp_path / "broken"


class Served(Server):
    """A server of somebody else's command, which serves on `port`."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        super().__init__("own", Path(), None)
        self.words, self.environment, self.log = list(command), dict(environment), log
        # Of its own number, not of the one that a free port had a moment ago.
        self.port = int(self.words[self.words.index("--port") + 1])

    def start(self) -> "Served":
        self.group = ProcessGroup(self.words, self.environment, self.log)
        return self


@pytest.fixture
def serving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., AbstractContextManager[Served]]:
    """`with serving(words, environment) as server`: it answers; afterwards it is gone."""
    # A first start compiles the model.
    monkeypatch.setattr("vllm_eagle_pangu.measure.server.START_TIMEOUT_S", 900.0)

    @contextmanager
    def start(words: Sequence[str], environment: Mapping[str, str]) -> Iterator[Served]:
        with Served(words, environment, tmp_path / "server.log") as server:
            yield server.wait()

    return start


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def run_python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a Python with arguments in `plain_environment(**variables)`, its output kept."""

    def run(*words: str, python: Path | str = sys.executable, cores: int = 0, **variables: str):
        def few_cores() -> None:
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])

        return subprocess.run(
            [str(python), *words],
            env=plain_environment(**variables),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
            preexec_fn=few_cores if cores else None,
        )

    return run
