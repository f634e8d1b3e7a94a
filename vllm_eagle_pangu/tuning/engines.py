# SPDX-License-Identifier: Apache-2.0
"""Real vLLM engines in this process, several at a time where memory allows."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from vllm_eagle_pangu.config import refusal
from vllm_eagle_pangu.env import TRACE_DIR
from vllm_eagle_pangu.measure.engine import Engine
from vllm_eagle_pangu.measure.server import server_environment
from vllm_eagle_pangu.serving import needs
from vllm_eagle_pangu.tuning.settings import Settings

# Share of the free memory that engines beside each other may take.
MEMORY_SHARE = 0.6


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
    if not (Path(settings.model).is_dir() and Path(settings.head).is_dir()):
        del chosen["HF_HUB_OFFLINE"]
    # The runner is hooked, so it has to be in that process; a trace would be timed with the step.
    chosen |= {**given, **needs.ONE_PROCESS, **needs.preload(given), TRACE_DIR: ""}
    return chosen


@dataclass
class Engines:
    """Opens engines with the flags of the run, and learns how much memory one takes."""

    settings: Settings
    max_model_len: int
    bytes_each: int = field(default=0, init=False)

    @property
    def device(self) -> str:
        """Type of the device that vLLM runs on."""
        from vllm.platforms import current_platform

        return str(current_platform.device_type)

    def arguments(self, batch_size: int) -> dict[str, Any]:
        """Of `vllm.LLM`, the same for every method."""
        return {
            # As for the demo: on few cores compiling takes longer than all measurements.
            "enforce_eager": self.device == "cpu",
            "max_model_len": self.max_model_len,
            "use_tqdm_on_load": False,
            **self.settings.engine_args,
            "max_num_seqs": batch_size,
        }

    @contextmanager
    def open(self, speculative: Mapping[str, Any] | None, batch_size: int) -> Iterator[Engine]:
        """An engine for batches of `batch_size`. Raises ValueError for unknown arguments."""
        self._check_arguments()
        before = _resident_bytes()
        engine = Engine(self.settings.model, speculative, **self.arguments(batch_size))
        self.bytes_each = max(self.bytes_each, _resident_bytes() - before)
        with engine:
            yield engine

    def beside_each_other(self) -> int:
        """How many engines may be alive at a time; at least 1. Ask after one was open."""
        if self.device != "cpu":
            share = self.settings.engine_args.get("gpu_memory_utilization", 1.0)
            return max(1, int(0.95 / share))
        free = psutil.virtual_memory().available
        return max(1, int(MEMORY_SHARE * free / max(self.bytes_each, 1)))

    def _check_arguments(self) -> None:
        from vllm.engine.arg_utils import EngineArgs

        for key, value in self.settings.engine_args.items():
            if key not in EngineArgs.__dataclass_fields__:
                why = "vLLM has no such argument"
                raise refusal(f"--engine-args {key}", value, why, "remove it")


def _resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)
