# SPDX-License-Identifier: Apache-2.0
"""What the report says about a run in numbers."""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from vllm_eagle_pangu.tracing.report.recording import Recording, Request, Step

# The stage that is the whole step.
WHOLE_STEP = "step"
CALIBRATION_BINS = 10
# Of a standard normal: intervals hold 95 %.
QUANTILE = 1.96


@dataclass(frozen=True)
class Share:
    """`count` of `total`."""

    count: int
    total: int

    @property
    def value(self) -> float:
        """NaN of nothing."""
        return self.count / self.total if self.total else math.nan

    def interval(self) -> tuple[float, float]:
        """Where the true share lies with 95 % (Wilson, 1927); for a total of at least 1."""
        n, p, z2 = self.total, self.value, QUANTILE**2
        middle = (p + z2 / (2 * n)) / (1 + z2 / n)
        spread = QUANTILE * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n)) / (1 + z2 / n)
        return max(0.0, min(p, middle - spread)), min(1.0, max(p, middle + spread))


@dataclass(frozen=True)
class Position:
    """Steps at depth d of the tree.

    `reached`: whose accepted path has a node at d; `tried`: whose path reached d-1;
    `offered`: those of `tried` whose last node had children, so that d could be reached at all.
    """

    depth: int
    steps: int
    tried: int
    offered: int
    reached: int

    @property
    def share(self) -> Share:
        return Share(self.reached, self.steps)

    @property
    def conditional(self) -> Share:
        return Share(self.reached, self.tried)

    @property
    def of_offered(self) -> Share:
        return Share(self.reached, self.offered)


@dataclass(frozen=True)
class Bin:
    """Nodes whose probability lies in [low, high) (the last bin has 1.0 too)."""

    low: float
    high: float
    mean_probability: float
    accepted: Share


@dataclass(frozen=True)
class Stage:
    """Percentiles in microseconds over engine steps; `share`: of the whole steps' time."""

    name: str
    steps: int
    p50: float
    p90: float
    p99: float
    share: float | None


@dataclass(frozen=True)
class RequestFigures:
    """A request's recorded steps; `finished` is None where it has no line in requests.jsonl."""

    name: str
    steps: int
    nodes: int
    accepted: int
    emitted: int
    finished: Request | None

    @property
    def tau(self) -> float:
        return self.emitted / self.steps


@dataclass(frozen=True)
class Statistics:
    """Of a run with at least one step.

    `emitted`: request steps by tokens emitted. `ranks`: by place among siblings, best first.
    `conditional`, `cumulative`: calibration of a node's probability given its parent, and of its
    whole path's. `medians`: by what they are of.
    """

    request_steps: int
    engine_steps: int
    nodes: int
    accepted: int
    emitted: dict[int, int]
    positions: list[Position]
    ranks: list[Share]
    conditional: list[Bin]
    cumulative: list[Bin]
    stages: list[Stage]
    requests: list[RequestFigures]
    medians: dict[str, float] = field(default_factory=dict)

    @property
    def tau(self) -> float:
        """Tokens emitted per request and target forward, bonus included."""
        return self.tokens / self.request_steps

    @property
    def tokens(self) -> int:
        return sum(count * steps for count, steps in self.emitted.items())


def statistics_of(recording: Recording) -> Statistics:
    """Every figure of the page; the recording has steps."""
    steps = recording.steps
    assert steps
    requests = _requests(recording)
    # Every request of a batch repeats its step's times.
    timings = {step.number: step.stage_us for step in steps}
    batches = {step.number: step.batch_size for step in steps}
    conditional, cumulative, ranks = _tested_nodes(steps)
    medians: dict[str, Sequence[float]] = {
        "tokens per step": [len(step.emitted) for step in steps],
        "nodes per step": [step.nodes for step in steps],
        "prefix tokens": [step.prefix_tokens for step in steps],
        "tau of a request": [request.tau for request in requests],
        "batch size": list(batches.values()),
    }
    return Statistics(
        request_steps=len(steps),
        engine_steps=len(timings),
        nodes=sum(step.nodes for step in steps),
        accepted=sum(step.accepted_nodes for step in steps),
        emitted=dict(sorted(Counter(len(step.emitted) for step in steps).items())),
        positions=_positions(steps),
        ranks=ranks,
        conditional=conditional,
        cumulative=cumulative,
        stages=_stages(timings),
        requests=requests,
        medians={name: float(np.median(values)) for name, values in medians.items()},
    )


