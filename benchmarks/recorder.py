# SPDX-License-Identifier: Apache-2.0
"""What `policies.py` has real engines tell: candidates, what steps take, and what a choice does."""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from always import Always
from engines import engine, prompts_of
from simulator import EVERYTHING, SHAPE

from vllm_eagle_pangu.compat.lent import lent
from vllm_eagle_pangu.core.costs import StepCosts
from vllm_eagle_pangu.core.policy import StepReport, TreePolicy
from vllm_eagle_pangu.core.request import RequestView
from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.core.tree import TreeBatch
from vllm_eagle_pangu.demo import pair
from vllm_eagle_pangu.measure.engine import Engine
from vllm_eagle_pangu.measure.method import Method, adaptive, tree
from vllm_eagle_pangu.step.accept import Accepted
from vllm_eagle_pangu.step.drafter import Drafter
from vllm_eagle_pangu.step.grow import Deepen, Drafted
from vllm_eagle_pangu.step.head import TargetStates

BATCHES = (1, 2, 4, 8, 16, 32)
# Steps with trees, or without, one behind the other; how often all is decoded to see what it takes.
TURN, REPEATS = 8, 3
# A number of rows that was seen less often is not believed.
OFTEN = 5
# Steps to see what the choice takes, the first of which are a look, and those that tell.
CHOSEN, LATE = 600, 200


class GrowOnly(Drafter[Any]):
    """A `Drafter`: grows trees of one shape, and hands out none, so that the next step decodes one
    token. `grown`: by request, a batch of one tree for each of its tokens in turn."""

    def __init__(self, drafter: Drafter, shape: TreeShape) -> None:
        self.drafter, self.shape = drafter, shape
        self.grown: dict[str, list[TreeBatch]] = {}
        self._ids: list[str] = []

    def requests(self, accepted: Accepted) -> Sequence[int]:
        return self.drafter.requests(accepted)

    def extend(self, accepted: Accepted, target: TargetStates, requests: Sequence[int]) -> Any:
        self._ids = [accepted.placed.view.requests[request].id for request in requests]
        return self.drafter.extend(accepted, target, requests)

    def grow(self, state: Any, plan: Sequence[TreeShape], deepen: Deepen) -> Drafted:
        (trees,) = self.drafter.grow(state, [self.shape] * len(plan), deepen).trees
        for row, request in enumerate(self._ids):
            self.grown.setdefault(request, []).append(trees.tree.select(torch.tensor([row])))
        return Drafted()


class Ranging(TreePolicy):
    """A `TreePolicy` that draws trees of any depth and size, to see what they take, or none: by
    turns, so that a machine whose speed changes does so for both.

    `forwards`: rows, requests, trees, and seconds of each step's forward.
    """

    def __init__(self) -> None:
        self.costs, self.random = StepCosts(), random.Random(0)
        self.plans = self.drafted = self.before = 0
        self.forwards: list[tuple[int, int, int, float]] = []

    def plan(self, requests: Sequence[RequestView]) -> Sequence[TreeShape | None]:
        trees = self.plans // TURN % 2 == 1
        self.plans += 1
        self.drafted = len(requests) if trees else 0
        return [SHAPE if trees else None] * len(requests)

    def deepen(self, level: int, score: torch.Tensor) -> bool:
        self.costs.drew(level)
        return self.random.random() < 0.8

    def keep(
        self, trees: Sequence[TreeBatch], requests: Sequence[Sequence[RequestView]], batch: int
    ) -> Sequence[TreeBatch]:
        if trees and trees[0].max_depth == SHAPE.depth:
            self.costs.drew_last()
        most = self.random.randint(0, SHAPE.nodes)
        return [tree.cut(torch.full((tree.batch_size,), most)) for tree in trees]

    def observe(self, report: StepReport) -> None:
        self.costs.saw(report, self.drafted, self.before, SHAPE.width)
        self.before, self.drafted = self.drafted, 0
        seconds = report.seconds.get("verify", 0.0) + report.seconds.get("draw", 0.0)
        if report.rows == report.batch + report.nodes:
            trees = 0 if report.tree is None else int((report.tree.node_count > 0).sum())
            self.forwards.append((report.rows, report.batch, trees, seconds))


def _engine(method: Method, of: pair.Pair, most: int, dtype: str) -> Engine:
    return engine(method, of=of, dtype=dtype, max_model_len=1024, max_num_seqs=most)


def _decode(
    llm: Engine, policy: TreePolicy, prompts: list[list[int]], batch: int, tokens: int
) -> None:
    """So many tokens of so many prompts at a time, `REPEATS` times, as the policy says."""
    with lent(llm.runner.step, policy=policy):
        for _ in range(REPEATS):
            llm.generate((prompts * batch)[:batch], max_tokens=tokens, ignore_eos=True)


