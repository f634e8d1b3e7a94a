# SPDX-License-Identifier: Apache-2.0
"""Real vLLM engines in this process, so that tests can look at the runner and its cache."""

import gc
import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

from vllm import LLM, RequestOutput

from vllm_eagle_pangu import demo_pair

PAIR = Path(demo_pair.__file__).parent
SHAPES = {"chain": (1, 5, 5), "narrow": (2, 3, 6), "default": (4, 5, 16), "wide": (8, 6, 48)}


class Engine:
    """An in-process `LLM` with its runner in reach."""

    def __init__(self, llm: LLM) -> None:
        self.llm = llm
        core = llm.llm_engine.engine_core.engine_core
        self.scheduler = core.scheduler
        self.runner = core.model_executor.driver_worker.worker.model_runner

    def generate(self, prompts: list[list[int]], **params) -> list[list[int]]:
        """Token ids of one completion per prompt; greedy unless told otherwise."""
        return [list(request.outputs[0].token_ids) for request in self.serve(prompts, **params)]

    def serve(self, prompts: list[list[int]], **params) -> list[RequestOutput]:
        """All that vLLM says of each prompt's request."""
        prompts = [{"prompt_token_ids": prompt} for prompt in prompts]
        return self.llm.generate(prompts, sampling_params(**params), use_tqdm=False)


def sampling_params(**params):
    """Greedy, fixed length, no stop: what comparisons of token ids need."""
    from vllm import SamplingParams

    return SamplingParams(**{"temperature": 0.0, "max_tokens": 48, "ignore_eos": True, **params})


def tree(head: Path | str, shape: tuple[int, int, int], **keys) -> dict:
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


@contextmanager
def _engine(target: Path | str, speculative: dict | None = None, **args) -> Iterator[Engine]:
    defaults = dict(
        model=str(target),
        dtype="float32",
        enforce_eager=True,
        max_model_len=1152,
        max_num_seqs=16,
        max_num_batched_tokens=512,
        enable_prefix_caching=False,
        disable_log_stats=False,
    )
    # vLLM collects garbage several times while it starts: half a second each with all that
    # was imported.
    gc.freeze()
    llm = LLM(speculative_config=speculative, **{**defaults, **args})
    try:
        yield Engine(llm)
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()


@pytest.fixture(scope="session")
def engine() -> Callable[..., AbstractContextManager[Engine]]:
    """`with engine(target, speculative_config, **LLM arguments) as e: e.generate(...)`."""
    return _engine


@pytest.fixture(scope="session")
def tree_config_of() -> Callable[..., dict]:
    return tree


@pytest.fixture(scope="session")
def shapes() -> dict[str, tuple[int, int, int]]:
    return SHAPES


@pytest.fixture(scope="session")
def pair() -> tuple[Path, Path]:
    """The demo pair's folders: target, head."""
    return PAIR / "target", PAIR / "draft"


@pytest.fixture(scope="session")
def heldout_prompts(pair) -> list[list[int]]:
    """Token ids of the demo's held-out prompts, 3 to 900 tokens long."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(pair[0])
    lines = (PAIR / "heldout_prompts.jsonl").read_text().splitlines()
    return [tokenizer(json.loads(line)["prompt"])["input_ids"] for line in lines]
