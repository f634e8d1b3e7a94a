# SPDX-License-Identifier: Apache-2.0
"""`eagle-pangu tune`: find the fastest way to decode on this machine."""

import argparse
import multiprocessing
import os
import sys

from vllm_eagle_pangu.demo.pair import NAMES
from vllm_eagle_pangu.measure.prompts import read_texts
from vllm_eagle_pangu.tuning.engines import environment
from vllm_eagle_pangu.tuning.settings import BATCH_SIZES, TOKENS, Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the `tune` subcommand."""
    add = parser.add_argument
    add("--model", metavar="TARGET", help="folder or hub name of the target")
    add("--head", metavar="HEAD", help="folder or hub name of its EAGLE-3 head")
    add("--prompts", metavar="FILE", help='JSON lines {"prompt": "..."}, as served')
    add("--chat", action="store_true", help="put the target's chat template around each prompt")
    come_along = "a pair that comes along, with its prompts: " + " or ".join(NAMES)
    add("--pair", metavar="NAME", help=come_along)
    sizes = ",".join(map(str, BATCH_SIZES))
    asked = "requests that run at a time (%(default)s)"
    add("--batch-sizes", default=sizes, metavar="B,B,...", help=asked)
    add(
        "--tokens",
        type=int,
        default=TOKENS,
        help="tokens per answer, half as many to one and a half (%(default)s)",
    )
    add("--temperature", type=float, default=0.0, help="of the requests (%(default)s: greedy)")
    others = 'the server\'s other arguments, such as {"dtype": "bfloat16"}'
    add("--engine-args", default="{}", metavar="JSON", help=others)
    where = "where the choice goes; the table goes beside it as .csv and .md (%(default)s)"
    add("--out", default="tuned.json", metavar="FILE", help=where)
    add("--sweep", action="store_true", help="compare some twenty shapes and chains, not six")


def run(arguments: argparse.Namespace) -> int:
    """Tune, write the files. Returns what the run itself did.

    Raises ValueError and FileNotFoundError for what the user has to mend.
    """
    settings = Settings.from_arguments(arguments)
    read_texts(settings.prompts)
    # A process of its own: libraries to preload and vLLM's variables must be set before it starts.
    os.environ.update(environment(os.environ, settings))
    process = multiprocessing.get_context("spawn").Process(target=measure, args=(settings,))
    process.start()
    process.join()
    return process.exitcode or 0


def measure(settings: Settings) -> None:
    """What that process does. Exits with 2 for what the user has to mend."""
    from vllm_eagle_pangu.tuning.report import write
    from vllm_eagle_pangu.tuning.tune import tune

    try:
        print(*write(tune(settings)), sep="\n")
    except ValueError as error:
        print(f"eagle-pangu tune: {error}", file=sys.stderr)
        sys.exit(2)
