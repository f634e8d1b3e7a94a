# SPDX-License-Identifier: Apache-2.0
"""Measures groups, recording every answer as soon as it is there."""

import json
import time
import zlib
from dataclasses import asdict
from typing import Any

from vllm_eagle_pangu.bench.engines import EngineError, EnginePool, Request
from vllm_eagle_pangu.bench.experiments.base import Bench
from vllm_eagle_pangu.bench.groups import Group, rounds
from vllm_eagle_pangu.bench.records import Key, Record, open_records, read_records
from vllm_eagle_pangu.measure.method import Method
from vllm_eagle_pangu.measure.prompts import Prompt

# After its last operator an OpenMP thread spins for 200 ms; the next engine waits for it to sleep.
SETTLE_S = 0.25


class Session:
    """The engines and the records of a run."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.config = bench, bench.config
        options = asdict(bench.config.engine) | {"seed": bench.config.seed}
        options["kv_cache_memory_bytes"] = options.pop("kv_cache_bytes")
        self.pool = EnginePool(str(bench.target), options, bench.config.hosts)
        self._file = open_records(bench.out)
        self.records = read_records(bench.out)

    def close(self) -> None:
        self.pool.close()
        self._file.close()

    def has(self, key: Key) -> bool:
        return "error" not in self.records.get(key, {"error": ""})

    def record(self, key: Key, content: Record) -> None:
        """Keep and append one record; `content` without the key."""
        record = {**key._asdict(), **content}
        self.records[key] = record
        self._file.write(json.dumps(record) + "\n")

    def measure(self, group: Group) -> None:
        """Measure what is missing of a group."""
        keys = group.keys(self.config.repeats)
        missing = {key.method for key in keys if not self.has(key)}
        engines = {m: self._engine(group, m) for m in group.methods if m.name in missing}
        if not engines:
            return
        begin = time.monotonic()
        errors = self.pool.load(dict(engines.values()))
        for method, (name, _) in engines.items():
            if name in errors:
                self._give_up(group, method, errors[name])
        loaded = time.monotonic()
        for repeat, method, block in rounds(group, self.config.repeats):
            if method in engines:
                self._measure_block(group, method, engines[method][0], block, repeat)
        for name, config in engines.values():
            # A trace is complete once its engine has ended.
            if config and "trace_dir" in config:
                self.pool.end(name)
        print(
            f"{group.experiment} {group.name}: {len(engines)} methods, "
            f"{len(group.prompts)} prompts, engines {loaded - begin:.0f} s, "
            f"measuring {time.monotonic() - loaded:.0f} s",
            flush=True,
        )

    def _engine(self, group: Group, method: Method) -> tuple[str, dict[str, Any] | None]:
        """Its name and speculative configuration. Only this plugin's methods have traces."""
        traces = self.bench.out / "traces" / method.name
        folder = str(traces) if group.traced else None
        config = method.speculative_config(str(self.bench.head), folder)
        traced = " traced" if config and "trace_dir" in config else ""
        return method.name + traced, config

    def _measure_block(
        self, group: Group, method: Method, name: str, block: tuple[Prompt, ...], repeat: int
    ) -> None:
        """Turn after turn what is missing, as long as the engine of that name lives."""
        for turn in range(max(len(prompt.turns) for prompt in block)):
            if name not in self.pool.hosts:
                return
            requests: dict[Key, Request] = {}
            for prompt in block:
                key = group.key(method, prompt, turn, repeat)
                if turn < len(prompt.turns) and not self.has(key):
                    requests |= self._request(prompt, key)
            if not requests:
                continue
            host = self.pool.hosts[name]
            try:
                answers = host.measure(list(requests.values()), group.forward_times)
                for key, figures in zip(requests, answers, strict=True):
                    self.record(key, figures)
            except EngineError as error:
                self.pool.fail(name, error)
                self._give_up(group, method, str(error))
            time.sleep(SETTLE_S)

    def _request(self, prompt: Prompt, key: Key) -> dict[Key, Request]:
        """The request of a key; none, but an error's record, where it cannot be asked."""
        earlier = [key._replace(turn=before) for before in range(key.turn)]
        if not all(self.has(before) for before in earlier):
            self.record(key, {"error": "the turn before it has no answer"})
            return {}
        answers = [self.records[before]["output_ids"] for before in earlier]
        ids = self.bench.conversations.ids(prompt.turns, answers)
        tokens, room = self.config.tokens, self.config.engine.max_model_len
        if len(ids) + tokens > room:
            self.record(key, {"error": f"{len(ids)} tokens and {tokens} more exceed {room}"})
            return {}
        params: dict[str, Any] = {"max_tokens": tokens, "ignore_eos": self.config.ignore_eos}
        params["temperature"] = key.temperature
        if key.temperature > 0:
            # Of the prompt and the repeat alone: the same for every method.
            place = f"{key.prompt} {key.turn} {key.repeat}"
            params["seed"] = self.config.seed + zlib.crc32(place.encode())
        return {key: {"id": " ".join(map(str, key)), "ids": ids, "params": params}}

    def _give_up(self, group: Group, method: Method, error: str) -> None:
        print(f"{group.experiment} {method.name}: {error}", flush=True)
        for key in group.keys(self.config.repeats):
            if key.method == method.name and not self.has(key):
                self.record(key, {"error": error})
