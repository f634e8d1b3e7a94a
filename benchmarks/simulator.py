# SPDX-License-Identifier: Apache-2.0
"""A service whose clock goes on by what `policies.py record` found; policies see an engine."""

import random
from collections.abc import Sequence

import numpy as np
import torch

from vllm_eagle_pangu.core.adaptive import AdaptiveShapes
from vllm_eagle_pangu.core.ops import Ops
from vllm_eagle_pangu.core.policy import StepReport, TreePolicy, Unasked
from vllm_eagle_pangu.core.remembered import narrower
from vllm_eagle_pangu.core.request import RequestView
from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.core.tree import TreeBatch
from vllm_eagle_pangu.kernels.tree_accept import AcceptedPaths
from vllm_eagle_pangu.kernels.tree_expand.frontier import level_slice

# The largest trees, and all that the head drafts for them.
SHAPE = TreeShape(4, 5, 16)
EVERYTHING = TreeShape(SHAPE.width, SHAPE.depth, SHAPE.capacity)
OPS = Ops.bind("cpp")
NOISE = 0.1
STEPS = 1500


class Machine:
    """A clock that goes on by what was recorded, each time times a random factor.

    `factor`: on every time from now on.
    """

    def __init__(self, recorded: dict[str, np.ndarray], seed: int = 0) -> None:
        self.now, self.factor = 0.0, 1.0
        self._recorded, self._random = recorded, np.random.default_rng(seed)

    def takes(self, part: str, *size: float) -> float:
        """Seconds of a part of a step, by which the clock goes on."""
        seconds = self.usual(part, *size) * self.factor * self._random.lognormal(0.0, NOISE)
        self.now += seconds
        return seconds

    def usual(self, part: str, *size: float) -> float:
        """Seconds of a part of a step, as recorded."""
        known = self._recorded[part]
        if part == "forward":
            return float(known @ (1, *size))
        return float(np.interp(*size, *known.T))

    def begin(self, policy: TreePolicy, believed: float = 1.0) -> None:
        """Tell a policy the costs, as an engine does at its start; `believed`: see `course`."""
        if isinstance(policy, AdaptiveShapes):
            policy.costs.clock = lambda: self.now
            first, row = believed * self._recorded["forward"][:2]
            for rows in 2 ** np.arange(10):
                policy.costs.expect(int(rows), float(first + row * rows))


