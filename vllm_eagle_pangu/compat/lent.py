# SPDX-License-Identifier: Apache-2.0
"""Attributes of vLLM's objects and modules, for the time of one call."""

from collections.abc import Iterator
from contextlib import contextmanager
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
