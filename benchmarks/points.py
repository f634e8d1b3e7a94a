# SPDX-License-Identifier: Apache-2.0
"""Adaptive trees against plain decoding, and how far this is from itself, point by point.

    python benchmarks/points.py benchmarks/results/served-ramp-*-bf16-rounds.json

Of each result of `closed_loop.py --also plain-2`, by the number of clients: adaptive trees' mean
ratio, their first tokens (99 %) to the mean of both plain engines', and the second plain engine's
of both, to the first one's; then its rounds at points where trees hardly pay, with drafts and
without. Where there are other ways, too: the best of these and of both plain engines, and adaptive
trees' share of it, round by round. At last how many of all points are bad, and where a plain engine
is best, at how many the other one is.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import exp
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from closed_loop import by_clients, cell

from vllm_eagle_pangu.measure.files import markdown
from vllm_eagle_pangu.measure.statistics import mean_of

# Less than this of plain decoding's tokens per second is bad, as are first tokens later than this.
LEAST, LATEST = 0.97, 1.1
# At points below this trees hardly pay; a round with no more drafts than this has none.
HARDLY, NONE = 1.1, 2


def points(rows: Sequence[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any], Any]]:
    """(adaptive trees, plain decoding once more, first tokens of the one and of the other)."""
    found = []
    for plain, *others in by_clients(rows):
        of = {row["method"].partition("-")[0]: row for row in others}
        trees, again = of["adaptive"], of["plain"]
        first, once_more = plain["ttft_p99_ms"], again["ttft_p99_ms"]
        late = trees["ttft_p99_ms"] / geometric_mean((first, once_more)), once_more / first
        found.append((trees, again, late))
    return found


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
            [str(trees["clients"]), cell(trees), f"{late[0]:.2f}", cell(again), f"{late[1]:.2f}"]
            for trees, again, late in found
        ]
        columns = zip(
            *((t["mean"], late[0], a["mean"], late[1]) for t, a, late in found), strict=True
        )
        lines.append(["geometric mean", *(f"{geometric_mean(each):.2f}" for each in columns)])
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
        late = sum(point[2][place] > LATEST for point in everything)
        print(f"{name}, {below(rows)}; first tokens beyond {LATEST} {late}")
    for name, some in of_best.items():
        print(f"{name}, {below(some)}")


if __name__ == "__main__":
    main()
