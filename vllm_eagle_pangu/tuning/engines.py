# SPDX-License-Identifier: Apache-2.0
"""Real vLLM engines in this process, several at a time where memory allows."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from vllm_eagle_pangu.config import refusal
from vllm_eagle_pangu.env import LEARNT_DIR, TRACE_DIR
from vllm_eagle_pangu.measure.engine import Engine
from vllm_eagle_pangu.measure.method import Method
from vllm_eagle_pangu.measure.server import server_environment
from vllm_eagle_pangu.serving import needs
from vllm_eagle_pangu.tuning.settings import Settings

# Share of the free memory that engines beside plain decoding's may take.
MEMORY_SHARE = 0.6
# Of a device that all engines may take, and what each one gets where nothing is said.
DEVICE_SHARE, DEFAULT_SHARE = 0.95, 0.45


def environment(given: Mapping[str, str], settings: Settings) -> dict[str, str]:
    """Of the process that measures; the user's variables win where both are possible."""
    chosen = {
        **server_environment(),
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        # Warnings of every engine's start would hide the progress.
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "TRANSFORMERS_VERBOSITY": "error",
        "PYTHONWARNINGS": "ignore",
    }
    # A server may start from what its tuner learnt.
    del chosen[LEARNT_DIR]
    if not (Path(settings.model).is_dir() and Path(settings.head).is_dir()):
        del chosen["HF_HUB_OFFLINE"]
    # Engines take turns and tell why, so they are in that process; a trace would be timed, too.
    chosen |= {**given, **needs.ONE_PROCESS, **needs.preload(given), TRACE_DIR: ""}
    return chosen


@dataclass
class Engines:
    """Opens engines with the flags of the run, and learns how much memory one takes.

    `max_model_len`: tokens. Raises ValueError for arguments that vLLM does not know, and for more
    of a device than leaves room for a second engine.
    """

    settings: Settings
    max_model_len: int
    bytes_each: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        from vllm.engine.arg_utils import EngineArgs

        for key, value in self.settings.engine_args.items():
            if key not in EngineArgs.__dataclass_fields__:
                why = "vLLM has no such argument"
                raise refusal(f"--engine-args {key}", value, why, "remove it")
        if self.device != "cpu" and self._share > DEVICE_SHARE / 2:
            why = "plain decoding stays beside every other engine"
            mend = f"set it to {DEFAULT_SHARE} or less"
            raise refusal("--engine-args gpu_memory_utilization", self._share, why, mend)

    @property
    def device(self) -> str:
        """Type of the device that vLLM runs on."""
        from vllm.platforms import current_platform

        return str(current_platform.device_type)

    @property
    def _share(self) -> float:
        """Of a device, for each engine."""
        return self.settings.engine_args.get("gpu_memory_utilization", DEFAULT_SHARE)

    def open(self, method: Method) -> Engine:
        """An engine for the largest batch; a context manager."""
        settings, process = self.settings, psutil.Process()
        before = process.memory_info().rss
        on_cpu = self.device == "cpu"
        arguments = {
            # As for the demo: on few cores compiling takes longer than all measurements.
            "enforce_eager": on_cpu,
            "max_model_len": self.max_model_len,
            "use_tqdm_on_load": False,
            **({} if on_cpu else {"gpu_memory_utilization": self._share}),
            **settings.engine_args,
            "max_num_seqs": max(settings.batch_sizes),
        }
        engine = Engine(settings.model, method.speculative_config(settings.head), **arguments)
        self.bytes_each = max(self.bytes_each, process.memory_info().rss - before)
        return engine

    def beside(self) -> int:
        """How many engines may be alive beside the one that is; at least 1."""
        if self.device != "cpu":
            return int(DEVICE_SHARE / self._share) - 1
        free = psutil.virtual_memory().available
        return max(1, int(MEMORY_SHARE * free / max(self.bytes_each, 1)))
