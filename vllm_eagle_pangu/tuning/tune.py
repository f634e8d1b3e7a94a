# SPDX-License-Identifier: Apache-2.0
"""The tuner's run: every way to decode in an engine of its own, taking turns at each batch size."""

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any

from vllm_eagle_pangu.core.speeds import Account
from vllm_eagle_pangu.measure.closed_loop import Loop, measure, requests
from vllm_eagle_pangu.measure.method import PLAIN, Method, adaptive, chain, tree
from vllm_eagle_pangu.tuning.choice import Choice, explained
from vllm_eagle_pangu.tuning.engines import Engines
from vllm_eagle_pangu.tuning.settings import Prompt, Settings, encode

LARGEST = (4, 5, 16)
CHAINS, SHAPES = (2, 4, 6), ((2, 3, 6), (3, 3, 8), LARGEST)
# With `--sweep`: from narrow to wide, shallow to deep.
SWEEP_CHAINS = range(1, 9)
SWEEP = (
    *((2, 2, 4), (2, 3, 6), (2, 4, 8), (2, 6, 10), (3, 3, 8), (3, 4, 8), (3, 5, 12), (3, 7, 14)),
    *((4, 4, 10), (4, 5, 12), LARGEST, (4, 6, 20), (6, 4, 16), (6, 6, 24), (8, 6, 32)),
)
# Drafts end where two steps of so many tokens no longer fit.
ROOM = 2 * (max(SWEEP_CHAINS) + 1)
# Of plain decoding in a round, and rounds that count: ten seconds of each method.
SECONDS, ROUNDS = 2.5, 4

# Of `measure`.
Row = dict[str, Any]


@dataclass
class Outcome:
    """Everything that was measured, by batch size, and what adaptive trees believe there."""

    settings: Settings
    device: str
    prompts: int
    seconds: float = 0.0
    measured: dict[int, dict[Method, Row]] = field(default_factory=dict)
    accounts: dict[int, Account] = field(default_factory=dict)

    @property
    def choice(self) -> Choice:
        return Choice(
            {
                batch: {method: row["ratio"] for method, row in rows.items()}
                for batch, rows in self.measured.items()
            }
        )


def methods(device: str, sweep: bool) -> list[Method]:
    """What is compared with plain decoding."""
    chains, shapes = (SWEEP_CHAINS, SWEEP) if sweep else (CHAINS, SHAPES)
    follows = [adaptive(LARGEST)] if device == "cpu" else []
    return [*map(chain, chains), *map(tree, shapes), *follows]


def tune(settings: Settings) -> Outcome:
    """Measure, choose, and say what is going on.

    Raises ValueError for what the user can mend: prompts, engine arguments, refused targets.
    """
    begin = time.monotonic()

    def say(line: str) -> None:
        print(f"[{time.monotonic() - begin:4.0f} s] {line}", flush=True)

    prompts, length = encode(settings, settings.tokens + settings.tokens // 2 + ROOM)
    engines = Engines(settings, length)
    outcome = Outcome(settings, engines.device, len(prompts))
    say(f"{len(prompts)} prompts of {min(map(len, prompts))} to {max(map(len, prompts))} tokens")
    left = methods(engines.device, settings.sweep)
    while left:
        left = _run(left, engines, prompts, outcome, say)
    for line in outcome.choice.verdict():
        say(line)
    outcome.seconds = time.monotonic() - begin
    return outcome


def _run(
    left: list[Method],
    engines: Engines,
    prompts: list[Prompt],
    outcome: Outcome,
    say: Callable[[str], None],
) -> list[Method]:
    """As many of them as memory holds beside plain decoding, at every batch size; the others.

    Methods of vLLM's whose engine does not start are left out.
    """
    with ExitStack() as stack:
        loops = [_loop(PLAIN, stack, engines, prompts)]
        together = engines.beside()
        for method in left[:together]:
            try:
                loops.append(_loop(method, stack, engines, prompts))
            except Exception as error:
                # Not every target that a tree runs on is one that vLLM's eagle3 runs on.
                if not method.is_vllms:
                    raise
                say(f"{method.name}: left out, vLLM does not start it: {error}")
        names = ", ".join(loop.method.name for loop in loops)
        say(f"{len(loops)} engines take turns: {names}")
        of_name = {loop.method.name: loop for loop in loops}
        for batch in outcome.settings.batch_sizes:
            rows = outcome.measured.setdefault(batch, {})
            for row in measure(loops, [batch], SECONDS, ROUNDS):
                method = of_name[row["method"]].method
                # Of plain decoding beside each group, the first.
                rows.setdefault(method, row)
                say(_line(method, row))
            for loop in loops:
                if loop.method.kind == "adaptive":
                    account = loop.llm.runner.step.policy.account(batch)
                    outcome.accounts[batch] = account
                    say(explained(batch, account))
    return left[together:]


def _loop(method: Method, stack: ExitStack, engines: Engines, prompts: list[Prompt]) -> Loop:
    settings = engines.settings
    llm = stack.enter_context(engines.open(method))
    # A user's answers end where the target ends them, and what comes then is another text.
    asked = requests(prompts, settings.tokens, settings.temperature, ignore_eos=False)
    loop = Loop(method, llm, asked, max(settings.batch_sizes))
    stack.enter_context(closing(loop.served))
    return loop


def _line(method: Method, row: Row) -> str:
    mean = "" if row["tau"] is None else f", tau {row['tau']:.2f}"
    return (
        f"batch {row['clients']}: {method.name}: {row['tokens_per_s']:.0f} tokens/s, "
        f"{row['ratio']:.2f} x plain ({row['least']:.2f} to {row['most']:.2f}){mean}"
    )
