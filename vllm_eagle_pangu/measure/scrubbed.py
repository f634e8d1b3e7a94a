# SPDX-License-Identifier: Apache-2.0
"""Text that is fit to be published: reports and results say nothing of the machine's folders."""

import os
import re
import socket
import sys
import tempfile
from pathlib import Path

import vllm_eagle_pangu
from vllm_eagle_pangu.tracing.provenance import environment_flags

_PATH = re.compile(r"(?:(?<![\w/.}~-])|(?<=file://))/(?!/)(?:[^\s/:,;'\"`()]+/)+")
_ADDRESS = re.compile(r"(?<=//)(?:\d{1,3}\.){3}\d{1,3}|(?:\d{1,3}\.){3}\d{1,3}(?=:\d)")


def scrubbed(text: str) -> str:
    """Without paths of this machine, its name, and addresses; a file keeps its own name."""
    for folder, name in _folders():
        text = re.sub(rf"{re.escape(folder)}(?![\w.-])", name, text)
    host = socket.gethostname()
    if host != "localhost":
        text = re.sub(rf"(?<![\w.-]){re.escape(host)}(?![\w-])", "{host}", text)
    return _ADDRESS.sub("{address}", _PATH.sub("{path}/", text))


def scrubbed_environment() -> dict[str, str]:
    """`environment_flags`, fit to be published."""
    return {name: scrubbed(text) for name, text in environment_flags().items()}


def _folders() -> list[tuple[str, str]]:
    """Known folders and what stands for them, no HTML to Markdown; the longest first."""
    known = {
        str(Path(vllm_eagle_pangu.__file__).resolve().parents[1]): "{source}",
        sys.prefix: "{env}",
        os.path.realpath(sys.prefix): "{env}",
        tempfile.gettempdir(): "{tmp}",
        str(Path.home()): "~",
    }
    return sorted((pair for pair in known.items() if len(pair[0]) > 1), key=lambda p: -len(p[0]))
