"""A transition: a daemon after a change, and the events of the change."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
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


def without_events(daemon: Daemon) -> Transition:
    """Nothing to tell."""
    return daemon, ()


def chain(step: Transition, *following: Callable[[Daemon], Transition]) -> Transition:
    """Take further steps, and tell the events of all, in order."""
    daemon, events = step
    for take in following:
        daemon, told = take(daemon)
        events += told
    return daemon, events


def for_each(daemon: Daemon, items: Iterable[int], take: Callable[[Daemon, int], Transition]) -> Transition:
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


Pids = Mapping[int, int] | None
"""PIDs here by PIDs there; None where there is here."""


def outer(number: int, pids: Pids) -> int:
    """One PID."""
    if number <= 0:
        return 0
    return number if pids is None else pids.get(number, -number)


def translated(entry: LogEntry, pids: Pids) -> LogEntry:
    """A line of a log: its writer, and whom it speaks of."""
    fields = {name: number for name in PID_FIELDS if (number := getattr(entry.message, name, None)) is not None}
    if pids is None and all(number > 0 for number in fields.values()):
        return entry
    message: Any = entry.message
    message = replace(message, **{name: outer(number, pids) for name, number in fields.items()})
    return replace(entry, pid=outer(entry.pid, pids), message=message)


_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def client_id(client: Client, process: ProcessReading | None) -> str:
    """A client's id: PID and start time, or PID and first sighting where the start is not known."""
    if process is None:
        return f"{client.pid}-s{_base36(int(client.connected_at))}"
    return f"{client.pid}-{_base36(process.start_ticks)}"


def used_bytes(reading: GpuReading) -> Mapping[int, int]:
    """Memory of each process on a GPU; NVML's two lists agree on the clients that are in both (measured)."""
    processes = (*(reading.compute_processes or ()), *(reading.mps_processes or ()))
    return {each.pid: each.used_bytes for each in processes if each.used_bytes is not None}


def _base36(number: int) -> str:
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return digits or "0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A command that asks, since when its answer is known (None: not at all), and for how many seconds that will do."""

    command: str
    known_at: float | None
    period: float

    @property
    def deadline(self) -> float:
        """When it must have been asked again."""
        return float("-inf") if self.known_at is None else self.known_at + self.period


def overdue(questions: Iterable[Question], now: float) -> tuple[str, ...]:
    """What must be asked now."""
    return tuple(question.command for question in questions if question.deadline <= now)


def pressing(questions: Sequence[Question], now: float, turn: float) -> str | None:
    """What must be asked in this turn, so that none comes too late where one is asked every `turn` seconds."""
    in_line = sorted(questions, key=lambda question: question.deadline)
    late = (question.deadline < now + place * turn for place, question in enumerate(in_line, start=1))
    return in_line[0].command if any(late) else None
