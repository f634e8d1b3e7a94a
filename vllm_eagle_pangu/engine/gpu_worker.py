# SPDX-License-Identifier: Apache-2.0
"""The CUDA worker: vLLM's, with a model runner that decodes trees.

Written against vLLM 0.23 and 0.32 and tested without a GPU; never run on one yet.
"""

import vllm.v1.worker.gpu_model_runner as vllm_gpu_model_runner
from vllm.v1.worker.gpu_worker import Worker

from vllm_eagle_pangu.engine.runner import TreeRunnerMixin
from vllm_eagle_pangu.engine.worker import TreeWorkerMixin


class TreeGPUModelRunner(TreeRunnerMixin, vllm_gpu_model_runner.GPUModelRunner):
    """vLLM's V1 CUDA runner plus the tree step, on Triton kernels."""

    device_implementation = "triton"
    strided_pages = True


class TreeGPUWorker(TreeWorkerMixin, Worker):
    """Chosen through `parallel_config.worker_cls` when the method is eagle_pangu."""

    runner = TreeGPUModelRunner
    lent_to = (vllm_gpu_model_runner, "GPUModelRunner")