def record(
    of: pair.Pair, count: int, tokens: int, temperature: float, dtype: str
) -> dict[str, np.ndarray]:
    """Candidates by position, `[K, C]`, texts of a temperature one behind the other, and what steps
    take.

    `forward: [4]`, seconds: of any, and of each row, request and tree; `plain`, `level` and `rest`
    by batch size, as in `StepCosts`.
    """
    prompts, params = prompts_of(of, count), {"max_tokens": tokens, "ignore_eos": True}
    times: dict[str, dict[int, float]] = {part: {} for part in ("plain", "level", "rest")}
    forwards: list[tuple[int, int, int, float]] = []
    with _engine(tree(EVERYTHING), of, max(BATCHES), dtype) as llm:
        drafter = GrowOnly(llm.runner.step.drafter, EVERYTHING)
        with lent(llm.runner.step, drafter=drafter):
            llm.generate(prompts, temperature=temperature, **params)
    with _engine(tree(SHAPE), of, max(BATCHES), dtype) as llm:
        llm.generate(prompts, **params)
        for batch in BATCHES:
            policy = Ranging()
            _decode(llm, policy, prompts, batch, tokens)
            forwards += policy.forwards
            costs = policy.costs
            costs.solve()
            times["plain"][batch] = costs.of_plain(batch)
            times["level"][batch] = costs.of_level(batch * SHAPE.width)
            times["rest"][batch] = costs.of_rest(batch, SHAPE.width)
            print(batch, {part: round(1e3 * those[batch], 2) for part, those in times.items()})
    lengths = [len(trees) for trees in drafter.grown.values()]
    every = TreeBatch.stack([tree for trees in drafter.grown.values() for tree in trees])
    assert every.valid.all(), "the head is sure of few"
    return {
        **{name: getattr(every, name).numpy() for name in ("tokens", "score", "parent")},
        "lengths": np.array(lengths),
        "forward": _line(np.array(forwards)),
        **{part: np.array(sorted(those.items())) for part, those in times.items()},
    }


def _line(forwards: np.ndarray) -> np.ndarray:
    """The line with the least relative errors through the median of each kind that came often."""
    kinds, kind = np.unique(forwards[:, :3], axis=0, return_inverse=True)
    seen = [forwards[kind == each, 3] for each in range(len(kinds))]
    often = [each for each, seconds in enumerate(seen) if len(seconds) >= OFTEN]
    usual = np.array([np.median(seen[each]) for each in often])
    features = np.concatenate([np.ones((len(often), 1)), kinds[often]], axis=1)
    return np.linalg.lstsq(features / usual[:, None], np.ones(len(often)))[0]


class Timed(TreePolicy):
    """A `TreePolicy` that takes another one's time.

    `steps`: of those that drafted and read no prompts, requests, and seconds of choice and step.
    """

    def __init__(self, policy: TreePolicy) -> None:
        self.policy = policy
        self.steps: list[tuple[int, float, float]] = []
        self._seconds, self._drafted = 0.0, False
        self.rests = policy.rests
        self.plan, self.deepen = self._timed(policy.plan), self._timed(policy.deepen)

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            began = time.perf_counter()
            found = call(*arguments)
            self._seconds += time.perf_counter() - began
            return found

        return timed

    def keep(
        self, trees: Sequence[TreeBatch], requests: Sequence[Sequence[RequestView]], batch: int
    ) -> Sequence[TreeBatch]:
        self._drafted = sum(tree.batch_size for tree in trees) == batch
        return self._timed(self.policy.keep)(trees, requests, batch)

    def observe(self, report: StepReport) -> None:
        self._timed(self.policy.observe)(report)
        if self._drafted and report.rows == report.batch + report.nodes:
            self.steps.append((report.batch, self._seconds, sum(report.seconds.values())))
        self._seconds, self._drafted = 0.0, False


def choose(of: pair.Pair, batches: Sequence[int], dtype: str) -> Iterator[dict]:
    """Milliseconds of a step with trees for all, and of the choice of their nodes, in the mean of
    the last `LATE` of `CHOSEN` steps or more, and the choice's share."""
    prompts = prompts_of(of, max(batches))
    with _engine(adaptive(SHAPE), of, max(batches), dtype) as llm:
        for batch in batches:
            policy, seconds = Timed(Always(shared=True, depth=True, width=True)), list[Any]()
            while len(seconds) < CHOSEN:
                _decode(llm, policy, prompts, batch, tokens=96)
                seconds = [each[1:] for each in policy.steps if each[0] == batch]
            choice, step = (1e3 * np.mean(seconds[-LATE:], axis=0)).tolist()
            yield {"batch": batch, "choice": choice, "step": step, "share": choice / step}
