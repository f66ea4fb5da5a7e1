"""Which processes have a libcuda mapped, and which: each is read when it is met, and seldom again.

A process maps it when it first uses CUDA, perhaps long after its start (dlopen(3)).
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from exporter.clock import Clock
from exporter.parse.memory_map import FileNumbers, MappedFile, mapped_file
from exporter.sources.proc import Proc

SOONEST_SECONDS, LATEST_SECONDS = 1.0, 60.0
"""When a process is read again that had none mapped; each time twice as late as the time before."""

AGAIN_SECONDS = 300.0
"""When one is that had: it may be another program by now (execve(2))."""

SURE_SECONDS = 10.0
"""How long a PID that is told of without a break is not asked again whose it is."""

MOST_AT_ONCE = 64
MOST_PROCESSES = 4096

_LIBCUDA = re.compile(r"libcuda\.so(\.[0-9]{1,9}){0,4}")


@dataclass(frozen=True, slots=True)
class Mapper:
    """A process that has a file mapped, by the path that it has for that process."""

    pid: int
    start_ticks: int
    file: MappedFile


@dataclass(slots=True)
class _Process:
    start_ticks: int
    due: float
    sure_until: float
    wait: float = SOONEST_SECONDS
    hidden: bool = False
    mapped: list[Mapper] = field(default_factory=list)


class Mappers:
    """The processes that are told of, with the libcudas that each has mapped."""

    def __init__(self, proc: Proc, clock: Clock) -> None:
        self._proc = proc
        self._clock = clock
        self._processes: dict[int, _Process] = {}

    def look(self, pids: Iterable[int]) -> Mapping[FileNumbers, tuple[Mapper, ...]]:
        """Who has which libcuda mapped, of these processes."""
        now = self._clock.monotonic()
        self._processes = dict(self._present(sorted(set(pids))[:MOST_PROCESSES], now))
        due = [pid for pid, process in self._processes.items() if process.due <= now]
        for pid in sorted(due, key=lambda each: self._processes[each].due)[:MOST_AT_ONCE]:
            self._read(pid, self._processes[pid], now)
        mapped: dict[FileNumbers, list[Mapper]] = {}
        for process in self._processes.values():
            for mapper in process.mapped:
                mapped.setdefault(mapper.file.numbers, []).append(mapper)
        return {numbers: tuple(mappers) for numbers, mappers in mapped.items()}

    @property
    def hidden(self) -> list[int]:
        """Those whose mappings may not be read."""
        return [pid for pid, process in self._processes.items() if process.hidden]

    def _present(self, pids: Iterable[int], now: float) -> Iterator[tuple[int, _Process]]:
        """Those that live: who was known is, if it is the same process still."""
        for pid in pids:
            known = self._processes.get(pid)
            if known is None or now >= known.sure_until:
                known = self._asked(pid, known, now)
            if known is not None:
                yield pid, known

    def _asked(self, pid: int, known: _Process | None, now: float) -> _Process | None:
        standing = self._proc.standing(pid)
        if standing is None:
            return None
        if known is None or known.start_ticks != standing[0]:
            known = _Process(standing[0], due=now, sure_until=now)
        known.sure_until = now + SURE_SECONDS
        return known

    def _read(self, pid: int, process: _Process, now: float) -> None:
        lines = self._proc.mappings(pid, b"libcuda.so")
        process.hidden = lines is None
        files = dict.fromkeys(file for file in map(mapped_file, lines or ()) if file is not None and _is_libcuda(file))
        process.mapped = [Mapper(pid, process.start_ticks, file) for file in files]
        process.due = now + (AGAIN_SECONDS if process.mapped else process.wait)
        process.wait = min(process.wait * 2, LATEST_SECONDS)


def _is_libcuda(file: MappedFile) -> bool:
    return file.executable and _LIBCUDA.fullmatch(file.path.rpartition("/")[2]) is not None
