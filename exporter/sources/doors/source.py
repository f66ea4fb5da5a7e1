"""The eye on libcuda's doors: how busy each GPU was, and what every process had launched by then."""

import platform
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from exporter.clock import Clock
from exporter.model.gpu import PAUSED
from exporter.model.work import GpuUse, ProcessWork, WorkReading, began_ns
from exporter.sources.doors.guard import LONGEST_REST_SECONDS, SHORTEST_REST_SECONDS, rest_seconds
from exporter.sources.doors.libraries import Libraries
from exporter.sources.doors.library import Library
from exporter.sources.doors.loader import BpfError, Kernel
from exporter.sources.doors.narrowed import Narrowed
from exporter.sources.doors.trial import try_out
from exporter.sources.doors.watcher import MOST_PROCESSES, Watcher
from exporter.sources.nvml.driver import DriverError
from exporter.sources.proc import Proc
from exporter.sources.reading import Reading

ALIVE_SECONDS = 10.0
"""How often it is looked which of the processes that were counted are no more."""

AGAIN_SECONDS = 60.0
"""When a library is tried again that could not be watched: each try halts all forks on the node for a moment."""

GPM_LAG_SECONDS = 0.1
"""What GPM tells is so old: 0.08 to 0.13 s (measured, H200, driver 580.159.04)."""

USUAL_SMS = 132
"""Of a GPU whose SMs nobody can tell: an H200's."""


