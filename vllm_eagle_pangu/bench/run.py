# SPDX-License-Identifier: Apache-2.0
"""A benchmark run: plan, measure this rank's share; rank 0 waits, merges and writes."""

import json
import os
import sys
import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path

from vllm_eagle_pangu.bench.config import BenchConfig
from vllm_eagle_pangu.bench.experiments.base import Bench, Experiment
from vllm_eagle_pangu.bench.experiments.concurrency import Concurrency
from vllm_eagle_pangu.bench.experiments.expectation import Expectation
from vllm_eagle_pangu.bench.experiments.stages import Stages
from vllm_eagle_pangu.bench.experiments.sweeps import Budget, Window
from vllm_eagle_pangu.bench.experiments.throughput import Temperature, Throughput
from vllm_eagle_pangu.bench.records import key_of, read_records, record_file
from vllm_eagle_pangu.bench.results import write_results
from vllm_eagle_pangu.bench.session import Session
from vllm_eagle_pangu.bench.sharding import APPEAR_S, Rank, wait_for_others
from vllm_eagle_pangu.config import refusal
from vllm_eagle_pangu.demo import pair
from vllm_eagle_pangu.measure.files import facts, write_json
from vllm_eagle_pangu.measure.prompts import (
    INSTRUCTIONS,
    Conversations,
    packaged_humaneval,
    read_prompts,
    select,
)
from vllm_eagle_pangu.measure.server import ended_by_sigterm

# In the order of measuring: E6 and E7 run on the engines that E1 has loaded.
EXPERIMENTS: tuple[type[Experiment], ...] = (
    Throughput,
    Temperature,
    Expectation,
    Budget,
    Window,
    Stages,
    Concurrency,
)


def run_bench(config: BenchConfig, out: Path, resume: bool, only: str | None) -> int:
    """This rank's part of a run. 0, or 1 where anything failed; 0 for ranks above 0 that finished.

    Raises ValueError for what the user must mend before anything is measured.
    """
    rank = Rank.from_environment()
    chosen = config.chosen(only)
    target, head = _pair(config)
    out = out.resolve()
    _claim(out, config, rank, resume)
    bench = plan(config, target, head, out)
    experiments = [kind(bench) for kind in EXPERIMENTS if kind.key in chosen]
    # E1's first: E6 looks at what of it is measured there.
    for experiment in experiments:
        groups = experiment.groups()
        bench.parts[experiment.key] = [p for group in groups for p in group.cut(config.hosts)]
    session = Session(bench, rank)
    appear_by = time.monotonic() + APPEAR_S
    with ended_by_sigterm(), closing(session):
        try:
            for experiment in experiments:
                for part in bench.parts[experiment.key]:
                    experiment.tried(session.measure, part)
            if rank.rank != 0:
                return 0
            session.end_engines()
            wait_for_others(
                out, rank, lambda other: not missing_prompts(bench, rank, [other]), appear_by
            )
            missing = missing_prompts(bench, rank, rank.others())
            if not missing:
                session.records.update(read_records(out))
                for experiment in experiments:
                    experiment.tried(experiment.after, session)
        except SystemExit:
            # torchrun ends every rank when one dies: rank 0 says what was left.
            session.end_engines(patience_s=0.0)
            if rank.rank != 0 or rank.world_size == 1:
                raise
            missing = missing_prompts(bench, rank, range(rank.world_size))
    return _conclude(bench, experiments, missing)


def plan(config: BenchConfig, target: Path, head: Path, out: Path) -> Bench:
    """Read and select the prompts; the same in every rank."""
    from transformers import AutoTokenizer

    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    tokenizer = AutoTokenizer.from_pretrained(target)
    conversations = Conversations(tokenizer, config.prompts.chat)
    source, path = config.prompts.source, config.prompts.path
    if path is not None:
        file = Path(path)
    elif source == "instructions":
        file = INSTRUCTIONS
    else:
        file = packaged_humaneval() if source == "humaneval" else pair.find().prompts
    prompts = read_prompts(source, file)
    lengths = {prompt.id: len(conversations.ids(prompt.turns)) for prompt in prompts}
    room = config.engine.max_model_len - config.tokens
    selected = select(prompts, lengths, config.prompts, room)
    longest = []
    if config.window is not None:
        wanted = replace(config.prompts, choice="longest", count=config.window.prompts)
        longest = select(prompts, lengths, replace(wanted, max_tokens=None), room)
    return Bench(config, target, head, out, selected, longest, conversations)


def missing_prompts(bench: Bench, rank: Rank, ranks: Iterable[int]) -> dict[int, list[str]]:
    """By rank, the prompts of which it lacks a record."""
    there = read_records(bench.out)
    found: dict[int, set[str]] = {other: set() for other in ranks}
    for parts in bench.parts.values():
        for part in parts:
            for prompt, key in part.answers(bench.config.repeats):
                owner = rank.owner(prompt.index)
                if owner in found and key not in there:
                    found[owner].add(prompt.id)
    return {other: sorted(prompts) for other, prompts in found.items() if prompts}


def _pair(config: BenchConfig) -> tuple[Path, Path]:
    if config.target in pair.NAMES:
        found = pair.find(config.target)
        return found.target, found.draft
    for key, value in (("target", config.target), ("head", config.head)):
        if not (Path(value) / "config.json").is_file():
            raise refusal(key, value, "no config.json there", "name a Hugging Face folder")
    return Path(config.target).resolve(), Path(config.head).resolve()


def _claim(out: Path, config: BenchConfig, rank: Rank, resume: bool) -> None:
    """Make the folder this run's. Raises ValueError where it holds another's records."""
    if not resume and record_file(out, rank.rank).exists():
        mend = "pass --resume to go on, or name another folder"
        raise refusal("--out", str(out), "holds records", mend)
    out.mkdir(parents=True, exist_ok=True)
    note = out / "config.json"
    if resume and note.exists() and json.loads(note.read_text())["digest"] != config.digest():
        mend = f"compare {note} with yours, or name another folder"
        raise refusal("--resume", str(out), "its records are of another configuration", mend)
    if rank.rank == 0:
        write_json({"digest": config.digest(), "config": asdict(config)}, note)


def _conclude(bench: Bench, experiments: list[Experiment], missing: dict[int, list[str]]) -> int:
    """Write what was found. 0, or 1 where anything failed."""
    out = bench.out
    # The same list however many ranks wrote it.
    records = sorted(read_records(out).values(), key=key_of)
    results = sorted((one.concluded(records) for one in experiments), key=lambda one: one.key)
    write_results(facts(), asdict(bench.config), results, missing, records, out)
    for rank, prompts in missing.items():
        print(f"rank {rank} did not finish; not measured: {', '.join(prompts)}", file=sys.stderr)
    for result in results:
        for error in result.errors:
            print(f"{result.key} failed: {error}", file=sys.stderr)
    print(f"written: {out / 'report.md'}", flush=True)
    return 1 if missing or any(result.errors for result in results) else 0
