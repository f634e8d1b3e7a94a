# SPDX-License-Identifier: Apache-2.0
"""The only place that knows vLLM's version and patches it: one module per vLLM line."""

from types import ModuleType

SUPPORTED = ("0.32",)


def install() -> None:
    """Teach `EngineArgs` the method. Idempotent; silent also on a vLLM that we do not support."""
    _line().install()


def install_attention_backend() -> None:
    """Put our attention backend over the platform's own, in this process. Idempotent.

    Called by the worker, before it builds its model: without the method nothing is replaced.
    """
    _line().install_attention_backend()


def _line() -> ModuleType:
    """The module for the installed vLLM line, or the one that refuses the method by name."""
    import vllm

    if ".".join(vllm.__version__.split(".")[:2]) in SUPPORTED:
        from vllm_eagle_pangu.compat import vllm_0_32

        return vllm_0_32
    from vllm_eagle_pangu.compat import unsupported

    return unsupported
