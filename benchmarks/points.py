# SPDX-License-Identifier: Apache-2.0
"""Adaptive trees against plain decoding, and how far this is from itself, point by point.

    python benchmarks/points.py benchmarks/results/served-ramp-*-bf16-crowds.json

Of each result of `closed_loop.py --also plain-2`, by the number of clients: adaptive trees' mean
ratio, their first tokens (99 %) to the mean of both plain engines', and the second plain engine's
of both, to the first one's; in the last line the means, and first tokens of all numbers of clients
together. Errors of first tokens are those of rounds drawn anew, the same of all ways: who comes at
once is answered at once, so that a round has a few late times, each of many answers. Then its
rounds at points where trees hardly pay, with drafts and without. Where there are other ways, too:
the best of these and of both plain engines, and adaptive trees' share of it, round by round. At
last how many of all points are bad, and where a plain engine is best, at how many the other one is.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import exp
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np
from closed_loop import by_clients, cell

from vllm_eagle_pangu.measure.files import markdown
from vllm_eagle_pangu.measure.statistics import mean_of

# Less than this of plain decoding's tokens per second is bad, as are first tokens later than this.
LEAST, LATEST = 0.97, 1.1
# At points below this trees hardly pay; a round with no more drafts than this has none.
HARDLY, NONE = 1.1, 2
# How often rounds are drawn anew.
DRAWN = 1000


def points(rows: Sequence[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any], Any]]:
    """(adaptive trees, plain decoding once more, first tokens of the one and of the other)."""
    found = []
    for turn in by_clients(rows):
        of = _apart(turn)
        found.append((of["adaptive"], of["again"], _late(of)))
    return found


def _apart(turn: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    plain, *others = turn
    of = {row["method"].partition("-")[0]: row for row in others}
    return {"plain": plain, "again": of["plain"], "adaptive": of["adaptive"]}


def _late(of: Mapping[str, dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """First tokens (99 %), as `mean_of` has ratios: adaptive trees' to both plain engines', and the
    second one's to the first's; with an error where all of them were saved."""
    waits = {name: waits_of([row]) for name, row in of.items()}
    if all(map(len, waits.values())):
        return later(waits)
    first, again, trees = (of[name]["ttft_p99_ms"] for name in ("plain", "again", "adaptive"))
    return mean_of([trees / geometric_mean((first, again))]), mean_of([again / first])


def waits_of(rows: Iterable[dict[str, Any]]) -> list[np.ndarray]:
    """By round, milliseconds of all first tokens of these rows; nothing of older results."""
    by_round = zip(*(row.get("first_ms", []) for row in rows), strict=True)
    return [np.concatenate(waits) for waits in by_round]


def later(waits: Mapping[str, list[np.ndarray]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """See `_late`."""
    rounds = min(map(len, waits.values()))
    drawn = np.random.default_rng(0).integers(rounds, size=(DRAWN, rounds))

    def end(of_rounds: list[np.ndarray]) -> float:
        return float(np.log(np.percentile(np.concatenate(of_rounds), 99)))

    ends = {name: end(of_rounds) for name, of_rounds in waits.items()}
    spread = {
        name: np.array([end([of_rounds[each] for each in those]) for those in drawn])
        for name, of_rounds in waits.items()
    }

    def one(to: Callable[[Mapping[str, Any]], Any]) -> dict[str, Any]:
        return {"mean": exp(to(ends)), "error": float(to(spread).std())}

    trees = one(lambda of: of["adaptive"] - (of["plain"] + of["again"]) / 2)
    return trees, one(lambda of: of["again"] - of["plain"])


def beside_all_plain(turn: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows, those of plain engines to the mean of all of these, as others are, not to the first."""
    plain = [row["ratios"] for row in turn if row["method"].startswith("plain")]
    pooled = [*map(geometric_mean, zip(*plain, strict=True))]
    found = []
    for row in turn:
        if row["method"].startswith("plain"):
            ratios = [mine / all_s for mine, all_s in zip(row["ratios"], pooled, strict=True)]
            found.append(row | mean_of(ratios) | {"ratios": ratios})
        else:
            found.append(row)
    return found


