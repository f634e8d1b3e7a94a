# SPDX-License-Identifier: Apache-2.0
"""The CPU worker on vLLM 0.23, whose own warm-up of speculative decoding does not run on CPU.

Why: the rejection sampler hands its CPU kernel an argument that the kernel does not know
(USE_FP64_GUMBEL), so that no method of speculative decoding starts on CPU. Trees never call that
sampler, but vLLM's profile run does.
How: drop the argument; it chooses the precision of a GPU's noise.
Upstream: vllm/v1/sample/rejection_sampler.py, vllm/utils/cpu_triton_utils.py.
Remove when: vLLM 0.23 is no longer supported.
"""

from collections.abc import Callable
from typing import Any

from vllm.utils import cpu_triton_utils

from vllm_eagle_pangu.compat.lent import patched
from vllm_eagle_pangu.engine.cpu_worker import TreeCPUWorker


class TreeCPUWorker023(TreeCPUWorker):
    """Chosen through `parallel_config.worker_cls` on vLLM 0.23."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kernel = cpu_triton_utils.sample_recovered_tokens_kernel
        kernel.func = patched(kernel.func, _sample_recovered_tokens)
        super().__init__(*args, **kwargs)


def _sample_recovered_tokens(
    original: Callable, *args: Any, USE_FP64_GUMBEL: bool = False, **kwargs: Any
) -> Any:
    del USE_FP64_GUMBEL
    return original(*args, **kwargs)
