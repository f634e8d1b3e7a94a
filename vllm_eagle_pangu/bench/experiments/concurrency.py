# SPDX-License-Identifier: Apache-2.0
"""E5: a server under load. Measured by rank 0 alone, with no other engine on the machine.

`vllm serve` and `vllm bench serve`: one point is one run of vLLM's own client.
"""

import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import product
from operator import itemgetter
from pathlib import Path
from typing import Any

from vllm_eagle_pangu.bench.config import DEFAULT_SHAPE, ConcurrencyConfig
from vllm_eagle_pangu.bench.experiments.base import (
    Bench,
    Experiment,
    Result,
    Row,
    fastest,
    pays_until,
)
from vllm_eagle_pangu.bench.experiments.throughput import Throughput
from vllm_eagle_pangu.bench.records import Key, Record
from vllm_eagle_pangu.bench.session import Session
from vllm_eagle_pangu.bench.statistics import Answers, grouped, speedups
from vllm_eagle_pangu.measure.method import PLAIN, Method, chain, tree
from vllm_eagle_pangu.measure.server import SERVED_NAME, Server, server_environment
from vllm_eagle_pangu.measure.statistics import spread_of
from vllm_eagle_pangu.measure.turns import turns

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
# The first words of methods' names, in the order of a level's rows.
KINDS = ("plain", "chain", "scheduled", "tree", "adaptive")


class Concurrency(Experiment):
    key = "E5"
    title = "Concurrent requests"
    config: ConcurrencyConfig

    def methods(self, records: list[Record]) -> tuple[Method, ...]:
        """Plain, the configured chain and tree, else E1's fastest, and what follows the batch."""
        rows = Throughput(self.bench).rows(records)
        by_name = {method.name: method for method in self.bench.methods()}

        def best(kind: str) -> Method | None:
            row = fastest(row for row in rows if row["kind"] == kind)
            return None if row is None else by_name[row["method"]]

        length, shape = self.config.chain, self.config.tree
        line = best("chain") if length is None else chain(length)
        grown = best("tree") or tree(DEFAULT_SHAPE) if shape is None else tree(shape)
        following = (m for m in self.bench.methods() if m.kind in ("scheduled chain", "adaptive"))
        return tuple(method for method in (PLAIN, line, grown, *following) if method is not None)

    def _key(self, method: Method, level: int, repeat: int) -> Key:
        return Key(self.key, f"concurrency-{level}", method.name, 0.0, "all", 0, repeat)

    def after(self, session: Session) -> None:
        methods = self.methods(list(session.records.values()))
        points = product(methods, self.config.levels, range(self.config.repeats))
        missing = {point[0] for point in points if not session.has(self._key(*point))}
        if not missing:
            return
        session.end_engines()
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            dataset = Path(folder) / "prompts.json"
            talk = self.bench.conversations
            texts = [talk.text(prompt.turns) for prompt in self.bench.prompts]
            write_dataset(texts, self.config.tokens, dataset)
            servers = {
                method: stack.enter_context(bench_server(method, self.bench))
                for method in methods
                if method in missing
            }
            for server in servers.values():
                server.wait()
            self._measure_all(session, servers, dataset)

    def _measure_all(self, session: Session, servers: dict[Method, Server], dataset: Path) -> None:
        """Level after level, each on all servers in turn."""
        for repeat, level, order in turns(list(servers), self.config.levels, self.config.repeats):
            requests = max(self.config.least_requests, self.config.requests_per_level * level)
            for method in order:
                key = self._key(method, level, repeat)
                if session.has(key):
                    continue
                try:
                    found = measure_load(servers[method], dataset, level, requests)
                    session.record(key, found)
                # The other points are measured all the same.
                except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
                    session.record(key, {"error": str(error)})
            print(f"[rank 0] {self.key} concurrency {level} measured", flush=True)

    def fill(self, result: Result, records: list[Record]) -> None:
        mine = [r for r in records if r["experiment"] == self.key and "error" not in r]
        mine.sort(key=lambda record: KINDS.index(record["method"].partition("-")[0]))
        for _, of_level in sorted(grouped(mine, _level).items()):
            runs = grouped(of_level, itemgetter("method"))
            result.rows += [_row(each, runs.get(PLAIN.name, [])) for each in runs.values()]
        result.notes.append(
            "`vllm serve` and `vllm bench serve`; the client shares the processor with the server. "
            "tau of its requests, as it reports it."
        )
        for method, rows in grouped(result.rows, itemgetter("method")).items():
            if method != PLAIN.name:
                result.conclusions += pays_until(method, rows, "concurrency")


