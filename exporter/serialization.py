"""Values of the model as JSON, and back."""

import reprlib
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

_MOST = 2**63
"""No number is larger; NaN is not either."""

Built = TypeVar("Built")


def plain(value: Any) -> Any:
    """A value of the model as JSON can hold it, without what is None because nothing is known of it."""
    if is_dataclass(value):
        known = ((part, getattr(value, part.name)) for part in fields(value))
        return {part.name: plain(item) for part, item in known if item is not None or part.default is not None}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    return value.value if isinstance(value, Enum) else value


def build(kind: type[Built], values: Mapping[str, Any]) -> Built:
    """Make a value of a kind from a plain one; ValueError names the key that is missing or of the wrong type."""
    hints = _hints(kind)  # type: ignore[arg-type]
    built: dict[str, Any] = {}
    for part in fields(kind):  # type: ignore[arg-type]
        if part.name in values:
            built[part.name] = _convert(values[part.name], hints[part.name], part.name)
        elif part.default is MISSING and part.default_factory is MISSING:
            raise ValueError(f"{part.name!r} is missing")
    return kind(**built)


@cache
def _hints(kind: type[Any]) -> Mapping[str, Any]:
    return get_type_hints(kind)


def _convert(value: Any, hint: Any, name: str) -> Any:
    for each in get_args(hint) if isinstance(hint, UnionType) else (hint,):
        if each is float and type(value) in (int, float) and abs(value) <= _MOST:
            return float(value)
        if each is int and type(value) is int and abs(value) <= _MOST:
            return value
        if each in (str, bool, NoneType) and type(value) is each:
            return value
        if isinstance(value, dict | list) and _holds(each, value):
            return _filled(each, value, name)
        if isinstance(each, type) and issubclass(each, Enum) and type(value) is str:
            return _word(each, value, name)
    raise ValueError(f"{name!r} is {reprlib.repr(value)}")


def _holds(hint: Any, value: dict[str, Any] | list[Any]) -> bool:
    """Whether values of this kind are written as such an object, or as such a list."""
    return get_origin(hint) is tuple if isinstance(value, list) else is_dataclass(hint) or get_origin(hint) is Mapping


def _filled(hint: Any, value: Any, name: str) -> Any:
    if isinstance(value, list):
        return tuple(_convert(item, get_args(hint)[0], name) for item in value)
    if is_dataclass(hint):
        return build(hint, value)  # type: ignore[arg-type]
    of_key, of_item = get_args(hint)
    return {of_key(key): _convert(item, of_item, name) for key, item in value.items()}


def _word(kind: type[Enum], value: str, name: str) -> Enum:
    try:
        return kind(value)
    except ValueError:
        raise ValueError(f"{name!r} is {reprlib.repr(value)}") from None
