# SPDX-License-Identifier: Apache-2.0
"""The `eagle-pangu` command. Subcommands import what they need, so `demo paths` stays instant."""

import argparse
import json
import sys
from collections.abc import Sequence

from vllm_eagle_pangu import __version__


def train(arguments: argparse.Namespace) -> int:
    from vllm_eagle_pangu.training.command import run

    return run(arguments)


def demo(arguments: argparse.Namespace) -> int:
    from vllm_eagle_pangu.demo import run

    return run.run(arguments)


def demo_paths(arguments: argparse.Namespace) -> int:
    from vllm_eagle_pangu.demo import pair

    found = pair.find(arguments.pair)
    print(json.dumps({"target": str(found.target), "draft": str(found.draft)}))
    return 0


def parser(chosen: str) -> argparse.ArgumentParser:
    """Every subcommand; only the chosen one gets its own arguments, and with them its imports."""
    top = argparse.ArgumentParser(
        prog="eagle-pangu", description="Tree speculative decoding with EAGLE-3 heads for vLLM."
    )
    top.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = top.add_subparsers(dest="command", required=True)

    training = commands.add_parser("train", help="train a target or an EAGLE-3 head from a YAML")
    training.set_defaults(handler=train)
    if chosen == "train":
        from vllm_eagle_pangu.training.command import add_arguments

        add_arguments(training)

    showing = commands.add_parser("demo", help="serve the demo pair, compare with plain decoding")
    showing.set_defaults(handler=demo)
    if chosen == "demo":
        from vllm_eagle_pangu.demo import options

        options.add_arguments(showing)
        actions = showing.add_subparsers(dest="action", metavar="[paths]")
        paths = actions.add_parser("paths", help="print the folders of the demo pair as JSON")
        paths.set_defaults(handler=demo_paths)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if argv is None else list(argv)
    arguments = parser(given[0] if given else "").parse_args(given)
    try:
        return arguments.handler(arguments)
    except FileNotFoundError as error:
        print(f"eagle-pangu: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
