# SPDX-License-Identifier: Apache-2.0
"""What a worker of ours adds to vLLM's, on every platform."""

from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

from vllm_eagle_pangu.compat import install_attention_backend
from vllm_eagle_pangu.compat.lent import lent
from vllm_eagle_pangu.engine.warm_up import warm_up

if TYPE_CHECKING:
    from vllm.v1.worker.worker_base import WorkerBase
else:
    # A platform's worker stands behind the mixin.
    WorkerBase = object


class TreeWorkerMixin(WorkerBase):
    """Mix in before a platform's worker.

    `runner`: our model runner; `lent_to`: the module and the name under which vLLM's worker finds
    its own.
    """

    runner: ClassVar[type]
    lent_to: ClassVar[tuple[ModuleType, str]]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        install_attention_backend()
        super().__init__(*args, **kwargs)

    def init_device(self) -> None:
        """Initialise the device and build the tree runner in place of vLLM's."""
        module, name = self.lent_to
        # Building two runners instead would double the buffers.
        with lent(module, **{name: self.runner}):
            super().init_device()

    def initialize_from_config(self, *args: Any, **kwargs: Any) -> None:
        """Allocate the KV cache, then tabulate its addresses.

        Not earlier: what is allocated inside of vLLM's memory pools may be lost in its sleep mode.
        """
        super().initialize_from_config(*args, **kwargs)
        self.model_runner.tabulate_commits()

    def compile_or_warm_up_model(self) -> Any:
        """Launch what Triton would compile under traffic, then what vLLM does, the seed last."""
        warm_up(self.model_runner)
        self.model_runner.capture_growth()
        self.model_runner.profile_forward()
        return super().compile_or_warm_up_model()

    def shutdown(self) -> None:
        """End the traces, keep what was learnt, then what vLLM ends."""
        runner = getattr(self, "model_runner", None)
        try:
            if runner is not None and runner.tracer is not None:
                runner.tracer.close()
            if runner is not None and runner.learnt is not None:
                runner.learnt.close()
        finally:
            super().shutdown()
