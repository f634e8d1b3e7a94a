# SPDX-License-Identifier: Apache-2.0
"""The ladder: from versions to throughput, each rung on what the ones below it found."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from vllm_eagle_pangu.doctor import kernels, quick
from vllm_eagle_pangu.doctor.child import findings_of, findings_of_each, reason
from vllm_eagle_pangu.doctor.device import CUDA, NPU
from vllm_eagle_pangu.doctor.finding import NOT_RUN, WRONG, Finding


@dataclass(frozen=True)
class Rung:
    """`needs`: names of findings and rungs below, none of which may have failed."""

    name: str
    findings: Callable[[], Iterable[Finding]]
    needs: tuple[str, ...] = ()


# A rung's name, and what it found.
Step = tuple[str, Finding]


def rungs(device: str, pair: Sequence[str], prompts: int, tokens: int) -> list[Rung]:
    """In order. `pair`: a target and its head to check besides, or neither."""
    there = {NPU: ("torch_npu", NPU), CUDA: (CUDA,)}.get(device, ())
    engine = (*there, *(["vllm-ascend"] if device == NPU else []), "torch", "vllm", "plugin")
    size = (str(prompts), str(tokens))
    return [
        Rung("machine", lambda: _machine(device)),
        Rung("ops", lambda: findings_of("ops", "present", device), ("torch", *there[:1])),
        *([Rung("pair", lambda: findings_of("pair", "pair", *pair), engine)] if pair else []),
        Rung(
            "kernels",
            lambda: findings_of_each(kernels.names(device), "kernels", device),
            ("torch", *there),
        ),
        Rung(
            "lossless",
            lambda: _with_engines("lossless", "lossless", device, *size),
            engine,
        ),
        # No speed of what decodes wrongly.
        Rung(
            "E1",
            lambda: _with_engines("E1", "throughput", *size),
            (*engine, "lossless"),
        ),
    ]


def _machine(device: str) -> Iterator[Finding]:
    yield from quick.machine()
    yield from findings_of(device, "device_facts", device)


def _with_engines(name: str, module: str, *arguments: str) -> Iterator[Finding]:
    from vllm_eagle_pangu.measure.server import server_environment

    return findings_of(name, module, *arguments, environment=server_environment())


def climb(ladder: Iterable[Rung]) -> Iterator[Step]:
    """Every finding with the seconds that it took; what fails ends no rung but those on it."""
    failed: set[str] = set()
    for rung in ladder:
        began = time.monotonic()
        for finding in _found(rung, [need for need in rung.needs if need in failed]):
            now = time.monotonic()
            if finding.failed:
                failed |= {rung.name, finding.name}
            yield rung.name, replace(finding, seconds=round(now - began, 1))
            began = time.monotonic()


def _found(rung: Rung, lacking: list[str]) -> Iterator[Finding]:
    if lacking:
        yield Finding(rung.name, NOT_RUN, f"not run: needs {', '.join(lacking)}")
        return
    try:
        yield from rung.findings()
    except Exception as error:
        yield Finding(rung.name, WRONG, f"not checked: {reason(error)}")
