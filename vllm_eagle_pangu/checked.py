# SPDX-License-Identifier: Apache-2.0
"""The user's keys and values as pydantic dataclasses; what does not fit is refused in our form."""

import difflib
import json
from collections.abc import Collection
from dataclasses import is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, to_json

# Of every configuration: "5" is no number, true is no 1, and a key that does not exist is refused.
CHECKED = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
# Refused as "must be at least 1", where pydantic's PositiveInt must be above 0.
Count = Annotated[int, Field(ge=1)]

# What is wrong and the mend, by pydantic's type of error.
_TEXTS = {
    "missing": ("is missing", 'set "{key}"'),
    "dataclass_type": ("must be a section", 'write keys and values below "{key}"'),
    "tuple_type": ("must be a list", "write [{value}]"),
    "int_type": ("must be a whole number, not {kind}", 'write "{key}" as a whole number'),
    "float_type": ("must be a number, not {kind}", 'write "{key}" as a number'),
    "bool_type": ("must be true or false, not {kind}", 'write "{key}" as true or false'),
    "string_type": ("must be a text, not {kind}", 'write "{key}" as a text'),
    "string_too_short": ("must not be empty", 'set "{key}", or leave it out'),
    "finite_number": ("must be a finite number", 'write "{key}" as one'),
    "literal_error": ("no such choice", 'set "{key}" to {expected}'),
    "greater_than": ("must be above {gt}", 'set "{key}" to more than {gt}'),
    "greater_than_equal": ("must be at least {ge}", 'set "{key}" to {ge} or more'),
    "less_than_equal": ("must be at most {le}", 'set "{key}" to {le} or less'),
}


def refusal(key: str, value: object, problem: str, mend: str) -> ValueError:
    """The one form of our user errors: the key, its value, what is wrong and how to mend it."""
    return ValueError(f"eagle_pangu: {key}={value!r}: {problem}; {mend}")


def unknown_key(key: str, value: object, known: Collection[str]) -> ValueError:
    """The refusal of a key that is none of `known`."""
    close = difflib.get_close_matches(key, known, n=1)
    names = ", ".join(sorted(known))
    mend = f'did you mean "{close[0]}"?' if close else f"remove it, or use one of {names}"
    return refusal(key, value, "there is no such key", mend)


def read_yaml(path: Path) -> dict[str, Any]:
    """The keys and values of a configuration. Raises ValueError where it holds none."""
    import yaml

    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise refusal("--config", str(path), "holds no keys", "see configs/ for examples")
    return content


def json_object(option: str, text: str, example: str) -> dict[str, Any]:
    """What an option of the command line says in JSON. Raises ValueError where it is no object."""
    try:
        said = json.loads(text)
    except ValueError:
        said = None
    if not isinstance(said, dict):
        raise refusal(option, text, "must be a JSON object", f"write {option} '{example}'")
    return said


def checked(kind: Any, content: object, key: str = "") -> Any:
    """`content`, what YAML or JSON hold, as an instance of `kind`; `key` is what holds it.

    Raises ValueError for what does not fit: names the key, the value and the mend. Of its own
    checks a dataclass raises that `refusal` in __post_init__; a field's validator raises a
    PydanticCustomError that has the mend in its context.
    """
    try:
        # As JSON, for there a list is a tuple even to strict types.
        text = to_json(content, inf_nan_mode="constants", fallback=repr)
        return TypeAdapter(kind).validate_json(text)
    except ValidationError as error:
        # A key that is missing was perhaps only misspelt: the unknown ones come first.
        found = min(error.errors(), key=lambda detail: not _is_unknown(detail))
        raise _refused(kind, found, key) from None


def told(error: ValidationError) -> str:
    """Where something that no user wrote is not as it should be first, and how."""
    found = error.errors()[0]
    return ": ".join([*map(str, found["loc"]), found["msg"]])


def _refused(kind: Any, found: ErrorDetails, prefix: str) -> ValueError:
    path, context = found["loc"], found.get("ctx", {})
    if found["type"] == "value_error":
        return context["error"]
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    key = (prefix + "".join(parts)).removeprefix(".")
    if _is_unknown(found):
        names = [key.removesuffix(str(path[-1])) + name for name in _names(kind, path[:-1])]
        return unknown_key(key, found["input"], names)
    value = None if found["type"] == "missing" else found["input"]
    if found["type"] not in _TEXTS:
        return refusal(key, value, found["msg"], context.get("mend", "change it"))
    problem, mend = _TEXTS[found["type"]]
    words = {"key": key, "value": value, "kind": type(value).__name__}
    words |= {name: str(word).replace("'", '"') for name, word in context.items()}
    return refusal(key, value, problem.format_map(words), mend.format_map(words))


def _is_unknown(found: ErrorDetails) -> bool:
    return found["type"] == "unexpected_keyword_argument"


def _names(kind: Any, path: tuple[int | str, ...]) -> list[str]:
    """The keys of the section at `path`."""
    for part in path:
        hint = kind.__pydantic_fields__[part].annotation
        kind = next(inner for inner in (hint, *get_args(hint)) if is_dataclass(inner))
    return list(kind.__pydantic_fields__)
