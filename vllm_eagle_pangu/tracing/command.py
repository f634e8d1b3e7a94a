# SPDX-License-Identifier: Apache-2.0
"""`eagle-pangu replay DUMP`: which invariant breaks in a failed step."""

import argparse
import sys
from pathlib import Path


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
    from vllm_eagle_pangu.tracing.replay import check, unchecked

    try:
        dump = read_dump(args.dump)
        findings = check(dump)
        if args.target is not None:
            from vllm_eagle_pangu.tracing.target_draws import check_target_draws, checkable

            able = [request for request in dump.requests if checkable(request)]
            known = f"{len(able)} of {len(dump.requests)} requests are known and greedy"
            print(f"against {args.target}: {known}")
            findings += check_target_draws(able, args.target) if able else []
    except (ValueError, OSError) as error:
        print(f"eagle-pangu replay: {error}", file=sys.stderr)
        return 2
    print(f"{dump.path}: step {dump.step}, {len(dump.requests)} requests, {dump.written_at}")
    print(f"failed with {dump.failure['type']}: {dump.failure['message']}")
    for missing in unchecked(dump):
        print(f"not known: {missing}")
    for finding in findings:
        print(f"BROKEN {finding}")
    if not findings:
        print("no invariant breaks in what the dump knows")
        return 0
    names = {finding.invariant for finding in findings}
    print(f"{len(names)} invariant{'s' if len(names) > 1 else ''} broken")
    return 1
