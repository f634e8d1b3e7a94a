# SPDX-License-Identifier: Apache-2.0
"""The file given with `--compare`: what each method gained over plain decoding."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_eagle_pangu.config import refusal

EXAMPLE = '{"methods": [{"name": "tree", "tau": 4.6, "speedup": 1.65}]}'


@dataclass(frozen=True)
class Method:
    """`tau`: tokens per target forward; `speedup`: tokens/s as a multiple of plain decoding's."""

    name: str
    tau: float
    speedup: float

    @property
    def step_cost(self) -> float:
        """What one of its steps costs, in steps of plain decoding."""
        return self.tau / self.speedup


def read_methods(path: Path) -> list[Method]:
    """The methods, fastest first.

    Raises:
        ValueError: names the file, what is wrong with it and the mend.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise refusal(
            "compare", str(path), "no such file", f"pass a file like {EXAMPLE}"
        ) from error
    except ValueError as error:
        raise refusal("compare", str(path), f"not JSON: {error}", f"write {EXAMPLE}") from error
    methods = content.get("methods") if isinstance(content, dict) else None
    if not isinstance(methods, list) or not methods:
        raise refusal("compare", str(path), 'no list "methods" in it', f"write {EXAMPLE}")
    found = [_method(entry, path) for entry in methods]
    return sorted(found, key=lambda method: -method.speedup)


def _method(entry: Any, path: Path) -> Method:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise refusal("compare", str(path), f"a method without a name: {entry}", f"write {EXAMPLE}")
    for key in ("tau", "speedup"):
        value = entry.get(key)
        if not _is_positive(value):
            raise refusal(
                "compare",
                str(path),
                f"{key} of method {entry['name']!r} is {value!r}, not a positive number",
                "write 1.0 for plain decoding",
            )
    return Method(entry["name"], float(entry["tau"]), float(entry["speedup"]))


def _is_positive(value: object) -> bool:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    return math.isfinite(value) and value > 0
