# SPDX-License-Identifier: Apache-2.0
"""The only place that knows vLLM's version and patches it: one module per vLLM line."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm_eagle_pangu.compat.platform_parts import PlatformParts

SUPPORTED = ("0.23", "0.32")


def install() -> None:
    """Teach `EngineArgs` the method. Idempotent; silent also on a vLLM that we do not support."""
    platforms = _platforms()
    if platforms is None:
        from vllm_eagle_pangu.compat import unsupported

        unsupported.install()
    else:
        from vllm_eagle_pangu.compat import engine_args

        engine_args.install(platforms)


def install_attention_backend() -> None:
    """Put our attention backends over the platform's own, in this process. Idempotent.

    Called by the worker, before it builds its model: without the method nothing is replaced.
    """
    platforms = _platforms()
    if platforms is None:
        from vllm_eagle_pangu.compat import unsupported

        unsupported.refuse_version()
    from vllm.platforms import current_platform

    from vllm_eagle_pangu.compat.platform_parts import replace_attention_backends

    replace_attention_backends(platforms[current_platform.device_type])


def installed_line() -> str:
    """Of vLLM, as "0.32"."""
    import vllm

    return ".".join(vllm.__version__.split(".")[:2])


def _platforms() -> "Mapping[str, PlatformParts] | None":
    """Our parts for the installed vLLM line, by device type; None for a line we do not support."""
    line = installed_line()
    if line == "0.32":
        from vllm_eagle_pangu.compat import vllm_0_32

        return vllm_0_32.PLATFORMS
    if line == "0.23":
        from vllm_eagle_pangu.compat import vllm_0_23

        return vllm_0_23.PLATFORMS
    return None
