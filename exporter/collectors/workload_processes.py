"""Processes of jobs and pods: those that name a job, and those whose ends show that a job or pod ends."""

import contextlib
import os
import threading
from collections.abc import Callable, Collection, Mapping
from itertools import islice
from pathlib import Path

from exporter.clock import Clock
from exporter.collectors.proc import Proc, has_name
from exporter.model import observation as kinds
from exporter.model.identity import JobManager, WorkloadProcess, WorkloadRole
from exporter.model.observation import ProcessReading
from exporter.parse import proc as parse_proc
from exporter.parse.cgroup import CgroupMembership, parse_cgroup, parse_pod_directory, parse_step
from exporter.parse.proc import MPS_PROGRAM_PREFIX

MAX_DIRECTORIES = 4096  # the kubelet runs 110 pods by default, and removes the directories of dead ones

SEARCH_SECONDS = 30.0
"""How often /proc is searched, while a daemon that is not expected runs in a job or pod: 30 us for each process."""

NEW_SECONDS = 1.0  # the same, for a daemon or a job that is younger than the last search

MOST_EXAMINED = 512
"""Processes of one job or pod that are examined: those with the lowest PIDs, which are the oldest as a rule."""

MOST_PROCESSES = 16
"""Processes of one job or pod that are monitored: the oldest. They take descriptors that clients could have."""

_STEP_DAEMON, _STARTER, _SHEPHERD = "slurmstepd", "condor_starter", "sge_shepherd"
_BATCH = frozenset({_STEP_DAEMON, _STARTER, _SHEPHERD})
_FLUX = "flux.service"  # the unit of its broker, which is the oldest process there: jobs may be in it too
_MAX_ANCESTORS = 64

_EXTERN = "step_extern"
"""The step of processes that enter the job from outside (prolog, ssh). It ends later than the others."""

_SANDBOX = "pause"
"""The program that holds a pod's namespaces, in containerd, CRI-O and cri-dockerd. Some pods of CRI-O have none."""

_Members = Mapping[int, str]  # the cgroups of processes by PID


