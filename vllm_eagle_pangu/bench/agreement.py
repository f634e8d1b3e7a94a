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


def agreement(first: Path, second: Path) -> str:
    """Markdown: how many speed-ups of two runs' folders agree, and all of them.

    Two agree if their spreads, from the least to the greatest repeat, have a point in common.

    Raises ValueError for a folder without results.
    """
    one, other = _speedups(first), _speedups(second)
    rows = [_pair(key, row, other[key]) for key, row in one.items() if key in other]
    repeats = min((row["repeats"] for row in (*one.values(), *other.values())), default=1)
    facts = _sentences(rows, repeats) if rows else ["The runs have no speed-up in common."]
    only = len(one.keys() ^ other.keys())
    facts += [f"{only} are in one run only."] if only else []
    return "\n".join(["# Two runs", "", *(f"- {fact}" for fact in facts), "", table(rows), ""])


def _speedups(folder: Path) -> dict[tuple[str, str, str], Row]:
    """By experiment, place and method."""
    path = folder / "results.json"
    if not path.is_file():
        raise refusal("--compare", str(folder), "no results.json there", "name a finished run")
    found = {}
    for key, experiment in json.loads(path.read_text(encoding="utf-8"))["experiments"].items():
        for row in rated(experiment["rows"]):
            if row["method"] != PLAIN.name:
                place = [f"{name} {row[name]}" for name in PLACES if row.get(name) is not None]
                found[key, ", ".join(place), row["method"]] = row
    return found


def _pair(key: tuple[str, str, str], one: Row, other: Row) -> Row:
    """`apart`: how far two spreads lie apart, 0 if they touch, else the ratio of the nearest ends
    less 1."""
    low, high = sorted((one, other), key=lambda row: float(row["speedup"]))
    apart = max(0.0, float(high["speedup_min"] / low["speedup_max"]) - 1)
    return {
        **dict(zip(("experiment", "where", "method"), key, strict=True)),
        "first": speedup_text(one),
        "second": speedup_text(other),
        "second / first": other["speedup"] / one["speedup"],
        "first tau": one["tau"],
        "second tau": other["tau"],
        "apart": apart,
        "spreads": "touch" if apart == 0 else f"{100 * apart:.0f} % apart",
    }


def _sentences(rows: list[Row], repeats: int) -> list[str]:
    agreeing = sum(row["apart"] == 0 for row in rows)
    moved = sorted(abs(row["second / first"] - 1) for row in rows)
    found = [
        f"{agreeing} of {len(rows)} speed-ups agree: their spreads touch.",
        f"Half of the medians moved by less than {100 * moved[len(moved) // 2]:.0f} %, "
        f"the one that moved most by {100 * moved[-1]:.0f} %.",
    ]
    taus = [(row["method"], row["first tau"] or 1, row["second tau"] or 1) for row in rows]
    other = [method for method, one, two in taus if abs(one - two) > TAU_STEP]
    if other:
        names = ", ".join(dict.fromkeys(other))
        found.append(f"tau differs in {len(other)}, which decoded something else: {names}.")
    if agreeing < len(rows):
        worst = max(rows, key=lambda row: row["apart"])
        near = sum(row["apart"] <= NOISE for row in rows)
        where = " ".join(filter(None, (worst["experiment"], worst["where"], worst["method"])))
        found.append(
            f"{near} are less than a tenth apart; the furthest, by {100 * worst['apart']:.0f} %: "
            f"{where}."
        )
        chance = 2 / math.comb(2 * repeats, repeats)
        found.append(
            f"Of {repeats} repeats each, {100 * chance:.0f} % of spreads would not touch though "
            "nothing differed."
        )
    return found
