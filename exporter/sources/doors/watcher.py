"""Watches doors: loads the programs once, and attaches them to each libcuda; reads what they count."""

import contextlib
import os
import struct
from collections.abc import Callable, Iterable, Mapping
from itertools import islice

from exporter.model.work import ProcessWork
from exporter.sources.doors import layout
from exporter.sources.doors.doors import DOORS, WAITS, Kind
from exporter.sources.doors.loader import ARRAY, HASH, LRU_HASH, BpfError, Kernel, Map, let_go
from exporter.sources.doors.maps import ALL_SMS, BLANK, CALLS, EVENTS, LOST, PROCESSES, WATCH, WATCHED_SINCE, WIDTHS
from exporter.sources.doors.program import program

MOST_PROCESSES = 2048
MOST_THREADS = 4096
MOST_EVENTS = 16384
"""The threads that synchronise longest ago make room for others, and so do events; processes do not."""

_NUMBER = struct.Struct("<Q")


class Watcher:
    """Counts what is launched through the doors of the libraries that it is told of, until it is closed."""

    def __init__(self, kernel: Kernel, boot_ns: Callable[[], int], sms: int) -> None:
        """`boot_ns` reads CLOCK_BOOTTIME; `sms` is how many SMs a GPU has. BpfError where the kernel forbids it."""
        self._kernel = kernel
        self._boot_ns = boot_ns
        self._descriptors: list[int] = []
        self._probes: dict[str, list[int]] = {}
        self._narrow: dict[int, int] = {}
        try:
            self._processes = self._map(HASH, PROCESSES, 8, layout.BYTES, MOST_PROCESSES)
            self._watch = self._map(ARRAY, WATCH, 4, 8, 3)
            self._widths = self._map(HASH, WIDTHS, 8, 8, MOST_PROCESSES)
            maps = {
                PROCESSES: self._processes.descriptor,
                WATCH: self._watch.descriptor,
                WIDTHS: self._widths.descriptor,
                BLANK: self._map(ARRAY, BLANK, 4, layout.BYTES, 1).descriptor,
                CALLS: self._map(LRU_HASH, CALLS, 8, 32, MOST_THREADS).descriptor,
                EVENTS: self._map(LRU_HASH, EVENTS, 16, 16, MOST_EVENTS).descriptor,
            }
            self._watch.put(_place(ALL_SMS), _NUMBER.pack(sms))
            self._programs = {each: self._program(*each, maps) for each in _kinds()}
        except BpfError:
            self.close()
            raise

    def begin(self) -> None:
        """From now on, spans are counted: those that began before, while nobody watched, are none."""
        self._watch.put(_place(WATCHED_SINCE), _NUMBER.pack(self._boot_ns()))

    def attach(self, path: str, offsets: Mapping[str, int]) -> None:
        """Watch the doors of a library, which lie at these offsets in its file. BpfError where that fails."""
        probes = self._probes[path] = []
        try:
            for (program, on_return), places in self._places(offsets).items():
                probes.extend(self._kernel.probes(path, places, program, on_return=on_return))
        except BpfError:
            self.detach(path)
            raise

    def detach(self, path: str) -> None:
        """Watch a library no more."""
        let_go(self._probes.pop(path, ()))

    def widths(self, sms: Mapping[int, int]) -> None:
        """How many SMs a process may use, by PID, where that is not all: of these, and no others any more."""
        wanted = dict(islice(sms.items(), MOST_PROCESSES))
        for pid in self._narrow.keys() - wanted.keys():
            self._widths.drop(_NUMBER.pack(pid))
        for pid, number in wanted.items() - self._narrow.items():
            self._widths.put(_NUMBER.pack(pid), _NUMBER.pack(number))
        self._narrow = wanted

    def read(self) -> Iterable[ProcessWork]:
        """What every process has done so far."""
        now, since = self._boot_ns(), self._number(WATCHED_SINCE)
        for key, value in self._processes.items():
            yield layout.work_of(_NUMBER.unpack(key)[0], value, now, since)

    @property
    def lost(self) -> int:
        """How many launches found no room."""
        return self._number(LOST)

    def forget(self, pids: Iterable[int]) -> None:
        """Make room: these processes are no more."""
        for pid in pids:
            self._processes.drop(_NUMBER.pack(pid))

    def close(self) -> None:
        """Leave nothing behind."""
        for path in tuple(self._probes):
            self.detach(path)
        for descriptor in self._descriptors:
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self._descriptors.clear()

    def _number(self, place: int) -> int:
        value = self._watch.get(_place(place))
        return 0 if value is None else int(_NUMBER.unpack(value)[0])

    def _map(self, kind: int, name: str, key_bytes: int, value_bytes: int, entries: int) -> Map:
        made = self._kernel.map(kind, name, key_bytes, value_bytes, entries)
        self._descriptors.append(made.descriptor)
        return made

    def _program(self, kind: Kind, per_thread: bool, maps: Mapping[str, int]) -> int:
        code = program(kind, maps, self._kernel.registers, per_thread=per_thread)
        loaded = self._kernel.program(kind.value, code)
        self._descriptors.append(loaded)
        return loaded

    def _places(self, offsets: Mapping[str, int]) -> Mapping[tuple[int, bool], list[int]]:
        """Where each program is to run, by whether it is to run on return."""
        places: dict[tuple[int, bool], list[int]] = {}
        for door in DOORS:
            if door.name in offsets:
                called = self._programs[door.kind, door.per_thread]
                places.setdefault((called, False), []).append(offsets[door.name])
                if door.kind in WAITS:
                    returned = self._programs[Kind.RETURN, False]
                    places.setdefault((returned, True), []).append(offsets[door.name])
        return places


def _kinds() -> Iterable[tuple[Kind, bool]]:
    return dict.fromkeys([*((door.kind, door.per_thread) for door in DOORS), (Kind.RETURN, False)])


def _place(number: int) -> bytes:
    return struct.pack("<I", number)
