"""The recorder: which kernels run in the processes, and what each launched last, with their names."""

from array import array
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

from exporter.libcuda_probes.handles import Handles
from exporter.libcuda_probes.probes import KernelEntry, LibcudaProbes
from exporter.model.kernels import ClientKernels, KernelName, KernelReading, KernelUse, LaunchedKernel
from exporter.model.launches import ProcessWork

INTERVAL_NS = 10_000_000_000  # how often the kernels are read
SECOND_NS, MINUTE_NS = 1_000_000_000, 60_000_000_000
MOST_KERNELS, MOST_NODES = 5, 4  # of a process that are reported as the longest in flight, and of a graph

Raws = tuple[str | None, ...]
Names = Mapping[str, KernelName]
Works = Mapping[int, ProcessWork]


class _Seen(NamedTuple):
    """What was read of a handle: its launches, its time in flight, the width of the last launch; if it is a graph."""

    launches: int = 0
    flight_ns: int = 0
    width: int = 0
    is_graph: int = False


class _Client(NamedTuple):
    """What was read of a process. `numbers` has each handle with its four numbers, in few bytes."""

    first_ns: int = 0
    busy_ns: int = 0
    streams: int = 0
    numbers: Sequence[int] = ()

    def seen(self) -> dict[int, _Seen]:
        numbers = iter(self.numbers)
        return {handle: _Seen(*each) for handle, *each in zip(*[numbers] * 5, strict=True)}


class _Snapshot(NamedTuple):
    boot_ns: int = 0
    watched: float = 0.0
    clients: Mapping[int, _Client] = {}


class KernelRecorder:
    """Reads kernels and messages, and remembers the last minute."""

    def __init__(self, handles: Handles, names: Callable[[Collection[str]], Names]) -> None:
        """`names` returns these names as people read them."""
        self._handles = handles
        self._names = names
        self._snapshots: deque[_Snapshot] = deque()
        self._unnamed: Mapping[int, int] = {}
        self._streams: dict[int, int] = {}
        self._watched = 0.0

    def update(self, probes: LibcudaProbes, works: Works, seconds: float = 0.0) -> None:
        """Read the messages. `seconds` is how long the probes were attached since the last call."""
        self._watched += seconds
        self._handles.take(probes.messages())
        # What was lost may have replaced any handle.
        self._handles.forget(pid for pid, work in works.items() if work.unnamed > self._unnamed.get(pid, 0))
        self._unnamed = {pid: work.unnamed for pid, work in works.items()}
        self._streams = {pid: max(self._streams.get(pid, 0), work.open_streams) for pid, work in works.items()}

    def forget(self, pids: Iterable[int]) -> None:
        """Drop the names of these processes."""
        self._handles.forget(pids)

    def due(self, boot_ns: int) -> bool:
        """Return whether it is time for another reading."""
        return not self._snapshots or boot_ns - self._snapshots[-1].boot_ns >= INTERVAL_NS

    def read(self, probes: LibcudaProbes, works: Works, pids: Collection[int], reading: KernelReading) -> KernelReading:
        """Return the reading with the kernels of these processes; if it is at a fault, also with the last launches."""
        now = reading.boot_ns
        found: dict[int, list[KernelEntry]] = {}
        for pid, entries in probes.kernels():
            if pid in pids and pid in works:
                found.setdefault(pid, []).extend(entries)
        found |= {pid: [] for pid in works.keys() & pids - found.keys() if works[pid].unnamed}
        clients = {pid: self._client(works[pid], entries, now, probes.sms) for pid, entries in found.items()}
        history = (*self._snapshots, _Snapshot(now, self._watched, clients))
        if self.due(now):
            self._streams = {}
            self._snapshots = deque(each for each in history if each.boot_ns > now - MINUTE_NS)
        raws = {
            (pid, each.handle): self._handles.names(pid, each.handle, each.last_ns)[:MOST_NODES]
            for pid, entries in found.items()
            for each in entries
        }
        most = {pid: _most(works[pid], history, raws) for pid in found}
        last = {pid: sorted(found[pid], key=lambda each: -each.last_ns) if reading.at_fault else [] for pid in found}
        shown = [of for uses in most.values() for _, of in uses]
        shown += [raws[pid, each.handle] for pid in found for each in last[pid]]
        names = self._names({raw for of in shown for raw in of if raw is not None})
        return replace(
            reading,
            clients=tuple(
                ClientKernels(
                    pid=pid,
                    first_ns=works[pid].first_ns,
                    streams=max(each.clients.get(pid, _Client()).streams for each in history),
                    most=tuple(replace(use, **_named(of, names, is_graph=use.is_graph)) for use, of in most[pid]),
                    last=tuple(_launched(each, raws[pid, each.handle], names) for each in last[pid]),
                    names_lost=works[pid].unnamed,
                )
                for pid in found
            ),
        )

    def _client(self, work: ProcessWork, entries: Iterable[KernelEntry], now: int, sms: int) -> _Client:
        numbers = array("Q")
        for entry in entries:
            open_ns = 0 if entry.until_ns or not entry.since_ns else max(0, now - entry.since_ns)
            width = min(sms, prod(entry.grid) or sms)
            numbers.extend((entry.handle, entry.launches, entry.flight_ns + open_ns, width, entry.grid[0] == 0))
        return _Client(work.first_ns, work.busy_ns + work.open_busy_ns, self._streams.get(work.pid, 0), numbers)


