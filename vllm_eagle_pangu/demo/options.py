# SPDX-License-Identifier: Apache-2.0
"""Arguments of `eagle-pangu demo`."""

import argparse

from vllm_eagle_pangu.demo import settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pair", metavar="FOLDER", help="a pair other than the shipped one")
    parser.add_argument(
        "--prompts", type=int, default=settings.PROMPTS, help="held-out prompts (%(default)s)"
    )
    parser.add_argument(
        "--tokens", type=int, default=settings.TOKENS, help="tokens per completion (%(default)s)"
    )
    parser.add_argument(
        "--nodes", type=int, default=settings.NODES, help="node budget of a tree (%(default)s)"
    )
    parser.add_argument(
        "--chains",
        type=lambda text: tuple(int(length) for length in text.split(",")),
        default=settings.CHAIN_LENGTHS,
        metavar="K,K,...",
        help="chain lengths tried with vLLM's own eagle3 (1,2,3,4,5,6)",
    )
    parser.add_argument(
        "--plant-wrong-token",
        action="store_true",
        help="swap one token of what the tree answered for one that the target would never say: "
        "the demo must name it and end with 1",
    )
    parser.add_argument("--json", metavar="FILE", help="also write every figure to this file")
