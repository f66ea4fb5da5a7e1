"""A step of the reducer: one change of one daemon. Inside the reducer it is mutable; its result is not."""

from collections.abc import Mapping
from typing import Any, TypeVar

from exporter.model.daemon import Daemon
from exporter.model.event import Event, EventName

Key = TypeVar("Key")
Value = TypeVar("Value")


class Step:
    """The daemon as changed so far, and the events of the change in order."""

    __slots__ = ("daemon", "events")

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.events: list[Event] = []

    def report(self, at: float, name: EventName, **details: Any) -> None:
        """Add an event of the daemon."""
        self.events.append(Event(at=at, event=name, daemon=self.daemon.name, **details))


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
