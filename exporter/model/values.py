"""Copies of frozen values with changes."""

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any

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
