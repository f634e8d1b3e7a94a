# SPDX-License-Identifier: Apache-2.0
"""E5: a server under load. Measured by rank 0 alone, with no other engine on the machine."""

from __future__ import annotations

import contextlib
import statistics
import tempfile
from collections import defaultdict
from itertools import product
from pathlib import Path

from vllm_eagle_pangu.bench.config import DEFAULT_SHAPE, ConcurrencyConfig
from vllm_eagle_pangu.bench.experiments.base import Experiment, Result, Row, fastest, pays_until
from vllm_eagle_pangu.bench.experiments.throughput import Throughput
from vllm_eagle_pangu.bench.records import Key, Record
from vllm_eagle_pangu.bench.serving import Load, bench_server, measure_load, write_dataset
from vllm_eagle_pangu.bench.session import Session
from vllm_eagle_pangu.measure.method import PLAIN, Method, chain, tree
from vllm_eagle_pangu.measure.server import Server
from vllm_eagle_pangu.measure.statistics import spread_of
from vllm_eagle_pangu.measure.turns import turns


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
        return self.key, f"concurrency-{level}", method.name, 0.0, "all", 0, repeat

    def after(self, session: Session, records: list[Record]) -> None:
        methods = self.methods(records)
        points = product(methods, self.config.levels, range(self.config.repeats))
        missing = {point[0] for point in points if not session.has(self._key(*point))}
        if not missing:
            return
        session.end_engines()
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            dataset = Path(folder) / "prompts.json"
            talk = self.bench.conversations
            write_dataset([talk.text(prompt) for prompt in self.bench.prompts], dataset)
            place, config = self.bench.place, self.bench.config
            servers = {
                method: stack.enter_context(bench_server(method, place.target, place.head, config))
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
            load = Load(level, requests, self.config.tokens)
            for method in order:
                key = self._key(method, level, repeat)
                if session.has(key):
                    continue
                try:
                    session.record(key, measure_load(servers[method], dataset, load))
                # The other points are measured all the same.
                except (RuntimeError, OSError) as error:
                    session.record(key, {"error": str(error)})
            print(f"[rank 0] {self.key} concurrency {level} measured", flush=True)

    def result(self, records: list[Record]) -> Result:
        result = Result(self.key, self.title)
        runs: dict[tuple[int, str], dict[int, Record]] = defaultdict(dict)
        for record in records:
            if record["experiment"] == self.key and "error" not in record:
                level = int(record["group"].removeprefix("concurrency-"))
                runs[level, record["method"]][record["repeat"]] = record
        # Plain, the chain, the tree.
        order = {name: place for place, name in enumerate((PLAIN.name, "chain", "tree"))}
        for level, method in sorted(runs, key=lambda at: (at[0], order[at[1].partition("-")[0]])):
            plain = runs.get((level, PLAIN.name), {})
            result.rows.append(_row(level, method, runs[level, method], plain))
        result.notes.append(
            "`vllm serve` and `vllm bench serve`; the client shares the processor with the server. "
            "tau from the server's own counters."
        )
        for method in dict.fromkeys(row["method"] for row in result.rows):
            if method != PLAIN.name:
                rows = [row for row in result.rows if row["method"] == method]
                result.conclusions += pays_until(method, rows, "concurrency")
        return result


def _row(level: int, method: str, mine: dict[int, Record], plain: dict[int, Record]) -> Row:
    names = ("tokens_per_s", "ttft_ms", "ttft_p99_ms", "tpot_ms", "tpot_p99_ms")
    figures = {name: statistics.median(r[name] for r in mine.values()) for name in names}
    taus = [record["tau"] for record in mine.values() if record["tau"] is not None]
    requests = next(iter(mine.values()))["requests"]
    row = {"concurrency": level, "method": method, "requests": requests, **figures}
    row["tau"] = statistics.mean(taus) if taus else None
    both = [repeat for repeat in mine if repeat in plain]
    ratios = [mine[repeat]["tokens_per_s"] / plain[repeat]["tokens_per_s"] for repeat in both]
    return row | (spread_of(ratios) if ratios else {})
