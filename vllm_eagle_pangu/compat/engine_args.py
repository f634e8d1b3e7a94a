# SPDX-License-Identifier: Apache-2.0
"""The method in `EngineArgs`: what the user said, checked, and the worker; or its refusal."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from pkgutil import resolve_name
from typing import Any, NoReturn

from pydantic import ValidationError

from vllm_eagle_pangu.checked import told
from vllm_eagle_pangu.compat.lent import lent, patched
from vllm_eagle_pangu.compat.platform_parts import PlatformParts
from vllm_eagle_pangu.config import ATTRIBUTE, METHOD, TreeConfig, refusal, tree_config

# What vLLM puts into SpeculativeConfig itself; a user cannot write these.
_HOST_INTERNAL = {
    "target_model_config",
    "target_parallel_config",
    "draft_model_config",
    "draft_parallel_config",
}
# EngineArgs' flat spellings of the three keys (`spec_model=...`, `--spec-model ...`).
FLAT_KEYS = {
    "spec_method": "method",
    "spec_model": "model",
    "spec_tokens": "num_speculative_tokens",
}

# vLLM 0.32: the last block of a prefix that the cache has is computed anew for an EAGLE head, whose
# row of a block's last token was read with another continuation's first. Ours reads as it goes, so
# that is the one row in which its context may differ: drafts may, tokens do not, and as much of a
# prompt is found as under plain decoding.
_KEEPS_BLOCK = "disable_eagle_block_drop"

# By name: the configuration travels to other processes.
_SCHEDULER = "vllm_eagle_pangu.engine.scheduler.TreeScheduler"


def install(platforms: Mapping[str, PlatformParts] | None) -> None:
    """Patch `EngineArgs` once per process; `platforms` by vLLM's device type.

    None for a vLLM that we do not support: the method is refused by name, and nothing else changes.
    """
    from vllm.engine.arg_utils import EngineArgs

    create_engine_config = partial(_create_engine_config, platforms)
    # A vLLM that we do not support may lack it.
    if hasattr(EngineArgs, "create_engine_config"):
        EngineArgs.create_engine_config = patched(
            EngineArgs.create_engine_config, create_engine_config
        )
    if platforms is None:
        return
    from vllm.config import VllmConfig

    EngineArgs.create_speculative_config = patched(
        EngineArgs.create_speculative_config, _create_speculative_config
    )
    VllmConfig.use_v2_model_runner = property(
        patched(VllmConfig.use_v2_model_runner.fget, _use_v2_model_runner)
    )


def chosen_spec(engine_args: Any) -> dict[str, Any] | None:
    """The user's whole `speculative_config` if its method is ours, else None.

    Keys are spelled with underscores; the flat flags are merged in. Changes nothing.
    """
    spec = engine_args.speculative_config
    if not (spec is None or isinstance(spec, dict)):
        return None
    merged = {str(key).replace("-", "_"): value for key, value in (spec or {}).items()}
    flat = {key: getattr(engine_args, flag, None) for flag, key in FLAT_KEYS.items()}
    if METHOD not in (merged.get("method"), flat["method"]):
        return None
    for flag, key in FLAT_KEYS.items():
        if flat[key] is None:
            continue
        if key in merged:
            raise refusal(
                f"--{flag.replace('_', '-')}",
                flat[key],
                f"speculative_config says {key}={merged[key]!r} too",
                "keep one of the two",
            )
        merged[key] = flat[key]
    return merged


def host_keys() -> set[str]:
    """The keys of vLLM's `SpeculativeConfig` that a user may write."""
    from vllm.config import SpeculativeConfig

    return {field.name for field in fields(SpeculativeConfig)} - _HOST_INTERNAL


def _split(spec: Mapping[str, Any]) -> tuple[TreeConfig, dict[str, Any]]:
    """`TreeConfig.split` on this platform."""
    from vllm.platforms import current_platform

    # A host that computes knows what its work takes.
    return TreeConfig.split(spec, host_keys(), adapts=current_platform.device_type == "cpu")


