# SPDX-License-Identifier: Apache-2.0
"""Whether two runs of one benchmark found the same: every speed-up beside its twin."""

import json
import math
from pathlib import Path

from vllm_eagle_pangu.bench.experiments.base import Row, rated, speedup_text
from vllm_eagle_pangu.bench.results import table
from vllm_eagle_pangu.config import refusal
from vllm_eagle_pangu.measure.method import PLAIN

# What tells rows of an experiment apart, beside the method.
PLACES = ("sweep", "depth", "nodes", "window", "concurrency", "temperature")

# What a shared machine may add between two runs: docs/measuring.md.
NOISE = 0.1
# Acceptance is rounded to this.
TAU_STEP = 1e-4

# (experiment, place, method) -> row
Speedups = dict[tuple[str, str, str], Row]


def agreement(first: Path, second: Path) -> str:
    """Markdown: how many speed-ups of two runs' folders agree, and all of them.

    Two agree if their spreads, from the least to the greatest repeat, have a point in common.

    Raises ValueError for a folder without results.
    """
    runs = [_speedups(folder) for folder in (first, second)]
    common = [key for key in runs[0] if key in runs[1]]
    rows = [_pair(key, runs[0][key], runs[1][key]) for key in common]
    only = sum(len(run) - len(common) for run in runs)
    facts = [*_sentences(common, *runs), *([f"{only} are in one run only."] if only else [])]
    return "\n".join(["# Two runs", "", *(f"- {fact}" for fact in facts), "", table(rows), ""])


def _speedups(folder: Path) -> Speedups:
    path = folder / "results.json"
    if not path.is_file():
        raise refusal("--compare", str(folder), "no results.json there", "name a finished run")
    found: Speedups = {}
    for key, experiment in json.loads(path.read_text(encoding="utf-8"))["experiments"].items():
        for row in rated(experiment["rows"]):
            if row["method"] != PLAIN.name:
                place = [f"{name} {row[name]}" for name in PLACES if row.get(name) is not None]
                found[key, ", ".join(place), row["method"]] = row
    return found


def _apart(one: Row, other: Row) -> float:
    """How far two spreads lie apart: 0 if they touch, else the ratio of the nearest ends less 1."""
    low, high = sorted((one, other), key=lambda row: float(row["speedup"]))
    return max(0.0, float(high["speedup_min"] / low["speedup_max"]) - 1)


def _pair(key: tuple[str, str, str], one: Row, other: Row) -> Row:
    experiment, place, method = key
    apart = _apart(one, other)
    return {
        "experiment": experiment,
        "where": place,
        "method": method,
        "first": speedup_text(one),
        "second": speedup_text(other),
        "second / first": other["speedup"] / one["speedup"],
        "first tau": one["tau"],
        "second tau": other["tau"],
        "spreads": "touch" if apart == 0 else f"{100 * apart:.0f} % apart",
    }


def _sentences(common: list[tuple[str, str, str]], first: Speedups, second: Speedups) -> list[str]:
    if not common:
        return ["The runs have no speed-up in common."]
    gaps = {key: _apart(first[key], second[key]) for key in common}
    agreeing = [key for key in common if gaps[key] == 0]
    moved = sorted(abs(second[key]["speedup"] / first[key]["speedup"] - 1) for key in common)
    taus = {key: [run[key]["tau"] or 1 for run in (first, second)] for key in common}
    other = [key for key, (one, two) in taus.items() if abs(one - two) > TAU_STEP]
    repeats = min(row["repeats"] for run in (first, second) for row in run.values())
    found = [
        f"{len(agreeing)} of {len(common)} speed-ups agree: their spreads touch.",
        f"Half of the medians moved by less than {100 * moved[len(moved) // 2]:.0f} %, "
        f"the one that moved most by {100 * moved[-1]:.0f} %.",
    ]
    if other:
        names = ", ".join(dict.fromkeys(method for _, _, method in other))
        found.append(f"tau differs in {len(other)}, which decoded something else: {names}.")
    if len(agreeing) < len(common):
        worst = max(gaps, key=gaps.__getitem__)
        near = sum(gap <= NOISE for gap in gaps.values())
        found.append(
            f"{near} are less than a tenth apart; the furthest, by {100 * gaps[worst]:.0f} %: "
            f"{' '.join(part for part in worst if part)}."
        )
        chance = 2 / math.comb(2 * repeats, repeats)
        found.append(
            f"Of {repeats} repeats each, {100 * chance:.0f} % of spreads would not touch though "
            "nothing differed."
        )
    return found
