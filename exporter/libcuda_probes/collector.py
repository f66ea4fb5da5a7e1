"""The collector of libcuda launches: what each process launched, and how busy each GPU was at that time."""

import os
import platform
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from itertools import takewhile
from operator import attrgetter

from exporter.clock import Clock
from exporter.collectors.nvml.driver import DriverError
from exporter.collectors.proc import INITIAL_PID_NAMESPACE, Proc
from exporter.collectors.thread import Reading
from exporter.libcuda_probes.libraries import Libraries, Library
from exporter.libcuda_probes.loader import BpfError, Kernel
from exporter.libcuda_probes.probes import MAX_PROCESSES, Group, LibcudaProbes
from exporter.libcuda_probes.recorder import KernelRecorder
from exporter.libcuda_probes.seccomp_check import check_seccomp
from exporter.model.kernels import KernelReading
from exporter.model.launches import ProcessWork, WorkReading, began_ns, sums
from exporter.model.reason import Reason, ReasonCode, joined
from exporter.model.sharing import GpuUse, NodeGpus
from exporter.parse.mps_variables import sms_of

CLEANUP_SECONDS = 10.0  # how often the counts of processes that have ended are deleted

RETRY_SECONDS = 60.0
"""When the collector attaches again to a library that failed: each attempt stops all forks on the node for a moment."""

GPM_LAG_SECONDS = 0.1  # the age of what GPM reports: 0.08 to 0.13 s (measured, H200, driver 580.159.04)
DEFAULT_SMS = 132  # used if no GPU reports its number of SMs: that of an H200


# -- the rate limits: probes cost a process at most 4 % of its time, or 0.6 % if its SM time is known well ------------


MAX_HITS_PER_SECOND = 36_000.0
"""So many probe hits cost a process at most 4 % of its time: each takes about 1.1 us (measured, host of an H200), of
which the BPF program takes 0.2 us. PyTorch launches up to about 30,000 kernels a second. The limit also ensures that
events stay in their map for about a second before others replace them."""

SETTLED_HITS_PER_SECOND = 6_000.0
"""The limit while all clients are settled: 0.6 % of the time of a process. Of 15 seconds with 90,000 launches each, the
probes count one."""

MAX_QUERIES_PER_SECOND = 4_000.0
"""The same for queries, which can be 400,000 a second: 0.3 % of the time of a process. Above it they are probed for a
part of the time: if there are many, only while GPM is read."""

MAX_LOOKUPS_PER_SECOND = 1_000.0
"""The same for lookups, of which the return of some is probed too: 0.3 %. cuBLAS makes one before some launches."""

FAULT_SECONDS = 1.0
"""The least time between two readings at a fault: any process can cause an Xid, and at once another one."""

MIN_PAUSE_SECONDS = 1.0  # shorter pauses add up to one of this length, because each detachment has its own cost
MAX_PAUSE_SECONDS = 30.0


def probe_hits(work: ProcessWork) -> int:
    """Return how often a process has hit a probe.

    A synchronisation hits two: its return is probed as well. Queries have a limit of their own.
    """
    launches = work.kernels + work.graphs + work.records + work.copies - work.graph_copies + work.transfers
    return launches + work.context_calls + 2 * work.syncs


