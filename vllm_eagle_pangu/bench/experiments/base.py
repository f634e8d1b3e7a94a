# SPDX-License-Identifier: Apache-2.0
"""What an experiment is: groups to measure, and a result made of their records."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_eagle_pangu.bench.config import SECTIONS, BenchConfig, ThroughputConfig
from vllm_eagle_pangu.bench.groups import Group
from vllm_eagle_pangu.bench.records import Record
from vllm_eagle_pangu.bench.statistics import answers_of, summary
from vllm_eagle_pangu.measure.method import (
    PLAIN,
    Method,
    adaptive,
    chain,
    own_chain,
    scheduled_chain,
    tree,
)
from vllm_eagle_pangu.measure.prompts import Conversations, Prompt, spread

if TYPE_CHECKING:
    from vllm_eagle_pangu.bench.session import Session

Row = dict[str, Any]


@dataclass
class Result:
    """`rows` is the experiment's table, `more` further ones by name."""

    key: str
    title: str
    rows: list[Row] = field(default_factory=list)
    more: dict[str, list[Row]] = field(default_factory=dict)
    conclusions: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


@dataclass
class Bench:
    """What all experiments of a run share.

    `out`: where it writes. `parts`: the groups that are measured, by experiment, each within the
    number of engines.
    """

    config: BenchConfig
    target: Path
    head: Path
    out: Path
    prompts: list[Prompt]
    longest: list[Prompt]
    conversations: Conversations
    parts: dict[str, list[Group]] = field(default_factory=dict)

    def methods(self) -> tuple[Method, ...]:
        """Of E1, plain decoding first."""
        chosen = self.config.throughput or ThroughputConfig()
        chains = (*map(chain, chosen.chains), *map(own_chain, chosen.own_chains))
        following = (*map(scheduled_chain, chosen.schedules), *map(adaptive, chosen.adaptive))
        return (PLAIN, *chains, *map(tree, chosen.trees), *following)

    def part(self, method: Method, *keys: str, temperature: float = 0.0) -> Group | None:
        """Of the first of these experiments that measures a method at a temperature, that part."""
        parts = (part for key in keys for part in self.parts.get(key, ()))
        fitting = (p for p in parts if method in p.methods and p.temperature == temperature)
        return next(fitting, None)

    def row(
        self,
        records: list[Record],
        group: Group | None,
        method: Method,
        prompts: Iterable[Prompt] | None = None,
    ) -> Row | None:
        """A method's figures against plain decoding of the same group; None without answers."""
        if group is None:
            return None
        mine, plain = (answers_of(records, group, each) for each in (method, PLAIN))
        if prompts is not None:
            names = {prompt.id for prompt in prompts}
            mine = [record for record in mine if record["prompt"] in names]
        return {"method": method.name, **summary(mine, plain)} if mine else None


class Experiment:
    """One of E1 to E7. `groups` must not depend on what was measured."""

    key: str
    title: str
    # Its section of the YAML, which is there.
    config: Any

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.config = getattr(bench.config, SECTIONS[self.key])
        self.errors: list[str] = []

    @property
    def prompts(self) -> tuple[Prompt, ...]:
        """As many of the general selection as its section takes."""
        return tuple(spread(self.bench.prompts, self.config.prompts))

    def groups(self) -> list[Group]:
        return []

    def after(self, session: "Session") -> None:
        """Measured once its groups are."""

    def fill(self, result: Result, records: list[Record]) -> None:
        """Put into `result`, which is empty, what the records say."""
        raise NotImplementedError

    def tried(self, work: Callable[..., None], *arguments: Any) -> None:
        """An experiment that breaks takes no other down: its error is a part of its result."""
        try:
            work(*arguments)
        except Exception as error:
            self.errors.append(f"{type(error).__name__}: {error}")
            print(f"{self.key} failed: {self.errors[-1]}", flush=True)

    def concluded(self, records: list[Record]) -> Result:
        """The result, or why there is none, and whatever failed on the way."""
        result = Result(self.key, self.title)
        try:
            self.fill(result, records)
        except Exception as error:
            reason = f"no result: {type(error).__name__}: {error}"
            result = Result(self.key, self.title, errors=[reason])
        result.errors += self.errors + record_errors(records, self.key)
        return result


def record_errors(records: Iterable[Record], experiment: str) -> list[str]:
    """Each error of an experiment once, with how many answers it cost."""
    counted = Counter(
        (record["method"], record["error"])
        for record in records
        if record["experiment"] == experiment and "error" in record
    )
    return [f"{method}: {error} ({count} answers)" for (method, error), count in counted.items()]


def speedup_text(row: Row) -> str:
    """The median over the repeats, and the least and greatest."""
    if row["repeats"] == 1:
        return f"{row['speedup']:.2f} (one run)"
    return f"{row['speedup']:.2f} ({row['speedup_min']:.2f} to {row['speedup_max']:.2f})"


def ratio_text(row: Row) -> str:
    """A speed-up with its spread."""
    if row.get("speedup") is None:
        return "no ratio (plain decoding is missing)"
    ratio, _, spread = speedup_text(row).partition(" ")
    return f"{ratio}x plain {spread}"


def rated(rows: Iterable[Row]) -> list[Row]:
    """Rows with a speed-up."""
    return [row for row in rows if row.get("speedup") is not None]


def fastest(rows: Iterable[Row]) -> Row | None:
    """By speed-up; None where no row has one."""
    return max(rated(rows), key=lambda row: row["speedup"], default=None)


def pays_until(name: str, rows: Iterable[Row], column: str) -> list[str]:
    """Where a method stops paying, by rows of rising `column`."""
    known = rated(rows)
    if not known:
        return []
    loses = next((row for row in known if row["speedup"] < 1), None)
    if loses is None:
        return [f"{name} pays at every {column} tried, up to {known[-1][column]}."]
    sure = "" if loses["speedup_max"] < 1 else ", within its spread"
    return [f"{name} stops paying at {column} {loses[column]}: {ratio_text(loses)}{sure}."]


def spread_verdict(left: Row, right: Row) -> str:
    """Whether two speed-ups may be told apart."""
    if 1 in (left["repeats"], right["repeats"]):
        return "one run has no spread to judge by"
    if left["speedup_min"] > right["speedup_max"] or right["speedup_min"] > left["speedup_max"]:
        return "their spreads do not touch"
    return "their spreads overlap: read them as equal"
