"""Processes of Slurm jobs and pods: the numbers of jobs, and the processes whose ends show that a job or pod ends."""

import contextlib
import os
import threading
from collections.abc import Collection, Mapping
from itertools import islice
from pathlib import Path

from exporter.clock import Clock
from exporter.collectors.proc import Proc
from exporter.model import observation as kinds
from exporter.model.identity import WorkloadProcess, WorkloadRole
from exporter.model.observation import ProcessReading
from exporter.parse import proc as parse_proc
from exporter.parse.cgroup import CgroupMembership, parse_cgroup, parse_pod_directory, parse_step
from exporter.parse.proc import is_mps_name

MAX_DIRECTORIES = 4096  # the kubelet runs 110 pods by default, and removes the directories of dead ones

SEARCH_SECONDS = 30.0
"""How often /proc is searched, while a daemon that is not expected runs in a job or pod: 20 us for each process."""

NEW_SECONDS = 1.0  # the same, for a daemon or a job that is younger than the last search

MOST_EXAMINED = 512
"""Processes of one job or pod that are examined: those with the lowest PIDs, which are the oldest as a rule."""

MOST_PROCESSES = 16
"""Processes of one job or pod that are monitored: the oldest. They take descriptors that clients could have."""

_STEP_DAEMON = "slurmstepd"
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
        self._titles: dict[str, str] = {}
        """The title of slurmstepd for each directory of a job, empty if none is known."""
        self._searched_at = float("-inf")
        self._lock = threading.Lock()

    def of(self, daemon: kinds.DaemonProcess) -> tuple[WorkloadProcess, ...]:
        """Return the processes that show the end of a daemon's job or pod; none if any process cannot be read.

        These are the processes that were not started by others of the job or pod, without the daemon. Of a job with
        several steps, only those of the daemon's step count, if it has others than the daemon.
        """
        own = parse_cgroup(daemon.cgroup or "", daemon.slurmstepd)
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

    def slurmstepd(self, cgroup: str | None) -> str | None:
        """Return the title of the slurmstepd for a process in this cgroup, as `ProcessReading` has it."""
        with self._lock:
            trusted = self._trusted(cgroup or "")
            step = parse_step(cgroup or "")
            if step is None or parse_cgroup(cgroup or "", trusted).slurm_job_sluid is None:
                return trusted
            known = self._titles.get(step.job_directory)
            age = self._clock.monotonic() - self._searched_at
            if not known and age >= (NEW_SECONDS if known is None else SEARCH_SECONDS):
                with contextlib.suppress(OSError):
                    self._search()
                self._titles.setdefault(step.job_directory, "")
            return self._titles.get(step.job_directory, "")

    def may_know_more(self, reading: ProcessReading) -> bool:
        """Return whether a later reading may have the number of the process's job."""
        member = parse_cgroup(reading.cgroup or "", reading.slurmstepd)
        in_pod = reading.slurmstepd is None and bool(self._trusted_namespaces) and member.pod_uid is not None
        may_be_job = member.job is not None or (in_pod and parse_step(reading.cgroup or "") is not None)
        return member.slurm_job_id is None and may_be_job

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
        """Find the processes of all jobs and pods, and the titles of slurmstepd. Raises OSError."""
        self._searched_at = self._clock.monotonic()
        members, titles = dict[str, dict[int, str]](), dict[str, str]()
        self._members = {}
        for each in self._proc.pids():
            cgroup = self._proc.certain_text(each, "cgroup")
            step = parse_step(cgroup)
            if step is not None:
                title = self._titles.get(step.job_directory)
                if step.of_slurmstepd and not title:
                    title = self._title(each, cgroup)
                titles[step.job_directory] = title or ""
                if title:  # What is known stays known if the search fails.
                    self._titles[step.job_directory] = title
            found = parse_cgroup(cgroup, self._trusted(cgroup)).job_or_pod
            if found is not None:
                members.setdefault(found, {})[each] = cgroup
        self._members, self._titles = members, titles

    def _title(self, pid: int, cgroup: str) -> str | None:
        """Return the title of a slurmstepd of the node's root, from its one directory; None if it is not certain.

        Only root can enter that directory. A user namespace with other UIDs has another map. The title is in the memory
        of the process: a read of another user's memory could wait without end.
        """
        start_ticks, users = self._proc.start_ticks(pid), self._proc.text(pid, "uid_map")
        is_root = parse_proc.real_user(self._proc.status(pid) or "") == 0 and users == self._proc.text(1, "uid_map")
        if None in (start_ticks, users) or not is_root or self._proc.name(pid) != _STEP_DAEMON:
            return None
        title = next(iter(self._proc.arguments(pid)), None)
        same = start_ticks == self._proc.start_ticks(pid) and cgroup == self._proc.text(pid, "cgroup")
        return title if same else None

    def _first(self, pid: int, own: CgroupMembership, members: _Members) -> WorkloadProcess | None:
        """Return a process; None if of MPS or Slurm, or if one of its job or pod started it. Raises OSError."""
        name, stat = self._proc.name(pid), self._proc.certain_text(pid, "stat")
        start_ticks = parse_proc.start_ticks(stat)
        if name is None or name == _STEP_DAEMON or is_mps_name(name):
            return None
        if start_ticks is None or parse_proc.is_zombie(stat):
            return None
        parent = parse_proc.parent_pid(stat) or 0
        if parent in members and self._proc.name(parent) != _STEP_DAEMON:
            return None
        role = WorkloadRole.TASK
        if own.job is None:
            same = parse_cgroup(members[pid]).container == own.container
            role = WorkloadRole.SANDBOX if name == _SANDBOX else WorkloadRole.CONTAINER if same else role
        return WorkloadProcess(pid=pid, start_ticks=start_ticks, role=role)


def _step(cgroup: str | None) -> str | None:
    found = parse_step(cgroup or "")
    return None if found is None else found.name
