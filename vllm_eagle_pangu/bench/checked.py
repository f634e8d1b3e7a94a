# SPDX-License-Identifier: Apache-2.0
"""Frozen dataclasses from a YAML's keys and values; whatever does not fit is refused by name."""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Iterable
from typing import Any

from vllm_eagle_pangu.config import refusal


def build(kind: Any, content: dict[str, Any], prefix: str = "") -> Any:
    """An instance of the dataclass `kind`, nested ones included.

    Raises ValueError for an unknown or missing key, or a value of the wrong type.
    """
    hints = typing.get_type_hints(kind)
    for key, value in content.items():
        if key not in hints:
            raise _unknown(prefix + str(key), value, prefix, hints)
    for field in dataclasses.fields(kind):
        needed = field.default is field.default_factory is dataclasses.MISSING
        if needed and field.name not in content:
            raise refusal(prefix + field.name, None, "is missing", f'set "{prefix}{field.name}"')
    values = {key: _convert(hints[key], value, prefix + key) for key, value in content.items()}
    return kind(**values)


def positive(prefix: str, **values: int | float | None) -> None:
    """Raise ValueError for a value that is not above zero; None passes."""
    for key, value in values.items():
        if value is not None and value <= 0:
            raise refusal(
                prefix + key, value, "must be above 0", f'set "{prefix}{key}" to 1 or more'
            )


def choice(key: str, value: str, choices: Iterable[str]) -> None:
    """Raise ValueError for a value that is none of `choices`."""
    if value not in choices:
        names = " or ".join(f'"{name}"' for name in choices)
        raise refusal(key, value, "no such choice", f'set "{key}" to {names}')


def _unknown(key: str, value: object, prefix: str, known: Iterable[str]) -> ValueError:
    names = [prefix + name for name in known]
    close = difflib.get_close_matches(key, names, n=1)
    mend = f'did you mean "{close[0]}"?' if close else f"use one of {', '.join(sorted(names))}"
    return refusal(key, value, "there is no such key", mend)


def _convert(hint: Any, value: Any, key: str) -> Any:
    if isinstance(hint, types.UnionType):
        inner = next(kind for kind in typing.get_args(hint) if kind is not type(None))
        return None if value is None else _convert(inner, value, key)
    if dataclasses.is_dataclass(hint):
        if value is not None and not isinstance(value, dict):
            raise refusal(key, value, "must be a section", f'write keys and values below "{key}"')
        return build(hint, value or {}, key + ".")
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise refusal(key, value, "must be a list", f"write [{value}]")
        item = typing.get_args(hint)[0]
        return tuple(_convert(item, part, f"{key}[{place}]") for place, part in enumerate(value))
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not hint:
        wanted = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
        raise refusal(
            key,
            value,
            f"must be {wanted[hint]}, not {type(value).__name__}",
            f'write "{key}" as {wanted[hint]}',
        )
    return value
