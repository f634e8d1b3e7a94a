# SPDX-License-Identifier: Apache-2.0
"""Fixtures that several test folders share: tiny checkpoints and an engine that runs them."""

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from vllm_eagle_pangu.env import LEARNT_DIR

from .thread_state import pytest_runtest_teardown  # noqa: F401
from .tiny_pair import write_tiny_head, write_tiny_llama, write_tiny_pangu


def pytest_configure(config: pytest.Config) -> None:
    """pytest-randomly shuffles the order only; examples of hypothesis may take their time."""
    config.option.randomly_reset_seed = False
    # No test begins with what another one's engine learnt, nor with the user's.
    os.environ[LEARNT_DIR] = ""
    if config.pluginmanager.hasplugin("hypothesispytest"):
        from hypothesis import settings

        # Machines that run these tests may be busy; time is not what they hold.
        settings.register_profile("no_deadline", deadline=None)
        settings.load_profile("no_deadline")


@pytest.fixture(scope="session")
def tiny_pangu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a 3-layer openPangu target in float32 with a byte tokenizer."""
    return write_tiny_pangu(tmp_path_factory.mktemp("tiny") / "pangu")


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the same target without biases, as a Llama."""
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "llama")


@pytest.fixture(scope="session")
def tiny_head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of an EAGLE-3 head for `tiny_pangu` that is right more often than not."""
    return write_tiny_head(tmp_path_factory.mktemp("tiny") / "head")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., AbstractContextManager]:
    """`with engine(folder, **LLM arguments) as llm`: a real vLLM engine in this process.

    Float32, eager unless told otherwise, openPangu registered. Gone when the block is left.
    """
    pytest.importorskip("vllm")
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    from vllm import LLM
    from vllm.distributed import cleanup_dist_env_and_memory

    from vllm_eagle_pangu.models.registration import register_models

    register_models()

    @contextmanager
    def start(folder: Path, **options) -> Iterator[LLM]:
        settings = {
            "dtype": "float32",
            "enforce_eager": True,
            "enable_prefix_caching": False,
            "max_model_len": 256,
            "max_num_seqs": 4,
            "max_num_batched_tokens": 256,
            "max_logprobs": -1,
            "disable_log_stats": True,
        }
        # vLLM collects garbage several times while it starts: half a second each with all that
        # was imported.
        gc.freeze()
        llm = LLM(model=str(folder), **settings | options)
        try:
            yield llm
        finally:
            llm.llm_engine.engine_core.shutdown()
            del llm
            cleanup_dist_env_and_memory()

    return start