def _create_speculative_config(original: Callable, self: Any, *args: Any, **kwargs: Any) -> Any:
    # Why: SpeculativeConfig forbids unknown keys and its `method` is a closed Literal.
    # How: hand vLLM its own keys with method "eagle3"; hang ours on the object, which is pickled.
    # Upstream: EngineArgs.create_speculative_config, vllm/engine/arg_utils.py.
    # Remove when: vLLM lets a plugin register a speculative method with keys of its own.
    spec = chosen_spec(self)
    if spec is None and hasattr(self, ATTRIBUTE):
        raise _speculators_target(self.model)
    if spec is None:
        return original(self, *args, **kwargs)
    from vllm_eagle_pangu.engine.head_length import set_length

    tree, rest = _split(spec)
    # vLLM refuses more positions than the head was configured with, whatever its rope.
    length = rest.pop("max_model_len", None)
    if _KEEPS_BLOCK in host_keys():
        rest.setdefault(_KEEPS_BLOCK, True)
    try:
        # The original writes into the arguments.
        with lent(self, speculative_config=rest, **dict.fromkeys(FLAT_KEYS)):
            config = original(self, *args, **kwargs)
    except (OSError, ValueError) as error:
        raise _unusable_head(rest["model"], error) from error
    set_length(config, length)
    setattr(config, ATTRIBUTE, tree)
    return config


def _create_engine_config(
    platforms: Mapping[str, PlatformParts] | None,
    original: Callable,
    self: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    # Why: trees need a worker and a scheduler of ours; what cannot work must be refused here.
    # How: check before and after vLLM builds the configuration, then name our parts in it.
    # Upstream: EngineArgs.create_engine_config, vllm/engine/arg_utils.py.
    # Remove when: vLLM lets a speculative method bring its worker and its scheduler.
    spec = chosen_spec(self)
    if spec is None:
        return original(self, *args, **kwargs)
    if platforms is None:
        refuse_version()
    from vllm.platforms import current_platform

    from vllm_eagle_pangu.engine import refusals

    tree, rest = _split(spec)
    refusals.check_options(self, rest, platforms)
    parts = platforms[current_platform.device_type]
    # vLLM may put a speculators checkpoint's own method in our place; remember the choice.
    setattr(self, ATTRIBUTE, tree)
    try:
        # Without a word from the user vLLM schedules ahead of EAGLE drafts, as trees cannot.
        with lent(self, async_scheduling=False, enforce_eager=_is_eager(self, parts)):
            config = original(self, *args, **kwargs)
    finally:
        delattr(self, ATTRIBUTE)
    if parts.check is not None:
        resolve_name(parts.check)(config)
    refusals.check_target_and_head(config, tree)
    refusals.check_attention_backend(config, parts)
    config.parallel_config.worker_cls = parts.worker
    config.scheduler_config.scheduler_cls = _SCHEDULER
    return config


def refuse_version() -> NoReturn:
    """Raise the error that names the installed vLLM and the lines that work."""
    import vllm

    from vllm_eagle_pangu.compat import SUPPORTED

    lines = " or ".join(f"{line}.*" for line in SUPPORTED)
    raise refusal(
        "method",
        METHOD,
        f"vLLM {vllm.__version__} is not supported",
        f"install vLLM {lines}, or choose another method",
    )


def _use_v2_model_runner(original: Callable, self: Any) -> bool:
    # Why: on CUDA vLLM prefers its V2 runner, which knows no plugin's method; the variable that
    #   vLLM has for it would hold for every later engine of the process.
    # How: a configuration with trees says V1 wherever it goes, any other says what it would say.
    # Upstream: VllmConfig.use_v2_model_runner, vllm/config/vllm.py.
    # Remove when: the tree step runs in the V2 runner, or that is an engine argument.
    return tree_config(self) is None and original(self)


def _is_eager(engine_args: Any, parts: PlatformParts) -> bool:
    """No graphs on a platform whose graphs cannot hold trees, whatever the user said."""
    if parts.graphs or engine_args.enforce_eager:
        return engine_args.enforce_eager
    from vllm.logger import init_logger

    init_logger(f"vllm.{__name__}").info(
        "eagle_pangu: the target runs eagerly (enforce_eager=True): ACL graphs are captured "
        "for one number of rows per request, and trees have several"
    )
    return True


def _unusable_head(model: str, error: Exception) -> ValueError:
    reason = told(error) if isinstance(error, ValidationError) else str(error)
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
