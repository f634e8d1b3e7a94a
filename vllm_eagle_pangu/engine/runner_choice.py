# SPDX-License-Identifier: Apache-2.0
"""Workers name their runner's class inside `init_device`: lending them another one there."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType


@contextmanager
def runner_class(module: ModuleType, name: str, runner: type) -> Iterator[None]:
    """`module.name` is `runner` inside. Building two runners instead would double the buffers."""
    original = getattr(module, name)
    setattr(module, name, runner)
    try:
        yield
    finally:
        setattr(module, name, original)