@dataclass(slots=True)
class Pauses:
    """The pauses of a group of probes, for all processes together.

    The lower limit applies while all clients are `settled`. If one becomes unsettled in a pause, the pause is only as
    long as the higher limit requires. `hits` counts what limits the group.
    """

    settled: bool = False
    hits: Callable[[ProcessWork], int] = probe_hits
    limit: float = MAX_HITS_PER_SECOND
    settled_limit: float = SETTLED_HITS_PER_SECOND
    _due: float = 0.0
    _least_due: float = 0.0
    _began: float | None = None

    def add(self, before: Mapping[int, ProcessWork], now: Mapping[int, ProcessWork], seconds: float) -> None:
        """Add what is due for `seconds` with attached probes. Probes of other groups may be hit in a pause too."""
        earlier = {pid: self.hits(work) for pid, work in before.items()}
        hits = max((self.hits(work) - earlier.get(pid, 0) for pid, work in now.items()), default=0)
        least = max(0.0, hits / self.limit - seconds)
        self._least_due += least
        self._due += max(0.0, hits / self.settled_limit - seconds) if self.settled else least

    @property
    def seconds(self) -> float:
        """The length of the pause that is due, or lasts; 0 if it is too short."""
        due = self._due if self.settled else self._least_due
        return 0.0 if due < MIN_PAUSE_SECONDS else min(due, MAX_PAUSE_SECONDS)

    def begin(self, now: float) -> None:
        """Begin the pause that is due."""
        self._began = now

    def lasts(self, now: float) -> bool:
        """Return whether a pause lasts. If its time is over, end it."""
        if self._began is not None and now >= self._began + self.seconds:
            paused, self._began = now - self._began, None
            self._due = 0.0
            self._least_due = min(MAX_PAUSE_SECONDS, max(0.0, self._least_due - paused))
        return self._began is not None


CHAINS = (Group.RARE, Group.FREQUENT, Group.QUERIES), (Group.LOOKUPS,)
"""Groups that pause. Of a chain, the later ones show nothing without the earlier ones."""

