# SPDX-License-Identifier: Apache-2.0
"""`eagle-pangu tune`: find the fastest way to decode on this machine."""

import argparse
import os
import subprocess
import sys

from vllm_eagle_pangu.measure.prompts import read_texts
from vllm_eagle_pangu.tuning.engines import environment
from vllm_eagle_pangu.tuning.settings import BATCH_SIZES, TOKENS, Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the `tune` subcommand."""
    parser.add_argument("--model", metavar="TARGET", help="folder or hub name of the target")
    parser.add_argument("--head", metavar="HEAD", help="folder or hub name of its EAGLE-3 head")
    parser.add_argument("--prompts", metavar="FILE", help='JSON lines {"prompt": "..."}, as served')
    parser.add_argument("--demo", action="store_true", help="the demo pair and its prompts")
    parser.add_argument(
        "--batch-sizes",
        default=",".join(map(str, BATCH_SIZES)),
        metavar="B,B,...",
        help="requests that run at a time (%(default)s)",
    )
    parser.add_argument(
        "--tokens", type=int, default=TOKENS, help="tokens per completion (%(default)s)"
    )
    parser.add_argument(
        "--temperature", type=float, default=0.0, help="of the requests (%(default)s: greedy)"
    )
    parser.add_argument(
        "--engine-args",
        default="{}",
        metavar="JSON",
        help='the server\'s other arguments, such as {"dtype": "bfloat16"}',
    )
    parser.add_argument(
        "--out",
        default="tuned.json",
        metavar="FILE",
        help="where the choice goes; the table goes beside it as .csv and .md (%(default)s)",
    )
    parser.add_argument(
        "--sweep", action="store_true", help="also run a list of shapes to check the choice"
    )


def run(arguments: argparse.Namespace) -> int:
    """Tune, write the files. 2 for what the user has to mend, or what the run itself returned."""
    try:
        settings = Settings.from_arguments(arguments)
        read_texts(settings.prompts)
    except ValueError as error:
        print(f"eagle-pangu tune: {error}", file=sys.stderr)
        return 2
    # A process of its own: libraries to preload and vLLM's variables must be set before it starts.
    command = [sys.executable, "-m", "vllm_eagle_pangu.tuning", settings.to_json()]
    return subprocess.run(command, env=environment(os.environ, settings), check=False).returncode


def measure(settings: Settings) -> int:
    """What that process does."""
    from vllm_eagle_pangu.tuning.report import write
    from vllm_eagle_pangu.tuning.tune import tune

    try:
        outcome = tune(settings)
    except ValueError as error:
        print(f"eagle-pangu tune: {error}", file=sys.stderr)
        return 2
    print(*write(outcome), sep="\n")
    return 0
