# SPDX-License-Identifier: Apache-2.0
"""The NPU worker: vllm-ascend's, with a model runner that decodes trees.

Written against vllm-ascend 0.23 and tested without an NPU; never run on one yet.
"""

from typing import Any

import vllm_ascend.worker.worker as vllm_ascend_worker

from vllm_eagle_pangu.compat.ascend import replace_attention_backend
from vllm_eagle_pangu.engine.ascend.runner import TreeNPUModelRunner
from vllm_eagle_pangu.engine.worker import TreeWorkerMixin


class TreeNPUWorker(TreeWorkerMixin, vllm_ascend_worker.NPUWorker):
    """Chosen through `parallel_config.worker_cls` when the method is eagle_pangu."""

    runner = TreeNPUModelRunner
    lent_to = (vllm_ascend_worker, "NPUModelRunner")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        replace_attention_backend()
        super().__init__(*args, **kwargs)
