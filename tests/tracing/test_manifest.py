# SPDX-License-Identifier: Apache-2.0
import json
import os
import platform
import subprocess
from datetime import datetime, timedelta
from pathlib import Path

import pytest
import torch

from vllm_eagle_pangu.config import TreeConfig
from vllm_eagle_pangu.env import TRACE_DIR
from vllm_eagle_pangu.tracing import provenance
from vllm_eagle_pangu.tracing.config import TraceConfig
from vllm_eagle_pangu.tracing.reader import read_manifest
from vllm_eagle_pangu.tracing.writer import TraceWriter


def manifest_of(folder: Path, **options) -> dict:
    writer = TraceWriter(TraceConfig(str(folder), 0.5), **options)
    writer.close()
    return read_manifest(writer.folder)


def test_it_says_what_ran_where_and_when(tmp_path: Path):
    manifest = manifest_of(
        tmp_path, configuration={"tree_width": 4, "dtype": torch.bfloat16}, seed=7
    )
    assert manifest["schema"] == 1
    assert manifest["seed"] == 7
    assert manifest["configuration"] == {"tree_width": 4, "dtype": "torch.bfloat16"}
    assert manifest["trace"] == {"sample_rate": 0.5, "max_bytes": 2**28}
    assert manifest["versions"]["python"] == platform.python_version()
    assert manifest["versions"]["torch"] == torch.__version__
    assert manifest["device"]["type"] == "cpu" and manifest["device"]["cores"] == os.cpu_count()
    assert manifest["run"].endswith(f"-{os.getpid()}")
    begun, ended = (datetime.fromisoformat(manifest[name]) for name in ("started_at", "ended_at"))
    assert begun.utcoffset() == timedelta(0) and begun <= ended


def test_it_keeps_flags_and_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    kept = {
        "EAGLE_PANGU_TRACE_DIR": "somewhere",
        "PANGU_FORCE_EAGER_ATTN": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "OMP_NUM_THREADS": "1",
        "TRITON_INTERPRET": "0",
    }
    secret = {
        "VLLM_API_KEY": "leak-1",
        "VLLM_HF_token": "leak-2",
        "EAGLE_PANGU_SECRET": "leak-3",
        "PANGU_PASSWORD_FILE": "leak-4",
        "AWS_ACCESS": "leak-5",
        "MY_VLLM_FLAG": "leak-6",
    }
    for name, value in (kept | secret).items():
        monkeypatch.setenv(name, value)
    manifest = manifest_of(tmp_path)
    assert kept.items() <= manifest["environment"].items()
    assert "leak" not in json.dumps(manifest)


def test_a_checkout_has_a_commit_and_anything_else_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    package = tmp_path / "checkout" / "vllm_eagle_pangu"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    monkeypatch.setattr(provenance.vllm_eagle_pangu, "__file__", str(package / "__init__.py"))
    assert provenance.git_state() is None

    def git(*arguments: str) -> str:
        command = ["git", "-c", "user.name=t", "-c", "user.email=t@t", *arguments]
        done = subprocess.run(
            command, cwd=package.parent, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    git("init", "-q")
    assert provenance.git_state() is None, "no commit yet"
    git("add", ".")
    git("commit", "-qm", "first")
    commit = git("rev-parse", "HEAD")
    assert provenance.git_state() == {"commit": commit, "dirty": False}
    (package / "__init__.py").write_text("changed")
    assert provenance.git_state() == {"commit": commit, "dirty": True}

    installed = package.parent / "venv" / "vllm_eagle_pangu" / "__init__.py"
    monkeypatch.setattr(provenance.vllm_eagle_pangu, "__file__", str(installed))
    installed.parent.mkdir(parents=True)
    assert provenance.git_state() is None, "the checkout is another project's"


def test_a_git_that_hangs_or_is_missing_is_no_state(monkeypatch: pytest.MonkeyPatch):
    for error in (subprocess.TimeoutExpired("git", 5), FileNotFoundError("git")):

        def fail(*args, error=error, **kwargs):
            assert kwargs["timeout"] <= 5
            raise error

        monkeypatch.setattr(subprocess, "run", fail)
        assert provenance.git_state() is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("trace_dir", ""),
        ("trace_dir", 3),
        ("trace_sample_rate", 0),
        ("trace_sample_rate", 1.5),
        ("trace_sample_rate", float("nan")),
        ("trace_sample_rate", "0.1"),
        ("trace_sample_rate", True),
        ("trace_max_bytes", 1000),
        ("trace_max_bytes", 1e9),
    ],
)
def test_wrong_values_are_refused_by_key_with_the_mend(key: str, value: object):
    mend = rf"^eagle_pangu: {key}={value!r}: must .*; (set|write) \"{key}\""
    with pytest.raises(ValueError, match=mend):
        TreeConfig.split({"model": "head", key: value}, ["model"])


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r'trace_dir=.*set "trace_dir"'):
        TraceWriter(TraceConfig(str(tmp_path / "file" / "traces")))


def test_traces_are_off_unless_the_key_or_the_environment_asks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(TRACE_DIR, raising=False)
    without = TreeConfig()
    asked = TreeConfig(trace_dir="key", trace_sample_rate=0.5, trace_max_bytes=2**20)
    assert without.trace() is None
    assert asked.trace() == TraceConfig("key", 0.5, 2**20)
    monkeypatch.setenv(TRACE_DIR, "environment")
    assert without.trace() == TraceConfig("environment")
    assert asked.trace() == TraceConfig("environment", 0.5, 2**20)
    monkeypatch.setenv(TRACE_DIR, "")
    assert without.trace() is None
