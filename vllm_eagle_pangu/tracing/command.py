# SPDX-License-Identifier: Apache-2.0
"""`eagle-pangu replay DUMP`: which invariant breaks in a failed step."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm_eagle_pangu.tracing.dumped import Dump, Finding


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the `replay` subcommand."""
    parser.add_argument("dump", type=Path, help="a file of a run's dumps folder")
    parser.add_argument(
        "--target",
        type=Path,
        metavar="FOLDER",
        help="also check greedy draws against this target, in transformers",
    )


def run(args: argparse.Namespace) -> int:
    """Print every broken invariant. 0 if none breaks, 1 if one does, 2 for a file unread."""
    from vllm_eagle_pangu.tracing.dumped import read_dump
    from vllm_eagle_pangu.tracing.replay import check

    try:
        dump = read_dump(args.dump)
        findings = check(dump)
        if args.target is not None:
            findings += _against_target(dump, args.target)
    except (ValueError, OSError) as error:
        print(f"eagle-pangu replay: {error}", file=sys.stderr)
        return 2
    _print(dump, findings)
    return 1 if findings else 0


def _against_target(dump: Dump, target: Path) -> list[Finding]:
    from vllm_eagle_pangu.tracing.target_draws import check_target_draws, checkable

    able = [request for request in dump.requests if checkable(request)]
    print(f"against {target}: {len(able)} of {len(dump.requests)} requests are known and greedy")
    return list(check_target_draws(able, target)) if able else []


def _print(dump: Dump, findings: list[Finding]) -> None:
    from vllm_eagle_pangu.tracing.replay import unchecked

    print(f"{dump.path}: step {dump.step}, {len(dump.requests)} requests, {dump.written_at}")
    print(f"failed with {dump.failure['type']}: {dump.failure['message']}")
    for missing in unchecked(dump):
        print(f"not known: {missing}")
    for finding in findings:
        print(f"BROKEN {finding}")
    if not findings:
        print("no invariant breaks in what the dump knows")
    else:
        names = {finding.invariant for finding in findings}
        print(f"{len(names)} invariant{'s' if len(names) > 1 else ''} broken")
