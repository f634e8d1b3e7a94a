# SPDX-License-Identifier: Apache-2.0
"""For a vLLM that we do not support: refuse the method by name, and change nothing else."""

from functools import wraps
from typing import Any, NoReturn

from vllm_eagle_pangu.compat.method_choice import chosen_spec
from vllm_eagle_pangu.config import METHOD, refusal


def install() -> None:
    """Wrap `EngineArgs.create_engine_config` once, if this vLLM has it."""
    from vllm.engine.arg_utils import EngineArgs

    original = getattr(EngineArgs, "create_engine_config", None)
    if original is None or getattr(original, "eagle_pangu", False):
        return

    @wraps(original)
    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        if chosen_spec(self) is not None:
            refuse_version()
        return original(self, *args, **kwargs)

    create_engine_config.eagle_pangu = True  # type: ignore[attr-defined]
    EngineArgs.create_engine_config = create_engine_config


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
