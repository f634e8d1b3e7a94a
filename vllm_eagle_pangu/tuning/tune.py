# SPDX-License-Identifier: Apache-2.0
"""The tuner's run: τ of every shape from one recording, costs from probes, the best raced."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

from vllm_eagle_pangu.config import refusal
from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.measure.method import of_shape
from vllm_eagle_pangu.tuning import grid
from vllm_eagle_pangu.tuning.choice import Choice, Sweep, candidates, sweep, verdict
from vllm_eagle_pangu.tuning.engines import Engines
from vllm_eagle_pangu.tuning.prediction import Prediction, finalists, predict
from vllm_eagle_pangu.tuning.probing import DEPTHS, Probes, StepCost, probe
from vllm_eagle_pangu.tuning.race import Say, race
from vllm_eagle_pangu.tuning.recording import BATCH_SIZE, Recording, record
from vllm_eagle_pangu.tuning.settings import Prompt, Settings, encode


@dataclass
class Outcome:
    """Everything that was measured; by batch size where there is one."""

    settings: Settings
    device: str
    seconds: float = 0.0
    prompts: int = 0
    positions: int = 0
    costs: dict[int, StepCost] = field(default_factory=dict)
    predicted: dict[int, list[Prediction]] = field(default_factory=dict)
    raced: dict[int, dict] = field(default_factory=dict)
    swept: dict[int, Sweep] = field(default_factory=dict)

    @property
    def choice(self) -> Choice:
        return Choice.of(self.raced)


class Progress:
    """Lines on stdout with the seconds since the start."""

    def __init__(self) -> None:
        self.begin = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.begin

    def __call__(self, line: str) -> None:
        print(f"[{self.seconds:4.0f} s] {line}", flush=True)


def tune(settings: Settings) -> Outcome:
    """Measure, choose, and say what is going on.

    Raises ValueError for what the user can mend: prompts, engine arguments, refused targets.
    """
    say = Progress()
    # The recording looks D tokens ahead; trees are drafted while two steps of D+1 tokens fit.
    prompts, length = encode(settings, settings.tokens + 3 * grid.DEPTH + 3)
    engines = Engines(settings, length)
    outcome = Outcome(settings, engines.device, prompts=len(prompts))
    say(f"{len(prompts)} prompts of {min(map(len, prompts))} to {max(map(len, prompts))} tokens")
    recording = _record(engines, prompts, outcome, say)
    tau = cache(recording.tau)
    for batch in settings.batch_sizes:
        outcome.costs[batch] = cost = _cost(engines, prompts, batch, say)
        outcome.predicted[batch] = predict(tau, cost)
        _say_predicted(outcome.predicted[batch][:3], batch, say)
    for batch, methods in finalists(outcome.predicted).items():
        say(f"batch {batch}: {len(methods)} methods in engines of their own")
        outcome.raced[batch] = times = race(engines, methods, prompts, batch, say)
        _say_raced(times, batch, say)
    if settings.sweep:
        for batch, method in outcome.choice.best.items():
            names = candidates(batch, engines.device)
            outcome.swept[batch] = swept = sweep(engines, method, names, prompts, batch, say)
            say(f"batch {batch}: {method.title} reaches {swept.reached:.3f} of the sweep's best")
    for line in verdict(outcome.raced, outcome.choice):
        say(line)
    outcome.seconds = say.seconds
    return outcome


def _record(engines: Engines, prompts: Sequence[Prompt], outcome: Outcome, say: Say) -> Recording:
    settings = engines.settings
    widest = grid.largest(0)
    with engines.open(of_shape(widest).speculative_config(settings.head), BATCH_SIZE) as engine:
        say("an engine is up; growing trees at every token of the completions")
        recording = record(
            engine, prompts, grid.WIDTHS, grid.DEPTH, settings.tokens, settings.temperature
        )
    outcome.positions = recording.positions
    chain = recording.tau(TreeShape(1, 1, 1))
    if chain is None:
        mend = "give prompts that it has something to say to"
        why = "the target ends every completion at once"
        raise refusal("--prompts", settings.prompts, why, mend)
    say(f"{recording.positions} tokens recorded; one draft a step gives tau {chain:.2f}")
    return recording


def _cost(engines: Engines, prompts: Sequence[Prompt], batch: int, say: Say) -> StepCost:
    settings = engines.settings
    budgets = grid.budgets(batch, engines.device)
    widest = grid.largest(max(budgets))
    with engines.open(of_shape(widest).speculative_config(settings.head), batch) as engine:
        empty = Probes.empty(batch, grid.WIDTHS, DEPTHS, budgets)
        probes = probe(engine, prompts, empty, settings.tokens, settings.temperature)
    steps = sum(map(len, probes.verify_ms.values()))
    cells = f"{len(probes.draft_ms)} growths and {len(budgets)} budgets"
    say(f"batch {batch}: {steps} steps of {cells}")
    return StepCost.fitted(probes, grid.DEPTH)


def _say_predicted(best: Sequence[Prediction], batch: int, say: Say) -> None:
    for p in best:
        say(
            f"batch {batch}: expected of {of_shape(p.shape).title}: tau {p.tau:.2f}, "
            f"{p.draft_ms + p.verify_ms:.1f} ms a step, {p.tokens_per_s:.0f} tokens/s"
        )


def _say_raced(times: dict, batch: int, say: Say) -> None:
    for method, figures in sorted(times.items(), key=lambda item: -item[1].tokens_per_s):
        low, high = figures.range_per_s
        tau = "" if figures.tau is None else f", tau {figures.tau:.2f}"
        say(
            f"batch {batch}: {method.title}: {figures.tokens_per_s:.0f} tokens/s "
            f"({low:.0f} to {high:.0f}){tau}"
        )