def best_others(
    rows: Sequence[dict[str, Any]],
) -> tuple[list[list[str]], dict[str, list[dict[str, Any]]]]:
    """Lines of a table; and by who they are of, shares of the best other way, round by round and in
    the mean: adaptive trees', these where a plain engine is best, and the other plain engine's
    there. Of nothing where there is nothing beside adaptive trees and plain decoding."""
    lines, means = [], defaultdict[str, list[float]](list)
    shares = defaultdict[str, list[dict[str, Any]]](list)
    if {row["method"].partition("-")[0] for row in rows} <= {"plain", "adaptive"}:
        return lines, shares
    for turn in map(beside_all_plain, by_clients(rows)):
        for row in turn:
            means[row["method"]].append(row["mean"])
        ours = next(row for row in turn if row["method"].startswith("adaptive"))
        best = max((row for row in turn if row is not ours), key=lambda row: row["mean"])
        share = _share(ours, best)
        shares["adaptive of the best other"].append(share)
        plain = [row for row in turn if row["method"].startswith("plain")]
        if best in plain:
            shares["where a plain engine is, adaptive"].append(share)
            others = [_share(row, best) for row in plain if row is not best]
            shares["there the other plain engine"] += others
        best_of = f"{cell(best)} ({best['method']})"
        lines.append([str(ours["clients"]), best_of, cell(ours), cell(share)])
    middle = geometric_mean(means.pop(ours["method"]))
    highest, name = max((geometric_mean(each), name) for name, each in means.items())
    of_it = f"{middle / highest:.2f}"
    lines.append(["geometric mean", f"{highest:.2f} ({name})", f"{middle:.2f}", of_it])
    return lines, shares


def _share(row: dict[str, Any], of: dict[str, Any]) -> dict[str, Any]:
    rounds = zip(row["ratios"], of["ratios"], strict=True)
    return mean_of([one / other for one, other in rounds])


def of_rounds(ratios: Iterable[float]) -> str:
    rounds = [*ratios]
    if len(rounds) < 2:
        return f"{len(rounds)} rounds"
    of = mean_of(rounds)
    return f"{of['mean']:.3f} ± {of['mean'] * of['error']:.3f} ({len(rounds)} rounds)"


def below(rows: Sequence[dict[str, Any]]) -> str:
    """How many of these are bad, and how many of them by more than an error."""
    bad = sum(row["mean"] < LEAST for row in rows)
    surely = sum(row["mean"] * exp(row["error"] or 0) < LEAST for row in rows)
    return f"of {len(rows)} points: below {LEAST} {bad}, by an error {surely}"


def beyond(late: Sequence[dict[str, Any]]) -> str:
    """How many first tokens come too late, and how many of them by more than an error."""
    bad = sum(row["mean"] > LATEST for row in late)
    surely = sum(row["mean"] * exp(-(row["error"] or 0)) > LATEST for row in late)
    return f"first tokens beyond {LATEST} {bad}, by an error {surely}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", type=Path, nargs="+")
    head = ["clients", "adaptive", "first tokens", "plain once more", "first tokens"]
    everything, of_best = [], defaultdict[str, list[dict[str, Any]]](list)
    for file in parser.parse_args().files:
        rows = json.loads(file.read_text(encoding="utf-8"))["rows"]
        found = points(rows)
        everything += found
        lines = [
            [str(trees["clients"]), cell(trees), cell(late[0]), cell(again), cell(late[1])]
            for trees, again, late in found
        ]
        columns = zip(
            *((trees, late[0], again, late[1]) for trees, again, late in found), strict=True
        )
        means = [f"{geometric_mean([each['mean'] for each in column]):.2f}" for column in columns]
        lines.append(["geometric mean", *means])
        turns = [*map(_apart, by_clients(rows))]
        together = {name: waits_of([turn[name] for turn in turns]) for name in turns[0]}
        if all(map(len, together.values())):
            late = later(together)
            lines.append(["all first tokens", "", cell(late[0]), "", cell(late[1])])
        hardly = [
            one
            for trees, *_ in found
            if trees["mean"] < HARDLY
            for one in zip(trees["ratios"], trees["drafts"], strict=True)
        ]
        print(f"{file.name}\n{markdown(head, lines)}\nWhere trees hardly pay:")
        print("no drafts:", of_rounds(ratio for ratio, drafts in hardly if drafts <= NONE))
        print("drafts:", of_rounds(ratio for ratio, drafts in hardly if drafts > NONE), "\n")
        others, shares = best_others(rows)
        for name, some in shares.items():
            of_best[name] += some
        if others:
            print(markdown(["clients", "best other", "adaptive", "of it"], others), "\n")
    for name, place in (("adaptive", 0), ("plain once more", 1)):
        rows = [point[place] for point in everything]
        late = [point[2][place] for point in everything]
        print(f"{name}, {below(rows)}; {beyond(late)}")
    for name, some in of_best.items():
        print(f"{name}, {below(some)}")


if __name__ == "__main__":
    main()