class Service:
    """B clients that are served in closed loop, by a policy that does not know it is no engine.

    `first`, `at`, `last`: `[B]`, where each client's first token lies, its last one so far, and the
    last one of its text; `committed: [B]`, how many it had before the step. `oracle`: of the trees
    nothing is verified but what will be accepted.
    """

    def __init__(
        self, recorded: dict[str, np.ndarray], batch: int, machine: Machine, oracle: bool
    ) -> None:
        names = ("tokens", "score", "parent")
        self.tokens, self.score, self.parent = (torch.from_numpy(recorded[n]) for n in names)
        ends = recorded["lengths"].cumsum()
        self.texts = list(zip(ends - recorded["lengths"], ends - 1, strict=True))
        self.machine, self.oracle, self.random = machine, oracle, random.Random(0)
        self.emitted = 0
        # Further steps of a rest that may pass unasked; those that did since one was asked for, and
        # what they took.
        self.further = self.unasked = 0
        self.unasked_s = 0.0
        self.become(batch)

    def become(self, batch: int) -> None:
        """So many clients from now on, none of whom was here before."""
        self.first, self.at, self.committed = (np.zeros(batch, int) for _ in range(3))
        self.last = np.full(batch, -1)
        self.trees: TreeBatch | None = None
        self.drafted = np.zeros(0, int)

    def step(self, policy: TreePolicy) -> None:
        """Verify the trees of the last step, draft the next ones, tell the policy."""
        for client in np.flatnonzero(self.at >= self.last):
            begin, self.last[client] = self.random.choice(self.texts)
            self.first[client] = self.random.randrange(begin, self.last[client])
            self.at[client] = self.first[client]
        batch, trees, paths = len(self.at), self.trees, None
        nodes, gained = np.zeros(batch, int), np.ones(batch, int)
        if trees is not None:
            paths = self._walk(trees)
            gained[self.drafted] += paths.length.numpy()
            nodes = (paths.length if self.oracle else trees.node_count).numpy()
        rows, takes = batch + int(nodes.sum()), self.machine.takes
        self.committed = self.at - self.first
        verified, seconds, asked = len(self.drafted), dict[str, float](), self._views(self.drafted)
        forward = rows, batch, int(np.count_nonzero(nodes))
        if verified:
            seconds["verify"] = takes("forward", *forward)
        gained = np.minimum(gained, self.last - self.at)
        self.at += gained
        self.emitted += int(gained.sum())
        drafted = self._draft(policy, seconds)
        if not verified:
            seconds["verify"] = takes("forward", *forward) if drafted else takes("plain", batch)
        if verified or drafted:
            seconds["other"] = takes("rest", max(verified, drafted))
        if self.unasked:
            self.unasked_s += sum(seconds.values())
            return
        policy.observe(StepReport(batch, rows, asked, [], trees, paths, seconds, rows - batch))

    def _walk(self, trees: TreeBatch) -> AcceptedPaths:
        """As far as the trees hold the texts; beyond these nothing is accepted."""
        place = self.at[self.drafted, None] + np.arange(1, SHAPE.depth + 2)
        ended = torch.from_numpy(place > self.last[self.drafted, None])
        behind = self.tokens[:, 0][torch.from_numpy(place).clamp(max=len(self.tokens) - 1)]
        draws = behind.masked_fill(ended, -1).gather(1, trees.depth)
        return OPS.tree_accept(trees.tokens, trees.parent, trees.valid, draws, SHAPE.depth)

    def _views(self, clients: np.ndarray) -> list[RequestView]:
        """Of clients, whose requests are known by where they began."""
        found = []
        for client in clients:
            name, committed = f"{client} {self.first[client]}", int(self.committed[client])
            found.append(RequestView(name, committed, committed + 1, 99, False, True))
        return found

    def _rests(self, policy: TreePolicy) -> bool:
        if self.further:
            self.further, self.unasked = self.further - 1, self.unasked + 1
            return True
        batch, passed = len(self.at), self.unasked
        tokens = batch * passed
        steps = policy.rests(batch, Unasked(batch, passed, tokens, tokens, passed, self.unasked_s))
        self.further, self.unasked, self.unasked_s = max(steps - 1, 0), 0, 0.0
        return steps > 0

    def _draft(self, policy: TreePolicy, seconds: dict[str, float]) -> int:
        """How many trees were drafted; those without nodes are not verified."""
        able = np.flatnonzero(self.at < self.last)
        views = self._views(able)
        rests = self.trees is None and self._rests(policy)
        plan = [None] * len(views) if rests or not views else policy.plan(views)
        chosen = [shape is not None for shape in plan]
        self.trees, self.drafted = None, able[np.array(chosen, bool)]
        if not any(chosen):
            return 0
        (shape,) = {shape for shape in plan if shape}
        at, count = torch.from_numpy(self.at[self.drafted]), len(self.drafted)
        tokens, score, parent = (of[at, 1:] for of in (self.tokens, self.score, self.parent))
        width, roots = SHAPE.width, self.tokens[at, 0]
        if shape.width < width:
            every = EVERYTHING.width, EVERYTHING.depth, EVERYTHING.nodes
            whole = OPS.tree_build(roots, tokens, score, parent, *every)
            held = narrower(TreeBatch.of(whole, SHAPE.depth), shape.width)
            score = score.masked_fill(~torch.from_numpy(held[:, 1:]), -torch.inf)
        began, depth = self.machine.now, 1
        while depth < shape.depth:
            level = score[:, level_slice(width, depth)]
            if not policy.deepen(depth, level.topk(shape.width, dim=1).values):
                break
            depth += 1
            self.machine.takes("level", count * shape.width / width)
        seconds["grow"] = self.machine.now - began
        of_levels = slice(0, level_slice(width, depth).stop)
        nodes = min(shape.nodes, of_levels.stop)
        candidates = [values[:, of_levels] for values in (tokens, score, parent)]
        trees = OPS.tree_build(roots, *candidates, width, depth, nodes)
        asked = [self._views(self.drafted)]
        (kept,) = policy.keep([TreeBatch.of(trees, depth)], asked, len(self.at))
        with_nodes = np.flatnonzero(kept.node_count)
        if len(with_nodes):
            self.trees = kept.select(torch.from_numpy(with_nodes))
        self.drafted = self.drafted[with_nodes]
        return count


def course(
    recorded: dict[str, np.ndarray],
    batch: int,
    policy: TreePolicy,
    steps: int = STEPS,
    believed: float = 1.0,
    slower: tuple[int, float] = (0, 1.0),
    unsteady: float = 0.0,
    oracle: bool = False,
) -> np.ndarray:
    """`[steps + 1, 2]`: tokens and seconds since the start.

    `believed`: of what a forward takes, what the profile at the start says. `slower`: from this
    step on everything takes so many times as long. `unsteady`: the chance of a step that from it on
    everything takes 1, 1.5 or 2 times as long. `oracle`: see `Service`.
    """
    machine, chance = Machine(recorded), random.Random(0)
    machine.begin(policy, believed)
    service = Service(recorded, batch, machine, oracle)
    found = [(0, 0.0)]
    for step in range(steps):
        if step == slower[0]:
            machine.factor = slower[1]
        if chance.random() < unsteady:
            machine.factor = chance.choice((1.0, 1.5, 2.0))
        service.step(policy)
        found.append((service.emitted, machine.now))
    return np.array(found)


def turns(
    recorded: dict[str, np.ndarray],
    batches: Sequence[int],
    policy: TreePolicy,
    seconds: float,
    seed: int,
) -> np.ndarray:
    """Tokens per second with so many clients each, one behind the other, so long each."""
    machine = Machine(recorded, seed)
    machine.begin(policy)
    service, found = Service(recorded, 1, machine, False), []
    service.random.seed(seed)
    for batch in batches:
        service.become(batch)
        began, emitted = machine.now, service.emitted
        while machine.now < began + seconds:
            service.step(policy)
        found.append((service.emitted - emitted) / (machine.now - began))
    return np.array(found)


def speed(run: np.ndarray, begin: int, end: int) -> float:
    """Tokens per second from one step to another."""
    tokens, seconds = run[end] - run[begin]
    return float(tokens / seconds)


def settled(
    recorded: dict[str, np.ndarray], batch: int, policy: TreePolicy, oracle: bool = False
) -> float:
    """Tokens per second after a third of the steps."""
    return speed(course(recorded, batch, policy, oracle=oracle), STEPS // 3, STEPS)
