"""Processes of jobs, pods and units: what names a job, whose ends show that a job or pod ends, and users of units."""

import contextlib
import os
import threading
from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from exporter.clock import Clock
from exporter.collectors.proc import Proc, has_name
from exporter.model import observation as kinds
from exporter.model.identity import JobManager, WorkloadProcess, WorkloadRole
from exporter.model.observation import ProcessReading
from exporter.parse import proc as parse_proc
from exporter.parse.cgroup import CgroupMembership, parse_cgroup, parse_pod_directory, parse_step
from exporter.parse.proc import is_mps_name

MAX_DIRECTORIES = 4096  # the kubelet runs 110 pods by default, and removes the directories of dead ones

SEARCH_SECONDS = 30.0
"""How often /proc is searched, while a daemon runs that is not expected: 30 us for each process."""

NEW_SECONDS = 1.0  # the same, for a daemon or a job that is younger than the last search

MOST_EXAMINED = 512
"""Processes of one job or pod that are examined: those with the lowest PIDs, which are the oldest as a rule."""

MOST_PROCESSES = 16
"""Processes of one job or pod that are monitored: the oldest. They take descriptors that clients could have."""

_STEP_DAEMON, _STARTER, _SHEPHERD = "slurmstepd", "condor_starter", "sge_shepherd"
_BATCH = frozenset({_STEP_DAEMON, _STARTER, _SHEPHERD})
_OVERFLOW_UID = 65534  # also of all users who have no UID in the exporter's user namespace
_FLUX = "flux.service"  # the unit of its broker, which is the oldest process there: jobs may be in it too
_MAX_ANCESTORS = 64

_EXTERN = "step_extern"
"""The step of processes that enter the job from outside (prolog, ssh). It ends later than the others."""

_SANDBOX = "pause"
"""The program that holds a pod's namespaces, in containerd, CRI-O and cri-dockerd. Some pods of CRI-O have none."""

_Members = Mapping[int, str]  # the cgroups of processes by PID
_Key = tuple[JobManager, str]
"""With the directory of a Slurm job, the slot of HTCondor, or the user and groups of a task of Grid Engine."""


