# SPDX-License-Identifier: Apache-2.0
"""What objects learnt, as plain data that JSON holds, and back.

A class names in `LEARNT` which attributes of its objects that is: other such objects, arrays and
tensors, numbers, dataclasses, and lists, tuples and dicts of these.
"""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch


def told(of: Any) -> Any:
    """All that `of` learnt; dicts as lists of pairs, dataclasses as lists of their fields."""
    if hasattr(of, "LEARNT"):
        return {name: told(getattr(of, name)) for name in of.LEARNT}
    if isinstance(of, (np.ndarray, torch.Tensor)):
        return of.tolist()
    if isinstance(of, dict):
        return [[told(key), told(value)] for key, value in of.items()]
    if is_dataclass(of):
        return told(_values(of))
    return [told(each) for each in of] if isinstance(of, (list, tuple)) else of


def take(to: Any, found: Any) -> None:
    """Let `to` know what another object of its kind told.

    What a dict holds comes as numbers and tuples. Raises ValueError where `found` is none of that;
    `to` is then as it was.
    """
    try:
        changes = list(_changes(to, found))
    except (AttributeError, KeyError, TypeError) as error:
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
        else:
            yield to, name, like(now, value)


def like(now: Any, found: Any) -> Any:
    """`found`, which was told, of the type and form of `now`; raises ValueError or TypeError."""
    if isinstance(now, torch.Tensor):
        return torch.from_numpy(like(now.numpy(force=True), found)).to(now.device)
    if isinstance(now, np.ndarray):
        array = np.array(found, now.dtype)
        if array.shape != now.shape or not np.isfinite(array).all():
            raise ValueError(f"{array.shape} is not {now.shape} finite numbers")
        return array
    if isinstance(now, dict):
        return {_frozen(key): _frozen(value) for key, value in found}
    if is_dataclass(now) and not isinstance(now, type):
        return type(now)(*like(_values(now), found))
    if isinstance(now, (list, tuple)):
        return type(now)(like(*pair) for pair in zip(now, found, strict=True))
    if not isinstance(found, (bool, int, float)):
        raise ValueError(f"{found!r} is not a number")
    return type(now)(found)


def _frozen(found: Any) -> Any:
    return tuple(map(_frozen, found)) if isinstance(found, list) else found


def _values(of: Any) -> tuple[Any, ...]:
    return tuple(getattr(of, field.name) for field in fields(of))
