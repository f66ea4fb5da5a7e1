"""What the handles of processes are: the names of kernels, and the kernels of graphs.

A program asks libcuda for each kernel by its name, before its first launch. A graph has the kernels that were captured
or added, and its executable those of the graph. Handles are addresses, which libcuda can use again.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from exporter.libcuda_probes.probes import CAPTURED_KERNELS, HANDLE, NEVER, Message, MessageKind

MOST_PLACES = 16_384
"""Places for handles in all processes. A handle takes one, and another for each 256 bytes of what is known of it."""

_PLACE_BYTES = 256
_PLACES_OF_PROCESS = 2
_UNKNOWN = 0  # a handle in place of the kernels of a graph that are not known
_DEEPEST = 4  # the bodies of conditional nodes can have such nodes


class _Handle(NamedTuple):
    """A kernel with a name; or a graph or another handle of a kernel, which is what these `parts` are.

    It is known from `at` until its module is unloaded, or the graph is destroyed. `gone` has this time, which all
    kernels of a module share.
    """

    at: int
    gone: list[int]
    name: str = ""
    parts: tuple[int, ...] = ()

    @property
    def places(self) -> int:
        return 1 + (len(self.name) + HANDLE.size * len(self.parts)) // _PLACE_BYTES


@dataclass(slots=True)
class _Process:
    """The handles of a process, the first one that it got first, and when each module and graph is gone."""

    start_ticks: int | None
    tenant: object
    handles: dict[int, _Handle] = field(default_factory=dict)
    gone: dict[int, list[int]] = field(default_factory=dict)
    replaced_at: int = 0
    places: int = _PLACES_OF_PROCESS

    def learn(self, message: Message) -> None:
        at, value, of = message.at, message.value, message.of
        known = self.handles.get(of)
        valid = known is not None and known.gone[0] == NEVER and known.at >= self.replaced_at
        parts = known.parts if known and valid else ()
        match message.kind:
            case MessageKind.NAMED:
                name = message.data.partition(b"\0")[0].decode(errors="replace")
                self._set(value, _Handle(at, self.gone.setdefault(of, [NEVER]), sys.intern(name)))
            case MessageKind.SAME:
                self._set_parts(at, value, parts or (of,))
            case MessageKind.ADDED:
                added = self.handles.get(value)
                self._set_parts(at, of, (*parts, *(added.parts if added is not None and added.parts else (value,))))
            case MessageKind.REPLACED if of == 0:
                self.replaced_at = at
            case MessageKind.REPLACED if value not in parts:
                self._set_parts(at, of, (_UNKNOWN, value))
            case MessageKind.CAPTURED:
                data = message.data[: HANDLE.size * min(of, CAPTURED_KERNELS)]
                missing = (_UNKNOWN,) if of > CAPTURED_KERNELS else ()
                self._set_parts(at, value, (*missing, *(handle for (handle,) in HANDLE.iter_unpack(data))))
            case MessageKind.GONE:
                self.gone.pop(value, [0])[0] = at
            case MessageKind.ANEW:
                self.handles, self.gone, self.places = {}, {}, _PLACES_OF_PROCESS

    def names(self, handle: int, at: int, made: int, depth: int = 0) -> Iterator[str | None]:
        """Yield the names at a time. It was launched, or became a part, when `made`: a later kernel is another one."""
        known = self.handles.get(handle)
        if known is None or depth > _DEEPEST or not known.at <= at <= known.gone[0]:
            yield None
        elif known.parts and known.at >= self.replaced_at:
            for part in known.parts:
                yield from self.names(part, at, known.at, depth + 1)
        else:
            yield known.name if known.name and known.at <= made else None

    def drop_oldest(self) -> None:
        """Drop a quarter, and at least one handle."""
        for handle in [*self.handles][: len(self.handles) // 4 + 1]:
            self.places -= self.handles.pop(handle).places
        needed = {id(known.gone) for known in self.handles.values()}
        self.gone = {handle: gone for handle, gone in self.gone.items() if id(gone) in needed}

    def _set_parts(self, at: int, handle: int, parts: Iterable[int]) -> None:
        self.gone[handle] = [NEVER]
        self._set(handle, _Handle(at, self.gone[handle], parts=tuple(dict.fromkeys(parts))[:CAPTURED_KERNELS]))

    def _set(self, handle: int, new: _Handle) -> None:
        old = self.handles.pop(handle, None)
        self.handles[handle] = new
        self.places += new.places - (0 if old is None else old.places)


class Handles:
    """The handles of all processes, as the probes report them."""

    def __init__(self, start_ticks: Callable[[int], int | None], tenant: Callable[[int], object]) -> None:
        """`start_ticks` and `tenant` return the start of a process, and who shares a limit with it, by PID."""
        self._start_ticks = start_ticks
        self._tenant = tenant
        self._processes: dict[int, _Process] = {}

    def take(self, messages: Iterable[Message]) -> None:
        """Learn what these messages report, in their order."""
        verified: set[int] = set()
        for message in messages:
            pid = message.pid
            if pid not in verified:
                verified.add(pid)
                ticks, known = self._start_ticks(pid), self._processes.get(pid)
                # A process that has exited is still of interest: it may have caused a fault.
                if known is None or (ticks is not None and known.start_ticks != ticks):
                    self._processes[pid] = _Process(ticks, self._tenant(pid))
            self._processes[pid].learn(message)
        self._processes = {pid: process for pid, process in self._processes.items() if process.handles}
        while self._makes_room():
            pass

    def names(self, pid: int, handle: int, at: int) -> tuple[str | None, ...]:
        """Return the name that a kernel had at a time, as the program has it, or those of a graph. None: not known."""
        process = self._processes.get(pid)
        found = () if process is None else islice(process.names(handle, at, at), CAPTURED_KERNELS)
        return tuple(dict.fromkeys(found)) or (None,)

    def forget(self, pids: Iterable[int]) -> None:
        """Drop all handles of these processes."""
        for pid in pids:
            self._processes.pop(pid, None)

    def _makes_room(self) -> bool:
        """Drop the oldest handles of the tenant with the most, if there is no room. Return whether there was none."""
        places: Counter[object] = Counter()
        for process in self._processes.values():
            places[process.tenant] += process.places
        if places.total() <= MOST_PLACES:
            return False
        ((most, _),) = places.most_common(1)
        for process in self._processes.values():
            if process.tenant == most:
                process.drop_oldest()
        self._processes = {pid: process for pid, process in self._processes.items() if process.handles}
        return True