class _Source(NamedTuple):
    """What names jobs, as `ProcessReading.job_source`, and the process that it was read of; empty if unknown."""

    start_ticks: int = 0
    pid: int = 0
    text: str = ""


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
        self._sources: dict[_Key, _Source] = {}
        self._users: dict[str | None, set[int | None]] = {}
        """The real UIDs of the processes in each unit, or below it, None for what is unknown."""
        self._searched_at = float("-inf")
        self._lock = threading.Lock()

    def of(self, daemon: kinds.DaemonProcess) -> tuple[WorkloadProcess, ...]:
        """Return the processes that show the end of a daemon's job or pod; none if any process cannot be read.

        These are the processes that were not started by others of the job or pod, without the daemon. Of a job with
        several steps, only those of the daemon's step count, if it has others than the daemon. If no job is known, they
        are those of the daemon's user in the same cgroup. A daemon in the foreground that none of them started may be
        what the cgroup runs: if it ends, they end. So none are returned.
        """
        own = parse_cgroup(daemon.cgroup or "", daemon.job_source)
        is_root = all(not line.rpartition(":")[2].strip("/.") for line in (daemon.cgroup or "").strip().split("\n"))
        whole = own.job_or_pod or (None if is_root else daemon.cgroup)
        if not whole or daemon.pid is None:
            return ()
        try:
            members = self._members_of(whole, daemon.pid)
            if own.job_or_pod is None:
                users = {pid: self._proc.status(pid) or "" for pid in sorted(members)[:MOST_EXAMINED]}
                members = {pid: members[pid] for pid in users if parse_proc.real_user(users[pid]) == daemon.uid}
            if daemon.foreground and own.pod_uid is None and self._proc.parent_pid(daemon.pid) not in members:
                return ()
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
            of_node = parse_cgroup(cgroup or "", trusted).is_of_node
            if of_node and pid is not None and (shepherd := self._shepherd(pid)) is not None:
                return shepherd.text
            # Grid Engine gives each task a group of its own, also for processes that have lost their ancestors.
            key = self._key(cgroup or "", trusted, pid)
            if key is None:
                return trusted
            known, age = self._known(key), self._clock.monotonic() - self._searched_at
            if not known and age >= (NEW_SECONDS if known is None else SEARCH_SECONDS):
                with contextlib.suppress(OSError):
                    self._search()
                self._sources.setdefault(key, _Source())
                known = self._known(key)
            return known or ""

    def _known(self, key: _Key) -> str | None:
        """Return what the last search found; None if it is not searched yet, or of a process that has ended since.

        Then the slot or the group may be another job's.
        """
        ticks, pid, text = self._sources.get(key, (0, 0, None))
        return text if not text or self._proc.start_ticks(pid) == ticks else None

    def unit_users(self, reading: ProcessReading) -> tuple[int, ...] | None:
        """Return `ProcessReading.unit_users`. A unit of several users stays shared: its workload must not alternate."""
        unit = parse_cgroup(reading.cgroup or "").own_unit
        if unit is None:
            return None
        with self._lock:
            # Only root makes units, so that new ones are few.
            if self._clock.monotonic() - self._searched_at >= SEARCH_SECONDS or unit not in self._users:
                with contextlib.suppress(OSError):
                    self._search()
                self._users.setdefault(unit, {None})
            users = {reading.uid, *self._users[unit]}
        known = tuple(sorted(uid for uid in users if uid is not None))
        return known if None not in users or len(known) > 1 else None

    def may_know_more(self, reading: ProcessReading) -> bool:
        """Return whether a later reading may have the number of the process's job."""
        member = parse_cgroup(reading.cgroup or "", reading.job_source)
        if member.job_manager is JobManager.SLURM:
            return not (member.job_id or "").isdecimal()
        if member.pod_uid is None:
            return reading.job_source == ""
        return reading.job_source is None and bool(self._trusted_namespaces and parse_step(reading.cgroup or ""))

    def _shepherd(self, pid: int) -> _Source | None:
        """Return the working directory of root's shepherd that a process descends from."""
        started = float("inf")
        for _ in range(_MAX_ANCESTORS):
            stat = self._proc.text(pid, "stat") or ""
            ticks = parse_proc.start_ticks(stat)
            if ticks is None or ticks > started:  # Another process has the PID of a parent that ended.
                return None
            if self._proc.name(pid) == _SHEPHERD:
                return self._of_root(pid, self._proc.text(pid, "cgroup") or "", _SHEPHERD)
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
        """Find the processes of all jobs and pods, what names jobs, and the users of units. Raises OSError."""
        self._searched_at = self._clock.monotonic()
        self._members, self._users = {}, {unit: {None, *users} for unit, users in self._users.items()}
        cgroups = {pid: self._proc.certain_text(pid, "cgroup") for pid in {1, *self._proc.pids()}}
        found, all_users = dict[_Key, set[_Source]](), dict[str | None, set[int | None]]()
        for pid, cgroup in cgroups.items():
            for key, source in self._named_by(pid, cgroup):
                found.setdefault(key, set()).add(source)
            # Where the processes of other users are hidden (hidepid=2), the first process cannot be read. A unit with
            # the first process of this PID namespace may have processes outside it.
            member = parse_cgroup(cgroup)
            users = all_users.setdefault(member.unit, self._users.get(member.unit, set()) - {None})
            if member.own_unit is None or pid == 1:
                users.add(None)
            elif status := self._proc.certain_text(pid, "status"):  # It may have ended.
                users.add(uid if (uid := parse_proc.real_user(status)) != _OVERFLOW_UID else None)
        self._users = all_users
        self._sources = {key: _one_of(key[0], sources) for key, sources in found.items()}
        has_tasks = any(manager is JobManager.GRID_ENGINE for manager, _ in found)
        members: dict[str, dict[int, str]] = {}
        for pid, cgroup in cgroups.items():
            trusted = self._trusted(cgroup)
            needed = self._key(cgroup, trusted, pid if has_tasks else None)
            text = trusted if needed is None else self._sources.get(needed, _Source()).text
            members.setdefault(parse_cgroup(cgroup, text).job_or_pod or cgroup, {})[pid] = cgroup
        self._members = members

    def _named_by(self, pid: int, cgroup: str) -> Iterator[tuple[_Key, _Source]]:
        """Yield what a process of a batch system names."""
        step, member = parse_step(cgroup), parse_cgroup(cgroup)
        if step is not None and step.of_slurmstepd and (source := self._of_root(pid, cgroup, _STEP_DAEMON)):
            yield (JobManager.SLURM, step.job_directory), source
        elif member.unit == _FLUX:
            ticks, uid = self._proc.start_ticks(pid), parse_proc.real_user(self._proc.status(pid) or "")
            if ticks is not None and uid is not None:
                yield (JobManager.FLUX, ""), _Source(ticks, pid, str(uid))
        elif member.is_of_node and (name := self._proc.name(pid)) in (_STARTER, _SHEPHERD):
            if (source := self._of_root(pid, cgroup, name)) is None:
                return
            if name == _STARTER:
                yield from (((JobManager.HTCONDOR, argument), source) for argument in source.text.split("\0"))
            for groups in map(self._groups, (self._proc.children(pid) or ()) if name == _SHEPHERD else ()):
                if groups is not None:
                    yield (JobManager.GRID_ENGINE, groups), source

    def _key(self, cgroup: str, trusted: str | None, pid: int | None) -> _Key | None:
        """Return the key of what names the job of a process in this cgroup; None if it needs nothing."""
        member, step = parse_cgroup(cgroup, trusted), parse_step(cgroup)
        if member.job_manager is JobManager.SLURM and step is not None:
            return None if (member.job_id or "").isdecimal() else (JobManager.SLURM, step.job_directory)
        if member.job_slot is not None:
            return JobManager.HTCONDOR, member.job_slot
        if member.is_of_user:
            return (JobManager.FLUX, "") if "shell-" in cgroup else None
        groups = self._groups(pid) if member.is_of_node and pid is not None else None
        return None if groups is None else (JobManager.GRID_ENGINE, groups)

    def _of_root(self, pid: int, cgroup: str, name: str) -> _Source | None:
        """Return what a process of the node's root with this name names jobs with; None if that is not certain.

        A user namespace with other UIDs has another map. Arguments are in the memory of the process: a read of another
        user's memory could wait without end. Only root can enter the directory of a slurmstepd, maybe in a container.
        """
        start_ticks, status = self._proc.start_ticks(pid), self._proc.status(pid) or ""
        users = self._proc.text(pid, "uid_map")
        is_root = parse_proc.real_user(status) == 0 and users == self._proc.text(1, "uid_map")
        of_node = parse_cgroup(cgroup).is_of_node and len(parse_proc.namespace_pids(status)) <= 1
        if start_ticks is None or users is None or not is_root or not (of_node or name == _STEP_DAEMON):
            return None
        if self._proc.name(pid) != name:
            return None
        arguments = () if name == _SHEPHERD else self._proc.arguments(pid)
        title = "\0".join(arguments[:1] if name == _STEP_DAEMON else arguments).rstrip("\0")
        text = self._proc.working_directory(pid) if name == _SHEPHERD else title
        same = start_ticks == self._proc.start_ticks(pid) and cgroup == self._proc.text(pid, "cgroup")
        return _Source(start_ticks, pid, text) if same and text else None

    def _first(self, pid: int, own: CgroupMembership, members: _Members) -> WorkloadProcess | None:
        """Return a process; None if of MPS or a batch system, or if one of its own started it. Raises OSError."""
        name, stat = self._proc.name(pid), self._proc.certain_text(pid, "stat")
        start_ticks = parse_proc.start_ticks(stat)
        if name is None or start_ticks is None or name in _BATCH or is_mps_name(name) or parse_proc.is_zombie(stat):
            return None
        parent = parse_proc.parent_pid(stat) or 0
        if parent in members and self._proc.name(parent) not in _BATCH:
            return None
        role = WorkloadRole.TASK
        if own.pod_uid is not None and own.job_or_pod == own.pod_uid:
            same = parse_cgroup(members[pid]).container == own.container
            role = WorkloadRole.SANDBOX if name == _SANDBOX else WorkloadRole.CONTAINER if same else role
        return WorkloadProcess(pid=pid, start_ticks=start_ticks, role=role)


def _step(cgroup: str | None) -> str | None:
    found = parse_step(cgroup or "")
    return None if found is None else found.name


def _one_of(manager: JobManager, sources: Collection[_Source]) -> _Source:
    """Return the oldest, such as the broker of Flux; of HTCondor and Grid Engine none, if two name different jobs."""
    differ = len({each.text for each in sources}) > 1
    return _Source() if differ and manager in (JobManager.HTCONDOR, JobManager.GRID_ENGINE) else min(sources)
