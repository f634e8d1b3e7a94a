# SPDX-License-Identifier: Apache-2.0
"""Tree policies against each other and against an oracle, in a simulator: no clock but its own.

    python benchmarks/policies.py record --pair demo runs/policies-demo.npz
    python benchmarks/policies.py compare runs/policies-demo.npz [--batches 1 2 4 8 16 32]
    python benchmarks/policies.py ablate runs/policies-demo.npz
    python benchmarks/policies.py disturb runs/policies-demo.npz --batches 1 8 32
    python benchmarks/policies.py choose --pair demo --batches 1 8 32

`record` decodes a pair's prompts with real engines, and keeps every candidate that the head would
have drafted at every token, and what the parts of a step take at several batch sizes. `compare`
serves those texts to B clients at a time: trees, their walk and the policies are the engine's own,
step times are what was recorded, with 10 % of noise. The oracle knows what the target will say.
`ablate` adds the parts of adaptive trees one by one. `disturb` has adaptive trees start with wrong
costs, with a head that is never right, or a machine slow down. `choose` decodes with a real engine,
trees for all whether they pay or not, and says what of a step the choice itself takes.
"""

import argparse
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from candidates import GrowOnly
from engines import engine, prompts_of, save

from vllm_eagle_pangu.core.adaptive import AdaptiveShapes
from vllm_eagle_pangu.core.costs import StepCosts
from vllm_eagle_pangu.core.narrower import narrower
from vllm_eagle_pangu.core.ops import Ops
from vllm_eagle_pangu.core.policy import FixedShape, StepReport, TreePolicy
from vllm_eagle_pangu.core.request import RequestView
from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.core.tree import TreeBatch
from vllm_eagle_pangu.demo import pair
from vllm_eagle_pangu.kernels.tree_accept import AcceptedPaths
from vllm_eagle_pangu.kernels.tree_expand.frontier import level_slice
from vllm_eagle_pangu.measure.engine import Engine
from vllm_eagle_pangu.measure.files import markdown
from vllm_eagle_pangu.measure.method import Method, adaptive, tree

SHAPE = TreeShape(4, 5, 16)
EVERYTHING = TreeShape(SHAPE.width, SHAPE.depth, SHAPE.capacity)
BATCHES = (1, 2, 4, 8, 16, 32)
OPS = Ops.bind("cpp")
NOISE = 0.1
# Steps with trees, or without, one behind the other; how often all is decoded to see what it takes.
TURN, REPEATS = 8, 3
PLAIN = FixedShape(None)
# A number of rows that was seen less often is not believed.
OFTEN = 5
STEPS = 1500
WINDOW = 100
FIXED = [(4, depth, nodes) for depth, nodes in ((1, 4), (2, 4), (2, 8), (3, 8), (4, 12), (5, 16))]


# ---- what is recorded ----


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

    def keep(self, trees: Sequence[TreeBatch], batch: int) -> Sequence[TreeBatch]:
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


def _engine(method: Method, of: pair.Pair, most: int) -> Engine:
    return engine(method, of=of, dtype="bfloat16", max_model_len=1024, max_num_seqs=most)


def _decode(
    llm: Engine, policy: TreePolicy, prompts: list[list[int]], batch: int, tokens: int
) -> None:
    """So many tokens of so many prompts at a time, `REPEATS` times, as the policy says."""
    with llm.watched(policy=policy):
        for _ in range(REPEATS):
            llm.generate((prompts * batch)[:batch], max_tokens=tokens, ignore_eos=True)


def record(of: pair.Pair, count: int, tokens: int) -> dict[str, np.ndarray]:
    """Candidates by position, `[K, C]`, texts one behind the other, and what steps take.

    `forward: [4]`, seconds: of any, and of each row, request and tree; `plain`, `level` and `rest`
    by batch size, as in `StepCosts`.
    """
    prompts, params = prompts_of(of, count), {"max_tokens": tokens, "ignore_eos": True}
    times: dict[str, dict[int, float]] = {part: {} for part in ("plain", "level", "rest")}
    forwards: list[tuple[int, int, int, float]] = []
    with _engine(tree(EVERYTHING), of, max(BATCHES)) as llm:
        drafter = GrowOnly(llm.runner.step.drafter, EVERYTHING)
        with llm.watched(drafter=drafter):
            llm.generate(prompts, **params)
    with _engine(tree(SHAPE), of, max(BATCHES)) as llm:
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


