# SPDX-License-Identifier: Apache-2.0
"""Whether `model` in speculative_config names a head at all, before vLLM looks for it itself.

vLLM would first ask the hub for a folder that is not there, and search its whole registry for
an architecture that it does not know; both take long and end in messages about something else.
"""

import json
import re
from pathlib import Path

from vllm_eagle_pangu.config import refusal

_MEND = 'set "model" in speculative_config to the folder or hub name of an EAGLE-3 head'
_HUB_NAME = re.compile(r"\w[\w.-]*(/[\w.-]+)?")


def check_folder(model: str) -> None:
    """Refuse a local head that is missing or is no EAGLE-3 head. Raises ValueError."""
    folder = Path(model).expanduser()
    if not folder.is_dir():
        if not ("://" in model or _HUB_NAME.fullmatch(model)):
            raise refusal("model", model, "no such folder", _MEND)
        return
    if not (folder / "config.json").is_file():
        raise refusal("model", model, "the folder has no config.json", _MEND)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    # The speculators format names its architecture elsewhere; vLLM translates it.
    if "speculators_config" in config:
        return
    from vllm import ModelRegistry

    known, architectures = ModelRegistry.get_supported_archs(), config.get("architectures") or []
    if not any(_as_eagle3(name) in known for name in architectures):
        raise refusal(
            "architectures",
            architectures,
            f"config.json of {model} names no EAGLE-3 head that vLLM knows",
            _MEND,
        )


def _as_eagle3(architecture: str) -> str:
    """The name under which vLLM looks an EAGLE-3 head up (transformers_utils/configs/eagle.py)."""
    if architecture.startswith("Eagle3") or architecture.endswith("Eagle3"):
        return architecture
    return f"Eagle3{architecture}"
