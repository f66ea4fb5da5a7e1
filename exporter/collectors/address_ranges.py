"""Address ranges of clients, which show whose pointer an illegal access used."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from exporter.clock import Clock
from exporter.collectors.proc import Proc
from exporter.collectors.thread import Reading
from exporter.model.observation import AddressRanges, AddressWant

READ_SECONDS = 60.0
"""Ranges that did not seem to change are read so often."""

CHANGED_SECONDS = 5.0
"""Ranges of a client whose GPU memory changed are read at most so often."""

FAULT_SECONDS = 1.0
"""After a reading for a fault, that for the next fault waits so long: a process beside MPS can cause many."""


@dataclass(frozen=True, slots=True)
class _Read:
    """For what a process was last read, when, and whether a fault was the reason."""

    want: AddressWant
    at: float
    for_fault: bool


class AddressRangesCollector:
    """Reads a client when it appears, when its GPU memory changes, after a fault on its GPU, and every minute."""

    def __init__(self, proc: Proc, clock: Clock, wanted: Callable[[], Mapping[int, AddressWant]]) -> None:
        """`wanted` returns what to read, by PID."""
        self._proc = proc
        self._clock = clock
        self._wanted = wanted
        self._read: dict[int, _Read] = {}

    def collect(self) -> Reading:
        """Return the ranges that are due. A process that cannot be read is no problem: its ranges stay unknown."""
        wanted, now = self._wanted(), self._clock.monotonic()
        self._read = {pid: read for pid, read in self._read.items() if pid in wanted}
        found: list[AddressRanges] = []
        for pid, want in wanted.items():
            read = self._read.get(pid)
            for_fault = read is not None and want.fault_at > read.want.fault_at
            if read is None or self._is_due(read, want, now, for_fault=for_fault):
                self._read[pid] = _Read(want, now, for_fault)
                ranges = self._proc.address_ranges(pid, want.start_ticks)
                found += [] if ranges is None else [ranges]
        return Reading(tuple(found))

    @staticmethod
    def _is_due(read: _Read, want: AddressWant, now: float, *, for_fault: bool) -> bool:
        if read.want.start_ticks != want.start_ticks:
            return True
        if for_fault:
            return not read.for_fault or now - read.at >= FAULT_SECONDS
        return now - read.at >= (READ_SECONDS if read.want.memory == want.memory else CHANGED_SECONDS)
