"""The probe points, and the BPF programs at work: load and attach them, and read what they counted.

The layout of what is read is that of `struct process` in probes.bpf.c. A test compares the two.
"""

import contextlib
import os
import struct
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import IntEnum
from itertools import islice
from typing import NamedTuple

from exporter.libcuda_probes.loader import BpfError, Kernel, Map, close_all
from exporter.model.launches import ProcessWork

LAUNCHES = frozenset({"launch", "launch_ex", "launch_old", "graph"})

ENDS = frozenset({"end_context", "end_stream"})
WAITS = ENDS | {"wait_context", "wait_stream", "wait_event", "wait_default", "download"}
"""Synchronisations, copies that may wait, and the end of a context or stream. `RETURN` probes their return."""

CREATIONS = frozenset({"retain_context", "create_context", "create_context_v3", "create_context_v4"})
"""Functions that return a context. Their return is probed by the program `CREATED`."""

CONTEXTS = CREATIONS | {"set_context", "push_context", "pop_context"}
"""Functions that show the GPU of a launch. Only nodes with several GPUs need them."""

QUERIES = frozenset({"query_event", "query_stream"})

NOT_OTHER = CONTEXTS | QUERIES | {"init", "begin_capture", "end_capture"}
"""Any other call ends a thread's series of queries."""

RETURN, CREATED, OTHER = "return", "created", "other"


class Group(IntEnum):
    """Probe points that are attached and paused together; their begin has this index in the map `numbers`.

    QUERIES are attached last, so that `OTHER` runs before the other program of a call: it ends what was asked for.
    """

    FREQUENT = 0
    RARE = 4
    QUERIES = 5


_RARE = CONTEXTS | ENDS | {"init", "begin_capture", "end_capture", "wait_context"}


def group_of(kind: str) -> Group:
    """Return the group of a kind of probe points."""
    return Group.QUERIES if kind in QUERIES else Group.RARE if kind in _RARE else Group.FREQUENT


class ProbePoint(NamedTuple):
    """A function of libcuda, what it does, and the program of probes.bpf.c that runs when it is called."""

    name: str
    kind: str
    program: str


def _points(kind: str, *names: str) -> tuple[ProbePoint, ...]:
    return tuple(ProbePoint(name=name, kind=kind, program=kind) for name in names)


def _with_variants(kind: str, *names: str, suffix: str = "_ptsz") -> tuple[ProbePoint, ...]:
    """Add the variant of each function for which the default stream is the thread's own."""
    variants = (ProbePoint(name=name + suffix, kind=kind, program=f"{kind}_ptsz") for name in names)
    return *_points(kind, *names), *variants


def _with_default(kind: str, *names: str, default: Iterable[str]) -> tuple[ProbePoint, ...]:
    """Add the functions that copy in the default stream."""
    return *_with_variants(kind, *names), *_with_variants(f"{kind}_default", *default, suffix="_ptds")


