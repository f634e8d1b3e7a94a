# SPDX-License-Identifier: Apache-2.0
"""The CPU worker on vLLM 0.23, whose own warm-up of speculative decoding does not run on CPU.

Why: the rejection sampler hands its CPU kernel an argument that the kernel does not know
(USE_FP64_GUMBEL), so that no method of speculative decoding starts on CPU. Trees never call that
sampler, but vLLM's profile run does.
How: drop the argument; it chooses the precision of a GPU's noise.
Upstream: vllm/v1/sample/rejection_sampler.py, vllm/utils/cpu_triton_utils.py.
Remove when: vLLM 0.23 is no longer supported.
"""

import inspect
from functools import wraps
from typing import Any

from vllm.utils import cpu_triton_utils

from vllm_eagle_pangu.engine.cpu_worker import TreeCPUWorker


class TreeCPUWorker023(TreeCPUWorker):
    """Chosen through `parallel_config.worker_cls` on vLLM 0.23."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _mend_recovered_tokens_kernel()
        super().__init__(*args, **kwargs)


def _mend_recovered_tokens_kernel() -> None:
    kernel = cpu_triton_utils.sample_recovered_tokens_kernel
    original = kernel.func
    if "USE_FP64_GUMBEL" in inspect.signature(original, follow_wrapped=False).parameters:
        return

    @wraps(original)
    def sample_recovered_tokens(*args: Any, USE_FP64_GUMBEL: bool = False, **kwargs: Any) -> Any:
        del USE_FP64_GUMBEL
        return original(*args, **kwargs)

    kernel.func = sample_recovered_tokens
