# SPDX-License-Identifier: Apache-2.0
"""The CPU worker: vLLM's, with a model runner that decodes trees."""

from collections.abc import Iterator
from contextlib import contextmanager

import vllm.v1.worker.cpu_worker as vllm_cpu_worker
from vllm.v1.worker.cpu_model_runner import CPUModelRunner

from vllm_eagle_pangu.compat import install_attention_backend
from vllm_eagle_pangu.engine.runner import TreeRunnerMixin


class TreeCPUModelRunner(TreeRunnerMixin, CPUModelRunner):
    """vLLM's V1 CPU runner plus the tree step."""


class TreeCPUWorker(vllm_cpu_worker.CPUWorker):
    """Chosen through `parallel_config.worker_cls` when the method is eagle_pangu."""

    def __init__(self, *args, **kwargs) -> None:
        install_attention_backend()
        super().__init__(*args, **kwargs)

    def init_device(self) -> None:
        """Initialise the device and build the tree runner in place of vLLM's."""
        with _runner_class(TreeCPUModelRunner):
            super().init_device()


@contextmanager
def _runner_class(runner: type[CPUModelRunner]) -> Iterator[None]:
    """`init_device` names its runner class; building two runners would double the buffers."""
    original = vllm_cpu_worker.CPUModelRunner
    vllm_cpu_worker.CPUModelRunner = runner
    try:
        yield
    finally:
        vllm_cpu_worker.CPUModelRunner = original
