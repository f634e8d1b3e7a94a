# SPDX-License-Identifier: Apache-2.0
"""What objects learnt, as plain data that JSON holds, and back.

A class names in `LEARNT` which attributes of its objects that is: other such objects, arrays and
tensors, numbers, dataclasses, and lists, tuples and dicts of these; for each dict, `ITEMS` has an
example of a key and a value.
"""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from math import isfinite
from typing import Any

import numpy as np
import torch


def told(of: Any) -> Any:
    """All that `of` learnt; dicts as lists of pairs, dataclasses as lists of their fields."""
    if hasattr(of, "LEARNT"):
        return {name: told(getattr(of, name)) for name in of.LEARNT}
    if isinstance(of, (np.ndarray, np.generic, torch.Tensor)):
        return of.tolist()
    if isinstance(of, dict):
        return told(list(of.items()))
    if is_dataclass(of):
        return told(_values(of))
    return [told(each) for each in of] if isinstance(of, (list, tuple)) else of


def take(to: Any, found: Any) -> None:
    """Let `to` know what another object of its kind told.

    Raises ValueError where `found` is none of that; `to` is then as it was.
    """
    try:
        changes = list(_changes(to, found))
    except (AttributeError, KeyError, OverflowError, TypeError) as error:
        raise ValueError(f"{type(to).__name__} does not learn that: {error}") from error
    for each, name, value in changes:
        setattr(each, name, value)


def _changes(to: Any, found: dict[str, Any]) -> Iterator[tuple[Any, str, Any]]:
    """Of `to` and all that it is made of: an object, an attribute, and its value."""
    if found.keys() != set(to.LEARNT):
        raise ValueError(f"{type(to).__name__} learns {to.LEARNT}, not {tuple(found)}")
    for name in to.LEARNT:
        now, value = getattr(to, name), found[name]
        if hasattr(now, "LEARNT"):
            yield from _changes(now, value)
        elif isinstance(now, dict):
            yield to, name, dict(_like(to.ITEMS[name], item) for item in value)
        else:
            yield to, name, _like(now, value)


def _like(now: Any, found: Any) -> Any:
    """`found`, of the type and form of `now`."""
    if isinstance(now, torch.Tensor):
        return torch.from_numpy(_like(now.numpy(force=True), found)).to(now.device)
    if isinstance(now, np.ndarray):
        array = np.array(found, now.dtype)
        if array.shape != now.shape or not np.isfinite(array).all():
            raise ValueError(f"{array.shape} is not {now.shape} finite numbers")
        return array
    if is_dataclass(now) and not isinstance(now, type):
        return type(now)(*_like(_values(now), found))
    if isinstance(now, (list, tuple)):
        return type(now)(_like(*pair) for pair in zip(now, found, strict=True))
    if not isinstance(found, (bool, int, float)) or not isfinite(found):
        raise ValueError(f"{found!r} is not a finite number")
    return type(now)(found)


def _values(of: Any) -> tuple[Any, ...]:
    return tuple(getattr(of, field.name) for field in fields(of))
