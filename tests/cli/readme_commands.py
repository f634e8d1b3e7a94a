# SPDX-License-Identifier: Apache-2.0
"""The commands of README's own-model section, and what it takes to run them in a test."""

import json
import re
import shlex
import urllib.request
from pathlib import Path

from vllm_eagle_pangu import demo_pair

ROOT = Path(__file__).resolve().parents[2]
PAIR = Path(demo_pair.__file__).parent
TARGET, HEAD = PAIR / "target", PAIR / "draft"


def own_model_commands() -> dict[str, str]:
    """By their first words, in README's order, for the demo pair."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text.split("## With your own model\n")[1].split("\n## ")[0]
    block = "\n".join(line[4:] for line in section.splitlines() if line.startswith("    "))
    commands = {}
    for line in block.replace("\\\n", " ").splitlines():
        words = line.split()
        name = " ".join(words[:2] if words[0] in ("pip", "eagle-pangu") else words[:1])
        commands[name] = re.sub(r"\bHEAD\b", str(HEAD), re.sub(r"\bTARGET\b", str(TARGET), line))
    return commands


def completion(curl: str, port: int) -> str:
    """The text that the server on `port` answers README's curl with."""
    words = shlex.split(curl)
    (url,) = [word for word in words if word.startswith("http://127.0.0.1:8000/")]
    header, body = (words[words.index(flag) + 1] for flag in ("-H", "-d"))
    name, _, value = header.partition(": ")
    request = urllib.request.Request(url.replace(":8000/", f":{port}/"), body.encode())
    request.add_header(name, value)
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)["choices"][0]["text"]
