# SPDX-License-Identifier: Apache-2.0
"""From records to figures. Ratios are taken within a repeat, between neighbours in time."""

import statistics
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Any, TypeVar

from vllm_eagle_pangu.bench.groups import Group
from vllm_eagle_pangu.bench.records import Record, key_of
from vllm_eagle_pangu.measure.method import Method
from vllm_eagle_pangu.measure.statistics import percentile, rate, spread_of, tau

# A method's in one group, each to a prompt's turn in a repeat.
Answers = list[Record]
_turn_of = itemgetter("prompt", "turn")
Item = TypeVar("Item")


def answers_of(records: Iterable[Record], group: Group, method: Method) -> Answers:
    """Errors are left out."""
    wanted = group.experiment, group.name, method.name, group.temperature
    return [one for one in records if key_of(one)[: len(wanted)] == wanted and "output_ids" in one]


def grouped(items: Iterable[Item], key: Callable[[Item], Any]) -> dict[Any, list[Item]]:
    """By what `key` says of them, in the order of the first of each."""
    found: dict[Any, list[Item]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def median(answers: Answers, name: str) -> Any:
    """None where there is no such figure."""
    found = [record[name] for record in answers if record.get(name) is not None]
    return statistics.median(found) if found else None


def speedups(answers: Answers, plain: Answers) -> tuple[list[float], list[float]]:
    """Ratios to plain decoding of the same repeat, in tokens per second.

    Per repeat, of all prompts together; per prompt and turn, the median over the repeats.
    """
    of_plain = {key_of(record)[-3:]: record for record in plain}
    both = [(record, of_plain.get(key_of(record)[-3:])) for record in answers]
    pairs = [(mine, theirs) for mine, theirs in both if theirs is not None]
    by_repeat = grouped(pairs, lambda pair: pair[0]["repeat"])
    by_turn = grouped(pairs, lambda pair: _turn_of(pair[0]))
    overall = [_ratio(by_repeat[repeat]) for repeat in sorted(by_repeat)]
    return overall, [statistics.median(_ratio([p]) for p in of) for of in by_turn.values()]


def summary(answers: Answers, plain: Answers) -> dict[str, Any]:
    """The row of a method: speed, latency, acceptance, and the spread of its speed-up."""
    steps = [step for record in answers for step in record["steps_ms"]]
    mine, theirs = (grouped(each, _turn_of) for each in (answers, plain))
    row: dict[str, Any] = {
        "prompts": len(mine),
        "tokens_per_s": rate(
            (repeats[0]["output_tokens"] for repeats in mine.values()),
            ([record["seconds"] for record in repeats] for repeats in mine.values()),
        ),
        "ttft_ms": statistics.median(record["ttft_ms"] for record in answers),
        "tpot_ms": statistics.median(record["tpot_ms"] for record in answers),
        "step_ms": statistics.median(steps) if steps else None,
        "tau": tau(*(sum(record[name] for record in answers) for name in ("drafts", "accepted"))),
    }
    overall, single = speedups(answers, plain)
    if overall:
        row |= {
            **spread_of(overall),
            "prompt_mean": statistics.mean(single),
            **{f"prompt_p{share}": percentile(single, share) for share in (50, 90, 99)},
            # Answers whose tokens are plain decoding's.
            "same_as_plain": sum(
                place in theirs and theirs[place][0]["output_ids"] == repeats[0]["output_ids"]
                for place, repeats in mine.items()
            ),
        }
    return row


def _ratio(pairs: list[tuple[Record, Record]]) -> float:
    mine, plain = (
        sum(record["output_tokens"] for record in those) / sum(r["seconds"] for r in those)
        for those in zip(*pairs, strict=True)
    )
    return mine / plain