PROBE_POINTS = (
    *_with_variants("launch", "cuLaunchKernel", "cuLaunchCooperativeKernel"),
    *_with_variants("launch_ex", "cuLaunchKernelEx"),
    *_points("launch_old", "cuLaunch", "cuLaunchGrid", "cuLaunchGridAsync", "cuLaunchCooperativeKernelMultiDevice"),
    *_with_variants("graph", "cuGraphLaunch"),
    *_points("init", "cuInit"),
    *_points(
        "begin_capture",
        *("cuStreamBeginCapture", "cuStreamBeginCapture_v2", "cuStreamBeginCaptureToGraph"),
        *("cuStreamBeginCapture_ptsz", "cuStreamBeginCapture_v2_ptsz", "cuStreamBeginCaptureToGraph_ptsz"),
    ),
    *_points("end_capture", "cuStreamEndCapture", "cuStreamEndCapture_ptsz"),
    *_with_variants("record", "cuEventRecord", "cuEventRecordWithFlags"),
    *_points("upload", "cuMemcpyHtoDAsync_v2", "cuMemcpyHtoDAsync_v2_ptsz"),
    *_points("wait_context", "cuCtxSynchronize", "cuCtxSynchronize_v2"),
    *_points("end_context", "cuCtxDestroy_v2", "cuDevicePrimaryCtxReset_v2"),
    *_with_variants("wait_stream", "cuStreamSynchronize"),
    *_points("end_stream", "cuStreamDestroy_v2"),
    *_points("wait_event", "cuEventSynchronize"),
    *_with_variants("wait_default", "cuMemcpyDtoH_v2", "cuMemcpy", suffix="_ptds"),
    *_with_variants("download", "cuMemcpyDtoHAsync_v2"),
    *_points("transfer", "cuMemcpyHtoD_v2", "cuMemcpyHtoD_v2_ptds", "cuMemcpyDtoH_v2", "cuMemcpyDtoH_v2_ptds"),
    *_with_default("copy", "cuMemcpyDtoDAsync_v2", "cuMemcpyAsync", default=("cuMemcpyDtoD_v2", "cuMemcpy")),
    *_with_default("copy_peer", "cuMemcpyPeerAsync", default=("cuMemcpyPeer",)),
    *_with_default("copy_2d", "cuMemcpy2DAsync_v2", default=("cuMemcpy2D_v2", "cuMemcpy2DUnaligned_v2")),
    *_with_default("copy_3d", "cuMemcpy3DAsync_v2", default=("cuMemcpy3D_v2",)),
    *_with_default("fill_8", "cuMemsetD8Async", default=("cuMemsetD8_v2",)),
    *_with_default("fill_16", "cuMemsetD16Async", default=("cuMemsetD16_v2",)),
    *_with_default("fill_32", "cuMemsetD32Async", default=("cuMemsetD32_v2",)),
    *_with_default("fill_2d", "cuMemsetD2D8Async", default=("cuMemsetD2D8_v2",)),
    *_points("query_event", "cuEventQuery"),
    *_with_variants("query_stream", "cuStreamQuery"),
    *_points("set_context", "cuCtxSetCurrent"),
    *_points("push_context", "cuCtxPushCurrent_v2"),
    *_points("pop_context", "cuCtxPopCurrent_v2"),
    *_points("retain_context", "cuDevicePrimaryCtxRetain"),
    *_points("create_context", "cuCtxCreate_v2"),
    *_points("create_context_v3", "cuCtxCreate_v3"),
    *_points("create_context_v4", "cuCtxCreate_v4"),
)
"""A copy from the device that waits is a synchronisation with the default stream. An asynchronous copy to pageable
memory waits, too. The destruction of a stream ends its span, because nothing later reports on its work."""

PROGRAMS = tuple(dict.fromkeys([*(point.program for point in PROBE_POINTS), RETURN, CREATED, OTHER]))

MAX_PROCESSES = 2048
"""A launch of a further process is lost, and counted. Of threads and events, of which the C file has the bounds, the
least recently used one makes room for a new one."""

LOST, ALL_SMS, SEVERAL_GPUS = 1, 2, 3  # indexes in the map `numbers`, as those of Group
NEVER = (1 << 64) - 1  # the begin of a group that is not attached

FIELDS = {
    "first": "first_ns", "kernels": "kernels", "graphs": "graphs", "graph_kernels": "graph_kernels", "syncs": "syncs",
    "records": "records", "uploads": "uploads", "contexts": "context_calls", "context_syncs": "context_syncs",
    "queries": "queries", "copies": "copies", "copied": "copied", "transfers": "transfers",
    "transferred": "transferred", "graph_copies": "graph_copies", "spans": "spans", "flight": "flight_ns",
    "area": "area", "bound": "bound", "widths": "widths", "sure_area": "sure_area", "sure_widths": "sure_widths",
    "sure_gaps": "sure_gaps", "sure_heights": "sure_heights", "sure_event_heights": "sure_event_heights",
    "launched": "launched_ns", "failed": "failed_ns", "initialized": "initialized_ns", "synced": "synced_ns",
    "answered": "answered_ns", "capturing": None, "captures": None, "captured": None, "captured_width": None,
    "captured_widest": None, "captured_copies": None, "captured_bytes": None, "zero": None, "busy": "busy_ns",
    "gaps": "gap_ns", "busy_since": None, "idle_since": None,
}  # fmt: skip
"""The numbers of a process in their order, each with its name in `ProcessWork`."""

