# SPDX-License-Identifier: Apache-2.0
"""The names and shapes of a local checkpoint's tensors, without loading them."""

import json
from pathlib import Path

# safetensors: 8 bytes little-endian length, then a JSON object name -> {dtype, shape, offsets}.
_LENGTH_BYTES = 8


def tensor_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Shapes by tensor name over all `*.safetensors` of a folder; empty where there are none."""
    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            header = json.loads(file.read(length))
        for name, entry in header.items():
            if name != "__metadata__":
                shapes[name] = tuple(entry["shape"])
    return shapes
