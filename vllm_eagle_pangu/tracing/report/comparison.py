# SPDX-License-Identifier: Apache-2.0
"""The file given with `--compare`: what each method gained over plain decoding."""

import json
from pathlib import Path

from pydantic import ConfigDict, PositiveFloat
from pydantic.dataclasses import dataclass

from vllm_eagle_pangu.checked import CHECKED, checked
from vllm_eagle_pangu.config import refusal

EXAMPLE = '{"methods": [{"name": "tree", "tau": 4.6, "speedup": 1.65}]}'


# Whatever else a file says of a method may stand there.
@dataclass(frozen=True, config=ConfigDict({**CHECKED, "extra": "ignore"}))
class Method:
    """`tau`: tokens per target forward; `speedup`: tokens/s as a multiple of plain decoding's."""

    name: str
    tau: PositiveFloat
    speedup: PositiveFloat


def read_methods(path: Path) -> list[Method]:
    """The methods, fastest first.

    Raises:
        ValueError: names the file, what is wrong with it and the mend.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError) as error:
        problem = f"not JSON: {error}" if isinstance(error, ValueError) else "no such file"
        raise refusal("compare", str(path), problem, f"pass a file like {EXAMPLE}") from error
    methods = content.get("methods") if isinstance(content, dict) else None
    if not isinstance(methods, list) or not methods:
        raise refusal("compare", str(path), 'no list "methods" in it', f"write {EXAMPLE}")
    found: list[Method] = checked(list[Method], methods, f"{path}: methods")
    return sorted(found, key=lambda method: -method.speedup)
