# SPDX-License-Identifier: Apache-2.0
"""`eagle-pangu doctor`: what keeps a server from starting here, or makes it slow, and the mend."""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace

from vllm_eagle_pangu.doctor import machine, traps, versions
from vllm_eagle_pangu.doctor.child import findings_of, reason
from vllm_eagle_pangu.doctor.finding import OK, WRONG, Finding


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "pair", nargs="*", metavar="TARGET HEAD", help="also check whether these two fit"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print every finding as it comes. Returns 0 where nothing is wrong, else 1; 2 for usage."""
    if len(arguments.pair) not in (0, 2):
        print("eagle-pangu doctor: give a target and its head, or neither", file=sys.stderr)
        return 2
    wrong = 0
    for finding in examine(arguments.pair):
        print(finding.line(), flush=True)
        wrong += finding.state != OK
    print(f"{wrong} to mend" if wrong else "nothing is wrong")
    return 1 if wrong else 0


def examine(pair: list[str]) -> Iterator[Finding]:
    """All checks, from the machine up: no failure of one keeps the next from running."""
    yield versions.python()
    for package in versions.IMPORTED:
        yield from findings_of(package, "versions", package)
    for check in (*machine.CHECKS, *traps.CHECKS):
        try:
            yield check()
        except Exception as error:
            yield Finding(check.__name__, WRONG, f"not checked: {reason(error)}")
    yield from _ops()
    if pair:
        yield from findings_of("pair", "pair", *pair)


def _ops() -> Iterator[Finding]:
    """One process for all; after an op that ends it, another one for the rest."""
    from vllm_eagle_pangu.doctor.ops import OPS

    rest = list(OPS)
    while rest:
        for finding in findings_of("ops", "ops", *rest):
            yield replace(finding, name=rest.pop(0)) if rest else finding
