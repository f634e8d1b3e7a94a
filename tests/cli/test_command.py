# SPDX-License-Identifier: Apache-2.0
"""The `eagle-pangu` command, each time in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from vllm_eagle_pangu import __version__

# Ends what hangs; a busy machine takes a minute to import torch.
TIMEOUT_S = 600


def eagle_pangu(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "vllm_eagle_pangu.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)


@pytest.fixture
def pair_folder(tmp_path: Path) -> Path:
    for part in ("target", "draft"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "config.json").write_text("{}")
    (tmp_path / "heldout_prompts.jsonl").write_text('{"id": 0, "prompt": "def f():\\n"}\n')
    return tmp_path


def test_demo_paths_prints_both_folders_as_json(pair_folder: Path):
    done = eagle_pangu("demo", "--pair", str(pair_folder), "paths")

    assert done.returncode == 0, done.stderr
    expected = {name: str(pair_folder / name) for name in ("target", "draft")}
    assert json.loads(done.stdout) == expected


def test_demo_paths_imports_neither_torch_nor_vllm(pair_folder: Path):
    program = (
        "import sys\n"
        "from vllm_eagle_pangu.cli import main\n"
        f"code = main(['demo', '--pair', {str(pair_folder)!r}, 'paths'])\n"
        "heavy = {'torch', 'vllm', 'openai', 'transformers'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("action", [[], ["paths"]], ids=["demo", "demo paths"])
def test_a_missing_part_of_the_pair_is_named(pair_folder: Path, action: list[str]):
    (pair_folder / "draft" / "config.json").unlink()

    done = eagle_pangu("demo", "--pair", str(pair_folder), *action)

    assert done.returncode == 2
    assert str(pair_folder / "draft" / "config.json") in done.stderr
    assert "name a folder that holds target/ and draft/" in done.stderr
    assert "Traceback" not in done.stderr


def test_version_is_the_packages():
    assert eagle_pangu("--version").stdout.split() == ["eagle-pangu", __version__]


@pytest.mark.parametrize("arguments", [["sever"], [], ["demo", "path"]])
def test_an_unknown_or_missing_subcommand_ends_with_usage(arguments: list[str]):
    done = eagle_pangu(*arguments)

    assert done.returncode == 2
    assert done.stderr.startswith("usage: eagle-pangu")
