# SPDX-License-Identifier: Apache-2.0
"""vllm-ascend 0.23, which is for vLLM 0.23: our parts, and how its platform comes to choose them.

vLLM has room for one out-of-tree platform, which is vllm-ascend's: we hook in by `worker_cls`.
"""

from collections.abc import Callable
from typing import Any

from vllm_eagle_pangu.compat.lent import patched
from vllm_eagle_pangu.compat.platform_parts import PlatformParts

# vllm-ascend's name of what it registers for attention; its platform chooses by layer, not by it.
_NAME = "CUSTOM"
_REPLACED = "vllm_ascend.attention.attention_v1.AscendAttentionBackend"

PARTS = PlatformParts(
    worker="vllm_eagle_pangu.engine.ascend.worker.TreeNPUWorker",
    attention={_NAME: "vllm_eagle_pangu.engine.ascend.attention.TreeAscendAttentionBackend"},
    check="vllm_eagle_pangu.engine.ascend.refusals:check",
    graphs=False,
)


def replace_attention_backend() -> None:
    """Make vllm-ascend's platform choose our backend where it would choose its own for grouped
    queries, in this process. Idempotent."""
    # Why: the platform names classes by itself, whatever is registered for attention.
    # How: its answer is exchanged; another one (MLA, sparse) stays, and is refused by name once
    #   the layers are built (`loaded_layers.py`). vLLM's selector may hold the class it replaces.
    # Upstream: NPUPlatform.get_attn_backend_cls, vllm_ascend/platform.py.
    # Remove when: vllm-ascend asks the registry.
    from vllm.v1.attention import selector
    from vllm_ascend.platform import NPUPlatform

    def get_attn_backend_cls(original: Callable, *args: Any, **kwargs: Any) -> str:
        chosen = original(*args, **kwargs)
        return PARTS.attention[_NAME] if chosen == _REPLACED else chosen

    theirs = NPUPlatform.get_attn_backend_cls.__func__
    NPUPlatform.get_attn_backend_cls = classmethod(patched(theirs, get_attn_backend_cls))
    selector._cached_get_attn_backend.cache_clear()