# -- the collector --------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class LibcudaCollector:
    """Attaches the probes as far as the rate limit allows, and reads them together with the GPUs.

    `uses` reads how busy the GPUs were since the last call, and `gpus` their number, SMs and bandwidth; both raise
    DriverError. `boot_ns` reads CLOCK_BOOTTIME, and `wait` sleeps. `check_seccomp` raises BpfError if probes would kill
    clients; then the collector attaches none.
    """

    _: KW_ONLY
    uses: Callable[[], tuple[GpuUse, ...]]
    gpus: Callable[[], NodeGpus]
    libraries: Libraries
    proc: Proc
    clock: Clock
    boot_ns: Callable[[], int]
    recorder: KernelRecorder
    wait: Callable[[float], None] = time.sleep
    check_seccomp: Callable[[LibcudaProbes, str], None] = check_seccomp

    def __post_init__(self) -> None:
        self._machine = platform.machine()
        self._node = NodeGpus(None, 0, 0)
        self._check_failure: BpfError | None = None
        self._probes: LibcudaProbes | None = None
        self._attached: dict[str, Library] = {}
        self._groups: frozenset[Group] = frozenset()
        self._attached_at: dict[str, int] = {}
        self._watched_from_start: dict[tuple[int, int], bool] = {}
        self._failed: dict[str, tuple[str, float]] = {}
        self._pids: tuple[int, ...] = ()
        self._percentages: Mapping[int, float] = {}
        self._last: Mapping[int, ProcessWork] = {}
        self._pauses = {
            Group.RARE: Pauses(hits=lambda work: work.context_calls + 2 * work.context_syncs),
            Group.FREQUENT: Pauses(),
            Group.QUERIES: Pauses(False, attrgetter("queries"), MAX_QUERIES_PER_SECOND, MAX_QUERIES_PER_SECOND),
            Group.LOOKUPS: Pauses(False, attrgetter("lookups"), MAX_LOOKUPS_PER_SECOND, MAX_LOOKUPS_PER_SECOND),
        }
        self._launches_since = self._launches_until = 0
        self._sign_at = self._read_sign_at = 0.0
        self._read_fault_at = float("-inf")
        self._read_at = self.clock.monotonic()
        self._cleaned_at = float("-inf")

    def watch(
        self, percentages: Mapping[int, float], others: Iterable[int], settled: bool = False, sign_at: float = 0.0
    ) -> None:
        """Set what to probe, in any thread: clients with percentages, and others; less often if all are `settled`.

        `sign_at` is when the last sign of a fault was read. After a new one, the next collection reads only kernels.
        """
        self._percentages, self._pids, self._sign_at = percentages, (*percentages, *others), sign_at
        for pauses in self._pauses.values():
            pauses.settled = settled

    def collect(self) -> Reading:
        """Read everything before a pause begins: the launches first, since what GPM reports is older by its lag."""
        try:
            probes, groups, read_at = self._probes or self._open(), self._groups, self._read_at
            now = self.clock.monotonic()
            if self._sign_at > self._read_sign_at and now >= self._read_fault_at + FAULT_SECONDS:
                self._read_sign_at, self._read_fault_at = self._sign_at, now
                return Reading((self._read_kernels(probes, sums(probes.read()), at_fault=True),))
            problems = [Reason(ReasonCode.LIBRARY_NOT_WATCHED, detail=why) for why in self._attach_all(probes)]
            before, work = self._last, self._read(probes, watched=Group.FREQUENT in groups)
            kernels = [self._read_kernels(probes, self._last)] if self.recorder.due(work.boot_ns) else []
            self._count(before, self._read_at - read_at, groups)
            self.wait(GPM_LAG_SECONDS)
            uses: tuple[GpuUse, ...] = ()
            try:
                uses = self.uses()
            except DriverError as error:
                problems.append(error.problem)
            if Group.QUERIES in self._groups - groups:
                before, self._last = self._last, sums(probes.read())
                self._count(before, GPM_LAG_SECONDS, self._groups)
            self._pause(probes)
        except DriverError as error:
            return Reading(problem=error.problem)
        except BpfError as error:
            return Reading(problem=Reason(ReasonCode.PROBES_REFUSED, detail=str(error)))
        return Reading((work, *kernels, *uses), joined(problems))

    def close(self) -> None:
        """Remove all probes, and close all files."""
        if self._probes is not None:
            self._probes.close()
            self._probes = None
        self._attached.clear()
        self.libraries.close()

    def _open(self) -> LibcudaProbes:
        if self._check_failure is not None:
            raise self._check_failure
        if self.proc.pid_namespace(os.getpid()) != INITIAL_PID_NAMESPACE:
            raise BpfError(
                "the exporter is not in the host's PID namespace, whose PIDs the kernel reports; set hostPID: true"
            )
        gpus = self.gpus()
        self._node, sms = gpus, gpus.sms or DEFAULT_SMS
        probes = LibcudaProbes(Kernel(self._machine), self.boot_ns, sms, several_gpus=gpus.number > 1)
        try:
            self.check_seccomp(probes, self._machine)
        except BpfError as error:
            self._check_failure = error  # the kernel stays the same while this process lives
            probes.close()
            raise
        self._probes = probes
        return probes

    def _attach_all(self, probes: LibcudaProbes) -> Sequence[str]:
        """Attach the groups that are not paused to the libraries in use. Return why others are not watched."""
        found = self.libraries.find(self._pids, self._percentages)
        now = self.clock.monotonic()
        libraries = {library.path_to_open: library for library in found.libraries}
        for path in self._attached.keys() - libraries.keys():
            probes.detach(path)
            del self._attached[path]
        self._failed = {path: (why, until) for path, (why, until) in self._failed.items() if path in libraries}
        groups = [Group.NAMES]
        for chain in CHAINS:
            groups += takewhile(lambda group: not self._pauses[group].lasts(now), chain)
        for path, library in libraries.items():
            if path in self._failed and now < self._failed[path][1]:
                continue
            try:
                probes.attach(path, library.offsets, groups)
                if path not in self._attached:
                    self._attached_at[path] = self.boot_ns()
                    self._forget(probes, library.pids)  # what they did since probes were last on it is unknown
                self._attached[path] = library
                self._failed.pop(path, None)
            except BpfError as error:
                self._attached.pop(path, None)
                self._failed[path] = f"{library.path}: {error}", now + RETRY_SECONDS
        probes.begin([group for group in groups if self._attached and group not in self._groups])
        if Group.FREQUENT in groups and Group.FREQUENT not in self._groups:
            self._launches_since, self._launches_until = self.boot_ns(), 0
        self._groups = frozenset(groups if self._attached else ())
        return [*found.problems, *(why for why, _ in self._failed.values())]

    def _read(self, probes: LibcudaProbes, *, watched: bool) -> WorkReading:
        now = self.clock.monotonic()
        seconds, self._read_at = (now - self._read_at if watched else 0.0), now
        parts = {(work.pid, work.device): work for work in probes.read()}
        work = self._last = self._with_known_beginnings(sums(parts.values()))
        allowed = {pid: sms_of(percentage, probes.sms) for pid, percentage in self._percentages.items()}
        probes.limit_sms({pid: sms for pid, sms in allowed.items() if sms is not None})
        reading = WorkReading(
            at=self.clock.now(),
            boot_ns=self.boot_ns(),
            seconds=seconds,
            sms=probes.sms,
            bandwidth=self._node.bandwidth,
            gpus=self._node.number,
            lost=probes.lost,
            processes=tuple(work.values()),
            on_devices=tuple(part for part in parts.values() if part.device >= 0),
            watched=tuple(sorted({pid for library in self._attached.values() for pid in library.pids})),
        )
        self.recorder.update(probes, work, seconds)
        self._clean_up(probes, now)
        return reading

    def _read_kernels(
        self, probes: LibcudaProbes, works: Mapping[int, ProcessWork], *, at_fault: bool = False
    ) -> KernelReading:
        """Return which kernels run. At a fault, read the messages first, so that the newest names are known."""
        if at_fault:
            self.recorder.update(probes, works)
        reading = KernelReading(
            at=self.clock.now(),
            boot_ns=self.boot_ns(),
            at_fault=at_fault,
            launches_since_ns=self._launches_since,
            launches_until_ns=self._launches_until,
        )
        return self.recorder.read(probes, works, frozenset(self._pids), reading)

    def _with_known_beginnings(self, works: Mapping[int, ProcessWork]) -> dict[int, ProcessWork]:
        """Drop `initialized_ns` of a process that is older than the probes on its library: it may be a later call."""
        beginnings = {}
        for pid, work in works.items():
            key = pid, work.first_ns
            path = next((path for path, library in self._attached.items() if pid in library.pids), None)
            if key in self._watched_from_start:
                beginnings[key] = self._watched_from_start[key]
            elif work.initialized_ns and path is not None:
                ticks = self.proc.start_ticks(pid)
                beginnings[key] = ticks is not None and began_ns(ticks) >= self._attached_at[path]
        self._watched_from_start = beginnings
        return {
            pid: work if beginnings.get((pid, work.first_ns)) else replace(work, initialized_ns=0)
            for pid, work in works.items()
        }

    def _count(self, before: Mapping[int, ProcessWork], seconds: float, groups: frozenset[Group]) -> None:
        """Add what is due for these seconds, in which these groups were attached."""
        for group, pauses in self._pauses.items():
            pauses.add(before, self._last, seconds if group in groups else 0.0)

    def _pause(self, probes: LibcudaProbes) -> None:
        """Begin the pauses that are due."""
        for chain in CHAINS:
            due = False
            for group in chain:
                pauses = self._pauses[group]
                due = due or pauses.seconds > 0
                if due and group in self._groups:
                    probes.pause(group)
                    self._groups -= {group}
                    if pauses.seconds:
                        pauses.begin(self._read_at)  # what is due for the time since then is added later
                    if group is Group.FREQUENT:
                        self._launches_until = self.boot_ns()

    def _clean_up(self, probes: LibcudaProbes, now: float) -> None:
        """Delete counts that were read: of ended processes, and of others than clients if room is scarce."""
        crowded = len(self._last) > MAX_PROCESSES // 4  # there is room for the kernels of fewer processes
        if now - self._cleaned_at < CLEANUP_SECONDS and not crowded:
            return
        self._cleaned_at = now
        clients = frozenset(self._pids)
        unneeded: list[int] = []
        for pid, work in self._last.items():
            ticks = self.proc.start_ticks(pid)
            # Another process may have its PID now.
            lives = ticks is not None and began_ns(ticks) <= work.first_ns
            if not lives or (crowded and pid not in clients):
                unneeded.append(pid)
        self._forget(probes, unneeded)

    def _forget(self, probes: LibcudaProbes, pids: Collection[int]) -> None:
        probes.forget(pids)
        self.recorder.forget(pids)