class Timed(TreePolicy):
    """A `TreePolicy` that takes another one's time.

    `steps`: of those that drafted and read no prompts, requests, and seconds of choice and step.
    """

    def __init__(self, policy: TreePolicy) -> None:
        self.policy = policy
        self.steps: list[tuple[int, float, float]] = []
        self._seconds, self._drafted = 0.0, False

    def _timed(self, call: Callable[..., Any], *arguments: Any) -> Any:
        began = time.perf_counter()
        found = call(*arguments)
        self._seconds += time.perf_counter() - began
        return found

    def rests(self, batch: int) -> bool:
        return self.policy.rests(batch)

    def plan(self, requests: Sequence[RequestView]) -> Sequence[TreeShape | None]:
        return self._timed(self.policy.plan, requests)

    def deepen(self, level: int, score: torch.Tensor) -> bool:
        return self._timed(self.policy.deepen, level, score)

    def keep(self, trees: Sequence[TreeBatch], batch: int) -> Sequence[TreeBatch]:
        self._drafted = sum(tree.batch_size for tree in trees) == batch
        return self._timed(self.policy.keep, trees, batch)

    def observe(self, report: StepReport) -> None:
        self._timed(self.policy.observe, report)
        if self._drafted and report.rows == report.batch + report.nodes:
            self.steps.append((report.batch, self._seconds, sum(report.seconds.values())))
        self._seconds, self._drafted = 0.0, False


def choose(of: pair.Pair, batches: Sequence[int]) -> Iterator[dict]:
    """Milliseconds of a step with trees for all, and of the choice of their nodes: medians."""
    prompts = prompts_of(of, max(batches))
    with _engine(adaptive(SHAPE), of, max(batches)) as llm:
        for batch in batches:
            policy = Timed(Always(shared=True, depth=True, width=True))
            _decode(llm, policy, prompts, batch, tokens=96)
            seconds = [(choice, step) for size, choice, step in policy.steps if size == batch]
            choice, step = (1e3 * float(np.median(each)) for each in zip(*seconds, strict=True))
            share = float(np.median([one / whole for one, whole in seconds]))
            row = {"batch": batch, "steps": len(seconds), "choice": choice, "step": step}
            yield {**row, "share": share}


def _line(forwards: np.ndarray) -> np.ndarray:
    """The line with the least relative errors through the median of each kind that came often."""
    kinds, kind = np.unique(forwards[:, :3], axis=0, return_inverse=True)
    seen = [forwards[kind == each, 3] for each in range(len(kinds))]
    often = [each for each, seconds in enumerate(seen) if len(seconds) >= OFTEN]
    usual = np.array([np.median(seen[each]) for each in often])
    features = np.concatenate([np.ones((len(often), 1)), kinds[often]], axis=1)
    return np.linalg.lstsq(features / usual[:, None], np.ones(len(often)))[0]


# ---- what is simulated ----


class Machine:
    """A clock that goes on by what was recorded, each time times a random factor.

    `factor`: on every time from now on.
    """

    def __init__(self, recorded: dict[str, np.ndarray], seed: int = 0) -> None:
        self.now, self.factor = 0.0, 1.0
        self._recorded, self._random = recorded, np.random.default_rng(seed)

    def takes(self, part: str, *size: float) -> float:
        """Seconds of a part of a step, by which the clock goes on."""
        known = self._recorded[part]
        if part == "forward":
            seconds = float(known @ (1, *size))
        else:
            seconds = float(np.interp(*size, *known.T))
        seconds *= self.factor * self._random.lognormal(0.0, NOISE)
        self.now += seconds
        return seconds


class Service:
    """B clients that are served in closed loop, by a policy that does not know it is no engine.

    `at`, `last`: `[B]`, where each client's last token lies, and that of its text. `oracle`: of the
    trees nothing is verified but what will be accepted.
    """

    def __init__(
        self, recorded: dict[str, np.ndarray], batch: int, machine: Machine, oracle: bool
    ) -> None:
        names = ("tokens", "score", "parent")
        self.tokens, self.score, self.parent = (torch.from_numpy(recorded[n]) for n in names)
        ends = recorded["lengths"].cumsum()
        self.texts = list(zip(ends - recorded["lengths"], ends - 1, strict=True))
        self.machine, self.oracle, self.random = machine, oracle, random.Random(0)
        self.at, self.last = np.zeros(batch, int), np.full(batch, -1)
        self.trees: TreeBatch | None = None
        self.drafted = np.zeros(0, int)
        self.emitted = 0

    def step(self, policy: TreePolicy) -> None:
        """Verify the trees of the last step, draft the next ones, tell the policy."""
        for client in np.flatnonzero(self.at >= self.last):
            begin, self.last[client] = self.random.choice(self.texts)
            self.at[client] = self.random.randrange(begin, self.last[client])
        batch, trees, paths = len(self.at), self.trees, None
        nodes, gained = np.zeros(batch, int), np.ones(batch, int)
        if trees is not None:
            paths = self._walk(trees)
            gained[self.drafted] += paths.length.numpy()
            nodes = (paths.length if self.oracle else trees.node_count).numpy()
        rows, takes = batch + int(nodes.sum()), self.machine.takes
        verified, seconds = len(self.drafted), dict[str, float]()
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
        policy.observe(StepReport(batch, rows, [], [], trees, paths, seconds))

    def _walk(self, trees: TreeBatch) -> AcceptedPaths:
        """As far as the trees hold the texts; beyond these nothing is accepted."""
        place = self.at[self.drafted, None] + np.arange(1, SHAPE.depth + 2)
        ended = torch.from_numpy(place > self.last[self.drafted, None])
        behind = self.tokens[:, 0][torch.from_numpy(place).clamp(max=len(self.tokens) - 1)]
        draws = behind.masked_fill(ended, -1).gather(1, trees.depth)
        return OPS.tree_accept(trees.tokens, trees.parent, trees.valid, draws, SHAPE.depth)

    def _draft(self, policy: TreePolicy, seconds: dict[str, float]) -> int:
        """How many trees were drafted; those without nodes are not verified."""
        able = np.flatnonzero(self.at < self.last)
        views = [RequestView(str(client), 0, 0, 99, False, True) for client in able]
        rests = self.trees is None and policy.rests(len(self.at))
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
        (kept,) = policy.keep([TreeBatch.of(trees, depth)], len(self.at))
        with_nodes = np.flatnonzero(kept.node_count)
        if len(with_nodes):
            self.trees = kept.select(torch.from_numpy(with_nodes))
        self.drafted = self.drafted[with_nodes]
        return count


