# SPDX-License-Identifier: Apache-2.0
"""vLLM 0.32: the method in `EngineArgs`, the worker, the attention backend."""

from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from typing import Any

from pydantic import ValidationError

from vllm_eagle_pangu.compat.method_choice import FLAT_KEYS, chosen_spec
from vllm_eagle_pangu.config import ATTRIBUTE, METHOD, TreeConfig, refusal

WORKER = "vllm_eagle_pangu.engine.cpu_worker.TreeCPUWorker"
ATTENTION_BACKEND = "vllm_eagle_pangu.engine.cpu_attention.TreeCPUAttentionBackend"

# What vLLM puts into SpeculativeConfig itself; a user cannot write these.
_HOST_INTERNAL = {
    "target_model_config",
    "target_parallel_config",
    "draft_model_config",
    "draft_parallel_config",
}


def install() -> None:
    """Patch `EngineArgs` once per process."""
    from vllm.engine.arg_utils import EngineArgs

    for name, wrapper in (
        ("create_speculative_config", _create_speculative_config),
        ("create_engine_config", _create_engine_config),
    ):
        original = getattr(EngineArgs, name)
        if not getattr(original, "eagle_pangu", False):
            patched = wraps(original)(wrapper(original))
            patched.eagle_pangu = True  # type: ignore[attr-defined]
            setattr(EngineArgs, name, patched)


def install_attention_backend() -> None:
    """Register our attention backend over the CPU platform's, in this process."""
    # Why: the CPU platform ignores every attention backend but CPU_ATTN, and ours must serve it.
    # How: the registry's own override; the selector's cache may hold the class it replaces.
    # Upstream: vllm/v1/attention/backends/registry.py, vllm/v1/attention/selector.py.
    # Remove when: the CPU platform honours AttentionBackendEnum.CUSTOM.
    from vllm.v1.attention import selector
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    if AttentionBackendEnum.CPU_ATTN.get_path() == ATTENTION_BACKEND:
        return
    register_backend(AttentionBackendEnum.CPU_ATTN, ATTENTION_BACKEND)
    selector._cached_get_attn_backend.cache_clear()


def host_keys() -> set[str]:
    """The keys of vLLM's `SpeculativeConfig` that a user may write."""
    from vllm.config import SpeculativeConfig

    return {field.name for field in fields(SpeculativeConfig)} - _HOST_INTERNAL


def _create_speculative_config(original: Callable) -> Callable:
    # Why: SpeculativeConfig forbids unknown keys and its `method` is a closed Literal.
    # How: hand vLLM its own keys with method "eagle3"; hang ours on the object, which is pickled.
    # Upstream: EngineArgs.create_speculative_config, vllm/engine/arg_utils.py.
    # Remove when: vLLM lets a plugin register a speculative method with keys of its own.
    def create_speculative_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        spec = chosen_spec(self)
        if spec is None and hasattr(self, ATTRIBUTE):
            raise _speculators_target(self.model)
        if spec is None:
            return original(self, *args, **kwargs)
        tree, rest = TreeConfig.split(spec, host_keys())
        # The original writes into the arguments; they stay the user's, who may use them again.
        said = {name: getattr(self, name) for name in ("speculative_config", *FLAT_KEYS)}
        for name in FLAT_KEYS:
            setattr(self, name, None)
        self.speculative_config = rest
        try:
            config = original(self, *args, **kwargs)
        except (OSError, ValueError) as error:
            raise _unusable_head(rest["model"], error) from error
        finally:
            for name, value in said.items():
                setattr(self, name, value)
        setattr(config, ATTRIBUTE, tree)
        return config

    return create_speculative_config


def _create_engine_config(original: Callable) -> Callable:
    # Why: the tree step lives in a worker of ours, and what cannot work must be refused here.
    # How: check before and after vLLM builds the configuration, then name our worker in it.
    # Upstream: EngineArgs.create_engine_config, vllm/engine/arg_utils.py.
    # Remove when: vLLM lets a speculative method bring its worker.
    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        spec = chosen_spec(self)
        if spec is None:
            return original(self, *args, **kwargs)
        from vllm_eagle_pangu.engine import refusals

        tree, rest = TreeConfig.split(spec, host_keys())
        refusals.check_options(self, rest)
        # vLLM may put a speculators checkpoint's own method in our place; remember the choice.
        setattr(self, ATTRIBUTE, tree)
        try:
            config = original(self, *args, **kwargs)
        finally:
            delattr(self, ATTRIBUTE)
        refusals.check_target_and_head(config, tree)
        config.parallel_config.worker_cls = WORKER
        return config

    return create_engine_config


def _unusable_head(model: str, error: Exception) -> ValueError:
    reason = str(error)
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        reason = ": ".join([*map(str, first["loc"]), first["msg"]])
    return refusal(
        "model",
        model,
        f"vLLM cannot draft with it ({reason.splitlines()[0]})",
        'set "model" in speculative_config to the folder or hub name of an EAGLE-3 head',
    )


def _speculators_target(model: str) -> ValueError:
    return refusal(
        "method",
        METHOD,
        "the model given is itself a draft checkpoint (speculators format), whose method wins",
        f'give the target as the model and the draft checkpoint as "model" in speculative_config; '
        f"here the target is {model!r}",
    )
