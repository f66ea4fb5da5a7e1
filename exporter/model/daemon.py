"""Control daemons, as they are remembered."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from exporter.model.claim import Claim, ClaimKind, key
from exporter.model.named_by import NamedBy
from exporter.model.observation import DaemonName, DaemonProcess, GpuUuid
from exporter.model.problem import Problem
from exporter.model.server import Client, DepartureReason, Leaving, RefusalReason, Server
from exporter.model.witnesses import NOTHING_LOGGED, LoggedCommands, SessionHolder, SocketProbes

FORGOTTEN_SECONDS = 300.0
"""How long after its end a daemon that nobody expects is told of."""

SUPPORTED_PROTOCOL = 2
"""MPS' own protocol; from R615 on there is a third (`nvidia-cuda-mps-control -p 3`), with other commands and logs."""


class DaemonState(StrEnum):
    """How a control daemon is."""

    ABSENT = "absent"
    STARTING = "starting"
    UP = "up"
    UNRESPONSIVE = "unresponsive"
    HELD = "held"
    STOPPED = "stopped"


class LossReason(StrEnum):
    """How the end of a daemon that nobody had told to quit was noticed."""

    DIED = "died"
    REPLACED = "replaced"


RECOVERY_SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
"""Upper bounds of the buckets of recovery times: where all exit at once it takes 0.1 s (measured), else any time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recoveries:
    """A histogram of recovery times: how many ended within each of `RECOVERY_SECONDS`, how many in all, their sum."""

    within: tuple[int, ...] = (0,) * len(RECOVERY_SECONDS)
    count: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedStarts:
    """Servers in a row that exited before they were ready: when the last few of them began, and the last one ended.

    `told` says that these have been called a crash loop.
    """

    began: tuple[float, ...] = ()
    last_at: float | None = None
    told: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """A daemon's counters. They only grow."""

    connected: int = 0
    disconnected: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(DepartureReason, 0))
    refused: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(RefusalReason, 0))
    losses: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(LossReason, 0))
    crash_loops: int = 0
    faults: int = 0
    fault_affected: int = 0
    fault_recoveries: Recoveries = Recoveries()
    faults_contained: int = 0
    log_lines: Mapping[str, int] = field(default_factory=dict)
    log_lines_unrecognized: Mapping[str, int] = field(default_factory=dict)
    log_lines_lost: Mapping[str, int] = field(default_factory=dict)
    log_contradictions: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(ClaimKind, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Daemon:
    """A control daemon, what it serves, and the doubts about it that further evidence will settle.

    `listed_at` is when all its servers were last known, None where they are not. `gone_at` is when one was seen to
    be no more, as long as it is not yet told whether it was stopped or lost; another may be there by then.
    `heard_at` is when anything told of it, where it was discovered. `unit` is the systemd unit that it runs in,
    `named_unit` the one that the configuration names, or that names the daemon: that one is to be restarted.
    `owner` is the UID of the user who is to run it, as the configuration or its unit names that user. `foreign` is the
    user to whom its pipe directory belongs, or the daemon there, if they may not run it: it is not this daemon then.
    `clients_limit` is how many clients a server takes, as a recording has it. `devices` has the GPUs that it
    told last, by its ordinals. `limits_in_doubt` are questions about limits to which somebody's command may have
    changed the answers. It is `elsewhere` where it speaks in the PIDs of another namespace. `leavings` has, by PID,
    the clients whose contexts have ended in the last seconds, `parted` those that have left, as they were: the log
    may yet tell that their contexts have ended. `unanswered` is how many commands in a row got no answer, since
    `unanswered_since`; the last was given at `unanswered_at`. `at_command` is the command with which its
    log ends, if it does. `holder` has the session open that keeps others out.
    `listening` is whether anybody listens on its socket, looked at while it does not answer, and `left_behind`
    whether a pid file is there though no daemon is; None: not known. `not_found_at` is when a command last found
    none. `same_as` is another daemon that is in the same pipe directory: then nothing more is known of this one.
    `probes` are the exporter's own connections since commands get no answer. `waits_for` is the server that the
    first of these commands asks, if the daemon had answered another one just before. `logged` is what the log shows of
    the exporter's commands. `log_unread` is how many bytes of each log were not read yet. `log_stuck` is the problem
    of a read of its logs that does not end; `log_problems` has it, too. `claims` are what its logs say and no other
    source has confirmed; `contradicted_at` is when another source last refuted one. `quit_claimed_at` is when the log
    told of a quit; `killed` is whether a signal ended its last process, and `traces_expected` whether that process was
    known, so that the pid file shows how it ended. `quit_traces` is whether its directory looks as a quit leaves it.
    """

    name: DaemonName
    pipe_directory: str
    log_directory: str
    expected: bool = False
    named_by: NamedBy = NamedBy.CONFIGURATION
    heard_at: float = 0.0
    unit: str | None = None
    named_unit: str | None = None
    protocol: int | None = None
    foreground: bool = False
    stdout_kept: bool = False
    clients_limit: int | None = None
    owner: int | None = None
    foreign: int | None = None
    default_active_thread_percentage: float | None = None
    default_pinned_memory_limits: Mapping[int, int] = field(default_factory=dict)
    default_client_priority: int | None = None
    limits_in_doubt: frozenset[str] = frozenset()
    devices: Mapping[int, GpuUuid] = field(default_factory=dict)
    state: DaemonState | None = None
    state_since: float | None = None
    seen: bool = False
    process: DaemonProcess | None = None
    version: str | None = None
    visible_devices: str | None = None
    elsewhere: bool = False
    servers: Mapping[int, Server] = field(default_factory=dict)
    listed_at: float | None = None
    clients: Mapping[int, Client] = field(default_factory=dict)
    pending: Mapping[int, int] = field(default_factory=dict)
    waiting: frozenset[int] = frozenset()
    departed: Mapping[int, float] = field(default_factory=dict)
    departed_servers: Mapping[int, float] = field(default_factory=dict)
    leavings: Mapping[int, Leaving] = field(default_factory=dict)
    parted: Mapping[int, Client] = field(default_factory=dict)
    failed_starts: FailedStarts = FailedStarts()
    quit_at: float | None = None
    quit_claimed_at: float | None = None
    killed: bool | None = None
    traces_expected: bool = False
    claims: Mapping[str, Claim] = field(default_factory=dict)
    contradicted_at: float | None = None
    echoing: bool = False
    unanswered_since: float | None = None
    unanswered_at: float | None = None
    unanswered: int = 0
    refused_since: float | None = None
    at_command: str | None = None
    holder: SessionHolder | None = None
    listening: bool | None = None
    probes: SocketProbes | None = None
    waits_for: int | None = None
    logged: LoggedCommands = NOTHING_LOGGED
    left_behind: bool | None = None
    quit_traces: bool = False
    gone_at: float | None = None
    gone_how: LossReason = LossReason.DIED
    last_loss_at: float | None = None
    last_fault_at: float | None = None
    not_found_at: float | None = None
    same_as: DaemonName | None = None
    asked: Mapping[str, float] = field(default_factory=dict)
    log_problems: Mapping[str, Problem | None] = field(default_factory=dict)
    log_sizes: Mapping[str, int] = field(default_factory=dict)
    log_unread: Mapping[str, int] = field(default_factory=dict)
    log_stuck: Problem | None = None
    totals: Totals = Totals()

    @property
    def discovered(self) -> bool:
        """Whether nothing but its own presence tells of it."""
        return self.named_by is NamedBy.DISCOVERED

    @property
    def gone(self) -> bool:
        """Whether it was seen to be no more."""
        return self.state in (DaemonState.ABSENT, DaemonState.STOPPED)

    def claimed(self, kind: ClaimKind, pid: int) -> bool:
        """Whether its log says this of a process, and no other source has decided it yet."""
        return key(kind, pid) in self.claims

    def told_of(self, at: float) -> bool:
        """Whether it is still worth telling of: one that nobody expects is forgotten some time after its end."""
        if self.same_as is not None:
            return False
        return self.expected or (self.seen and not (self.gone and at - (self.state_since or 0.0) > FORGOTTEN_SECONDS))

    @property
    def supported(self) -> bool:
        """Whether it speaks a protocol that is spoken here. Of another, only its process is watched."""
        return self.same_as is None and self.protocol in (None, SUPPORTED_PROTOCOL)

    def forgettable(self, at: float) -> bool:
        """Whether nothing more will be heard of it, unless it is discovered anew."""
        nothing_left = self.process is None and not self.servers and not self.clients
        silent = nothing_left and at - self.heard_at > 2 * FORGOTTEN_SECONDS
        return self.discovered and (silent or (self.seen and not self.told_of(at)))

    @property
    def log_followed(self) -> bool:
        """Whether the daemon's own log is read, so that a server's start is known at once."""
        if self.logged.blocked_since is not None:
            return False
        files = ("control.log", "stdout.log", "stdout")
        return any(self.log_problems.get(file) is None and self.totals.log_lines.get(file) for file in files)

    @property
    def in_journal(self) -> bool:
        """Whether its log is followed in the systemd journal, which tells of it a little late."""
        return self.follows_log("stdout")

    def follows_log(self, file: str) -> bool:
        """Whether this log file of the daemon is followed without a problem."""
        return file in self.log_problems and self.log_problems[file] is None

    @property
    def pid_file_spoilt(self) -> bool:
        """Whether it runs, and NVIDIA's program finds no daemon all the same: the pid file names another process."""
        return self.state is None and self.process is not None and self.not_found_at is not None

    @property
    def answers(self) -> bool:
        """Whether it responds: with answers, or by refusing because somebody else's session is open."""
        return self.state in (DaemonState.UP, DaemonState.HELD)
