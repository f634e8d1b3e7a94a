# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks share: the demo pair and its prompts, equal engines, result files."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vllm_eagle_pangu.demo import pair
from vllm_eagle_pangu.doctor.device import CUDA, device_type
from vllm_eagle_pangu.measure.engine import Engine
from vllm_eagle_pangu.measure.files import facts, write_json
from vllm_eagle_pangu.measure.method import Method
from vllm_eagle_pangu.measure.prompts import (
    Conversations,
    packaged_humaneval,
    read_prompts,
    read_texts,
    spread,
)
from vllm_eagle_pangu.measure.server import server_environment

# Read when vLLM is imported, which nobody has done yet.
os.environ.update({**server_environment(), "VLLM_LOGGING_LEVEL": "ERROR", **os.environ})
PAIR = pair.find()
# Where bfloat16 is emulated, float32 is what one would serve in.
DTYPES = ("bfloat16", "float32")
SHAPES = {"chain": (1, 5, 5), "narrow": (2, 3, 6), "default": (4, 5, 16), "wide": (8, 6, 48)}


def engine(
    method: Method, trace_dir: str | None = None, of: pair.Pair = PAIR, **arguments: Any
) -> Engine:
    # A GPU's plain decoding needs its CUDA graphs to be no weakened baseline.
    eager = device_type() != CUDA
    defaults = {"dtype": "float32", "enforce_eager": eager, "max_model_len": 1152}
    defaults |= {"max_num_seqs": 16, "max_num_batched_tokens": 512}
    # Not by VLLM_CPU_KVCACHE_SPACE, which would win over what an experiment says.
    defaults |= {"kv_cache_memory_bytes": 2**31}
    speculative = method.speculative_config(str(of.draft), trace_dir)
    return Engine(str(of.target), speculative, **{**defaults, **arguments})


def prompts_of(of: pair.Pair, count: int) -> list[list[int]]:
    """Token ids of a pair's prompts, as its target is asked."""
    return _ids(of, [[text] for text in of.read_prompts(count)])


def heldout_prompts() -> list[list[int]]:
    """Token ids of all of the demo's held-out prompts."""
    return _ids(PAIR, [[text] for text in read_texts(str(PAIR.prompts))])


def chats(of: pair.Pair, count: int) -> list[list[int]]:
    """Token ids of held-out instructions and HumanEval's problems, half each, as a user's chat."""
    files = {"instructions": of.prompts, "humaneval": packaged_humaneval()}
    halves = (spread(read_prompts(source, file), count // 2) for source, file in files.items())
    return _ids(of, [prompt.turns for half in halves for prompt in half], chat=True)


def _ids(of: pair.Pair, prompts: Sequence[Sequence[str]], chat: bool = False) -> list[list[int]]:
    from transformers import AutoTokenizer

    asked = Conversations(AutoTokenizer.from_pretrained(of.target), chat)
    return [asked.ids(turns) for turns in prompts]


def save(name: str, results: dict[str, Any]) -> Path:
    """Write `results` with their provenance to benchmarks/results/NAME.json."""
    path = Path(__file__).parent / "results" / f"{name}.json"
    write_json({"provenance": facts(), **results}, path)
    return path
