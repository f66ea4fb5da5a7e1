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

from exporter.libcuda_probes.loader import BpfError, Kernel, Map, Ring, close_all
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

NAMES = frozenset(
    {"get_function", "same_graph", "add_kernel", "add_kernel_v2", "add_graph", "add_node", "add_node_v2", "unload"}
)
"""Functions that show the names of kernels, and the kernels of graphs. Clients call them a few times in their life."""

LOOKUPS = frozenset({"same_kernel", "replace_kernel", "replace_kernel_v2", "replace_in_graph", "update_graph"})
"""More such functions, which some clients call often: cuBLAS calls cuKernelGetFunction before each launch."""

NOT_OTHER = CONTEXTS | QUERIES | NAMES | LOOKUPS | {"init", "begin_capture", "end_capture"}
"""Any other call ends a thread's series of queries."""

OTHER = "other"
_RETURNS = {
    "return": WAITS,
    "created": CREATIONS,
    "found_handle": frozenset({"same_kernel", "get_function", "same_graph", "add_node", "add_node_v2"}),
    "captured": frozenset({"end_capture"}),
}
"""The programs that run when a function returns, with the kinds of functions."""


class Group(IntEnum):
    """Probe points that are attached and paused together; their begin has this index in the map `numbers`.

    QUERIES are attached last, so that `OTHER` runs before the other program of a call: it ends what was asked for.
    """

    FREQUENT = 0
    RARE = 4
    QUERIES = 5
    NAMES = 6
    LOOKUPS = 7


_RARE = CONTEXTS | ENDS | {"init", "begin_capture", "end_capture", "wait_context"}


def group_of(kind: str) -> Group:
    """Return the group of a kind of probe points."""
    kinds = {Group.QUERIES: QUERIES, Group.RARE: _RARE, Group.NAMES: NAMES, Group.LOOKUPS: LOOKUPS}
    return next((group for group, of in kinds.items() if kind in of), Group.FREQUENT)


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
    *_points("get_function", "cuModuleGetFunction", "cuLibraryGetKernel"),
    *_points("same_kernel", "cuKernelGetFunction"),
    *_points(
        "same_graph", "cuGraphInstantiate", "cuGraphInstantiate_v2", "cuGraphInstantiateWithFlags", "cuGraphClone"
    ),
    *_points("same_graph", "cuGraphInstantiateWithParams", "cuGraphInstantiateWithParams_ptsz"),
    *_points("add_kernel", "cuGraphAddKernelNode"),
    *_points("add_kernel_v2", "cuGraphAddKernelNode_v2"),
    *_points("add_graph", "cuGraphAddChildGraphNode"),
    *_points("add_node", "cuGraphAddNode"),
    *_points("add_node_v2", "cuGraphAddNode_v2"),
    *_points("replace_kernel", "cuGraphExecKernelNodeSetParams"),
    *_points("replace_kernel_v2", "cuGraphExecKernelNodeSetParams_v2"),
    *_points("replace_in_graph", "cuGraphKernelNodeSetParams", "cuGraphKernelNodeSetParams_v2"),
    *_points("update_graph", "cuGraphExecUpdate", "cuGraphExecUpdate_v2"),
    *_points("unload", "cuModuleUnload", "cuLibraryUnload", "cuGraphDestroy", "cuGraphExecDestroy"),
)
"""A copy from the device that waits is a synchronisation with the default stream. An asynchronous copy to pageable
memory waits, too. The destruction of a stream ends its span, because nothing later reports on its work."""

PROGRAMS = tuple(dict.fromkeys([*(point.program for point in PROBE_POINTS), *_RETURNS, OTHER]))

MAX_PROCESSES = 2048
"""A launch of a further process is lost, and counted. Of threads and events, of which the C file has the bounds, the
least recently used one makes room for a new one."""

LOST, ALL_SMS, SEVERAL_GPUS = 1, 2, 3  # indexes in the map `numbers`, as those of Group
NEVER = (1 << 64) - 1  # the begin of a group that is not attached

