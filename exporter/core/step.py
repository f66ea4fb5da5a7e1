"""The shape of every judgement here: a daemon as it now is, and the events that made it so."""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from exporter.model.daemon import Daemon
from exporter.model.event import Event

Key = TypeVar("Key")
Value = TypeVar("Value")

Step = tuple[Daemon, tuple[Event, ...]]


def quiet(daemon: Daemon) -> Step:
    """Nothing to tell."""
    return daemon, ()


def chain(step: Step, *following: Callable[[Daemon], Step]) -> Step:
    """Take further steps, and tell the events of all, in order."""
    daemon, events = step
    for take in following:
        daemon, told = take(daemon)
        events += told
    return daemon, events


def for_each(daemon: Daemon, items: Iterable[int], take: Callable[[Daemon, int], Step]) -> Step:
    """Take one step for each item, and tell the events of all, in order."""
    events: list[Event] = []
    for item in tuple(items):
        daemon, told = take(daemon, item)
        events.extend(told)
    return daemon, tuple(events)


def without(mapping: Mapping[Key, Value], *keys: Key) -> Mapping[Key, Value]:
    """The mapping without these keys."""
    kept = dict(mapping)
    for key in keys:
        kept.pop(key, None)
    return kept


def latest(mapping: Mapping[Key, Value], key: Key, value: Value, most: int) -> Mapping[Key, Value]:
    """The mapping with this one last, and no more than `most`: the first ones go."""
    kept = {**without(mapping, key), key: value}
    while len(kept) > most:
        del kept[next(iter(kept))]
    return kept


def counted(counts: Mapping[str, int], key: str, by: int = 1) -> Mapping[str, int]:
    """The counts with one of them grown."""
    return {**counts, key: counts.get(key, 0) + by}
