"""A transition: a daemon after a change, and the events of the change."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from exporter.model.daemon import Daemon
from exporter.model.event import Event
from exporter.model.observation import GpuReading, ProcessReading
from exporter.model.server import Client
from exporter.model.values import replace
from exporter.parse.log_line import PID_FIELDS, LogEntry

Key = TypeVar("Key")
Value = TypeVar("Value")

Transition = tuple[Daemon, tuple[Event, ...]]


def chain(step: Transition, *following: Callable[[Daemon], Transition]) -> Transition:
    """Return the transition through further steps, with the events of all steps in order."""
    daemon, events = step
    for take in following:
        daemon, added = take(daemon)
        events += added
    return daemon, events


def for_each(daemon: Daemon, items: Iterable[int], take: Callable[[Daemon, int], Transition]) -> Transition:
    """Return the transition through one step for each item, with the events of all steps in order."""
    events: list[Event] = []
    for item in tuple(items):
        daemon, added = take(daemon, item)
        events.extend(added)
    return daemon, tuple(events)


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


Pids = Mapping[int, int] | None
"""PIDs of this namespace by PIDs of the daemon's namespace; None if both are the same."""


def translate_pid(pid: int, pids: Pids) -> int:
    """Return a PID of this namespace; 0 for a hidden PID; a negative number for one that cannot be translated."""
    if pid <= 0:
        return 0
    return pid if pids is None else pids.get(pid, -pid)


def translate_entry(entry: LogEntry, pids: Pids) -> LogEntry:
    """Return a log entry with PIDs of this namespace."""
    fields = {name: number for name in PID_FIELDS if (number := getattr(entry.message, name, None)) is not None}
    if pids is None and all(number > 0 for number in fields.values()):
        return entry
    message: Any = entry.message
    message = replace(message, **{name: translate_pid(number, pids) for name, number in fields.items()})
    return replace(entry, pid=translate_pid(entry.pid, pids), message=message)


def client_id(client: Client, process: ProcessReading | None) -> str:
    """Return the id of a client: PID and start time, or PID and time of connection if the start is unknown."""
    return f"{client.pid}-s{_base36(int(client.connected_at))}" if process is None else process_id(process)


def process_id(process: ProcessReading) -> str:
    """Return the id of a process: PID and start time."""
    return f"{process.pid}-{_base36(process.start_ticks)}"


_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def _base36(number: int) -> str:
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return digits or "0"


def used_bytes(reading: GpuReading) -> Mapping[int, int]:
    """Return the memory of each process on a GPU. NVML's two lists agree on clients in both (measured).

    The lists of a GPU in MIG mode repeat those of its MIG instances (nvml.h), so they are not read.
    """
    if reading.mig_mode:
        return {}
    processes = (*(reading.compute_processes or ()), *(reading.mps_processes or ()))
    return {each.pid: each.used_bytes for each in processes if each.used_bytes is not None}
