"""Frozen values: copies with changes, and conversion to and from plain JSON values."""

import contextlib
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from dataclasses import replace as replace

    updated = replace
else:

    def replace(value: Any, /, **changes: Any) -> Any:
        """Return a copy with these changes. Raise KeyError for a field that the class does not have."""
        slots, setters = _slots(type(value))
        changed = object.__new__(type(value))
        for get, put in slots:
            put(changed, get(value))
        for name, new in changes.items():
            setters[name](changed, new)
        return changed

    def updated(value: Any, /, **changes: Any) -> Any:
        """Return the value itself if it has these values already, as mostly in an evaluation; else a copy."""
        slots = {name: getattr(value, name) for name in changes}
        if all(new is slots[name] or new == slots[name] for name, new in changes.items()):
            return value
        return replace(value, **changes)


Getter = Callable[[Any], Any]
Setter = Callable[[Any, Any], None]


@cache
def _slots(kind: type) -> tuple[tuple[tuple[Getter, Setter], ...], dict[str, Setter]]:
    """Return the functions that read and write each field. The latter bypass what makes the class frozen."""
    slots = {field.name: getattr(kind, field.name) for field in fields(kind)}
    pairs = tuple((slot.__get__, slot.__set__) for slot in slots.values())
    return pairs, {name: slot.__set__ for name, slot in slots.items()}


_MAX = 2**63  # The largest number. NaN is refused too.

Built = TypeVar("Built")


def plain(value: Any) -> Any:
    """Return a value of the model as JSON can express it. Fields that are None by default are omitted if None."""
    if hasattr(value, "of_json"):
        return value.as_json()
    if is_dataclass(value):
        parts = ((part, getattr(value, part.name)) for part in fields(value))
        return {part.name: plain(item) for part, item in parts if item is not None or part.default is not None}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    return value.value if isinstance(value, Enum) else value


def build(kind: type[Built], values: Mapping[str, Any]) -> Built:
    """Return a value of this kind. Unknown keys are ignored.

    Raises ValueError with the name of a key that is missing or has a wrong type.
    """
    if hasattr(kind, "of_json"):
        return kind.of_json(values)  # type: ignore[attr-defined, no-any-return]
    hints = _hints(kind)  # type: ignore[arg-type]
    built: dict[str, Any] = {}
    for part in fields(kind):  # type: ignore[arg-type]
        if part.name in values:
            built[part.name] = convert(values[part.name], hints[part.name], part.name)
        elif part.default is MISSING and part.default_factory is MISSING:
            raise ValueError(f"{part.name!r} is missing")
    return kind(**built)


_hints = cache(get_type_hints)


def convert(value: Any, hint: Any, name: str) -> Any:
    """Return a value from JSON as this type. Raise ValueError, with the name of its key, if it is not of the type."""
    for each in get_args(hint) if isinstance(hint, UnionType) else (hint,):
        if each is float and type(value) in (int, float) and abs(value) <= _MAX:
            return float(value)
        if each is int and type(value) is int and abs(value) <= _MAX:
            return value
        if each in (str, bool, NoneType) and type(value) is each:
            return value
        if isinstance(value, list) and get_origin(each) is tuple:
            return tuple(convert(item, get_args(each)[0], name) for item in value)
        if isinstance(value, dict) and is_dataclass(each):
            return build(each, value)  # type: ignore[arg-type]
        if isinstance(value, dict) and get_origin(each) is Mapping:
            of_key, of_item = get_args(each)
            return {of_key(key): convert(item, of_item, name) for key, item in value.items()}
        if type(value) is str and isinstance(each, type) and issubclass(each, Enum):
            with contextlib.suppress(ValueError):
                return each(value)
    raise ValueError(f"{name!r} is {reprlib.repr(value)}")


Key = TypeVar("Key")
Value = TypeVar("Value")


def without(mapping: Mapping[Key, Value], *keys: Key) -> Mapping[Key, Value]:
    """Return the mapping without these keys."""
    others = dict(mapping)
    for key in keys:
        others.pop(key, None)
    return others


def with_latest(mapping: Mapping[Key, Value], key: Key, value: Value, most: int) -> Mapping[Key, Value]:
    """Return the mapping with this entry last, and with at most `most` entries: the first ones are removed."""
    entries = {**without(mapping, key), key: value}
    while len(entries) > most:
        del entries[next(iter(entries))]
    return entries


def increment(counts: Mapping[str, int], key: str, by: int = 1) -> Mapping[str, int]:
    """Return the counts with one of them incremented."""
    return {**counts, key: counts.get(key, 0) + by}