# ---- who is compared ----


class Always(AdaptiveShapes):
    """Adaptive trees, one for every request in every step.

    `shared`: the nodes go to whichever trees they are worth most in, not as many to each. `depth`:
    as deep as pays, not all levels; `width`: as wide as pays.
    """

    def __init__(self, shared: bool, depth: bool, width: bool) -> None:
        super().__init__(SHAPE, OPS)
        self._shared, self._depth = shared, depth
        if not width:
            self.trees.widths, self.trees.held = self.trees.widths[-1:], self.trees.held[-1:]

    def rests(self, batch: int) -> bool:
        return False

    def plan(self, requests: Sequence[RequestView]) -> Sequence[TreeShape | None]:
        seen = self._seen(len(requests))
        seen.pays = seen.near = True
        super().plan(requests)
        self._drafted = len(requests)
        return [self._shape()] * len(requests)

    def deepen(self, level: int, score: torch.Tensor) -> bool:
        return super().deepen(level, score) or not self._depth

    def keep(self, trees: Sequence[TreeBatch], batch: int) -> Sequence[TreeBatch]:
        kept = super().keep(trees, batch)
        return kept if self._shared else [self._as_many(tree) for tree in trees]

    def _as_many(self, tree: TreeBatch) -> TreeBatch:
        count, nodes = tree.batch_size, tree.rows - 1
        free = torch.zeros(count * nodes + 1, dtype=torch.float64)
        by_chance, chance = OPS.tree_prune(tree, self.belief, free)
        falling = chance[:, 1:].sort(dim=1, descending=True).values.sum(dim=0)
        cost = torch.from_numpy(self._nodes_cost[: count * nodes + 1 : count])
        worth = torch.cat((torch.zeros(1), falling.cumsum(0))) - cost
        most = torch.full((count,), int(worth.argmax()))
        return TreeBatch.of(by_chance, tree.max_depth).cut(most)


def course(
    recorded: dict[str, np.ndarray],
    batch: int,
    policy: TreePolicy,
    steps: int = STEPS,
    believed: float = 1.0,
    slower: tuple[int, float] = (0, 1.0),
    oracle: bool = False,
) -> np.ndarray:
    """`[steps + 1, 2]`: tokens and seconds since the start.

    `believed`: of what a forward takes, what the profile at the start says. `slower`: from this
    step on everything takes so many times as long. `oracle`: see `Service`.
    """
    machine = Machine(recorded)
    if isinstance(policy, AdaptiveShapes):
        policy.costs.clock = lambda: machine.now
        # As the engine does at its start.
        for rows in 2 ** np.arange(10):
            first, row = believed * recorded["forward"][:2]
            policy.costs.expect(int(rows), float(first + row * rows))
    service = Service(recorded, batch, machine, oracle)
    found = [(0, 0.0)]
    for step in range(steps):
        if step == slower[0]:
            machine.factor = slower[1]
        service.step(policy)
        found.append((service.emitted, machine.now))
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