def _most(
    work: ProcessWork, history: Sequence[_Snapshot], raws: Mapping[tuple[int, int], Raws]
) -> list[tuple[KernelUse, Raws]]:
    """Return the kernels that were longest in flight since the oldest snapshot. Those without a name are one."""
    seconds = history[-1].watched - (history[0].watched if len(history) > 1 else 0.0)
    seconds = max(1.0, min(seconds, (history[-1].boot_ns - work.first_ns) / SECOND_NS))
    known = [each.clients[work.pid] for each in history if work.pid in each.clients]
    known = [each for each in known if each.first_ns == work.first_ns]
    first = known[0] if len(known) == len(history) > 1 else _Client()
    seen, before = [each.seen() for each in known], first.seen()
    busy_ns = max(1, known[-1].busy_ns - first.busy_ns)
    uses: dict[tuple[bool, Raws], KernelUse] = {}
    for handle, now in seen[-1].items():
        was = before.get(handle, _Seen())
        was = was if was.launches <= now.launches else _Seen()
        if (now.launches, now.flight_ns) == (was.launches, was.flight_ns):
            continue
        widths = sorted(each[handle].width for each in seen if handle in each)
        key = bool(now.is_graph), raws[work.pid, handle]
        use = uses.get(key, KernelUse(is_graph=key[0]))
        uses[key] = replace(
            use,
            launches_per_second=use.launches_per_second + (now.launches - was.launches) / seconds,
            flight_ratio=max(use.flight_ratio, min(1.0, (now.flight_ns - was.flight_ns) / busy_ns)),
            width=max(use.width, widths[len(widths) // 2]),
        )
    order = sorted(uses.items(), key=lambda each: (-each[1].flight_ratio, -each[1].launches_per_second))
    return [(use, of) for (_, of), use in order[:MOST_KERNELS]]


def _named(raws: Raws, names: Names, *, is_graph: bool) -> dict[str, Any]:
    known = tuple(names[raw] for raw in raws if raw is not None)
    return {"nodes": known} if is_graph else {"name": known[0] if known else None}


def _launched(entry: KernelEntry, raws: Raws, names: Names) -> LaunchedKernel:
    known, is_graph = entry._asdict(), entry.grid[0] == 0
    del known["handle"], known["flight_ns"]
    return LaunchedKernel(is_graph=is_graph, **_named(raws, names, is_graph=is_graph), **known)
