# SPDX-License-Identifier: Apache-2.0
"""What the report says about a run in numbers."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

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
    """Steps whose accepted path has a node at depth d of the tree.

    `share`: of all; `conditional`: of those whose path reached d-1; `of_offered`: of the latter,
    those whose last node had children, so that d could be reached at all.
    """

    depth: int
    share: Share
    conditional: Share
    of_offered: Share


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


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Over steps of one request, or of all: drafted nodes, accepted ones, emitted tokens."""

    steps: int
    nodes: int
    accepted: int
    tokens: int

    @property
    def tau(self) -> float:
        """Tokens emitted per request and target forward, bonus included."""
        return self.tokens / self.steps


@dataclass(frozen=True, kw_only=True)
class RequestFigures(Totals):
    """A request's recorded steps; `finished` is None where it has no line in requests.jsonl."""

    name: str
    finished: Request | None


@dataclass(frozen=True, kw_only=True)
class Statistics(Totals):
    """Of a run with at least one step; the totals are of all requests' steps.

    `emitted`: request steps by tokens emitted. `ranks`: by place among siblings, best first.
    `conditional`, `cumulative`: calibration of a node's probability given its parent, and of its
    whole path's; `believed`: of what adaptive trees believe of the latter, and `promised`, their
    tokens per step by it, beside `brought`; None without. `medians`: by what they are of.
    """

    engine_steps: int
    emitted: dict[int, int]
    positions: list[Position]
    ranks: list[Share]
    conditional: list[Bin]
    cumulative: list[Bin]
    believed: list[Bin]
    promised: float | None
    brought: float | None
    stages: list[Stage]
    requests: list[RequestFigures]
    medians: dict[str, float]


def statistics_of(recording: Recording) -> Statistics:
    """Every figure of the page; the recording has steps."""
    steps = recording.steps
    assert steps
    requests = _requests(recording)
    # Every request of a batch repeats its step's times.
    timings = {step.number: step.stage_us for step in steps}
    batches = {step.number: step.batch_size for step in steps}
    chosen = [(step, step.promised(step.belief)) for step in steps if step.belief is not None]
    promised = [1 + sum(map(math.exp, chances)) for _, chances in chosen]
    medians: dict[str, Sequence[float]] = {
        "tokens per step": [len(step.emitted) for step in steps],
        "nodes per step": [step.nodes for step in steps],
        "prefix tokens": [step.prefix_tokens for step in steps],
        "tau of a request": [request.tau for request in requests],
        "batch size": list(batches.values()),
    }
    return Statistics(
        **_totals(steps),
        engine_steps=len(timings),
        emitted=dict(sorted(Counter(len(step.emitted) for step in steps).items())),
        positions=_positions(steps),
        ranks=_ranks(steps),
        # Given the parent, only nodes count whose parent was accepted: no others were tested.
        conditional=_calibration(
            (step.scores[row] - step.scores[parent], row in step.accepted)
            for step in steps
            for row, parent in _edges(step)
            if parent in step.accepted
        ),
        cumulative=_calibration(
            (step.scores[row], row in step.accepted) for step in steps for row, _ in _edges(step)
        ),
        believed=_calibration(
            (chance, row in step.accepted)
            for step, chances in chosen
            for row, chance in enumerate(chances, start=1)
        ),
        promised=float(np.mean(promised)) if chosen else None,
        brought=float(np.mean([len(step.emitted) for step, _ in chosen])) if chosen else None,
        stages=_stages(timings),
        requests=requests,
        medians={name: float(np.median(values)) for name, values in medians.items()},
    )


def _totals(steps: Sequence[Step]) -> dict[str, int]:
    return {
        "steps": len(steps),
        "nodes": sum(step.nodes for step in steps),
        "accepted": sum(len(step.accepted) - 1 for step in steps),
        "tokens": sum(len(step.emitted) for step in steps),
    }


def _requests(recording: Recording) -> list[RequestFigures]:
    """In order of their first step."""
    steps: dict[str, list[Step]] = defaultdict(list)
    for step in recording.steps:
        steps[step.request].append(step)
    finished = {request.name: request for request in recording.requests}
    return [
        RequestFigures(name=name, finished=finished.get(name), **_totals(own))
        for name, own in steps.items()
    ]


def _positions(steps: Sequence[Step]) -> list[Position]:
    """Depths 1 to the deepest that a tree has."""
    deepest = 0
    offered, reached = Counter[int](), Counter[int]()
    for step in steps:
        depths = [0]
        for parent in step.parents[1:]:
            depths.append(depths[parent] + 1)
        deepest = max(deepest, *depths)
        for depth, row in enumerate(step.accepted):
            reached[depth] += 1
            offered[depth + 1] += row in step.parents[1:]
    return [
        Position(d, *(Share(reached[d], of) for of in (len(steps), reached[d - 1], offered[d])))
        for d in range(1, deepest + 1)
    ]


def _edges(step: Step) -> Iterator[tuple[int, int]]:
    """Every node's row and its parent's."""
    return enumerate(step.parents[1:], start=1)


def _calibration(scored: Iterable[tuple[float, bool]]) -> list[Bin]:
    """Nodes by log-probability, and whether they were accepted: the bins that are not empty.

    What is not finite, as only a broken drafter's are, is left out.
    """
    nodes = np.fromiter(scored, [("score", float), ("accepted", bool)])
    nodes = nodes[np.isfinite(nodes["score"])]
    probability = np.exp(np.minimum(nodes["score"], 0.0))
    bins = np.minimum((probability * CALIBRATION_BINS).astype(int), CALIBRATION_BINS - 1)
    found = []
    for number in np.unique(bins).tolist():
        own = bins == number
        accepted = Share(int(nodes["accepted"][own].sum()), int(own.sum()))
        low, high = number / CALIBRATION_BINS, (number + 1) / CALIBRATION_BINS
        found.append(Bin(low, high, float(probability[own].mean()), accepted))
    return found


def _ranks(steps: Sequence[Step]) -> list[Share]:
    """Of the nodes whose parent was accepted, by their place among its children."""
    tested, hits = Counter[int](), Counter[int]()
    for step in steps:
        for above in step.accepted:
            children = [row for row, parent in _edges(step) if parent == above]
            children.sort(key=lambda row: -step.scores[row])
            for rank, row in enumerate(children):
                tested[rank] += 1
                hits[rank] += row in step.accepted
    return [Share(hits[rank], tested[rank]) for rank in sorted(tested)]


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
