"""Frozen values: copies with changes, and conversion to and from plain JSON values."""

import contextlib
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields, is_dataclass
from enum import Enum
from functools import cache
from operator import attrgetter
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, TypeVar, cast, dataclass_transform, get_args, get_origin, get_type_hints

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


Kind = TypeVar("Kind", bound=type)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def frozen(kind: Kind) -> Kind:
    """Make a class a frozen dataclass with slots, created by keyword arguments.

    `dataclass` compiles six functions for each class. Here all classes share five of them, and the first value has
    `__init__` compiled. So a class takes 7 KiB less memory, and a quarter of the time to import.
    """
    return make_frozen(kind, slots=True, kw_only=True)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen_positional(kind: Kind) -> Kind:
    """Do the same for a class that is created by arguments in the order of its fields."""
    return make_frozen(kind, slots=True, kw_only=False)


def make_frozen(kind: Kind, *, slots: bool, kw_only: bool) -> Kind:
    """Return the class as a frozen dataclass. Without `slots`, it is the same class."""
    for name, function in _SHARED.items():
        if name not in vars(kind):
            setattr(kind, name, function)
    made: Any = dataclass(init=False, repr=False, eq=False, slots=slots, kw_only=kw_only)(kind)
    return cast("Kind", made)


def _init(self: Any, *arguments: Any, **values: Any) -> None:
    kind = type(self)
    kind.__init__ = _compiled_init(kind)
    kind.__init__(self, *arguments, **values)


def _compiled_init(kind: Any) -> Any:
    """Compile `__init__` of the fields. All share their globals, because a function retains its globals."""
    lines, positional, keywords = [" pass"], ["self"], list[str]()
    for each in fields(kind):
        name = value = parameter = each.name
        if each.default_factory is not MISSING:
            value = f"{_named(each.default_factory)}() if {name} is MISSING else {name}"
        if each.default is not MISSING or each.default_factory is not MISSING:
            parameter = f"{name}={_named(each.default)}"
        (keywords if each.kw_only else positional).append(parameter)
        lines.append(f" put(self, {name!r}, {value})")
    parameters = ", ".join((*positional, *("*" * bool(keywords)), *keywords))
    made: dict[str, Any] = {}
    exec("\n".join((f"def __init__({parameters}):", *lines)), _SCOPE, made)  # noqa: S102 (names of fields only)
    made["__init__"].__qualname__ = f"{kind.__qualname__}.__init__"
    return made["__init__"]


def _named(value: object) -> str:
    name = f"value_{id(value)}"
    _SCOPE[name] = value
    return name


_SCOPE: dict[str, Any] = {"put": object.__setattr__, "MISSING": MISSING}


@cache
def _compared(kind: type) -> Callable[[Any], Any]:
    """Return the function that returns the class and the fields of a value: a tuple even with one field."""
    return attrgetter("__class__", *(each.name for each in fields(kind) if each.compare))


def _equals(self: Any, other: Any) -> Any:
    if self is other:
        return True
    if self.__class__ is not other.__class__:
        return NotImplemented
    values = _compared(self.__class__)
    return values(self) == values(other)


def _hash(self: Any) -> int:
    return hash(_compared(self.__class__)(self))


def _repr(self: Any) -> str:
    values = ", ".join(f"{each.name}={getattr(self, each.name)!r}" for each in fields(self))
    return f"{self.__class__.__qualname__}({values})"


def _refuse(_self: object, name: str, *_: object) -> None:
    raise FrozenInstanceError(f"cannot change {name!r}")


def _restore(self: Any, state: Any) -> None:
    """Set the fields of a copy, or of a pickled value. With slots, they come second."""
    for name, value in (state[1] if isinstance(state, tuple) else state).items():
        object.__setattr__(self, name, value)


_SHARED: dict[str, Callable[..., Any]] = {
    "__init__": _init,
    "__eq__": _equals,
    "__hash__": _hash,
    "__repr__": _repr,
    "__setattr__": _refuse,
    "__delattr__": _refuse,
    "__setstate__": _restore,
}

Built = TypeVar("Built")


@cache
def _slots(kind: type) -> tuple[tuple[tuple[Any, Any], ...], dict[str, Any]]:
    """Return the functions that read and write each field. The latter bypass what makes the class frozen."""
    slots = {field.name: getattr(kind, field.name) for field in fields(kind)}
    pairs = tuple((slot.__get__, slot.__set__) for slot in slots.values())
    return pairs, {name: slot.__set__ for name, slot in slots.items()}


def made_of(kind: Callable[..., Built], *sources: object, **given: Any) -> Built:
    """Return a value of this kind. What is not given is that of the first source with such an attribute, if any."""
    for name in (each.name for each in fields(cast("Any", kind))):
        source = next((each for each in sources if hasattr(each, name)), None)
        if name not in given and source is not None:
            given[name] = getattr(source, name)
    return kind(**given)


_MAX = 2**63  # The largest number. NaN is refused too.


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
    """Return the mapping without these keys; the mapping itself if it has none of them."""
    if mapping.keys().isdisjoint(keys):
        return mapping
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
