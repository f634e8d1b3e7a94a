# SPDX-License-Identifier: Apache-2.0
"""E5: a server under load, with no other engine on the machine."""

import contextlib
from functools import partial
from itertools import product
from operator import itemgetter
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
from vllm_eagle_pangu.bench.statistics import Answers, grouped, median, speedups
from vllm_eagle_pangu.measure.closed_loop import requests, speed
from vllm_eagle_pangu.measure.method import PLAIN, Method, chain, tree
from vllm_eagle_pangu.measure.served import ServedLoop
from vllm_eagle_pangu.measure.server import Server
from vllm_eagle_pangu.measure.statistics import latency, spread_of, tau
from vllm_eagle_pangu.measure.turns import turns

# As many tokens as so many answers have come before each point, and are not measured.
WARM_UP = 4
TURN_TIMEOUT_S = 900.0
FIGURES = ("tokens_per_s", "ttft_ms", "ttft_p99_ms", "tpot_ms", "tpot_p99_ms", "tau")
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
        missing = dict.fromkeys(point[0] for point in points if not session.has(self._key(*point)))
        if not missing:
            return
        session.pool.close()
        with contextlib.ExitStack() as stack:
            servers = {m: stack.enter_context(bench_server(m, self.bench)) for m in missing}
            for server in servers.values():
                server.wait()
            self._measure_all(session, servers)

    def _measure_all(self, session: Session, servers: dict[Method, Server]) -> None:
        """Level after level, each on all servers in turn, which are all asked the same."""
        talk = self.bench.conversations
        prompts = [talk.ids(prompt.turns) for prompt in self.bench.prompts]
        for repeat, level, order in turns(list(servers), self.config.levels, self.config.repeats):
            for method in order:
                key = self._key(method, level, repeat)
                if session.has(key):
                    continue
                asked = partial(requests, prompts, self.config.tokens, 0.0)
                loop = ServedLoop(method, servers[method], asked, level)
                try:
                    session.record(key, self._point(loop))
                # The other points are measured all the same.
                except (RuntimeError, OSError) as error:
                    session.record(key, {"error": str(error)})
            print(f"{self.key} concurrency {level} measured", flush=True)

    def _point(self, loop: ServedLoop) -> dict[str, Any]:
        """A turn's figures. Raises RuntimeError where a request fails or too few tokens come."""
        count = max(self.config.least_requests, self.config.requests_per_level * loop.clients)
        loop.turn(WARM_UP * self.config.tokens, TURN_TIMEOUT_S)
        turn = loop.turn(count * self.config.tokens, TURN_TIMEOUT_S, which=1)
        if turn["tokens"] < count * self.config.tokens:
            raise RuntimeError(f"{turn['tokens']} tokens in {TURN_TIMEOUT_S:.0f} s")
        return {
            "requests": len(turn["first"]),
            "output_tokens": turn["tokens"],
            "seconds": turn["seconds"],
            "tokens_per_s": speed([turn]),
            **latency("ttft", turn["first"]),
            **latency("tpot", turn["behind"]),
            "tau": tau(turn["drafts"], turn["accepted"]),
        }

    def fill(self, result: Result, records: list[Record]) -> None:
        mine = [r for r in records if r["experiment"] == self.key and "error" not in r]
        mine.sort(key=lambda record: KINDS.index(record["method"].partition("-")[0]))
        for _, of_level in sorted(grouped(mine, _level).items()):
            runs = grouped(of_level, itemgetter("method"))
            result.rows += [_row(each, runs.get(PLAIN.name, [])) for each in runs.values()]
        result.notes.append(
            "`vllm serve`, and clients who ask again once they are answered; they share the "
            "processor with the server. tau from the server's own counters."
        )
        for method, rows in grouped(result.rows, itemgetter("method")).items():
            if method != PLAIN.name:
                result.conclusions += pays_until(method, rows, "concurrency")


def _level(record: Record) -> int:
    return int(record["group"].removeprefix("concurrency-"))


def _row(runs: Answers, plain: Answers) -> Row:
    first = runs[0]
    row = {"concurrency": _level(first), "method": first["method"], "requests": first["requests"]}
    row |= {name: median(runs, name) for name in FIGURES}
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
