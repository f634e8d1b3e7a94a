# SPDX-License-Identifier: Apache-2.0
"""What vllm-ascend offers and trees cannot do: refused at start-up, each by its own name.

MLA and sparse targets, context parallelism, asynchronous scheduling and vLLM's V2 runner are
refused for every platform (`engine/refusals.py`, `engine/target_fit.py`).
"""

from operator import attrgetter
from typing import TYPE_CHECKING

from vllm_ascend.ascend_config import get_ascend_config
from vllm_ascend.utils import AscendDeviceType, get_ascend_device_type

from vllm_eagle_pangu.config import refusal

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_WORKER = "vllm_ascend.worker.worker.NPUWorker"
# Whose cache write is known to skip slot -1, where rows of trees go.
_DEVICES = (AscendDeviceType.A2, AscendDeviceType.A3)

# Paths into vllm-ascend's own configuration: what says nothing, and why trees need that.
_OPTIONS: dict[str, tuple[object, str]] = {
    "enable_async_exponential": (
        False,
        "noise is drawn ahead for one row of logits per request, and trees have more",
    ),
    "enable_reduce_sample": (False, "trees are drawn from with logits of the whole vocabulary"),
    "enable_balance_scheduling": (False, "the method brings its own scheduler"),
    "enable_kv_nz": (False, "tree attention reads KV pages in the ND layout"),
    "enable_hamming_sparse": (False, "a tree attends its whole context"),
    "finegrained_tp_config.lmhead_tensor_parallel_size": (
        0,
        "the rows of logits are padded to those of a chain",
    ),
}


def check(vllm_config: "VllmConfig") -> None:
    """Refuse what vllm-ascend's platform made of `vllm_config` and trees cannot do.

    Raises:
        ValueError: the option, its value, and the mend.
    """
    device = get_ascend_device_type()
    if device not in _DEVICES:
        raise refusal(
            "device",
            device.name,
            f"trees run on Ascend {' and '.join(d.name for d in _DEVICES)} only in this version",
            "choose another method",
        )
    worker = vllm_config.parallel_config.worker_cls
    if worker != _WORKER:
        raise refusal(
            "worker_cls",
            worker,
            f"trees are added to {_WORKER}, and vllm-ascend chose another one",
            "remove xlite_graph_config from additional_config",
        )
    scheduler = vllm_config.scheduler_config.scheduler_cls
    if scheduler is not None:
        raise refusal(
            "scheduler_cls",
            scheduler,
            "the method brings its own scheduler, and vllm-ascend chose another one",
            "remove SLO_limits_for_dynamic_batch and profiling_chunk_config from additional_config",
        )
    for path, (nothing, reason) in _OPTIONS.items():
        value: object = attrgetter(path)(get_ascend_config())
        if value != nothing:
            raise refusal(path, value, reason, f"remove {path} from additional_config")