class WorkloadProcesses:
    """The processes of jobs and pods. Several threads may use it.

    `trusted_namespaces` are those whose pods may run Slurm. `pods` is the directory of the pods' logs.
    """

    def __init__(
        self, proc: Proc, clock: Clock, pods: Path | None = None, trusted_namespaces: Collection[str] = ()
    ) -> None:
        self._proc = proc
        self._clock = clock
        self._pods = pods
        self._trusted_namespaces = trusted_namespaces
        self._namespaces: dict[str, str] = {}  # of pods by UID
        self._members: dict[str, dict[int, str]] = {}
        self._sources: dict[str, str] = {}
        """`ProcessReading.job_source` by the directory of a Slurm job, the slot of HTCondor, the unit of Flux, and the
        user and groups of a task of Grid Engine; empty if it is unknown."""
        self._searched_at = float("-inf")
        self._lock = threading.Lock()

    def of(self, daemon: kinds.DaemonProcess) -> tuple[WorkloadProcess, ...]:
        """Return the processes that show the end of a daemon's job or pod; none if any process cannot be read.

        These are the processes that were not started by others of the job or pod, without the daemon. Of a job with
        several steps, only those of the daemon's step count, if it has others than the daemon.
        """
        own = parse_cgroup(daemon.cgroup or "", daemon.job_source)
        if own.job_or_pod is None or daemon.pid is None:
            return ()
        try:
            members = self._members_of(own.job_or_pod, daemon.pid)
            found = [self._first(pid, own, members) for pid in sorted(members)[:MOST_EXAMINED]]
        except OSError:
            return ()
        oldest = sorted(filter(None, found), key=lambda process: (process.start_ticks, process.pid))
        processes = [(process, members[process.pid]) for process in oldest if process.pid != daemon.pid]
        step = [process for process, cgroup in processes if _step(cgroup) == _step(daemon.cgroup)]
        others = [process for process, cgroup in processes if _step(cgroup) != _EXTERN]
        return tuple((step or others)[:MOST_PROCESSES])

    def job_source(self, cgroup: str | None, pid: int | None = None) -> str | None:
        """Return what names the job of a process in this cgroup, as `ProcessReading` has it."""
        with self._lock:
            trusted = self._trusted(cgroup or "")
            key = _key(cgroup or "", trusted)
            if key is None and pid is not None and parse_cgroup(cgroup or "", trusted).is_of_node:
                # Grid Engine gives each task a group of its own, also for processes that have lost their ancestors.
                if (directory := self._shepherd(pid)) is not None:
                    return directory
                key = self._groups(pid)
            if key is None:
                return trusted
            known, age = self._sources.get(key), self._clock.monotonic() - self._searched_at
            if not known and age >= (NEW_SECONDS if known is None else SEARCH_SECONDS):
                with contextlib.suppress(OSError):
                    self._search()
                self._sources.setdefault(key, "")
            return self._sources.get(key, "")

    def may_know_more(self, reading: ProcessReading) -> bool:
        """Return whether a later reading may have the number of the process's job."""
        member = parse_cgroup(reading.cgroup or "", reading.job_source)
        if member.job_manager is JobManager.SLURM:
            return not (member.job_id or "").isdecimal()
        if member.pod_uid is None:
            return reading.job_source == ""
        return reading.job_source is None and bool(self._trusted_namespaces and parse_step(reading.cgroup or ""))

    def _shepherd(self, pid: int) -> str | None:
        """Return the working directory of root's shepherd that a process descends from."""
        started = float("inf")
        for _ in range(_MAX_ANCESTORS):
            stat = self._proc.text(pid, "stat") or ""
            ticks = parse_proc.start_ticks(stat)
            if ticks is None or ticks > started:  # Another process has the PID of a parent that ended.
                return None
            if self._proc.name(pid) == _SHEPHERD:
                cgroup = self._proc.text(pid, "cgroup") or ""
                return self._of_root(pid, cgroup, _SHEPHERD, self._proc.working_directory)
            pid, started = parse_proc.parent_pid(stat) or 0, ticks
        return None

    def _groups(self, pid: int) -> str | None:
        """Return the user of a process, if not root, with the groups that have no name; None without these."""
        status = self._proc.status(pid) or ""
        uid, groups = parse_proc.real_user(status), sorted(parse_proc.group_ids(status))
        nameless = [group for group in groups if not has_name(group)] if uid else []
        return f"{uid}:{nameless}" if nameless else None

    def _trusted(self, cgroup: str) -> str | None:
        """Return an empty title if the Slurm in the pod of this cgroup is trusted; else None."""
        uid = parse_cgroup(cgroup).pod_uid if self._trusted_namespaces else None
        if uid is None or self._pods is None or parse_step(cgroup) is None:
            return None
        if uid not in self._namespaces:
            with contextlib.suppress(OSError), os.scandir(self._pods) as entries:
                pods = (parse_pod_directory(entry.name) for entry in islice(entries, MAX_DIRECTORIES))
                self._namespaces = {pod.uid: pod.namespace for pod in pods if pod is not None}
        return "" if self._namespaces.get(uid) in self._trusted_namespaces else None

    def _members_of(self, name: str, pid: int) -> _Members:
        """Return the processes of a job or pod by PID, from a search of all. Raises OSError."""
        with self._lock:
            age = self._clock.monotonic() - self._searched_at
            if age >= SEARCH_SECONDS or (age >= NEW_SECONDS and pid not in self._members.get(name, {})):
                self._search()
            return self._members.get(name, {})

    def _search(self) -> None:
        """Find the processes of all jobs and pods, and what names jobs. Raises OSError."""
        self._searched_at = self._clock.monotonic()
        cgroups, sources, brokers = dict[int, str](), dict[str, str](), dict[int, int]()
        self._members = {}
        for each in self._proc.pids():
            cgroups[each] = cgroup = self._proc.certain_text(each, "cgroup")
            step, member = parse_step(cgroup), parse_cgroup(cgroup)
            if step is not None:
                title = self._sources.get(step.job_directory, "")
                if step.of_slurmstepd and not title:
                    title = (self._of_root(each, cgroup, _STEP_DAEMON, self._arguments) or "").partition("\0")[0]
                sources[step.job_directory] = title
                if title:  # What is known stays known if the search fails.
                    self._sources[step.job_directory] = title
            elif member.unit == _FLUX:
                ticks, uid = self._proc.start_ticks(each), parse_proc.real_user(self._proc.status(each) or "")
                brokers |= {} if ticks is None or uid is None else {ticks: uid}
            elif member.is_of_node and (name := self._proc.name(each)) in (_STARTER, _SHEPHERD):
                read = self._arguments if name == _STARTER else self._proc.working_directory
                source = self._of_root(each, cgroup, name or "", read) or ""
                groups = map(self._groups, self._proc.children(each) or ())
                for key in filter(None, set(source.split("\0")) if name == _STARTER else groups):
                    # What two processes name differently is unknown.
                    sources[key] = source if sources.get(key, source) == source else ""
        if brokers:
            sources[_FLUX] = str(brokers[min(brokers)])
        self._sources, members = sources, dict[str, dict[int, str]]()
        grid_engine = any(source.startswith("/") for source in sources.values())
        for each, cgroup in cgroups.items():
            trusted = self._trusted(cgroup)
            needed = _key(cgroup, trusted)
            if needed is None and grid_engine and parse_cgroup(cgroup, trusted).is_of_node:
                needed = self._groups(each)
            whole = parse_cgroup(cgroup, trusted if needed is None else sources.get(needed)).job_or_pod
            if whole is not None:
                members.setdefault(whole, {})[each] = cgroup
        self._members = members

    def _arguments(self, pid: int) -> str:
        return "\0".join(self._proc.arguments(pid)).rstrip("\0")

    def _of_root(self, pid: int, cgroup: str, name: str, read: Callable[[int], str | None]) -> str | None:
        """Return what is read of a process of the node's root with this name; None if that is not certain.

        A user namespace with other UIDs has another map. Arguments are in the memory of the process: a read of another
        user's memory could wait without end. Only root can enter the directory of a slurmstepd, maybe in a container.
        """
        start_ticks, status = self._proc.start_ticks(pid), self._proc.status(pid) or ""
        users = self._proc.text(pid, "uid_map")
        is_root = parse_proc.real_user(status) == 0 and users == self._proc.text(1, "uid_map")
        of_node = parse_cgroup(cgroup).is_of_node and len(parse_proc.namespace_pids(status)) <= 1
        if None in (start_ticks, users) or not is_root or not (of_node or name == _STEP_DAEMON):
            return None
        found = read(pid) if self._proc.name(pid) == name else None
        same = start_ticks == self._proc.start_ticks(pid) and cgroup == self._proc.text(pid, "cgroup")
        return found if same else None

    def _first(self, pid: int, own: CgroupMembership, members: _Members) -> WorkloadProcess | None:
        """Return a process; None if of MPS or a batch system, or if one of its own started it. Raises OSError."""
        name, stat = self._proc.name(pid), self._proc.certain_text(pid, "stat")
        start_ticks = parse_proc.start_ticks(stat)
        if name in (None, MPS_PROGRAM_PREFIX, *_BATCH) or start_ticks is None or parse_proc.is_zombie(stat):
            return None
        parent = parse_proc.parent_pid(stat) or 0
        if parent in members and self._proc.name(parent) not in _BATCH:
            return None
        role = WorkloadRole.TASK
        if own.job_or_pod == own.pod_uid:
            same = parse_cgroup(members[pid]).container == own.container
            role = WorkloadRole.SANDBOX if name == _SANDBOX else WorkloadRole.CONTAINER if same else role
        return WorkloadProcess(pid=pid, start_ticks=start_ticks, role=role)


def _step(cgroup: str | None) -> str | None:
    found = parse_step(cgroup or "")
    return None if found is None else found.name


def _key(text: str, trusted: str | None) -> str | None:
    """Return the key in `_sources` of what names the job of a process in this cgroup; None if it needs nothing."""
    member, step = parse_cgroup(text, trusted), parse_step(text)
    if member.job_manager is JobManager.SLURM and step is not None:
        return None if (member.job_id or "").isdecimal() else step.job_directory
    return member.job_slot or (_FLUX if member.is_of_user and "shell-" in text else None)
