"""What /proc shows of MPS' processes at one pipe directory, looked at a hundred times a second."""

import ctypes
import os
import threading
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

LOOK_SECONDS = 0.01
YOUNG_SECONDS = 5.0
"""A process takes its names some time after its start: until this age it is looked at again."""

BRIEF_SECONDS = 2.0
"""The program that starts a daemon ends sooner, and so does a server that has no daemon at its exec."""

COMM = b"nvidia-cuda-mps\n"

GOES_ON_SECONDS = 2.0
"""The exporter looks at states twice a second, and on a busy machine less often: it may miss a shorter pause between
two stops, and takes them for one. For a moment a stopped process that is killed is as if it went on, too."""

PR_SET_CHILD_SUBREAPER = 36


class Role(StrEnum):
    """What a process is."""

    DAEMON = "nvidia-cuda-mps-control"
    SERVER = "nvidia-cuda-mps-server"


@dataclass(slots=True)
class Life:
    """One process, from when it was first seen until it had gone. Times are seconds since the epoch.

    `status` is how it ended, where it was ours to ask: a signal's number, negative, or an exit code.
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


def is_brief(life: Life) -> bool:
    """Return whether this may be no daemon: the program that starts one, or a server before its exec, has its name."""
    return life.ended is not None and life.ended - life.began < BRIEF_SECONDS and life.status in (0, None)


class Onlooker:
    """A thread that looks. It adopts daemons whose starter has gone, so that it is told how they end."""

    def __init__(self, pipe_directory: Path) -> None:
        self._variable = f"CUDA_MPS_PIPE_DIRECTORY={pipe_directory}".encode()
        self._lives: dict[int, Life] = {}
        self._strangers: dict[int, _Stranger] = {}
        self._ended: list[Life] = []
        self._twins: list[tuple[float, tuple[int, ...]]] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="onlooker", daemon=True)
        self.problem: BaseException | None = None
        self.longest_pause = 0.0
        """The longest time between two looks: how far its times may be wrong."""

    def open(self) -> None:
        """Begin."""
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._thread.start()

    def close(self) -> None:
        """Look no more."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def living(self, role: Role) -> list[Life]:
        """Those that live now, the eldest first."""
        with self._lock:
            return [life for life in self._lives.values() if life.role is role]

    def ended(self) -> list[Life]:
        """All that have ended, in order."""
        with self._lock:
            return list(self._ended)

    def twins(self) -> list[tuple[float, tuple[int, ...]]]:
        """When more than one control daemon was seen, and which."""
        with self._lock:
            return list(self._twins)

    def _run(self) -> None:
        last = time.monotonic()
        try:
            while not self._stop.wait(LOOK_SECONDS):
                self._look()
                now = time.monotonic()
                self.longest_pause, last = max(self.longest_pause, now - last), now
        except BaseException as problem:
            self.problem = problem
            raise

    def _look(self) -> None:
        now = time.time()
        pids = {int(name) for name in os.listdir("/proc") if name.isdigit()}
        with self._lock:
            for pid in pids - self._lives.keys():
                self._meet(pid, now)
            self._strangers = {pid: each for pid, each in self._strangers.items() if pid in pids}
            for life in list(self._lives.values()):
                self._follow(life, now)
            known = {life.pid: life for life in self._lives.values() if life.role is Role.DAEMON}
            # A child that was met before its parent is a server to be, too.
            daemons = tuple(pid for pid, life in known.items() if life.parent not in known)
            if len(daemons) > 1:
                self._twins.append((now, daemons))

    def _meet(self, pid: int, now: float) -> None:
        stranger = self._strangers.get(pid)
        if stranger is None:
            stat = _stat(pid)
            stranger = self._strangers[pid] = _Stranger(now, 0 if stat is None else stat.parent)
        role = _role(pid, self._variable) if now - stranger.since < YOUNG_SECONDS else None
        # A daemon's child is a server that has not yet its own name.
        if role is None or (role is Role.DAEMON and stranger.parent in self._lives):
            return
        stat = _stat(pid)
        if stat is not None:
            self._lives[pid] = Life(pid=pid, ticks=stat.ticks, role=role, parent=stranger.parent, began=now)

    def _follow(self, life: Life, now: float) -> None:
        stat = _stat(life.pid)
        if stat is not None and stat.ticks == life.ticks and stat.state not in "ZX":
            _note_stop(life, stat.state in "Tt", now)
            return
        life.ended = now
        life.stopped_for = 0.0 if life.stopped_since is None else life.stopped_until - life.stopped_since
        life.status = _collected(life.pid) if stat is not None and stat.parent == os.getpid() else None
        del self._lives[life.pid]
        self._ended.append(life)


@dataclass(frozen=True, slots=True)
class _Stranger:
    """A process that is nobody yet: when it was first seen, and its parent then."""

    since: float
    parent: int


@dataclass(frozen=True, slots=True)
class _Stat:
    state: str
    parent: int
    ticks: int


def _note_stop(life: Life, stopped: bool, now: float) -> None:
    """Take two stops with a short pause between them for one."""
    if stopped:
        life.stopped_since, life.stopped_until = life.stopped_since or now, now
    elif now - life.stopped_until > GOES_ON_SECONDS:
        life.stopped_since = None


def _stat(pid: int) -> _Stat | None:
    try:
        words = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return _Stat(state=words[0], parent=int(words[1]), ticks=int(words[19]))


def _role(pid: int, variable: bytes) -> Role | None:
    """By the names that it gave itself, as the real ones have; whoever only asks the daemon has others."""
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
    """How our child ended: this lets go of it."""
    try:
        _, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return os.waitstatus_to_exitcode(status)
