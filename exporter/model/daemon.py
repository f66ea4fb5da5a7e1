"""Control daemons, as the reducer remembers them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto

from exporter.model.observation import (
    NOTHING_LOGGED,
    DaemonName,
    DaemonProcess,
    GpuUuid,
    LoggedCommands,
    SessionHolder,
    SocketProbes,
)
from exporter.model.problem import Problem
from exporter.model.server import Client, Disconnect, DisconnectReason, RefusalReason, Server


class ClaimKind(StrEnum):
    """What a log line says that a tenant could have forged."""

    DAEMON_EXIT = "daemon_exit"
    SERVER_START = "server_start"
    SERVER_EXIT = "server_exit"
    CRASH_LOOP = "crash_loop"
    CLIENT_CONNECT = "client_connect"
    CLIENT_DISCONNECT = "client_disconnect"
    CLIENT_REFUSED = "client_refused"
    CONTAINED_FAULT = "contained_fault"
    FAULT = "fault"
    RECOVERY = "recovery"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One claim, read at `at`. `pid` is the client or the server that it is about; 0: the daemon itself."""

    kind: ClaimKind
    pid: int
    at: float

    @property
    def key(self) -> str:
        """What tells it from the daemon's other claims."""
        return key(self.kind, self.pid)


def key(kind: ClaimKind, pid: int) -> str:
    """Return what a claim of this kind, about this process, is known by."""
    return f"{kind.value} {pid}"


class Verdict(Enum):
    """What the other sources say of a claim; SETTLED: there is nothing left to decide."""

    OPEN = auto()
    CONFIRMED = auto()
    REFUTED = auto()
    SETTLED = auto()


