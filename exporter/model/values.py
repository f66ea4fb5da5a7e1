"""Copies of frozen values with changes."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any

Get = Callable[[Any], Any]
Set = Callable[[Any, Any], None]

if TYPE_CHECKING:
    from dataclasses import replace as replace

    revised = replace
else:

    def replace(value: Any, /, **changes: Any) -> Any:
        """The value with these changes; KeyError for a field that it has not."""
        slots, setters = _slots(type(value))
        changed = object.__new__(type(value))
        for get, put in slots:
            put(changed, get(value))
        for name, new in changes.items():
            setters[name](changed, new)
        return changed

    def revised(value: Any, /, **changes: Any) -> Any:
        """The value with these changes; itself where it has them already, as a judgement mostly finds."""
        slots = {name: getattr(value, name) for name in changes}
        if all(new is slots[name] or new == slots[name] for name, new in changes.items()):
            return value
        return replace(value, **changes)


@cache
def _slots(kind: type) -> tuple[tuple[tuple[Get, Set], ...], Mapping[str, Set]]:
    """How each field of a class is read and written, past what keeps it frozen."""
    slots = {field.name: getattr(kind, field.name) for field in fields(kind)}
    pairs = tuple((slot.__get__, slot.__set__) for slot in slots.values())
    return pairs, {name: slot.__set__ for name, slot in slots.items()}