STREAMS = 16
DONE_NS = 1_000_000_000
"""So long after the last launch, work that no thread waits for counts as done."""

CONTEXT, KINDS = 1, 8  # a kind of waits, and their number
FRACTION_BITS = 4  # mean widths are kept in 16ths of an SM
_HEAD = struct.Struct(f"<{len(FIELDS)}Q")
_NUMBER = struct.Struct("<Q")
_INDEX = struct.Struct("<I")
_PID_MASK = 0xFFFF_FFFF


class Stream(NamedTuple):
    """The numbers of a stream in their order, and what they show of its span if it has not ended."""

    key: int
    since: int
    last: int
    launches: int
    width: int
    widest: int
    copied: int
    waited: int
    burst_since: int
    burst_launches: int
    burst_width: int
    burst_gaps: int

    def waits(self, began: Mapping[Group, int]) -> bool:
        """Return whether a thread surely waits for all of it. A wait may have ended in a pause."""
        group = Group.RARE if self.waited % KINDS == CONTEXT else Group.FREQUENT
        return self.waited >= began[group] and self.last < self.waited + KINDS


_STREAM, _SINCE = struct.Struct(f"<{len(Stream._fields)}Q"), Stream._fields.index("since")


def work_of(key: int, value: bytes, now: int, began: Mapping[Group, int]) -> ProcessWork:
    """Return the work of a process on a device from its map entry. `began` is since when each group is attached."""
    head: dict[str, int] = dict(zip(FIELDS, _HEAD.unpack_from(value), strict=True))
    counts = {name: head[field] for field, name in FIELDS.items() if name is not None}
    for name in ("sure_heights", "sure_event_heights"):
        counts[name] >>= FRACTION_BITS
    for name in ("initialized_ns", "synced_ns"):
        counts[name] = counts[name] if counts[name] >= max(began[Group.FREQUENT], began[Group.RARE]) else 0
    until = counts["failed_ns"] or now
    streams = _STREAM.iter_unpack(value[_HEAD.size :])
    spans = [Stream(*numbers) for numbers in streams if 0 < numbers[_SINCE] < until]
    # Since when no end of a span can have been missed. Some clients only ask, and do not wait.
    complete = max(began[Group.FREQUENT], began[Group.QUERIES] if head["answered"] else 0)
    busy = any(span.waited or span.last + DONE_NS > now for span in spans)
    busy_since = head["busy_since"] if busy and 0 < head["busy_since"] < until else until
    return ProcessWork(
        pid=key & _PID_MASK,
        device=(key >> 32) - 1,
        open_ns=sum(until - span.since for span in spans),
        open_busy_ns=until - busy_since,
        open_area=int(sum((until - span.since) * (span.width / max(span.launches, 1)) for span in spans)),
        open_bound=sum((until - span.since) * span.widest for span in spans),
        open_unsure_ns=sum(until - span.since for span in spans if span.since < complete and not span.waits(began)),
        open_since_ns=min((span.since for span in spans), default=0),
        **counts,
    )