class NamedBy(StrEnum):
    """Whose word a daemon's name is, the lightest first."""

    DISCOVERED = "discovered"
    DEVICE_PLUGIN = "device_plugin"
    UNIT = "unit"
    CONFIGURATION = "configuration"

    @property
    def weight(self) -> int:
        """The heavier word stands."""
        return tuple(NamedBy).index(self)


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
class RecoveryTimes:
    """A histogram of recovery times: how many ended within each of `RECOVERY_SECONDS`, how many in all, their sum."""

    within: tuple[int, ...] = (0,) * len(RECOVERY_SECONDS)
    count: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedStarts:
    """Servers in a row that exited before they were ready: when the last few of them began, and the last one ended.

    `told` says that these have been called a crash loop.
    """

    started_at: tuple[float, ...] = ()
    last_exit_at: float | None = None
    reported: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """A daemon's counters. They only grow."""

    connected: int = 0
    disconnected: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(DisconnectReason, 0))
    refused: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(RefusalReason, 0))
    losses: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(LossReason, 0))
    crash_loops: int = 0
    faults: int = 0
    fault_affected: int = 0
    fault_recoveries: RecoveryTimes = RecoveryTimes()
    faults_contained: int = 0
    log_lines: Mapping[str, int] = field(default_factory=dict)
    log_lines_unrecognized: Mapping[str, int] = field(default_factory=dict)
    log_lines_lost: Mapping[str, int] = field(default_factory=dict)
    log_contradictions: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(ClaimKind, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """How the exporter knows that a daemon should exist."""

    expected: bool = False
    """Whether its absence is an outage: configuration, enabled unit or device plugin declares it."""
    by: NamedBy = NamedBy.CONFIGURATION
    """The source that named it."""
    unit: str | None = None
    """The systemd unit that the configuration names, or that names the daemon: the watchdog restarts this one."""
    clients_limit: int | None = None
    """Clients per server, as a recording's header states it."""
    owner: int | None = None
    """UID of the user who should run it, as the configuration or its unit states."""
    observed_at: float = 0.0
    """When a source last reported a discovered daemon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonRuntime:
    """The process of a daemon, and what is known about it."""

    process: DaemonProcess | None = None
    """The process behind the pipe directory; None if there is none, or if it is unknown."""
    unit: str | None = None
    """The systemd unit that it runs in."""
    protocol: int | None = None
    version: str | None = None
    foreground: bool = False
    """Whether it writes its log to stdout (`-f`)."""
    stdout_in_file: bool = False
    """Whether that stdout is the file stdout.log of the log directory."""
    visible_devices: str | None = None
    """CUDA_VISIBLE_DEVICES of the daemon."""
    devices: Mapping[int, GpuUuid] = field(default_factory=dict)
    """Its GPUs by ordinal, as it last listed them."""
    in_foreign_namespace: bool = False
    """Whether its log and replies contain PIDs of another PID namespace."""
    foreign_owner: int | None = None
    """UID that owns the pipe directory or the daemon there, if that user must not run this daemon."""
    same_as: DaemonName | None = None
    """Another daemon with the same pipe directory; nothing more is collected for this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifecycle:
    """How a daemon started and ended."""

    state_since: float | None = None
    ever_ran: bool = False
    """Whether it was ever seen to run."""
    quit_at: float | None = None
    """When an operator stopped it."""
    quit_claimed_at: float | None = None
    """When its log reported a `quit`; any user can write that line."""
    killed: bool | None = None
    """Whether a signal ended its last process; None if that is unknown."""
    traces_expected: bool = False
    """Whether its last process was known, so that the pid file shows how it ended."""
    pid_file_left: bool | None = None
    """Whether a pid file exists although no daemon runs; None if that is unknown."""
    quit_traces: bool = False
    """Whether its pipe directory looks as a `quit` leaves it."""
    unexplained_end_at: float | None = None
    """When its end was seen, until the reason is decided. Another daemon may run there by then."""
    loss_reason: LossReason = LossReason.DIED
    last_loss_at: float | None = None
    not_found_at: float | None = None
    """When a command last found no daemon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandState:
    """How a daemon responds to the exporter's commands and connections."""

    asked_at: Mapping[str, float] = field(default_factory=dict)
    """When each query was last sent."""
    unanswered: int = 0
    """Commands in a row without an answer."""
    unanswered_since: float | None = None
    unanswered_at: float | None = None
    """When the last of these was sent."""
    waits_for_server: int | None = None
    """The server that the first unanswered command queries, if another command was answered just before."""
    refused_since: float | None = None
    """Since when commands are refused because another session is open."""
    session_holder: SessionHolder | None = None
    """The process that holds that session open."""
    listening: bool | None = None
    """Whether a process listens on the control socket; collected while commands are unanswered."""
    probes: SocketProbes | None = None
    """The exporter's own connections since commands are unanswered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultLimits:
    """Limits that the daemon gives to new servers."""

    active_thread_percentage: float | None = None
    pinned_memory: Mapping[int, int] = field(default_factory=dict)
    """Bytes by device ordinal."""
    client_priority: int | None = None
    stale: frozenset[str] = frozenset()
    """Limit queries whose answers another user's command may have changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogState:
    """The logs of a daemon: whether they are read, and what they claim."""

    problems: Mapping[str, Problem | None] = field(default_factory=dict)
    """By file: why it cannot be followed; None if it is followed."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    unread: Mapping[str, int] = field(default_factory=dict)
    """Bytes of each file that were not read yet."""
    stuck: Problem | None = None
    """The problem of a read that does not end; `problems` has it, too."""
    own_commands: LoggedCommands = NOTHING_LOGGED
    """Whether the exporter's own commands appear in the log."""
    claims: Mapping[str, Claim] = field(default_factory=dict)
    """What the log says and no other source has confirmed."""
    contradicted_at: float | None = None
    """When another source last refuted a claim."""
    last_command: str | None = None
    """The command that the log ends with, if it ends with one."""
    echoing: bool = False
    """Whether the daemon is writing a reply into its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connections:
    """Clients and servers that come and go."""

    listed_at: float | None = None
    """When all servers were last known; None if they are not."""
    queued: Mapping[int, int] = field(default_factory=dict)
    waiting: frozenset[int] = frozenset()
    """PIDs of processes that wait until another user's server ends."""
    disconnected_at: Mapping[int, float] = field(default_factory=dict)
    server_exited_at: Mapping[int, float] = field(default_factory=dict)
    disconnects: Mapping[int, Disconnect] = field(default_factory=dict)
    """Clients whose contexts ended in the last seconds, by PID."""
    recently_disconnected: Mapping[int, Client] = field(default_factory=dict)
    """Clients that disconnected, as they were: the log may still report the end of their contexts."""
    failed_starts: FailedStarts = FailedStarts()
    last_fault_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Daemon:
    """A control daemon, its servers and its clients."""

    name: DaemonName
    pipe_directory: str
    log_directory: str
    state: DaemonState | None = None
    """None until the first evidence."""
    servers: Mapping[int, Server] = field(default_factory=dict)
    clients: Mapping[int, Client] = field(default_factory=dict)
    declared: Declaration = Declaration()
    runtime: DaemonRuntime = DaemonRuntime()
    lifecycle: Lifecycle = Lifecycle()
    commands: CommandState = CommandState()
    default_limits: DefaultLimits = DefaultLimits()
    log: LogState = LogState()
    connections: Connections = Connections()
    totals: Totals = Totals()

    @property
    def discovered(self) -> bool:
        """Whether nothing but its own presence tells of it."""
        return self.declared.by is NamedBy.DISCOVERED

    @property
    def ended(self) -> bool:
        """Whether it was seen to be no more."""
        return self.state in (DaemonState.ABSENT, DaemonState.STOPPED)

    def claimed(self, kind: ClaimKind, pid: int) -> bool:
        """Whether its log says this of a process, and no other source has decided it yet."""
        return key(kind, pid) in self.log.claims

    def is_reported(self, at: float) -> bool:
        """Whether it is still worth telling of: one that nobody expects is forgotten some time after its end."""
        if self.runtime.same_as is not None:
            return False
        return self.declared.expected or (
            self.lifecycle.ever_ran
            and not (self.ended and at - (self.lifecycle.state_since or 0.0) > FORGOTTEN_SECONDS)
        )

    @property
    def supported(self) -> bool:
        """Whether it speaks a protocol that is spoken here. Of another, only its process is watched."""
        return self.runtime.same_as is None and self.runtime.protocol in (None, SUPPORTED_PROTOCOL)

    def removable(self, at: float) -> bool:
        """Whether nothing more will be heard of it, unless it is discovered anew."""
        nothing_left = self.runtime.process is None and not self.servers and not self.clients
        silent = nothing_left and at - self.declared.observed_at > 2 * FORGOTTEN_SECONDS
        return self.discovered and (silent or (self.lifecycle.ever_ran and not self.is_reported(at)))

    @property
    def log_followed(self) -> bool:
        """Whether the daemon's own log is read, so that a server's start is known at once."""
        if self.log.own_commands.blocked_since is not None:
            return False
        files = ("control.log", "stdout.log", "stdout")
        return any(self.log.problems.get(file) is None and self.totals.log_lines.get(file) for file in files)

    @property
    def in_journal(self) -> bool:
        """Whether its log is followed in the systemd journal, which tells of it a little late."""
        return self.follows_log("stdout")

    def follows_log(self, file: str) -> bool:
        """Whether this log file of the daemon is followed without a problem."""
        return file in self.log.problems and self.log.problems[file] is None

    @property
    def pid_file_spoilt(self) -> bool:
        """Whether it runs, and NVIDIA's program finds no daemon all the same: the pid file names another process."""
        return self.state is None and self.runtime.process is not None and self.lifecycle.not_found_at is not None

    @property
    def answers(self) -> bool:
        """Whether it responds: with answers, or by refusing because somebody else's session is open."""
        return self.state in (DaemonState.UP, DaemonState.HELD)
