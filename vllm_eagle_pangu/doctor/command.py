# SPDX-License-Identifier: Apache-2.0
"""`eagle-pangu doctor`: what keeps a server from starting here, or makes it slow, and the mend."""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from vllm_eagle_pangu.doctor import ladder, report
from vllm_eagle_pangu.doctor.device import NPU, device_type
from vllm_eagle_pangu.doctor.finding import OK, Finding

REPORT = Path("doctor-report.md")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "pair", nargs="*", metavar="TARGET HEAD", help="also check whether these two fit"
    )
    parser.add_argument(
        "--ladder",
        action="store_true",
        help="minutes: every kernel on all its cases, then lossless decoding and the speed of the "
        "demo pair; writes a report to attach to a bug report",
    )
    parser.add_argument("--npu", action="store_true", help="the ladder, on an Ascend NPU")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help=f"the report; its JSON beside it ({REPORT})"
    )
    parser.add_argument("--prompts", type=int, default=4, help="on the ladder (%(default)s)")
    parser.add_argument("--tokens", type=int, default=48, help="for each of them (%(default)s)")


def run(arguments: argparse.Namespace) -> int:
    """Print every finding as it comes. Returns 0 where nothing is wrong, else 1; 2 for usage."""
    if len(arguments.pair) not in (0, 2):
        return _usage("give a target and its head, or neither")
    if min(arguments.prompts, arguments.tokens) < 1:
        return _usage("--prompts and --tokens are at least 1")
    if arguments.out and arguments.out.suffix == ".json":
        return _usage(f"--out={arguments.out} is the report's JSON: name the other, FILE.md")
    found: list[Finding] = []
    if arguments.ladder or arguments.npu or arguments.out:
        out, device = arguments.out or REPORT, NPU if arguments.npu else device_type()
        rungs = ladder.rungs(device, arguments.pair, arguments.prompts, arguments.tokens)
        try:
            _tell(ladder.climb(rungs), found)
        finally:
            # Broken off, too: what was seen until then.
            report.write(found, device, out)
        print(f"written: {out}")
    else:
        _tell(ladder.quick(arguments.pair), found)
    wrong = sum(finding.state != OK for finding in found)
    print(f"{wrong} to mend" if wrong else "nothing is wrong")
    return 1 if wrong else 0


def _tell(findings: Iterable[Finding], found: list[Finding]) -> None:
    for finding in findings:
        if finding.rung != (found[-1].rung if found else ""):
            print(f"-- {finding.rung}")
        print(finding.line(), flush=True)
        found.append(finding)


def _usage(problem: str) -> int:
    print(f"eagle-pangu doctor: {problem}", file=sys.stderr)
    return 2
