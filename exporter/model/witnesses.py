"""What else tells how a control daemon is, beside its answers, its logs and its PID: looked at where that is in doubt.

Observations like those of `observation.py`.
"""

from dataclasses import dataclass

from exporter.model.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessState:
    """How a process of MPS stands with the scheduler: the letter of proc_pid_stat(5), T for one that was stopped.

    Told where it changes; that one which is at ease runs or sleeps (R, S, I) is no change. `wait_channel` is the kernel
    function in which a process in state D sleeps (/proc/PID/wchan); None if it is not known. `children_page_faults` is
    the sum of the minor page faults of its ended children; the core keeps in `child_ended_at` when that last grew.
    """

    at: float
    pid: int
    start_ticks: int
    state: str
    wait_channel: str | None = None
    children_page_faults: int | None = None
    child_ended_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlSocket:
    """Whether a process listens on a daemon's control socket, and whether it answers there; None: not known.

    `listening` is what the kernel says. `answers` is the result of a connection of the exporter itself, without the
    control program: True if the daemon answered or closed it, False if it did neither in time, or takes no connection.
    `wait_channel` is the kernel function in which a daemon that does not answer sleeps.
    """

    at: float
    daemon: str
    listening: bool | None
    answers: bool | None = None
    wait_channel: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketProbes:
    """The exporter's own connections to a daemon's socket, since commands get no answer (`since`).

    `unanswered` counts those in a row that got no answer; `answered_at` is when the last one got one. Without either,
    no connection could be made.
    """

    since: float
    unanswered: int = 0
    answered_at: float | None = None
    wait_channel: str | None = None

    @property
    def answered(self) -> bool:
        """Whether the last connection got an answer."""
        return self.answered_at is not None and not self.unanswered


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedCommands:
    """What a daemon's log file shows of the commands that the exporter gives.

    `read_at` is when one of them was last read there, None if none was, and `writer` the PID that wrote it. `awaited`
    is when a command was given, and when it was answered, of which no line was read yet. `missing_since` is since when
    a command is known not to have been logged; `blocked_since` since when a second one in a row was not.
    """

    read_at: float | None = None
    writer: int | None = None
    awaited: tuple[float, float] | None = None
    missing_since: float | None = None
    blocked_since: float | None = None


NOTHING_LOGGED = LoggedCommands()


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
    problem: Problem | None = None
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
