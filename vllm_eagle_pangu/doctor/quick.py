# SPDX-License-Identifier: Apache-2.0
"""What takes seconds: versions, the machine, vLLM's traps, each op on one case, a pair's fit."""

from collections.abc import Iterator

from vllm_eagle_pangu.doctor import machine as machine_checks
from vllm_eagle_pangu.doctor import traps, versions
from vllm_eagle_pangu.doctor.child import findings_of, findings_of_each, reason
from vllm_eagle_pangu.doctor.finding import WRONG, Finding


def examine(pair: list[str]) -> Iterator[Finding]:
    """All checks, from the machine up: no failure of one keeps the next from running."""
    yield from machine()
    yield from ops()
    if pair:
        yield from findings_of("pair", "pair", *pair)


def machine() -> Iterator[Finding]:
    """Versions, machine and traps."""
    yield versions.python()
    for package in versions.IMPORTED:
        yield from findings_of(package, "versions", package)
    for check in (*machine_checks.CHECKS, *traps.CHECKS):
        try:
            yield check()
        except Exception as error:
            yield Finding(check.__name__, WRONG, f"not checked: {reason(error)}")


def ops() -> Iterator[Finding]:
    """One process for all; after an op that ends it, another one for the rest."""
    from vllm_eagle_pangu.doctor.ops import OPS

    yield from findings_of_each(list(OPS), "ops")
