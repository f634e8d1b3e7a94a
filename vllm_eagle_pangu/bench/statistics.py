# SPDX-License-Identifier: Apache-2.0
"""From records to figures. Ratios are taken within a repeat, between neighbours in time."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from vllm_eagle_pangu.bench.records import Record, key_of
from vllm_eagle_pangu.measure.statistics import percentile, rate, spread_of
from vllm_eagle_pangu.measure.statistics import tau as tau_of

# (prompt, turn) -> repeat -> record
Runs = dict[tuple[str, int], dict[int, Record]]


def runs_of(
    records: Iterable[Record], experiment: str, group: str, method: str, temperature: float = 0.0
) -> Runs:
    """The answers of one method in one group, errors left out."""
    found: Runs = defaultdict(dict)
    for record in records:
        *place, prompt, turn, repeat = key_of(record)
        if place == [experiment, group, method, temperature] and "output_ids" in record:
            found[prompt, turn][repeat] = record
    return dict(found)


def restrict(runs: Runs, prompts: Iterable[str]) -> Runs:
    """The answers to these prompts."""
    names = set(prompts)
    return {place: repeats for place, repeats in runs.items() if place[0] in names}


def tau(runs: Runs) -> float | None:
    """Tokens per target forward, bonus included; None without a draft."""
    return tau_of(*(sum(r[name] for r in answers(runs)) for name in ("drafts", "accepted")))


def tokens_per_second(runs: Runs) -> float:
    """All tokens over all time, of each answer the median of its repeats."""
    return rate(
        (_any(repeats)["output_tokens"] for repeats in runs.values()),
        ([record["seconds"] for record in repeats.values()] for repeats in runs.values()),
    )


def speedups_by_repeat(runs: Runs, plain: Runs) -> list[float]:
    """Per repeat, tokens per second over those of plain decoding, all prompts together."""
    ratios = []
    for repeat in sorted({repeat for repeats in runs.values() for repeat in repeats}):
        places = [p for p in runs if repeat in runs[p] and repeat in plain.get(p, {})]
        if places:
            mine = _rate(runs[place][repeat] for place in places)
            ratios.append(mine / _rate(plain[place][repeat] for place in places))
    return ratios


def speedups_by_prompt(runs: Runs, plain: Runs) -> list[float]:
    """Per prompt and turn, the median over the repeats of the ratio to plain decoding."""
    ratios = []
    for place, mine in runs.items():
        both = mine.keys() & plain.get(place, {}).keys()
        if both:
            pairs = (_rate([mine[repeat]]) / _rate([plain[place][repeat]]) for repeat in both)
            ratios.append(statistics.median(pairs))
    return ratios


def summary(runs: Runs, plain: Runs) -> dict[str, Any]:
    """The row of a method: speed, latency, acceptance, and the spread of its speed-up."""
    records = answers(runs)
    steps = [step for record in records for step in record["steps_ms"]]
    row: dict[str, Any] = {
        "prompts": len(runs),
        "tokens_per_s": tokens_per_second(runs),
        "ttft_ms": statistics.median(record["ttft_ms"] for record in records),
        "tpot_ms": statistics.median(record["tpot_ms"] for record in records),
        "step_ms": statistics.median(steps) if steps else None,
        "tau": tau(runs),
    }
    overall, single = speedups_by_repeat(runs, plain), speedups_by_prompt(runs, plain)
    if overall:
        row |= {
            **spread_of(overall),
            "prompt_mean": statistics.mean(single),
            **{f"prompt_p{share}": percentile(single, share) for share in (50, 90, 99)},
            "same_as_plain": _same(runs, plain),
        }
    return row


def _same(runs: Runs, plain: Runs) -> int:
    """Answers whose tokens are plain decoding's."""
    return sum(
        place in plain and _any(repeats)["output_ids"] == _any(plain[place])["output_ids"]
        for place, repeats in runs.items()
    )


def _any(repeats: dict[int, Record]) -> Record:
    return repeats[min(repeats)]


def answers(runs: Runs) -> list[Record]:
    return [record for repeats in runs.values() for record in repeats.values()]


def _rate(records: Iterable[Record]) -> float:
    listed = list(records)
    return sum(r["output_tokens"] for r in listed) / sum(r["seconds"] for r in listed)
