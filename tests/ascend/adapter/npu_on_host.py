# SPDX-License-Identifier: Apache-2.0
"""vllm-ascend on the host: its platform, configuration, worker, runner and layers, on CPU tensors.

torch_npu is the real one over libraries that do nothing: operators have their real schemas, and
those that a dense model calls get CPU kernels here, written after torch_npu's documentation and the
calls in vllm-ascend. Nothing of this is an NPU: no kernel, format, stream or rounding of one.
Replaced in vllm-ascend: what asks the driver (`torch.npu`, the worker's device), and the Triton
kernel that computes slots.
"""

import atexit
import sys
from typing import Any
from unittest.mock import MagicMock

_DEVICE_PROPERTIES = {"num_aic": 8, "num_vectorcore": 8}
# What the driver says of an A2, for which the environment's vllm-ascend was installed.
_SOC_VERSION = 220


def before_vllm() -> None:
    """Stand-ins for what a CANN installation brings; before anything imports vLLM.

    As tests/ut/conftest.py of vllm-ascend, but for torch_npu.
    """
    for name in ("acl", "acl.rt", "mooncake", "mooncake.engine", "torch_npu._inductor"):
        sys.modules[name] = MagicMock(__spec__=None)
    runtime = MagicMock()
    runtime.driver.active.utils.get_device_properties.return_value = _DEVICE_PROPERTIES
    sys.modules["triton.runtime"] = runtime
    import torch
    import torch_npu

    _operators_on_host()
    npu = MagicMock()
    npu.mem_get_info.return_value = (1 << 34, 1 << 34)
    npu.memory_stats.return_value = {}
    npu.device_count.return_value = 1
    npu.get_soc_version.return_value = _SOC_VERSION
    npu.Stream = MagicMock
    npu.Event = MagicMock
    torch.npu = torch_npu.npu = npu
    torch.accelerator.synchronize = lambda device=None: None
    atexit.unregister(torch_npu._init.core.runtime_lifecycle._npu_shutdown)
    torch.Tensor.pin_memory = lambda self: self


def _operators_on_host() -> None:
    import torch
    import vllm.utils.torch_utils as vllm_torch

    from ..operators import stand_ins

    register = vllm_torch.direct_register_custom_op

    def on_cpu(*args: Any, dispatch_key: str | None = None, **kwargs: Any) -> None:
        del dispatch_key
        register(*args, dispatch_key="CPU", **kwargs)

    vllm_torch.direct_register_custom_op = on_cpu
    # Attention and the cache write are those of the operators' own tests.
    stand_ins.register()
    for function in (rms_norm, add_rms_norm, swiglu, format_cast, top_k_top_p):
        torch.library.impl(f"npu::npu_{function.__name__}", "CPU")(function)
    torch.library.impl("atb::_npu_rotary_embedding", "CPU")(rotary_embedding)


def rms_norm(input, gamma, epsilon=1e-6):
    import torch

    scale = torch.rsqrt(input.float().pow(2).mean(-1, keepdim=True) + epsilon)
    return (input.float() * scale).to(input.dtype) * gamma, scale


def add_rms_norm(x1, x2, gamma, epsilon=1e-6):
    total = x1 + x2
    normed, scale = rms_norm(total, gamma, epsilon)
    return normed, scale, total


def swiglu(input, dim=-1):
    import torch

    gate, up = input.chunk(2, dim)
    return torch.nn.functional.silu(gate) * up


def format_cast(input, acl_format, customize_dtype=None, input_dtype=None):
    del acl_format, customize_dtype, input_dtype
    return input.clone()


def top_k_top_p(logits, p=None, k=None):
    assert p is None and k is not None, "top-p is not stood in for"
    lowest = logits.sort(-1, descending=True).values.gather(1, k.long().unsqueeze(1) - 1)
    return logits.masked_fill(logits < lowest, float("-inf"))


def rotary_embedding(positions, query, key, head_size, cos_sin_cache, is_neox_style):
    import torch

    assert is_neox_style
    cos, sin = cos_sin_cache[positions].to(query.dtype).unsqueeze(1).chunk(2, -1)
    for tensor in (query, key):
        heads = tensor.view(tensor.shape[0], -1, head_size)
        first, second = heads.chunk(2, -1)
        heads.copy_(torch.cat((first * cos - second * sin, second * cos + first * sin), -1))


def before_engine(monkeypatch: Any) -> None:
    """What asks the driver, once vllm-ascend is imported."""
    import torch
    from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment
    from vllm.utils.platform_utils import is_pin_memory_available
    from vllm_ascend.platform import NPUPlatform
    from vllm_ascend.worker import block_table, worker

    def init_device(self: Any) -> torch.device:
        init_distributed_environment(1, 0, self.distributed_init_method, 0, "gloo")
        ensure_model_parallel_initialized(1, 1, 1, 1)
        from vllm_ascend.distributed.parallel_state import init_ascend_model_parallel

        init_ascend_model_parallel(self.parallel_config)
        self.vllm_config.device_config.device = torch.device("cpu")
        self.init_snapshot = MagicMock(free_memory=0)
        return torch.device("cpu")

    monkeypatch.setattr(NPUPlatform, "is_pin_memory_available", classmethod(lambda cls: False))
    is_pin_memory_available.cache_clear()
    monkeypatch.setattr(worker.NPUWorker, "_init_device", init_device)
    # It imports the worker, which imports it.
    from vllm_ascend.device import device_op

    write = device_op.DeviceOperator.reshape_and_cache

    def write_contiguous(key: Any, value: Any, **pages: Any) -> None:
        """vllm-ascend gives views of QKV's rows, which `stand_ins` refuses."""
        write(key=key.contiguous(), value=value.contiguous(), **pages)

    monkeypatch.setattr(device_op.DeviceOperator, "reshape_and_cache", write_contiguous)
    monkeypatch.setattr(worker.NPUWorker, "_warm_up_atb", lambda self: None)
    monkeypatch.setattr(worker, "_register_atb_extensions", lambda: None)
    monkeypatch.setattr(block_table.BlockTable, "compute_slot_mapping", compute_slot_mapping)


def compute_slot_mapping(table, num_reqs, query_start_loc, positions):
    """What vllm-ascend's `_compute_slot_mapping_kernel` does without context parallelism."""
    import torch

    counts = (query_start_loc[1 : num_reqs + 1] - query_start_loc[:num_reqs]).long()
    request = torch.arange(num_reqs).repeat_interleave(counts)
    blocks = table.block_table.gpu[request, positions // table.block_size]
    slots = blocks * table.block_size + positions % table.block_size
    table.slot_mapping.gpu.fill_(-1)
    table.slot_mapping.gpu[: positions.shape[0]] = slots.int()