class Doors:
    """Watches the doors while anybody may, and reads them together with the GPUs.

    `uses` reads how busy the GPUs were since it was last asked, `sms` how many SMs they have; both raise DriverError.
    `boot_ns` reads CLOCK_BOOTTIME, and `wait` waits for so many seconds. `try_out` raises BpfError where clients would
    come to harm: then nobody is watched.
    """

    def __init__(
        self,
        *,
        uses: Callable[[], tuple[GpuUse, ...]],
        sms: Callable[[], int | None],
        libraries: Libraries,
        proc: Proc,
        clock: Clock,
        boot_ns: Callable[[], int],
        wait: Callable[[float], None] = time.sleep,
        machine: str | None = None,
        try_out: Callable[[Watcher, str], None] = try_out,
    ) -> None:
        self._uses = uses
        self._sms = sms
        self._libraries = libraries
        self._proc = proc
        self._clock = clock
        self._boot_ns = boot_ns
        self._wait = wait
        self._machine = machine or platform.machine()
        self._try_out = try_out
        self._harmful: BpfError | None = None
        self._watcher: Watcher | None = None
        self._attached: dict[str, Library] = {}
        self._failed: dict[str, tuple[str, float]] = {}
        self._pids: tuple[int, ...] = ()
        self._percentages: Mapping[int, float] = {}
        self._narrowed: Narrowed | None = None
        self._last: Mapping[int, ProcessWork] = {}
        self._carried: dict[int, tuple[int, int]] = {}
        self._owed = 0.0
        self._rests_until: float | None = None
        self._read_at: float | None = None
        self._watching = False
        self._let_alone: frozenset[int] = frozenset()
        self._alive_at = float("-inf")

    def want(self, percentages: Mapping[int, float], others: Iterable[int]) -> None:
        """Whose libcuda to watch: clients, with what their servers allow them, and others. Safe in any thread."""
        self._percentages, self._pids = percentages, (*percentages, *others)

    def look(self) -> Reading:
        """One look at everything: at the work first, since what GPM tells of a GPU is so much older.

        Nobody is let alone before all has been read, which is to be of the same time.
        """
        try:
            watcher = self._watcher or self._open()
            problems = self._follow(watcher)
            before, work = self._last, self._read(watcher)
            self._wait(GPM_LAG_SECONDS)
            uses, problem = self._used()
            self._owed += rest_seconds(before, self._last, work.seconds)
            if self._owed >= SHORTEST_REST_SECONDS:
                self._rest(watcher, min(self._owed, LONGEST_REST_SECONDS))
        except DriverError as error:
            return Reading(problem=_in_words(error))
        except BpfError as error:
            return Reading(problem=str(error))
        return Reading((work, *uses), "; ".join((*problems, *problem)) or None)

    def close(self) -> None:
        """Leave nothing behind."""
        if self._watcher is not None:
            self._watcher.close()
            self._watcher = None
        self._attached.clear()
        self._libraries.close()

    def _used(self) -> tuple[tuple[GpuUse, ...], tuple[str, ...]]:
        """How busy the GPUs were, and what kept them from being read."""
        try:
            return self._uses(), ()
        except DriverError as error:
            return (), (_in_words(error),)

    def _open(self) -> Watcher:
        if self._harmful is not None:
            raise self._harmful
        sms = self._sms() or USUAL_SMS
        watcher = Watcher(Kernel(self._machine), self._boot_ns, sms)
        try:
            self._try_out(watcher, self._machine)
        except BpfError as error:
            self._harmful = error  # the kernel will be no other while this process lives
            watcher.close()
            raise
        self._watcher, self._narrowed = watcher, Narrowed(self._proc, sms)
        return watcher

    def _follow(self, watcher: Watcher) -> list[str]:
        """Attach to the libraries that are there now, unless nobody is watched for a while."""
        found = self._libraries.look(self._pids)
        problems = list(found.problems)
        now = self._clock.monotonic()
        if self._rests_until is not None and now < self._rests_until:
            return problems
        self._rests_until, self._let_alone = None, frozenset()
        libraries = {library.path_to_open: library for library in found.libraries}
        for path in self._attached.keys() - libraries.keys():
            watcher.detach(path)
            del self._attached[path]
        if not self._watching:
            watcher.begin()
        self._failed = {path: (why, until) for path, (why, until) in self._failed.items() if path in libraries}
        for path, library in libraries.items():
            self._attach(watcher, path, library, now)
        return [*problems, *(why for why, _ in self._failed.values())]

    def _attach(self, watcher: Watcher, path: str, library: Library, now: float) -> None:
        if path in self._failed and now < self._failed[path][1]:
            return
        try:
            if path not in self._attached:
                watcher.attach(path, library.doors)
            self._attached[path] = library
            self._failed.pop(path, None)
        except BpfError as error:
            self._failed[path] = f"{library.path}: {error}", now + AGAIN_SECONDS

    def _read(self, watcher: Watcher) -> WorkReading:
        now = self._clock.monotonic()
        watched = 0.0 if self._read_at is None or not self._watching else now - self._read_at
        self._read_at, self._watching = now, bool(self._attached)
        work = self._work(watcher)
        self._last = work
        narrowed = {} if self._narrowed is None else self._narrowed.look(self._percentages)
        watcher.widths(narrowed)
        reading = WorkReading(
            at=self._clock.now(),
            boot_ns=self._boot_ns(),
            seconds=watched,
            sms=watcher.sms,
            lost=watcher.lost,
            narrowed=narrowed,
            processes=tuple(work.values()),
            watched=self._whose(),
        )
        self._forget_the_dead(watcher, now)
        return reading

    def _work(self, watcher: Watcher) -> dict[int, ProcessWork]:
        return {work.pid: self._with_carried(work) for work in watcher.read()}

    def _with_carried(self, work: ProcessWork) -> ProcessWork:
        """With the spans that lasted still when watching them ended."""
        flight, area = self._carried.get(work.pid, (0, 0))
        return replace(work, flight_ns=work.flight_ns + flight, area=work.area + area) if flight else work

    def _rest(self, watcher: Watcher, seconds: float) -> None:
        """Watch nobody for a while: they launch so much that it would cost them too much."""
        self._let_alone = frozenset(self._whose())
        for path in tuple(self._attached):
            watcher.detach(path)
        self._attached.clear()
        for work in self._work(watcher).values():
            flight, area = self._carried.get(work.pid, (0, 0))
            self._carried[work.pid] = flight + work.open_ns, area + work.open_area
        watcher.begin()
        self._watching, self._owed = False, 0.0
        self._rests_until = self._clock.monotonic() + seconds

    def _whose(self) -> tuple[int, ...]:
        """Who is watched, but for rests."""
        return tuple(sorted(self._let_alone.union(*(library.pids for library in self._attached.values()))))

    def _forget_the_dead(self, watcher: Watcher, now: float) -> None:
        """Make room, once all that they did has been told; where it is scarce, whoever is no client has none either."""
        crowded = len(self._last) > MOST_PROCESSES // 2
        if now - self._alive_at < ALIVE_SECONDS and not crowded:
            return
        self._alive_at = now
        clients = frozenset(self._pids)
        dead = [pid for pid, work in self._last.items() if (crowded and pid not in clients) or not self._lives(work)]
        watcher.forget(dead)
        for pid in dead:
            self._carried.pop(pid, None)

    def _lives(self, work: ProcessWork) -> bool:
        """Whether it is there still, and no other that has its PID by now."""
        ticks = self._proc.start_ticks(work.pid)
        return ticks is not None and began_ns(ticks) <= work.first_ns


def _in_words(error: DriverError) -> str:
    words = str(error)
    return words if words == PAUSED else f"NVML: {words}"
