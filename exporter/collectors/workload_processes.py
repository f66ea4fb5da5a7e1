"""Finds the processes whose ends show that the Slurm job or pod of a daemon ends."""

import re
import threading
from collections.abc import Mapping
from errno import EIO

from exporter.clock import Clock
from exporter.collectors.proc import Proc
from exporter.model.identity import WorkloadProcess, WorkloadRole
from exporter.model.observation import DaemonProcess
from exporter.parse import proc as parse_proc
from exporter.parse.cgroup import CgroupMembership, parse_cgroup
from exporter.parse.proc import MPS_PROGRAM_PREFIX

SEARCH_SECONDS = 30.0
"""How often /proc is searched, while a daemon that is not expected runs in a job or pod: 20 us for each process."""

NEW_SECONDS = 1.0
"""The same, for a daemon that is younger than the last search."""

MOST_EXAMINED = 512
"""Processes of one job or pod that are examined: those with the lowest PIDs, which are the oldest as a rule."""

MOST_PROCESSES = 16
"""Processes of one job or pod that are monitored: the oldest. They take descriptors that clients could have."""

_STEP_DAEMON = "slurmstepd"
_STEP = re.compile(r"/(?:job_[0-9]+|s[0-9A-Z]{13})/(step_[a-z0-9_+]+)")
_EXTERN = "step_extern"
"""The step of processes that enter the job from outside (prolog, ssh). It ends later than the others."""

_SANDBOX = "pause"
"""The program that holds a pod's namespaces, in containerd, CRI-O and cri-dockerd. Some pods of CRI-O have none."""

_Members = Mapping[int, str]
"""The cgroups of processes by PID."""


class WorkloadProcesses:
    """The processes of jobs and pods. Several threads may use it."""

    def __init__(self, proc: Proc, clock: Clock) -> None:
        self._proc = proc
        self._clock = clock
        self._members: dict[str, dict[int, str]] = {}
        self._searched_at = float("-inf")
        self._lock = threading.Lock()

    def of(self, daemon: DaemonProcess) -> tuple[WorkloadProcess, ...]:
        """Return the processes that show the end of a daemon's job or pod; none if any process cannot be read.

        These are the processes that were not started by others of the job or pod, without the daemon. Of a job with
        several steps, only those of the daemon's step count, if it has others than the daemon.
        """
        own = parse_cgroup(daemon.cgroup or "")
        if own.job_or_pod is None or daemon.pid is None:
            return ()
        try:
            members = self._members_of(own.job_or_pod, daemon.pid)
            found = [self._first(pid, own, members) for pid in sorted(members)[:MOST_EXAMINED]]
        except OSError:
            return ()
        oldest = sorted(filter(None, found), key=lambda each: (each.start_ticks, each.pid))
        processes = [(process, members[process.pid]) for process in oldest if process.pid != daemon.pid]
        step = [process for process, cgroup in processes if _step(cgroup) == _step(daemon.cgroup)]
        others = [process for process, cgroup in processes if _step(cgroup) != _EXTERN]
        return tuple((step or others)[:MOST_PROCESSES])

    def _members_of(self, name: str, pid: int) -> _Members:
        """Return the processes of a job or pod by PID, from a search of all. Raises OSError."""
        with self._lock:
            age = self._clock.monotonic() - self._searched_at
            if age >= SEARCH_SECONDS or (age >= NEW_SECONDS and pid not in self._members.get(name, {})):
                self._members = {}
                for each in self._proc.pids():
                    cgroup = self._read(each, "cgroup")
                    found = parse_cgroup(cgroup).job_or_pod
                    if found is not None:
                        self._members.setdefault(found, {})[each] = cgroup
                self._searched_at = self._clock.monotonic()
            return self._members.get(name, {})

    def _read(self, pid: int, name: str) -> str:
        """Return a file of a process; empty if the process has ended. Raises OSError if that is not certain."""
        text = self._proc.text(pid, name)
        if text is None and not self._proc.is_unused(pid):
            raise OSError(EIO, f"process {pid} cannot be read")
        return text or ""

    def _first(self, pid: int, own: CgroupMembership, members: _Members) -> WorkloadProcess | None:
        """Return a process; None if it is one of MPS or Slurm, or if another one of the job or pod started it.

        Raises OSError.
        """
        name, stat = self._proc.name(pid), self._read(pid, "stat")
        start_ticks = parse_proc.start_ticks(stat)
        if name in (None, MPS_PROGRAM_PREFIX, _STEP_DAEMON) or start_ticks is None or parse_proc.is_zombie(stat):
            return None
        parent = parse_proc.parent_pid(stat) or 0
        if parent in members and self._proc.name(parent) != _STEP_DAEMON:
            return None
        role = WorkloadRole.TASK
        if own.pod_uid is not None:
            same = parse_cgroup(members[pid]).container == own.container
            role = WorkloadRole.SANDBOX if name == _SANDBOX else WorkloadRole.CONTAINER if same else role
        return WorkloadProcess(pid=pid, start_ticks=start_ticks, role=role)


def _step(cgroup: str | None) -> str | None:
    """Return the step of a process in a Slurm job."""
    found = _STEP.search(cgroup or "")
    return None if found is None else found[1]