def _level(record: Record) -> int:
    return int(record["group"].removeprefix("concurrency-"))


def _row(runs: Answers, plain: Answers) -> Row:
    first = runs[0]
    row = {"concurrency": _level(first), "method": first["method"], "requests": first["requests"]}
    for name in ("tokens_per_s", "ttft_ms", "ttft_p99_ms", "tpot_ms", "tpot_p99_ms"):
        row[name] = statistics.median(run[name] for run in runs)
    taus = [run["tau"] for run in runs if run["tau"] is not None]
    row["tau"] = statistics.mean(taus) if taus else None
    ratios, _ = speedups(runs, plain)
    return row | (spread_of(ratios) if ratios else {})


def bench_server(method: Method, bench: Bench) -> Server:
    """A server with room for many requests."""
    config, load = bench.config, bench.config.concurrency
    assert load is not None
    flags = [
        f"--dtype={config.engine.dtype}",
        f"--max-model-len={config.engine.max_model_len}",
        f"--max-num-seqs={max(load.levels)}",
        f"--max-num-batched-tokens={load.max_num_batched_tokens}",
    ]
    if load.kv_cache_bytes is not None:
        flags.append(f"--kv-cache-memory-bytes={load.kv_cache_bytes}")
    return Server(method.name, bench.target, method.speculative_config(str(bench.head)), flags)


def write_dataset(texts: Sequence[str], tokens: int, path: Path) -> None:
    """Prompts in ShareGPT's form: vLLM reads it with json alone, its `custom` form with pandas.

    Of the second turn vLLM takes the length: that of the answer, here about half of `tokens` to one
    and a half. Were all as long, plain decoding's requests would end together, and the next ones'
    prompts be read in one step, which no service sees.
    """
    spread = (tokens // 2 + tokens * place // len(texts) for place in range(len(texts)))
    # vLLM leaves out what is shorter.
    lengths = [max(4, length) for length in spread]
    random.Random(0).shuffle(lengths)
    turns_of = [
        [{"from": "human", "value": text}, {"from": "gpt", "value": " a" * length}]
        for text, length in zip(texts, lengths, strict=True)
    ]
    talks = [{"conversations": both} for both in turns_of]
    path.write_text(json.dumps(talks), encoding="utf-8")


def client_command(
    server: Server, dataset: Path, level: int, requests: int, result: Path
) -> list[str]:
    """A `vllm bench serve` of `requests` requests, at most `level` at a time.

    Over the dataset in its order, repeated if it is too short.
    """
    return [
        str(Path(sys.executable).with_name("vllm")),
        *CLIENT.split(),
        *(f"--base-url={server.url}", f"--model={SERVED_NAME}", f"--tokenizer={server.target}"),
        f"--dataset-path={dataset}",
        *(f"--num-prompts={requests}", f"--max-concurrency={level}"),
        *(f"--result-dir={result.parent}", f"--result-filename={result.name}"),
    ]


def measure_load(server: Server, dataset: Path, level: int, requests: int) -> dict[str, Any]:
    """The figures of one point. Raises RuntimeError where the client or a request failed."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = client_command(server, dataset, level, requests, result)
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
    if found["failed"] or found["completed"] != requests:
        raise RuntimeError(f"{found['completed']} of {requests} requests were answered")
    figures = {ours: found[theirs] for theirs, ours in FIGURES.items()}
    # From the server's counters, warm-up left out; not there where nothing was drafted.
    return {**figures, "tau": found.get("spec_decode_acceptance_length")}