FIELDS = {
    "first": "first_ns", "kernels": "kernels", "graphs": "graphs", "graph_kernels": "graph_kernels", "syncs": "syncs",
    "records": "records", "uploads": "uploads", "contexts": "context_calls", "context_syncs": "context_syncs",
    "queries": "queries", "lookups": "lookups", "unnamed": "unnamed", "changes": None, "hidden": "hidden_ns",
    "code": None, "copies": "copies", "copied": "copied", "transfers": "transfers", "transferred": "transferred",
    "graph_copies": "graph_copies", "spans": "spans", "flight": "flight_ns", "area": "area", "bound": "bound",
    "widths": "widths", "sure_area": "sure_area", "sure_widths": "sure_widths", "sure_gaps": "sure_gaps",
    "sure_heights": "sure_heights", "sure_event_heights": "sure_event_heights", "launched": "launched_ns",
    "failed": "failed_ns", "initialized": "initialized_ns", "synced": "synced_ns", "answered": "answered_ns",
    "capturing": None, "captures": None, "captured": None, "captured_width": None, "captured_widest": None,
    "captured_copies": None, "captured_bytes": None, "zero": None, "busy": "busy_ns", "gaps": "gap_ns",
    "busy_since": None, "idle_since": None,
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
    kernels: int

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
        open_streams=sum(span.waited > 0 or span.last + DONE_NS > now for span in spans),
        **counts,
    )


class KernelEntry(NamedTuple):
    """The numbers of a kernel in their order: see `struct kernel` of the C file. A graph has an empty grid."""

    handle: int
    since_ns: int
    until_ns: int
    last_ns: int
    flight_ns: int
    launches: int
    completed: int
    stream: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]


class MessageKind(IntEnum):
    """What a message means: see the C file."""

    NAMED = 0
    SAME = 1
    ADDED = 2
    CAPTURED = 3
    GONE = 4
    ANEW = 5
    REPLACED = 6


class Message(NamedTuple):
    """A message about a handle of a process, with what follows it."""

    pid: int
    kind: int
    at: int
    value: int
    of: int
    data: bytes


CAPTURED_KERNELS = 48  # the most different kernels of a captured graph that are known
HANDLE = struct.Struct("<Q")
_KERNEL, _MESSAGE = struct.Struct("<8Q6I"), struct.Struct("<2I3Q")


class LibcudaProbes:
    """The loaded programs and their maps. They count in every attached library until `close`."""

    def __init__(self, kernel: Kernel, boot_ns: Callable[[], int], sms: int, *, several_gpus: bool = False) -> None:
        """`boot_ns` reads CLOCK_BOOTTIME; a GPU has `sms`. With `several_gpus`, each has counts. Raises BpfError."""
        self._several_gpus = several_gpus
        self._kernel = kernel
        self._boot_ns = boot_ns
        self.sms = sms
        self._descriptors: list[int] = []
        self._rings: list[Ring] = []
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
            self._kernels = maps["kernels_of"]
            self._rings.append(Ring(maps["messages"].descriptor, bpf_object.maps["messages"].entries))
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
        for entries in (self._processes, self._kernels):
            for key in [key for key, _ in entries.items() if _NUMBER.unpack(key)[0] & _PID_MASK in unneeded]:
                entries.delete(key)

    def kernels(self) -> Iterable[tuple[int, list[KernelEntry]]]:
        """Yield the PID of each process on each device, with the kernels that it launched.

        What came into flight before a pause of the probes may have ended in it, and counts as ended at its last launch.
        """
        began = self._number(Group.FREQUENT) % NEVER
        for key, value in self._kernels.items():
            entries = (KernelEntry._make((*each[:-6], each[-6:-3], each[-3:])) for each in _KERNEL.iter_unpack(value))
            yield (
                _NUMBER.unpack(key)[0] & _PID_MASK,
                [
                    each if each.until_ns or each.since_ns >= began else each._replace(until_ns=each.last_ns)
                    for each in entries
                    if each.handle
                ],
            )

    def messages(self) -> Iterable[Message]:
        """Return what processes asked libcuda about handles since the last call, the oldest first."""
        return [
            Message._make((*_MESSAGE.unpack_from(data), data[_MESSAGE.size :]))
            for ring in self._rings
            for data in ring.read()
        ]

    def close(self) -> None:
        """Remove all probes, programs and maps."""
        for path, _ in tuple(self._attached):
            self.detach(path)
        for ring in self._rings:
            ring.close()
        self._rings.clear()
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
                for program in (program for program, kinds in _RETURNS.items() if point.kind in kinds):
                    places.setdefault((program, True), []).append(offsets[point.name])
        return places
