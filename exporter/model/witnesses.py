"""What else tells how a control daemon is, beside its answers, its logs and its PID: looked at where that is in doubt.

Observations like those of `observation.py`.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessState:
    """How a process of MPS stands with the scheduler: the letter of proc_pid_stat(5), T for one that was stopped.

    Told where it changes; that one which is at ease runs or sleeps (R, S, I) is no change.
    """

    at: float
    pid: int
    start_ticks: int
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlSocket:
    """Whether somebody listens on a daemon's control socket (/proc/net/unix); None where that cannot be seen."""

    at: float
    daemon: str
    listening: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionHolder:
    """Whose `nvidia-cuda-mps-control` has had a session with a daemon open the longest; `pid` None: nobody is seen."""

    at: float
    daemon: str
    pid: int | None = None
    start_ticks: int | None = None
    started: float | None = None
    uid: int | None = None
    user: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitState:
    """How a systemd unit is, in systemd's words (org.freedesktop.systemd1(5)), or the `problem` that kept it untold.

    `restart` is its Restart=, `restarts` how often systemd has restarted it by that, `main_pid` 0 where none runs.
    Every look is told, changed or not; `at` is when systemd was asked.
    """

    at: float
    unit: str
    problem: str | None = None
    load: str = ""
    active: str = ""
    sub: str = ""
    result: str = ""
    restart: str = ""
    restarts: int = 0
    main_pid: int = 0

    @property
    def known(self) -> bool:
        """Whether systemd knows it, as far as could be seen."""
        return self.problem is None and self.load == "loaded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which of these to look for: the states of these processes, and by daemon who holds its session, who listens."""

    states: frozenset[int] = frozenset()
    holders: frozenset[str] = frozenset()
    sockets: frozenset[str] = frozenset()
