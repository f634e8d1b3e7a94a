# SPDX-License-Identifier: Apache-2.0
"""Attributes of vLLM's objects and modules in whose place ours stand: for one call, or for good."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any


@contextmanager
def lent(owner: Any, **values: Any) -> Iterator[None]:
    """`owner` has these values inside, and its own again afterwards."""
    own = {name: getattr(owner, name) for name in values}
    vars(owner).update(values)
    try:
        yield
    finally:
        vars(owner).update(own)


def patched(original: Callable, ours: Callable) -> Callable:
    """What calls `ours` with `original` before the arguments; `original` if that was done to it."""
    if hasattr(original, "eagle_pangu"):
        return original

    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return ours(original, *args, **kwargs)

    call.eagle_pangu = True  # type: ignore[attr-defined]
    return call
