# SPDX-License-Identifier: Apache-2.0
"""For `make test-ascend`: its environment has vllm-ascend and torch_npu, and no NPU."""

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch

from vllm_eagle_pangu.demo_pair import __file__ as demo_pair

_has_ascend = importlib.util.find_spec("vllm_ascend") is not None
collect_ignore_glob = [] if _has_ascend else ["test_*.py"]


@pytest.fixture(scope="session")
def on_host() -> Iterator[None]:
    """vllm-ascend importable in this process, and its engines on CPU tensors."""
    if not _has_ascend:
        # Files that start engines are also named one by one, past `collect_ignore_glob`.
        pytest.skip("needs vllm-ascend and torch_npu: make test-ascend")
    from vllm_eagle_pangu.kernels import npu_runtime

    from ..operators import stand_ins
    from . import npu_on_host

    npu_on_host.before_vllm()
    with pytest.MonkeyPatch.context() as monkeypatch:
        npu_on_host.before_engine(monkeypatch)
        # In float32, which no operator takes, an engine's tokens and pages compare closely.
        for module in (npu_runtime, stand_ins):
            monkeypatch.setattr(module, "DTYPES", [*module.DTYPES, torch.float32])
        yield


@pytest.fixture
def npu_engine(on_host: None, engine: Callable[..., AbstractContextManager]) -> Callable:
    """`with npu_engine(speculative_config, **LLM arguments) as llm`: the demo target's engine."""

    def start(speculative_config: dict | None = None, **options) -> AbstractContextManager:
        settings = {
            "kv_cache_memory_bytes": 1 << 27,
            "additional_config": {"enable_cpu_binding": False},
        }
        target = Path(demo_pair).parent / "target"
        return engine(target, speculative_config=speculative_config, **settings | options)

    return start


@pytest.fixture
def trees() -> Callable[..., dict]:
    """`trees(nodes, **keys)`: a `speculative_config` with the demo pair's head."""
    head = Path(demo_pair).parent / "draft"

    def config(nodes: int, **keys) -> dict:
        return {
            "method": "eagle_pangu",
            "model": str(head),
            "num_speculative_tokens": nodes,
            **keys,
        }

    return config
