# SPDX-License-Identifier: Apache-2.0
"""A benchmark run: plan, measure what is missing, write."""

import json
import os
import sys
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
from vllm_eagle_pangu.bench.records import RECORDS, Record, key_of
from vllm_eagle_pangu.bench.results import write_results
from vllm_eagle_pangu.bench.session import Session
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
    """A whole run. 0, or 1 where anything failed.

    Raises ValueError for what the user must mend before anything is measured.
    """
    chosen = config.chosen(only)
    target, head = _pair(config)
    out = out.resolve()
    _claim(out, config, resume)
    bench = plan(config, target, head, out)
    experiments = [kind(bench) for kind in EXPERIMENTS if kind.key in chosen]
    # E1's first: E6 looks at what of it is measured there.
    for experiment in experiments:
        groups = experiment.groups()
        bench.parts[experiment.key] = [p for group in groups for p in group.cut(config.hosts)]
    session = Session(bench)
    with ended_by_sigterm(), closing(session):
        try:
            for experiment in experiments:
                for part in bench.parts[experiment.key]:
                    experiment.tried(session.measure, part)
                experiment.tried(experiment.after, session)
        except SystemExit:
            session.pool.close(patience_s=0.0)
            raise
    return _conclude(bench, experiments, list(session.records.values()))


def plan(config: BenchConfig, target: Path, head: Path, out: Path) -> Bench:
    """Read and select the prompts."""
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


def _pair(config: BenchConfig) -> tuple[Path, Path]:
    if config.target in pair.NAMES:
        found = pair.find(config.target)
        return found.target, found.draft
    for key, value in (("target", config.target), ("head", config.head)):
        if not (Path(value) / "config.json").is_file():
            raise refusal(key, value, "no config.json there", "name a Hugging Face folder")
    return Path(config.target).resolve(), Path(config.head).resolve()


def _claim(out: Path, config: BenchConfig, resume: bool) -> None:
    """Make the folder this run's. Raises ValueError where it holds another's records."""
    if not resume and (out / RECORDS).exists():
        mend = "pass --resume to go on, or name another folder"
        raise refusal("--out", str(out), "holds records", mend)
    out.mkdir(parents=True, exist_ok=True)
    note = out / "config.json"
    if resume and note.exists() and json.loads(note.read_text())["digest"] != config.digest():
        mend = f"compare {note} with yours, or name another folder"
        raise refusal("--resume", str(out), "its records are of another configuration", mend)
    write_json({"digest": config.digest(), "config": asdict(config)}, note)


def _conclude(bench: Bench, experiments: list[Experiment], records: list[Record]) -> int:
    """Write what was found. 0, or 1 where anything failed."""
    out = bench.out
    # The same order however often it was resumed.
    records = sorted(records, key=key_of)
    results = sorted((one.concluded(records) for one in experiments), key=lambda one: one.key)
    write_results(facts(), asdict(bench.config), results, records, out)
    for result in results:
        for error in result.errors:
            print(f"{result.key} failed: {error}", file=sys.stderr)
    print(f"written: {out / 'report.md'}", flush=True)
    return 1 if any(result.errors for result in results) else 0