def _requests(recording: Recording) -> list[RequestFigures]:
    """In order of their first step."""
    steps: dict[str, list[Step]] = defaultdict(list)
    for step in recording.steps:
        steps[step.request].append(step)
    finished = {request.name: request for request in recording.requests}
    return [
        RequestFigures(
            name=name,
            steps=len(own),
            nodes=sum(step.nodes for step in own),
            accepted=sum(step.accepted_nodes for step in own),
            emitted=sum(len(step.emitted) for step in own),
            finished=finished.get(name),
        )
        for name, own in steps.items()
    ]


def _positions(steps: Sequence[Step]) -> list[Position]:
    """Depths 1 to the deepest that a tree has."""
    deepest = 0
    offered, reached = Counter[int](), Counter[int]()
    for step in steps:
        depths = depths_of(step.parents)
        deepest = max(deepest, *depths)
        has_children = set(step.parents[1:])
        for depth, row in enumerate(step.accepted, start=1):
            reached[depth - 1] += 1
            offered[depth] += row in has_children
    return [
        Position(d, len(steps), reached[d - 1], offered[d], reached[d])
        for d in range(1, deepest + 1)
    ]


def depths_of(parents: Sequence[int]) -> list[int]:
    """Depth of every row, 0 at the root."""
    depths = [0]
    for parent in parents[1:]:
        depths.append(depths[parent] + 1)
    return depths


class _BinCounts:
    """Counts nodes by probability, in bins of equal width."""

    def __init__(self) -> None:
        self._sums = [0.0] * CALIBRATION_BINS
        self._totals = [0] * CALIBRATION_BINS
        self._hits = [0] * CALIBRATION_BINS

    def add(self, probability: float, accepted: bool) -> None:
        """Leaves out what has no probability."""
        if math.isnan(probability):
            return
        index = min(int(probability * CALIBRATION_BINS), CALIBRATION_BINS - 1)
        self._sums[index] += probability
        self._totals[index] += 1
        self._hits[index] += accepted

    def bins(self) -> list[Bin]:
        """Those that are not empty."""
        return [
            Bin(
                low=index / CALIBRATION_BINS,
                high=(index + 1) / CALIBRATION_BINS,
                mean_probability=self._sums[index] / total,
                accepted=Share(self._hits[index], total),
            )
            for index, total in enumerate(self._totals)
            if total
        ]


def _tested_nodes(steps: Sequence[Step]) -> tuple[list[Bin], list[Bin], list[Share]]:
    """Calibration given the parent, calibration of whole paths, and shares by rank.

    Given the parent, only nodes count whose parent is on the accepted path: no others were tested.
    """
    conditional, cumulative = _BinCounts(), _BinCounts()
    tested, hit = Counter[int](), Counter[int]()
    for step in steps:
        path = set(step.accepted)
        siblings: dict[int, list[int]] = defaultdict(list)
        for row in range(1, len(step.tokens)):
            cumulative.add(step.probability(row), row in path)
            if step.parents[row] in path:
                siblings[step.parents[row]].append(row)
                conditional.add(step.probability_given_parent(row), row in path)
        for rows in siblings.values():
            rows.sort(key=lambda row: (-step.scores[row], row))
            for rank, row in enumerate(rows):
                tested[rank] += 1
                hit[rank] += row in path
    ranks = [Share(hit[rank], tested[rank]) for rank in sorted(tested)]
    return conditional.bins(), cumulative.bins(), ranks


def _stages(timings: dict[int, dict[str, float]]) -> list[Stage]:
    """In the order in which the run names them, the whole step last."""
    values: dict[str, list[float]] = defaultdict(list)
    for stages in timings.values():
        for name, microseconds in stages.items():
            values[name].append(microseconds)
    whole = sum(values.get(WHOLE_STEP, ()))
    found = []
    for name, own in sorted(values.items(), key=lambda item: item[0] == WHOLE_STEP):
        p50, p90, p99 = (float(value) for value in np.percentile(own, (50, 90, 99)))
        found.append(Stage(name, len(own), p50, p90, p99, sum(own) / whole if whole else None))
    return found
