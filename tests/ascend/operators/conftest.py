# SPDX-License-Identifier: Apache-2.0
"""For `make test-ascend`: its environment has torch_npu, on libraries that do nothing."""

import importlib.util
from collections.abc import Iterator

import pytest
import torch

_has_torch_npu = importlib.util.find_spec("torch_npu") is not None
collect_ignore_glob = [] if _has_torch_npu else ["test_*.py"]

if _has_torch_npu:
    import torch_npu  # noqa: F401

    from . import stand_ins

    stand_ins.register()


@pytest.fixture
def any_dtype(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lets float32 in, which no operator takes, to compare closely."""
    from vllm_eagle_pangu.kernels import npu_runtime

    for module in (npu_runtime, stand_ins):
        monkeypatch.setattr(module, "DTYPES", [*module.DTYPES, torch.float32])
    yield
