"""What /proc shows of MPS' processes at one pipe directory, looked at a hundred times a second."""

import ctypes
import os
import threading
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tests.chaos.poller import Poller

LOOK_SECONDS = 0.01
YOUNG_SECONDS = 5.0
"""A process takes its names some time after its start: until this age it is looked at again."""

BRIEF_SECONDS = 2.0
"""The program that starts a daemon ends sooner, and so does a server that has no daemon at its exec."""

COMM = b"nvidia-cuda-mps\n"

GOES_ON_SECONDS = 2.0
"""The exporter looks at states twice a second, and on a busy machine less often: it may miss a shorter pause between
two stops, and takes them for one. A stopped process that is killed also seems to go on for a moment."""

PR_SET_CHILD_SUBREAPER = 36


class Role(StrEnum):
    """What a process is."""

    DAEMON = "nvidia-cuda-mps-control"
    SERVER = "nvidia-cuda-mps-server"


@dataclass(slots=True)
class MpsProcess:
    """A process of MPS, from when it was first seen until its end. Times are seconds since the epoch.

    `status` is how it ended, if this process could collect it: a negative signal number, or an exit code.
    """

    pid: int
    ticks: int
    role: Role
    parent: int
    began: float
    stopped_since: float | None = None
    stopped_until: float = 0.0
    """When it was last seen stopped, and since when."""
    ended: float | None = None
    stopped_for: float = 0.0
    """How long it had been stopped when it ended."""
    status: int | None = None


def is_brief(process: MpsProcess) -> bool:
    """Return whether this may be no daemon: the program that starts one, or a server before its exec, has its name."""
    return process.ended is not None and process.ended - process.began < BRIEF_SECONDS and process.status in (0, None)


class ProcessWatch(Poller):
    """A thread that looks. This process adopts daemons whose starter has ended, to learn how they end."""

    def __init__(self, pipe_directory: Path) -> None:
        super().__init__(LOOK_SECONDS)
        self._variable = f"CUDA_MPS_PIPE_DIRECTORY={pipe_directory}".encode()
        self._living: dict[int, MpsProcess] = {}
        self._candidates: dict[int, _Candidate] = {}
        self._ended: list[MpsProcess] = []
        self._duplicates: list[tuple[float, tuple[int, ...]]] = []
        self._lock = threading.Lock()

    def open(self) -> None:
        """Begin."""
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        super().open()

    def living(self, role: Role) -> list[MpsProcess]:
        """Return those that run now, the oldest first."""
        with self._lock:
            return [process for process in self._living.values() if process.role is role]

    def ended(self) -> list[MpsProcess]:
        """Return all that have ended, in order."""
        with self._lock:
            return list(self._ended)

    def duplicate_daemons(self) -> list[tuple[float, tuple[int, ...]]]:
        """Return when more than one control daemon was seen, and which."""
        with self._lock:
            return list(self._duplicates)

    def look(self) -> None:
        """Look at all processes once."""
        now = time.time()
        pids = {int(name) for name in os.listdir("/proc") if name.isdigit()}
        with self._lock:
            for pid in pids - self._living.keys():
                self._identify(pid, now)
            self._candidates = {pid: each for pid, each in self._candidates.items() if pid in pids}
            for process in list(self._living.values()):
                self._follow(process, now)
            known = {process.pid: process for process in self._living.values() if process.role is Role.DAEMON}
            # A child that was met before its parent is a server to be, too.
            daemons = tuple(pid for pid, process in known.items() if process.parent not in known)
            if len(daemons) > 1:
                self._duplicates.append((now, daemons))

    def _identify(self, pid: int, now: float) -> None:
        candidate = self._candidates.get(pid)
        if candidate is None:
            stat = _stat(pid)
            candidate = self._candidates[pid] = _Candidate(now, 0 if stat is None else stat.parent)
        role = _role(pid, self._variable) if now - candidate.since < YOUNG_SECONDS else None
        # A daemon's child is a server that has not yet its own name.
        if role is None or (role is Role.DAEMON and candidate.parent in self._living):
            return
        stat = _stat(pid)
        if stat is not None:
            self._living[pid] = MpsProcess(pid=pid, ticks=stat.ticks, role=role, parent=candidate.parent, began=now)

    def _follow(self, process: MpsProcess, now: float) -> None:
        stat = _stat(process.pid)
        if stat is not None and stat.ticks == process.ticks and stat.state not in "ZX":
            _note_stop(process, stat.state in "Tt", now)
            return
        process.ended = now
        process.stopped_for = 0.0 if process.stopped_since is None else process.stopped_until - process.stopped_since
        process.status = _collected(process.pid) if stat is not None and stat.parent == os.getpid() else None
        del self._living[process.pid]
        self._ended.append(process)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A process that may become one of MPS: when it was first seen, and its parent then."""

    since: float
    parent: int


@dataclass(frozen=True, slots=True)
class _Stat:
    state: str
    parent: int
    ticks: int


def _note_stop(process: MpsProcess, stopped: bool, now: float) -> None:
    """Take two stops with a short pause between them for one."""
    if stopped:
        process.stopped_since, process.stopped_until = process.stopped_since or now, now
    elif now - process.stopped_until > GOES_ON_SECONDS:
        process.stopped_since = None


def _stat(pid: int) -> _Stat | None:
    try:
        words = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return _Stat(state=words[0], parent=int(words[1]), ticks=int(words[19]))


def _role(pid: int, variable: bytes) -> Role | None:
    """Return the role by the names that the process gave itself. A program that only asks the daemon has others."""
    try:
        if Path(f"/proc/{pid}/comm").read_bytes() != COMM:
            return None
        name = Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0].decode(errors="replace")
        if name not in tuple(Role) or variable not in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            return None
    except OSError:
        return None
    return Role(name)


def _collected(pid: int) -> int | None:
    """Return how our child ended, and reap it."""
    try:
        _, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return os.waitstatus_to_exitcode(status)
