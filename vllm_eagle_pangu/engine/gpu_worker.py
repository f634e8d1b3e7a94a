# SPDX-License-Identifier: Apache-2.0
"""The CUDA worker: vLLM's, with a model runner that decodes trees.

Written against vLLM 0.23 and 0.32 and tested without a GPU. Has run on one with 0.23: docs/gpu.md.
"""

import torch
import vllm.v1.worker.gpu_model_runner as vllm_gpu_model_runner
from vllm.config import CUDAGraphMode
from vllm.logger import init_logger
from vllm.v1.worker.gpu_worker import Worker

from vllm_eagle_pangu.engine.growth_graphs import capture_on_gpu
from vllm_eagle_pangu.engine.runner import TreeRunnerMixin
from vllm_eagle_pangu.engine.warm_up import capture_growth
from vllm_eagle_pangu.engine.worker import TreeWorkerMixin

logger = init_logger(f"vllm.{__name__}")


class TreeGPUModelRunner(TreeRunnerMixin, vllm_gpu_model_runner.GPUModelRunner):
    """vLLM's V1 CUDA runner plus the tree step, on Triton kernels."""

    device_implementation = "triton"
    strided_pages = True

    def capture_growth(self) -> None:
        """See `TreeRunnerMixin`; where vLLM captures graphs, too."""
        graphs_wanted = self.compilation_config.cudagraph_mode != CUDAGraphMode.NONE
        # A graph has no place for the definitions, which wait for the device.
        if not graphs_wanted or {self.ops.implementation, self.ops.attention} != {"triton"}:
            return
        try:
            graphs = capture_growth(self, capture_on_gpu(torch.cuda.graph_pool_handle()))
        except RuntimeError as error:
            logger.warning("eagle_pangu: trees are grown without CUDA graphs: %s", error)
            return
        self.grow_by(graphs)


class TreeGPUWorker(TreeWorkerMixin, Worker):
    """Chosen through `parallel_config.worker_cls` when the method is eagle_pangu."""

    runner = TreeGPUModelRunner
    lent_to = (vllm_gpu_model_runner, "GPUModelRunner")
