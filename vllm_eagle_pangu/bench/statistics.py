# SPDX-License-Identifier: Apache-2.0
"""From records to figures. Ratios are taken within a repeat, between neighbours in time."""

import statistics
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from vllm_eagle_pangu.bench.groups import Group
from vllm_eagle_pangu.bench.records import Record, key_of
from vllm_eagle_pangu.measure.method import Method
from vllm_eagle_pangu.measure.statistics import percentile, rate, spread_of
from vllm_eagle_pangu.measure.statistics import tau as tau_of

# A method's in one group, each to a prompt's turn in a repeat.
Answers = list[Record]
# Prompt and turn.
Place = tuple[str, int]
# A method's record, and plain decoding's.
Pair = tuple[Record, Record]


def answers_of(records: Iterable[Record], group: Group, method: Method) -> Answers:
    """Errors are left out."""
    wanted = group.experiment, group.name, method.name, group.temperature
    return [one for one in records if key_of(one)[: len(wanted)] == wanted and "output_ids" in one]


def repeats_of(answers: Answers) -> dict[Place, Answers]:
    """What was answered to each turn."""
    found: dict[Place, Answers] = defaultdict(list)
    for record in answers:
        found[record["prompt"], record["turn"]].append(record)
    return dict(found)


def tau(answers: Answers) -> float | None:
    """Tokens per target forward, bonus included; None without a draft."""
    return tau_of(*(sum(record[name] for record in answers) for name in ("drafts", "accepted")))


def tokens_per_second(answers: Answers) -> float:
    """All tokens over all time, of each answer the median of its repeats."""
    turns = repeats_of(answers).values()
    return rate(
        (repeats[0]["output_tokens"] for repeats in turns),
        ([record["seconds"] for record in repeats] for repeats in turns),
    )


def speedups(answers: Answers, plain: Answers) -> tuple[list[float], list[float]]:
    """Ratios to plain decoding of the same repeat, in tokens per second.

    Per repeat, of all prompts together; per prompt and turn, the median over the repeats.
    """
    of_plain = {key_of(record)[-3:]: record for record in plain}
    by_repeat: dict[int, list[Pair]] = defaultdict(list)
    by_place: dict[Place, list[Pair]] = defaultdict(list)
    for record in answers:
        prompt, turn, repeat = place = key_of(record)[-3:]
        if place in of_plain:
            pair = record, of_plain[place]
            by_repeat[repeat].append(pair)
            by_place[prompt, turn].append(pair)
    overall = [_ratio(by_repeat[repeat]) for repeat in sorted(by_repeat)]
    return overall, [statistics.median(_ratio([p]) for p in pairs) for pairs in by_place.values()]


def summary(answers: Answers, plain: Answers) -> dict[str, Any]:
    """The row of a method: speed, latency, acceptance, and the spread of its speed-up."""
    steps = [step for record in answers for step in record["steps_ms"]]
    mine, theirs = (
        {place: repeats[0]["output_ids"] for place, repeats in repeats_of(each).items()}
        for each in (answers, plain)
    )
    row: dict[str, Any] = {
        "prompts": len(mine),
        "tokens_per_s": tokens_per_second(answers),
        "ttft_ms": statistics.median(record["ttft_ms"] for record in answers),
        "tpot_ms": statistics.median(record["tpot_ms"] for record in answers),
        "step_ms": statistics.median(steps) if steps else None,
        "tau": tau(answers),
    }
    overall, single = speedups(answers, plain)
    if overall:
        row |= {
            **spread_of(overall),
            "prompt_mean": statistics.mean(single),
            **{f"prompt_p{share}": percentile(single, share) for share in (50, 90, 99)},
            # Answers whose tokens are plain decoding's.
            "same_as_plain": sum(theirs.get(place) == output for place, output in mine.items()),
        }
    return row


def _ratio(pairs: list[Pair]) -> float:
    mine, plain = (
        sum(record["output_tokens"] for record in those) / sum(r["seconds"] for r in those)
        for those in zip(*pairs, strict=True)
    )
    return mine / plain
