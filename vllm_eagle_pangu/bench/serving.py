# SPDX-License-Identifier: Apache-2.0
"""`vllm serve` and `vllm bench serve`: one point is one run of vLLM's own client."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_eagle_pangu.bench.config import BenchConfig
from vllm_eagle_pangu.measure.method import Method
from vllm_eagle_pangu.measure.server import SERVED_NAME, Server, server_environment
from vllm_eagle_pangu.measure.statistics import tau

CLIENT_TIMEOUT_S = 900.0
CLIENT = """bench serve --backend=openai --endpoint=/v1/completions --dataset-name=sharegpt
    --disable-shuffle --num-warmups=4 --ignore-eos --temperature=0 --percentile-metrics=ttft,tpot
    --metric-percentiles=50,99 --disable-tqdm --save-result"""
ERROR_CHARACTERS = 800
# Of vLLM's result, what goes into the record, under our names.
FIGURES = {
    "output_throughput": "tokens_per_s",
    "median_ttft_ms": "ttft_ms",
    "p99_ttft_ms": "ttft_p99_ms",
    "median_tpot_ms": "tpot_ms",
    "p99_tpot_ms": "tpot_p99_ms",
    "duration": "seconds",
    "completed": "requests",
    "total_output_tokens": "output_tokens",
}


def bench_server(method: Method, target: Path, head: Path, config: BenchConfig) -> Server:
    """A server with room for many requests."""
    load = config.concurrency
    assert load is not None
    flags = [
        f"--dtype={config.engine.dtype}",
        f"--max-model-len={config.engine.max_model_len}",
        f"--max-num-seqs={max(load.levels)}",
        f"--max-num-batched-tokens={load.max_num_batched_tokens}",
    ]
    if load.kv_cache_bytes is not None:
        flags.append(f"--kv-cache-memory-bytes={load.kv_cache_bytes}")
    return Server(method.name, target, method.speculative_config(str(head)), flags)


@dataclass(frozen=True)
class Load:
    """`requests` requests of `tokens` tokens each, at most `level` of them at a time."""

    level: int
    requests: int
    tokens: int


def write_dataset(texts: Sequence[str], path: Path) -> None:
    """Prompts in ShareGPT's form: vLLM reads it with json alone, its `custom` form with pandas.

    The second turn is there because the reader wants one; the answer's length is given apart.
    """
    answer = {"from": "gpt", "value": "-"}
    talks = [{"conversations": [{"from": "human", "value": text}, answer]} for text in texts]
    path.write_text(json.dumps(talks), encoding="utf-8")


def client_command(server: Server, dataset: Path, load: Load, result: Path) -> list[str]:
    """A `vllm bench serve` over the dataset, in its order, repeated if it is too short."""
    return [
        str(Path(sys.executable).with_name("vllm")),
        *CLIENT.split(),
        *(f"--base-url={server.url}", f"--model={SERVED_NAME}", f"--tokenizer={server.target}"),
        *(f"--dataset-path={dataset}", f"--sharegpt-output-len={load.tokens}"),
        *(f"--num-prompts={load.requests}", f"--max-concurrency={load.level}"),
        *(f"--result-dir={result.parent}", f"--result-filename={result.name}"),
    ]


def measure_load(server: Server, dataset: Path, load: Load) -> dict[str, Any]:
    """The figures of one point. Raises RuntimeError where the client or a request failed."""
    drafts, accepted = server.counters()
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = client_command(server, dataset, load, result)
        done = subprocess.run(
            command,
            env=os.environ | server_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=CLIENT_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0 or not result.is_file():
            tail = (done.stdout + done.stderr)[-ERROR_CHARACTERS:]
            raise RuntimeError(f"vllm bench serve ended with {done.returncode}: {tail}")
        found = json.loads(result.read_text(encoding="utf-8"))
    if found["failed"] or found["completed"] != load.requests:
        raise RuntimeError(f"{found['completed']} of {load.requests} requests were answered")
    after = server.counters()
    figures = {ours: found[theirs] for theirs, ours in FIGURES.items()}
    return {**figures, "tau": tau(after[0] - drafts, after[1] - accepted)}