class LibcudaProbes:
    """The loaded programs and their maps. They count in every attached library until `close`."""

    def __init__(self, kernel: Kernel, boot_ns: Callable[[], int], sms: int, *, several_gpus: bool = False) -> None:
        """`boot_ns` reads CLOCK_BOOTTIME; a GPU has `sms`. With `several_gpus`, each has counts. Raises BpfError."""
        self._several_gpus = several_gpus
        self._kernel = kernel
        self._boot_ns = boot_ns
        self.sms = sms
        self._descriptors: list[int] = []
        self._attached: dict[tuple[str, Group], list[int]] = {}
        self._limits: Mapping[int, int] = {}
        bpf_object = kernel.read_object()
        room = {"processes": MAX_PROCESSES, "sm_limits": MAX_PROCESSES}
        try:
            maps: dict[str, Map] = {}
            for name, definition in bpf_object.maps.items():
                entries = room.get(name, definition.entries)
                maps[name] = kernel.create_map(name, definition._replace(entries=entries))
                self._descriptors.append(maps[name].descriptor)
            self._processes, self._numbers, self._sm_limits = maps["processes"], maps["numbers"], maps["sm_limits"]
            for index, number in ((ALL_SMS, sms), (SEVERAL_GPUS, several_gpus), *((group, NEVER) for group in Group)):
                self._numbers.put(_INDEX.pack(index), _NUMBER.pack(number))
            descriptors = {name: bpf_map.descriptor for name, bpf_map in maps.items()}
            self._programs: dict[str, int] = {}
            for name in PROGRAMS:
                code = bpf_object.programs[name].linked(descriptors)
                self._programs[name] = kernel.load_program(name, code, bpf_object.license)
                self._descriptors.append(self._programs[name])
        except BpfError:
            self.close()
            raise

    def begin(self, groups: Iterable[Group] = tuple(Group)) -> None:
        """Count completely from now on, after these groups were attached."""
        for group in groups:
            self._numbers.put(_INDEX.pack(group), _NUMBER.pack(self._boot_ns()))

    def attach(self, path: str, offsets: Mapping[str, int], groups: Collection[Group] = tuple(Group)) -> None:
        """Attach missing groups to the functions of a library, by offsets in its file. All stay, or none: BpfError."""
        try:
            for group in groups:
                if (path, group) in self._attached:
                    continue
                links = self._attached[path, group] = []
                for (program, on_return), places in self._places(offsets, group).items():
                    links.extend(self._kernel.attach(path, places, self._programs[program], on_return=on_return))
        except BpfError:
            self.detach(path)
            raise

    def detach(self, path: str) -> None:
        """Remove the probes from a library."""
        close_all([link for group in Group for link in self._attached.pop((path, group), ())])

    def pause(self, group: Group) -> None:
        """Remove the probes of a group from all libraries. What the others count is incomplete from now on."""
        self._numbers.put(_INDEX.pack(group), _NUMBER.pack(NEVER))
        close_all([link for path, of in [*self._attached] if of is group for link in self._attached.pop((path, of))])

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
        now, began = self._boot_ns(), {group: self._number(group) for group in Group}
        for key, value in self._processes.items():
            yield work_of(_NUMBER.unpack(key)[0], value, now, began)

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
        for path, _ in tuple(self._attached):
            self.detach(path)
        for descriptor in self._descriptors:
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self._descriptors.clear()

    def _number(self, index: int) -> int:
        value = self._numbers.get(_INDEX.pack(index))
        return 0 if value is None else int(_NUMBER.unpack(value)[0])

    def _places(self, offsets: Mapping[str, int], group: Group) -> Mapping[tuple[str, bool], list[int]]:
        places: dict[tuple[str, bool], list[int]] = {}
        for point in PROBE_POINTS:
            if point.name not in offsets or (point.kind in CONTEXTS and not self._several_gpus):
                continue
            if group is Group.QUERIES and point.kind not in NOT_OTHER:
                places.setdefault((OTHER, False), []).append(offsets[point.name])
            if group is group_of(point.kind):
                places.setdefault((point.program, False), []).append(offsets[point.name])
                if point.kind in CREATIONS:
                    places.setdefault((CREATED, True), []).append(offsets[point.name])
                if point.kind in WAITS:
                    places.setdefault((RETURN, True), []).append(offsets[point.name])
        return places
