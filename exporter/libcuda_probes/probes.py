"""The BPF programs at work: load them, attach them to files of libcuda, and read what they counted.

The layout of what is read is that of `struct process` in probes.bpf.c. A test compares the two.
"""

import contextlib
import os
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import islice

from exporter.libcuda_probes.libraries import CONTEXTS, CREATED, CREATIONS, PROBE_POINTS, PROGRAMS, RETURN, WAITS
from exporter.libcuda_probes.loader import BpfError, Kernel, Map, close_all
from exporter.model.launches import ProcessWork

MAX_PROCESSES = 2048
"""A launch of a further process is lost, and counted. Of threads and events, of which the C file has the bounds, the
least recently used one makes room for a new one."""

WATCHED_SINCE, LOST, ALL_SMS, SEVERAL_GPUS = 0, 1, 2, 3
"""Indexes in the map `numbers`."""

FIELDS = (
    "first",
    "kernels",
    "graphs",
    "graph_kernels",
    "syncs",
    "records",
    "uploads",
    "contexts",
    "spans",
    "flight",
    "area",
    "bound",
    "widths",
    "sure_area",
    "sure_widths",
    "sure_gaps",
    "sure_heights",
    "sure_event_heights",
    "launched",
    "failed",
    "initialized",
    "synced",
    "capturing",
    "captures",
    "captured",
    "captured_width",
)
STREAM_FIELDS = (
    "key",
    "since",
    "last",
    "launches",
    "width",
    "widest",
    "copied",
    "burst_since",
    "burst_launches",
    "burst_width",
    "burst_gaps",
)
STREAMS = 16
FRACTION_BITS = 4
"""Mean widths are kept in 16ths of an SM."""

_HEAD = struct.Struct(f"<{len(FIELDS)}Q")
_STREAM = struct.Struct(f"<{len(STREAM_FIELDS)}Q")
_NUMBER = struct.Struct("<Q")
_INDEX = struct.Struct("<I")
_PID_MASK = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpenSpan:
    """A span that has not ended: since when, and the mean and the greatest width of its kernels in SMs."""

    since: int
    width: float
    widest: int


def work_of(key: int, value: bytes, now: int, watched_since: int) -> ProcessWork:
    """Return the work of a process on a device from its map entry. Spans from before `watched_since` do not count."""
    head = dict(zip(FIELDS, _HEAD.unpack_from(value), strict=True))
    until = head["failed"] or now
    spans = [span for span in _open_spans(value) if watched_since <= span.since < until]
    return ProcessWork(
        pid=key & _PID_MASK,
        device=(key >> 32) - 1,
        first_ns=head["first"],
        kernels=head["kernels"],
        graphs=head["graphs"],
        graph_kernels=head["graph_kernels"],
        syncs=head["syncs"],
        records=head["records"],
        uploads=head["uploads"],
        context_calls=head["contexts"],
        spans=head["spans"],
        flight_ns=head["flight"],
        area=head["area"],
        bound=head["bound"],
        widths=head["widths"],
        sure_area=head["sure_area"],
        sure_widths=head["sure_widths"],
        sure_gaps=head["sure_gaps"],
        sure_heights=head["sure_heights"] >> FRACTION_BITS,
        sure_event_heights=head["sure_event_heights"] >> FRACTION_BITS,
        open_ns=sum(until - span.since for span in spans),
        open_area=int(sum((until - span.since) * span.width for span in spans)),
        open_bound=sum((until - span.since) * span.widest for span in spans),
        open_since_ns=min((span.since for span in spans), default=0),
        launched_ns=head["launched"],
        failed_ns=head["failed"],
        initialized_ns=head["initialized"] if head["initialized"] >= watched_since else 0,
        synced_ns=head["synced"] if head["synced"] >= watched_since else 0,
    )


def _open_spans(value: bytes) -> list[_OpenSpan]:
    streams = _STREAM.iter_unpack(value[_HEAD.size :])
    return [
        _OpenSpan(since=since, width=width / max(launches, 1), widest=widest)
        for _, since, _, launches, width, widest, *_ in streams
        if since
    ]


