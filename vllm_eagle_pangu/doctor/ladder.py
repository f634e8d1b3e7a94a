# SPDX-License-Identifier: Apache-2.0
"""What takes seconds, and the ladder: from versions to throughput, each rung on those below it."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

from vllm_eagle_pangu.doctor import machine, ops, traps, versions
from vllm_eagle_pangu.doctor.child import findings_of, findings_of_each
from vllm_eagle_pangu.doctor.device import CUDA, NPU
from vllm_eagle_pangu.doctor.finding import NOT_RUN, WRONG, Finding, reason
from vllm_eagle_pangu.measure.server import server_environment


def quick(pair: Sequence[str]) -> Iterator[Finding]:
    """Versions, the machine, vLLM's traps, each op on one case, a pair's fit, from the machine up:
    no failure of one keeps the next from running."""
    yield from here()
    yield from findings_of_each(list(ops.OPS), "ops.on_one_case")
    if pair:
        yield from findings_of("pair", "pair.check", *pair)


def here() -> Iterator[Finding]:
    """Versions, machine and traps."""
    yield versions.python()
    for package in ("torch", "vllm", "transformers"):
        yield from findings_of(package, f"versions.{package}")
    for check in (machine.machine, machine.compiler, *traps.CHECKS):
        try:
            yield check()
        except Exception as error:
            yield Finding(check.__name__, WRONG, f"not checked: {reason(error)}")


@dataclass(frozen=True)
class Rung:
    """`needs`: names of findings and rungs below, none of which may have failed."""

    name: str
    findings: Callable[[], Iterable[Finding]]
    needs: tuple[str, ...] = ()


def rungs(device: str, pair: Sequence[str], prompts: int, tokens: int) -> list[Rung]:
    """In order. `pair`: a target and its head to check besides, or neither."""
    there = {NPU: ("torch_npu", NPU), CUDA: (CUDA,)}.get(device, ())
    engine = (*there, *(["vllm-ascend"] if device == NPU else []), "torch", "vllm", "plugin")
    kernels = partial(findings_of_each, ops.names(device), "ops.on_all_cases", device)
    measured = partial(findings_of, environment=server_environment())
    lossless = partial(measured, "lossless", "decoding.lossless", device, prompts, tokens)
    speed = partial(measured, "E1", "decoding.speed", device, prompts, tokens)
    return [
        Rung("machine", lambda: chain(here(), findings_of(device, "machine.facts", device))),
        Rung("ops", lambda: findings_of("ops", "ops.present", device), ("torch", *there[:1])),
        *([Rung("pair", lambda: findings_of("pair", "pair.check", *pair), engine)] if pair else []),
        Rung("kernels", kernels, ("torch", *there)),
        Rung("lossless", lossless, engine),
        # No speed of what decodes wrongly.
        Rung("E1", speed, (*engine, "lossless")),
    ]


def climb(ladder: Iterable[Rung]) -> Iterator[Finding]:
    """Every finding with rung and seconds; what fails ends no rung but those on it."""
    failed: set[str] = set()
    for rung in ladder:
        began = time.monotonic()
        for finding in _found(rung, [need for need in rung.needs if need in failed]):
            now = time.monotonic()
            if finding.state in (WRONG, NOT_RUN):
                failed |= {rung.name, finding.name}
            yield replace(finding, rung=rung.name, seconds=round(now - began, 1))
            began = time.monotonic()


def _found(rung: Rung, lacking: list[str]) -> Iterator[Finding]:
    if lacking:
        yield Finding(rung.name, NOT_RUN, f"not run: needs {', '.join(lacking)}")
        return
    try:
        yield from rung.findings()
    except Exception as error:
        yield Finding(rung.name, WRONG, f"not checked: {reason(error)}")
