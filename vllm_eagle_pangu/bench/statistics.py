# SPDX-License-Identifier: Apache-2.0
"""From records to figures. Ratios are taken within a repeat, between neighbours in time."""

import statistics
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from vllm_eagle_pangu.bench.records import Record, key_of
from vllm_eagle_pangu.measure.statistics import percentile, rate, spread_of
from vllm_eagle_pangu.measure.statistics import tau as tau_of

# (prompt, turn) -> repeat -> record
Runs = dict[tuple[str, int], dict[int, Record]]
# A method's record, and plain decoding's.
Pair = tuple[Record, Record]


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


def speedups(runs: Runs, plain: Runs) -> tuple[list[float], list[float]]:
    """Ratios to plain decoding of the same repeat, in tokens per second.

    Per repeat, of all prompts together; per prompt and turn, the median over the repeats.
    """
    by_repeat: dict[int, list[Pair]] = defaultdict(list)
    by_place: dict[tuple[str, int], list[Pair]] = defaultdict(list)
    for place, mine in runs.items():
        for repeat in mine.keys() & plain.get(place, {}).keys():
            pair = mine[repeat], plain[place][repeat]
            by_repeat[repeat].append(pair)
            by_place[place].append(pair)
    overall = [_ratio(by_repeat[repeat]) for repeat in sorted(by_repeat)]
    return overall, [statistics.median(_ratio([p]) for p in pairs) for pairs in by_place.values()]


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
    overall, single = speedups(runs, plain)
    if overall:
        row |= {
            **spread_of(overall),
            "prompt_mean": statistics.mean(single),
            **{f"prompt_p{share}": percentile(single, share) for share in (50, 90, 99)},
            # Answers whose tokens are plain decoding's.
            "same_as_plain": sum(
                place in plain and _any(repeats)["output_ids"] == _any(plain[place])["output_ids"]
                for place, repeats in runs.items()
            ),
        }
    return row


def answers(runs: Runs) -> list[Record]:
    return [record for repeats in runs.values() for record in repeats.values()]


def _any(repeats: dict[int, Record]) -> Record:
    return repeats[min(repeats)]


def _ratio(pairs: list[Pair]) -> float:
    mine, plain = (
        sum(record["output_tokens"] for record in those) / sum(r["seconds"] for r in those)
        for those in zip(*pairs, strict=True)
    )
    return mine / plain