class LibcudaProbes:
    """The loaded programs and their maps. They count in every attached library until `close`."""

    def __init__(self, kernel: Kernel, boot_ns: Callable[[], int], sms: int, *, several_gpus: bool = False) -> None:
        """`boot_ns` reads CLOCK_BOOTTIME; `sms` is the number of SMs of a GPU. Raises BpfError if it is refused.

        If there are `several_gpus`, a process has counts for each of them.
        """
        self._several_gpus = several_gpus
        self._kernel = kernel
        self._boot_ns = boot_ns
        self.sms = sms
        self._descriptors: list[int] = []
        self._attached: dict[str, list[int]] = {}
        self._limits: Mapping[int, int] = {}
        bpf_object = kernel.read_object()
        room = {"processes": MAX_PROCESSES, "sm_limits": MAX_PROCESSES}
        try:
            maps: dict[str, Map] = {}
            for name, definition in bpf_object.maps.items():
                entries = room.get(name, definition.entries)
                maps[name] = kernel.create_map(name, replace(definition, entries=entries))
                self._descriptors.append(maps[name].descriptor)
            self._processes, self._numbers, self._sm_limits = maps["processes"], maps["numbers"], maps["sm_limits"]
            self._numbers.put(_INDEX.pack(ALL_SMS), _NUMBER.pack(sms))
            self._numbers.put(_INDEX.pack(SEVERAL_GPUS), _NUMBER.pack(several_gpus))
            descriptors = {name: each.descriptor for name, each in maps.items()}
            self._programs: dict[str, int] = {}
            for name in PROGRAMS:
                code = bpf_object.programs[name].linked(descriptors)
                self._programs[name] = kernel.load_program(name, code, bpf_object.license)
                self._descriptors.append(self._programs[name])
        except BpfError:
            self.close()
            raise

    def begin(self) -> None:
        """Count spans from now on. Those that began earlier, while nothing was attached, are incomplete."""
        self._numbers.put(_INDEX.pack(WATCHED_SINCE), _NUMBER.pack(self._boot_ns()))

    def attach(self, path: str, offsets: Mapping[str, int]) -> None:
        """Attach to the functions of a library, by their offsets in its file. If one fails, none stays: BpfError."""
        links = self._attached[path] = []
        try:
            for (program, on_return), places in self._places(offsets).items():
                links.extend(self._kernel.attach(path, places, self._programs[program], on_return=on_return))
        except BpfError:
            self.detach(path)
            raise

    def detach(self, path: str) -> None:
        """Remove the probes from a library."""
        close_all(self._attached.pop(path, ()))

    def limit_sms(self, limits: Mapping[int, int]) -> None:
        """Replace the SM limits: how many SMs each of these processes may use, by PID."""
        wanted = dict(islice(limits.items(), MAX_PROCESSES))
        for pid in self._limits.keys() - wanted.keys():
            self._sm_limits.delete(_NUMBER.pack(pid))
        for pid, number in wanted.items() - self._limits.items():
            self._sm_limits.put(_NUMBER.pack(pid), _NUMBER.pack(number))
        self._limits = wanted

    def read(self) -> Iterable[ProcessWork]:
        """Yield what each process has done so far, on each device."""
        now, since = self._boot_ns(), self._number(WATCHED_SINCE)
        for key, value in self._processes.items():
            yield work_of(_NUMBER.unpack(key)[0], value, now, since)

    @property
    def lost(self) -> int:
        """How many launches were not counted because the map of processes was full."""
        return self._number(LOST)

    def forget(self, pids: Iterable[int]) -> None:
        """Delete the counts of processes, to make room."""
        unneeded = {*pids}
        for key in [_NUMBER.unpack(key)[0] for key, _ in self._processes.items()]:
            if key & _PID_MASK in unneeded:
                self._processes.delete(_NUMBER.pack(key))

    def close(self) -> None:
        """Remove all probes, programs and maps."""
        for path in tuple(self._attached):
            self.detach(path)
        for descriptor in self._descriptors:
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self._descriptors.clear()

    def _number(self, index: int) -> int:
        value = self._numbers.get(_INDEX.pack(index))
        return 0 if value is None else int(_NUMBER.unpack(value)[0])

    def _places(self, offsets: Mapping[str, int]) -> Mapping[tuple[str, bool], list[int]]:
        """Return the offsets for each program, and whether it runs on return."""
        places: dict[tuple[str, bool], list[int]] = {}
        for point in PROBE_POINTS:
            if point.name in offsets and (self._several_gpus or point.kind not in CONTEXTS):
                places.setdefault((point.program, False), []).append(offsets[point.name])
                if point.kind in CREATIONS:
                    places.setdefault((CREATED, True), []).append(offsets[point.name])
                if point.kind in WAITS:
                    places.setdefault((RETURN, True), []).append(offsets[point.name])
        return places