def compare(recorded: dict[str, np.ndarray], batches: Sequence[int]) -> Iterator[dict]:
    """By batch size, every policy's speed over plain decoding's."""
    depths = range(1, SHAPE.depth + 1)
    shapes = [TreeShape(4, depth, min(16, TreeShape(4, depth, 1).capacity)) for depth in depths]
    for batch in batches:
        plain = settled(recorded, batch, PLAIN)
        fixed = {s: settled(recorded, batch, FixedShape(TreeShape(*s))) / plain for s in FIXED}
        told = [settled(recorded, batch, FixedShape(s), oracle=True) / plain for s in shapes]
        yield {
            "batch": batch,
            "default": fixed[4, 5, 16],
            "best fixed": max(1.0, *fixed.values()),
            "adaptive": settled(recorded, batch, AdaptiveShapes(SHAPE, OPS)) / plain,
            "oracle": max(1.0, *told),
        }


def ablate(recorded: dict[str, np.ndarray], batches: Sequence[int]) -> Iterator[dict]:
    """By batch size, speed over plain decoding's as the policy's parts are added one by one."""
    for batch in batches:
        plain = settled(recorded, batch, PLAIN)
        policies = {
            "fixed": FixedShape(SHAPE),
            "as many nodes as pay": Always(shared=False, depth=False, width=False),
            "of all requests' trees together": Always(shared=True, depth=False, width=False),
            "as deep as pays": Always(shared=True, depth=True, width=False),
            "as wide as pays": Always(shared=True, depth=True, width=True),
            "or none": AdaptiveShapes(SHAPE, OPS),
        }
        speeds = {name: settled(recorded, batch, each) for name, each in policies.items()}
        yield {"batch": batch, **{name: speed / plain for name, speed in speeds.items()}}


def disturb(recorded: dict[str, np.ndarray], batches: Sequence[int]) -> Iterator[dict]:
    """What is wrong at first, or suddenly, and how soon adaptive trees are as fast as without it.

    `steps`: till the speed of the next `WINDOW` is 0.97 of the one that it has in the end.
    """
    wrong = dict(recorded)
    # Another position's candidates: what the head says stays, and nothing of it is right.
    wrong["tokens"] = recorded["tokens"].copy()
    wrong["tokens"][:, 1:] = -2
    half = STEPS // 2
    cases: dict[str, tuple[dict[str, np.ndarray], int, dict]] = {
        "nothing": (recorded, 0, {}),
        "a profile of half the times": (recorded, 0, {"believed": 0.5}),
        "a profile of twice the times": (recorded, 0, {"believed": 2.0}),
        "a head that is never right": (wrong, 0, {}),
        "twice as slow from the middle on": (recorded, half, {"slower": (half, 2.0)}),
        "twice as fast from the middle on": (recorded, half, {"slower": (half, 0.5)}),
    }
    for batch in batches:
        for name, (told, since, how) in cases.items():
            slow = how.get("slower", (0, 1.0))[1]
            plain = settled(recorded, batch, PLAIN) / slow
            run = course(told, batch, AdaptiveShapes(SHAPE, OPS), 2 * STEPS, **how)
            end = speed(run, STEPS, 2 * STEPS)
            starts = range(since, STEPS, 10)
            late = (at for at in starts if speed(run, at, at + WINDOW) >= 0.97 * end)
            steps = next(late, STEPS) - since
            first = speed(run, since, since + WINDOW) / end
            yield {
                "wrong": name,
                "batch": batch,
                "in the end": end / plain,
                "first 100 steps": first,
                "steps": steps,
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    recorder = commands.add_parser("record")
    recorder.add_argument("--pair", default=pair.DEMO, metavar="NAME")
    recorder.add_argument("--prompts", type=int, default=32)
    recorder.add_argument("--tokens", type=int, default=96)
    recorder.add_argument("file", type=Path)
    chooser = commands.add_parser("choose")
    chooser.add_argument("--pair", default=pair.DEMO, metavar="NAME")
    simulated = {"compare": compare, "ablate": ablate, "disturb": disturb}
    for command in (chooser, *map(commands.add_parser, simulated)):
        command.add_argument("--batches", type=int, nargs="+", default=BATCHES)
        if command is not chooser:
            command.add_argument("file", type=Path)
    arguments = parser.parse_args()
    name = arguments.command
    if name == "record":
        arguments.file.parent.mkdir(parents=True, exist_ok=True)
        found = record(pair.find(arguments.pair), arguments.prompts, arguments.tokens)
        np.savez_compressed(arguments.file, **found)
        return
    if name == "choose":
        stem = f"policies-{arguments.pair}"
        found_rows = choose(pair.find(arguments.pair), arguments.batches)
    else:
        recorded = dict(np.load(arguments.file))
        stem = arguments.file.stem
        found_rows = simulated[name](recorded, arguments.batches)
    rows = []
    for row in found_rows:
        print(json.dumps(row), flush=True)
        rows.append(row)
    lines = [[v if isinstance(v, str) else f"{v:.3g}" for v in row.values()] for row in rows]
    print(markdown(list(rows[0]), lines))
    print(save(f"{stem}-{name}", {"rows": rows}))


if __name__ == "__main__":
    main()
