# SPDX-License-Identifier: Apache-2.0
"""Implementations on every small case against the references: `python -m ... <device> <name> ...`.

A name is an op and its implementation: "tree_attention cpp".
"""

import sys
from collections.abc import Iterator

from vllm_eagle_pangu.doctor.agreement import PAGES, assert_agrees, cases_of
from vllm_eagle_pangu.doctor.child import reason, report
from vllm_eagle_pangu.doctor.device import COMMITS, CPU, ROUTES, chosen
from vllm_eagle_pangu.doctor.finding import OK, WRONG, Finding
from vllm_eagle_pangu.doctor.ops import OPS


def names(device: str) -> list[str]:
    """All that there is on a device, the worker's choice and the others."""
    ops = [f"{op} {chosen(op, device)}" for op in OPS if op != "tree_attention"]
    commits = [f"{PAGES} {implementation}" for implementation in COMMITS[device]]
    return [*ops, *commits, *(f"tree_attention {route}" for route in ROUTES[device])]


def checked(device: str, *named: str) -> Iterator[Finding]:
    for name in named:
        found = check(name, device)
        yield found
        if found.failed and device != CPU:
            # A fault of a device stays in its process: the rest gets another.
            return


def check(name: str, device: str) -> Finding:
    op, _, implementation = name.partition(" ")
    cases = cases_of(op, implementation)
    failing = {}
    for case in cases:
        try:
            assert_agrees(op, implementation, case, device)
        except AssertionError as error:
            failing[case.name] = f"differs from the reference: {reason(error)}"
        except Exception as error:
            failing[case.name] = f"does not run: {reason(error)}"
    if not failing:
        return Finding(name, OK, f"{len(cases)} cases agree with the reference")
    first = f"{next(iter(failing))} {next(iter(failing.values()))}"
    many = f"{len(failing)} of {len(cases)} cases fail ({', '.join(failing)})"
    return Finding(name, WRONG, f"{many}; {first}")


if __name__ == "__main__":
    report(checked(*sys.argv[1:]))
