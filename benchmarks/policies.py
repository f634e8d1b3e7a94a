# SPDX-License-Identifier: Apache-2.0
"""Tree policies against each other and against an oracle, in a simulator: no clock but its own.

    python benchmarks/policies.py record --pair demo runs/policies-demo.npz
    python benchmarks/policies.py compare runs/policies-demo.npz [--batches 1 2 4 8 16 32] [--gpu]
    python benchmarks/policies.py ablate runs/policies-demo.npz
    python benchmarks/policies.py disturb runs/policies-demo.npz --batches 1 8 32
    python benchmarks/policies.py ramp runs/policies-demo.npz
    python benchmarks/policies.py overlap runs/policies-demo.npz [--gpu]
    python benchmarks/policies.py choose --pair demo --batches 1 8 32

`record` decodes a pair's prompts with real engines, and keeps every candidate that the head would
have drafted at every token, and what the parts of a step take at several batch sizes. `compare`
serves those texts to B clients at a time: trees, their walk and the policies are the engine's own,
step times are what was recorded, with 10 % of noise. The oracle knows what the target will say.
`ablate` adds the parts of adaptive trees one by one. `disturb` has adaptive trees start with wrong
costs, with a head that is never right, or a machine slow down. `ramp` has the number of clients go
up and back, as soon as a policy has just learnt what pays. `overlap` says what it would bring
to draft the next trees while the target still verifies (Yggdrasil's ahead-of-time drafts).
`--gpu`: with times like those of a GPU, which nobody measured. `choose` decodes with a real engine,
trees for all whether they pay or not, and says what of a step the choice itself takes.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from always import Always
from engines import DTYPES, save
from recorder import BATCHES, choose, record
from simulator import EVERYTHING, OPS, SHAPE, STEPS, Machine, course, settled, speed, turns

from vllm_eagle_pangu.core.adaptive import AdaptiveShapes
from vllm_eagle_pangu.core.policy import FixedShape
from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.demo import pair
from vllm_eagle_pangu.measure.files import markdown

PLAIN = FixedShape(None)
WINDOW = 100
# Of a ramp: seconds with each number of clients, and how many ramps.
SECONDS, RAMPS = 2.0, 10
FIXED = [(4, depth, nodes) for depth, nodes in ((1, 4), (2, 4), (2, 8), (3, 8), (4, 12), (5, 16))]


def like_a_gpu(recorded: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """With times of a GPU's kind in place of what was recorded.

    Plain decoding is that of an H100 with Llama-3.1-8B, 158 tokens a second; all else is made up:
    60 rows more take a tenth longer, a level a sixteenth.
    """
    seconds = {"plain": 6.3e-3, "level": 0.4e-3, "rest": 1.5e-3}
    each = {part: np.array([(b, of_part) for b in BATCHES]) for part, of_part in seconds.items()}
    return {**recorded, **each, "forward": np.array([5.6e-3, 1e-5, 0.0, 0.0])}


def compare(recorded: dict[str, np.ndarray], batches: Sequence[int]) -> Iterator[dict]:
    """By batch size, every policy's speed over plain decoding's.

    `planned`: adaptive trees as on a device, and all that the head drafts at most.
    """
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
            "planned": settled(recorded, batch, AdaptiveShapes(EVERYTHING, OPS, False)) / plain,
            "oracle": max(1.0, *told),
        }


def overlap(recorded: dict[str, np.ndarray], batches: Sequence[int]) -> Iterator[dict]:
    """By batch size, what it brings to draft behind the likeliest path while that is verified.

    `right`: how often all of it is accepted, and what the head guesses behind it is what comes:
    only then the levels are there already. In steps' time: `shared`, what is won where target and
    drafter share the cores, as on a CPU, so that drafting in vain costs what it takes; `beside`,
    where it costs nothing.
    """
    tokens, score, parent = (torch.from_numpy(recorded[n]) for n in ("tokens", "score", "parent"))
    # Where a text still has as many tokens.
    left = np.concatenate([np.arange(length)[::-1] for length in recorded["lengths"]])
    at = torch.from_numpy(np.flatnonzero(left > SHAPE.depth))
    node, right = torch.zeros_like(at), torch.ones_like(at, dtype=torch.bool)
    for depth in range(1, SHAPE.depth + 1):
        children = score[at].masked_fill(parent[at] != node[:, None], -torch.inf)
        node = children[:, 1:].argmax(dim=1) + 1
        right &= tokens[at].gather(1, node[:, None])[:, 0] == tokens[at + depth, 0]
    behind = at + SHAPE.depth
    right &= tokens[behind, 1] == tokens[behind + 1, 0]
    share = float(right.float().mean())
    machine = Machine(recorded)
    for batch in batches:
        run = course(recorded, batch, FixedShape(SHAPE))
        step = float(run[-1, 1]) / STEPS
        levels = [0.0] + [machine.usual("level", left) for left in range(1, batch + 1)]
        wrong = np.random.default_rng(0).binomial(batch, 1 - share, size=10_000)
        saved = (SHAPE.depth - 1) * (levels[batch] - np.array(levels)[wrong].mean())
        spent = (SHAPE.depth - 1) * levels[batch]
        row = {"batch": batch, "right": share, "drafting": spent / step}
        yield {**row, "shared": (saved - spent) / step, "beside": saved / step}


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
        "as slow as chance has it": (recorded, 0, {"unsteady": 1 / 30}),
    }
    for batch in batches:
        for name, (told, since, how) in cases.items():
            plain, run = (
                course(told, batch, policy, 2 * STEPS, **how)
                for policy in (PLAIN, AdaptiveShapes(SHAPE, OPS))
            )
            end = speed(run, STEPS, 2 * STEPS)
            starts = range(since, STEPS, 10)
            late = (at for at in starts if speed(run, at, at + WINDOW) >= 0.97 * end)
            steps = next(late, STEPS) - since
            first = speed(run, since, since + WINDOW) / end
            yield {
                "wrong": name,
                "batch": batch,
                "in the end": end / speed(plain, STEPS, 2 * STEPS),
                "first 100 steps": first,
                "steps": steps,
            }


def ramp(recorded: dict[str, np.ndarray], batches: Sequence[int]) -> Iterator[dict]:
    """Adaptive trees' speed over plain decoding's, with ever more clients and ever fewer again.

    `weaker`: where the head is right about half as often; `next engine`: which starts from what one
    learnt in such a ramp. Means of ramps, and the least of them.
    """
    weaker = dict(recorded)
    weaker["tokens"] = recorded["tokens"].copy()
    wrong = np.random.default_rng(0).random(len(weaker["tokens"])) < 0.5
    weaker["tokens"][wrong, 1:] = -2
    clients = [*batches, *batches[-2::-1]]
    found = {}
    for name, told in (("as it is", recorded), ("weaker", weaker)):
        engines: list[list[np.ndarray]] = [[], []]
        for seed in range(RAMPS):
            policy = AdaptiveShapes(SHAPE, OPS)
            for engine, of_engine in enumerate(engines):
                if engine:
                    learnt = json.loads(json.dumps(policy.learnt()))
                    policy = AdaptiveShapes(SHAPE, OPS)
                    policy.resume(learnt)
                each = seed + engine * RAMPS
                plain = turns(told, clients, PLAIN, SECONDS, each)
                of_engine.append(turns(told, clients, policy, SECONDS, each) / plain)
        found |= {name: np.array(engines[0]), f"{name}, next engine": np.array(engines[1])}
    for turn, batch in enumerate(clients):
        row: dict[str, float] = {"batch": batch}
        for name, ratios in found.items():
            row |= {name: ratios[:, turn].mean(), f"{name}, least": ratios[:, turn].min()}
        yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    recorder = commands.add_parser("record")
    recorder.add_argument("--prompts", type=int, default=32)
    recorder.add_argument("--tokens", type=int, default=96)
    recorder.add_argument("--temperature", type=float, default=0.0, help="of the texts")
    recorder.add_argument("file", type=Path)
    chooser = commands.add_parser("choose")
    for command in (recorder, chooser):
        command.add_argument("--pair", default=pair.DEMO, metavar="NAME")
        command.add_argument("--dtype", default="bfloat16", choices=DTYPES)
    simulated = {each.__name__: each for each in (compare, ablate, disturb, ramp, overlap)}
    for command in (chooser, *map(commands.add_parser, simulated)):
        command.add_argument("--batches", type=int, nargs="+", default=BATCHES)
        if command is not chooser:
            command.add_argument("file", type=Path)
            command.add_argument("--gpu", action="store_true", help="with times like those of one")
    arguments = parser.parse_args()
    name = arguments.command
    if name == "record":
        arguments.file.parent.mkdir(parents=True, exist_ok=True)
        of, temperature = pair.find(arguments.pair), arguments.temperature
        found = record(of, arguments.prompts, arguments.tokens, temperature, arguments.dtype)
        np.savez_compressed(arguments.file, **found)
        return
    if name == "choose":
        stem = f"policies-{arguments.pair}"
        found_rows = choose(pair.find(arguments.pair), arguments.batches, arguments.dtype)
    else:
        recorded = dict(np.load(arguments.file))
        stem = arguments.file.stem
        if arguments.gpu:
            recorded, stem = like_a_gpu(recorded), f"{stem}-gpu"
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
