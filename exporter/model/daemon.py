"""Control daemons, as the reducer remembers them."""

from collections.abc import Callable, Mapping
from dataclasses import field
from enum import Enum, StrEnum, auto
from typing import Concatenate, ParamSpec

from exporter.model.dialect import MULTI_USER, STATIC_PARTITIONING, Dialect, dialect_of
from exporter.model.incident import ClientDetails
from exporter.model.observation import (
    DaemonName,
    DaemonProcess,
    DirectoryReading,
    GpuUuid,
    LoggedCommands,
    SessionHolder,
    SocketProbes,
)
from exporter.model.reason import Reason, ReasonCode
from exporter.model.server import Client, Disconnect, DisconnectReason, RefusalReason, Server
from exporter.model.settings import Limits
from exporter.model.values import frozen, replace, updated, without

Fields = ParamSpec("Fields")

STDOUT = "stdout"  # A foreground daemon's log that is not a file.

_LOST = Reason(ReasonCode.LOG_TO_STDOUT)


class ClaimKind(StrEnum):
    """What a log line states that a workload could have forged."""

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


@frozen
class Claim:
    """One claim, read at `at`."""

    kind: ClaimKind
    pid: int  # The client or server; 0 for the daemon itself.
    at: float

    @property
    def key(self) -> str:
        """Key of the claim among the claims of its daemon."""
        return key(self.kind, self.pid)


def key(kind: ClaimKind, pid: int) -> str:
    """Return the key of a claim."""
    return f"{kind.value} {pid}"


class Verdict(Enum):
    """Verdict of the other sources on a claim. SETTLED: there is nothing left to decide."""

    OPEN = auto()
    CONFIRMED = auto()
    REFUTED = auto()
    SETTLED = auto()


class NamedBy(StrEnum):
    """Source of a daemon's name, in ascending precedence."""

    DISCOVERED = "discovered"
    GKE = "gke"
    DRA = "dra"
    DEVICE_PLUGIN = "device_plugin"
    UNIT = "unit"
    CONFIGURATION = "configuration"

    @property
    def precedence(self) -> int:
        """Rank; a source replaces the data of a source of lower rank."""
        return tuple(NamedBy).index(self)


FORGOTTEN_SECONDS = 300.0  # How long a discovered daemon is reported after its end.


class DaemonState(StrEnum):
    """State of a control daemon."""

    DOWN = "down"
    STARTING = "starting"
    UP = "up"
    UNRESPONSIVE = "unresponsive"
    HELD = "held"
    STOPPED = "stopped"


class LossReason(StrEnum):
    """How the end of a daemon became known that no operator had stopped."""

    DIED = "died"
    REPLACED = "replaced"


class StopReason(StrEnum):
    """Why a daemon ended that was not lost, if no operator stopped it."""

    WORKLOAD_ENDED = "workload_ended"
    WATCHDOG = "watchdog"  # The watchdog ended it, to start it again.


RECOVERY_SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
"""Upper bounds of the buckets of recovery times. If all clients exit at once, recovery takes 0.1 s (measured)."""


@frozen
class RecoveryTimes:
    """Histogram of recovery times."""

    within: tuple[int, ...] = (0,) * len(RECOVERY_SECONDS)  # Cumulative counts of the buckets.
    count: int = 0
    seconds: float = 0.0


@frozen
class FailedStarts:
    """Consecutive servers that exited before they were ready."""

    started_at: tuple[float, ...] = ()  # Start times of the most recent ones.
    count: int = 0
    uid: int | None = None  # The user of the last one.
    words: str = ""  # Why a server could not start, in its own log. Any user can write that line.
    last_exit_at: float | None = None
    reported: bool = False  # Whether the crash loop was reported.


@frozen
class Totals:
    """Counters of a daemon."""

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
    replies_unrecognized: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(("column", "row"), 0))
    """Columns and rows of tables in the daemon's replies, with protocol 3."""
    log_contradictions: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(ClaimKind, 0))


@frozen
class Declaration:
    """How the exporter knows of a daemon, and whether the daemon must run."""

    expected: bool = False
    """Whether its absence is an outage: the configuration, an enabled unit, or Kubernetes on the node declares it."""
    by: NamedBy = NamedBy.CONFIGURATION
    unit: str | None = None
    """The systemd unit of the configuration, or the unit that declares the daemon. The watchdog restarts this unit."""
    clients_limit: int | None = None  # Clients per server, from the header of a recording.
    owner: int | None = None  # UID of the user who should run the daemon, from the configuration or the unit.
    observed_at: float = 0.0  # When a source last reported a discovered daemon.


@frozen
class DaemonRuntime:
    """The process of a daemon and its properties."""

    process: DaemonProcess | None = None  # None if no process exists, or if it is unknown.
    last_process: DaemonProcess | None = None  # The same, also after its end.
    unit: str | None = None  # The systemd unit that the process runs in.
    protocol: int | None = None
    version: str | None = None
    foreground: bool = False  # Whether the daemon writes its log to stdout (`-f`).
    stdout_in_file: bool | None = None
    """Whether that stdout is the file stdout.log of the log directory; None if that is unknown."""
    stdout_in_journal: bool | None = None  # Whether that stdout may be the journal; None if that is unknown.
    visible_devices: str | None = None
    devices: Mapping[int, GpuUuid] = field(default_factory=dict)  # GPUs by ordinal, as the daemon last listed them.
    seen_on: frozenset[GpuUuid] = frozenset()  # GPUs on which NVML has shown its servers or clients.
    lists_partitions: bool = False  # Whether the daemon last listed static SM partitions, with protocol 3.
    in_foreign_namespace: bool = False  # Whether log and replies contain PIDs of another PID namespace.
    hidden: bool = False  # Whether it may run in another PID namespace, unseen: then its PIDs are no processes here.
    foreign_owner: int | None = None
    """UID that owns the pipe directory or the daemon there, if that user must not run this daemon."""
    same_as: DaemonName | None = None
    """Another daemon with the same pipe directory; nothing more is collected for this one."""
    directory: DirectoryReading | None = None  # What the pipe directory shows of another daemon, or of a removal.

    @property
    def journal(self) -> str | None:
        """The service that has the daemon's log in its journal. A user's manager, `user@UID.service`, has none."""
        to_stdout = self.foreground and not self.stdout_in_file and self.stdout_in_journal is not False
        of_service = self.unit is not None and self.unit.endswith(".service") and not self.unit.startswith("user@")
        return self.unit if to_stdout and of_service else None

    @property
    def log_is_lost(self) -> bool:
        """Whether the daemon writes its log where the exporter cannot read it, such as a pipe of its container."""
        return self.foreground and self.stdout_in_file is False and self.journal is None


@frozen
class Lifecycle:
    """How a daemon started and ended."""

    state_since: float | None = None
    ever_ran: bool = False
    quit_at: float | None = None  # When an operator stopped the daemon.
    quit_claimed_at: float | None = None  # When the log reported a `quit`; any user can write that line.
    killed: bool | None = None  # Whether a signal ended the last process; None if that is unknown.
    traces_expected: bool = False  # Whether the last process was known, so that the pid file shows how it ended.
    traces_read: bool = False  # Whether the pipe directory was examined after its end.
    pid_file_left: bool | None = None  # Whether a pid file exists although no daemon runs; None if that is unknown.
    quit_traces: bool = False  # Whether the pipe directory is in the state that a `quit` produces.
    unexplained_end_at: float | None = None
    """When the daemon ended, until the reason is decided. Another daemon may already run there."""
    stopped_by_unit: bool = False  # Whether its unit was stopping before that, so that an operator may restart it.
    clients_at_end: frozenset[int] | None = None
    """PIDs of the clients that were connected or waited when the daemon ended; None if not all were known."""
    process_at_end: DaemonProcess | None = None  # The process that ended then.
    details_at_end: Mapping[int, ClientDetails] = field(default_factory=dict)  # What was known of these clients then.
    loss_reason: LossReason = LossReason.DIED
    last_loss_at: float | None = None
    watchdog_ended_at: float | None = None  # When the watchdog last ended the daemon, which is no loss.
    not_found_at: float | None = None  # When a command last found no daemon.


@frozen
class CommandState:
    """How a daemon responds to the exporter's commands and connections."""

    asked_at: Mapping[str, float] = field(default_factory=dict)
    """When each query was last answered or refused, or timed out."""
    unanswered: int = 0  # Consecutive commands without an answer.
    unanswered_since: float | None = None
    unanswered_at: float | None = None  # When the last of these was sent.
    waits_for_server: int | None = None
    """The server that the first unanswered command queries, if another command was answered just before."""
    refused_since: float | None = None  # Since when commands are refused because another session is open.
    session_holder: SessionHolder | None = None  # The process that has that session open.
    listening: bool | None = None  # Whether a process listens on the control socket; read if a command has no answer.
    probes: SocketProbes | None = None  # The exporter's own connections since commands are unanswered.


@frozen
class DefaultLimits(Limits):
    """Limits that the daemon gives to new servers."""

    stale: frozenset[str] = frozenset()  # Limit queries whose answers another user's command may have changed.


@frozen
class LogState:
    """The logs of a daemon: whether they are followed, and what they claim."""

    problems: Mapping[str, Reason | None] = field(default_factory=dict)
    """Why each file cannot be followed; None if it is followed."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    unread: Mapping[str, int] = field(default_factory=dict)  # Bytes of each file that were not read yet.
    stuck: Reason | None = None  # The problem of a read that does not end; `problems` has it, too.
    own_commands: LoggedCommands = field(default_factory=LoggedCommands)
    """Whether the exporter's own commands appear in the log."""
    claims: Mapping[str, Claim] = field(default_factory=dict)  # What the log states and no other source has confirmed.
    contradicted_at: float | None = None  # When another source last refuted a claim.
    doubted_at: float | None = None  # The same, also if lost or unread lines may explain it.
    incomplete_at: float | None = None  # When lines were last lost or read late, or did not name the client that ended.
    last_command: str | None = None  # The command in the last line of the log, if that line has one.
    commanded_at: float = 0.0  # When a control command was last logged.
    closed_at: float = 0.0  # When the end of a control session was last logged.
    terminated_at: float | None = None  # When one was last logged that ends a client.
    others_at: float | None = None  # When another daemon than the running one last wrote to the log.
    echoing: bool = False  # Whether the daemon is writing a reply into its log.

    @property
    def failing(self) -> Mapping[str, Reason]:
        """Why each log is not followed. Before its first server, a daemon has no log of servers."""
        return {
            file: problem
            for file, problem in self.problems.items()
            if problem is not None and not (file.endswith("server.log") and problem.code is ReasonCode.NOT_FOUND)
        }


@frozen
class Connections:
    """Clients and servers that start, wait or end. The mappings are by PID."""

    listed_at: float | None = None  # When all servers were last known; None if they are not.
    queued: Mapping[int, int] = field(default_factory=dict)  # UIDs of the clients that wait for a server.
    waiting: Mapping[int, float] = field(default_factory=dict)
    """Since when queued clients wait until another user's server ends."""
    disconnected_at: Mapping[int, float] = field(default_factory=dict)
    server_exited_at: Mapping[int, float] = field(default_factory=dict)
    disconnects: Mapping[int, Disconnect] = field(default_factory=dict)
    """Clients whose contexts ended in the last seconds."""
    recently_disconnected: Mapping[int, Client] = field(default_factory=dict)
    """Disconnected clients in their last state. The log may still report the end of their contexts."""
    failed_starts: FailedStarts = FailedStarts()
    last_fault_at: float | None = None
    refused_at: float | None = None
    """When a client was last refused for another reason than a fault."""


@frozen
class Daemon:
    """A control daemon, its servers and its clients."""

    name: DaemonName
    pipe_directory: str
    log_directory: str
    state: DaemonState | None = None  # None until the first evidence.
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
        """Whether nothing on the node declares the daemon."""
        return self.declared.by is NamedBy.DISCOVERED

    @property
    def is_apart(self) -> bool:
        """Whether its pipe directory is in a container: `collectors/discovery.py` adds the container to its name."""
        return self.discovered and "@" in self.name and self.name != self.pipe_directory

    @property
    def ended(self) -> bool:
        """Whether the daemon was lost or stopped."""
        return self.state in (DaemonState.DOWN, DaemonState.STOPPED)

    @property
    def is_over(self) -> bool:
        """Whether it was stopped, or ended with its job, and nothing expects it: no problem, and nothing to show."""
        return self.state is DaemonState.STOPPED and not self.declared.expected

    @property
    def answers(self) -> bool:
        """Whether the daemon responds. A refusal because of another open session is a response."""
        return self.state in (DaemonState.UP, DaemonState.HELD)

    @property
    def supported(self) -> bool:
        """Whether the exporter can query the daemon. With another protocol, it uses only NVML and /proc."""
        return self.runtime.same_as is None and self.dialect.supported

    @property
    def dialect(self) -> Dialect:
        """The commands and abilities of its protocol."""
        return dialect_of(self.runtime.protocol)

    @property
    def has_static_partitions(self) -> bool:
        """Whether clients have static SM partitions, so that thread percentages do not apply (guide, release 615)."""
        process = self.runtime.process
        started_so = process is not None and bool(STATIC_PARTITIONING & set(process.options))
        return started_so or self.runtime.lists_partitions

    def thread_ratio(self, percentage: float | None) -> float | None:
        """Return the fraction of the threads that clients may use; None if it is unknown or does not apply."""
        return None if percentage is None or self.has_static_partitions else percentage / 100

    @property
    def serves_all_users(self) -> bool:
        """Whether one server, a process of root, serves all users (guide, release 615)."""
        process = self.runtime.process
        return process is not None and bool(MULTI_USER & set(process.options))

    @property
    def pid(self) -> int | None:
        """PID of the daemon, if it is known."""
        return None if self.runtime.process is None else self.runtime.process.pid

    def claimed(self, kind: ClaimKind, pid: int) -> bool:
        """Return whether the log has a claim about a process that is not decided yet."""
        return key(kind, pid) in self.log.claims

    def is_reported(self, at: float) -> bool:
        """Return whether metrics and reports include the daemon."""
        if self.runtime.same_as is not None:
            return False
        long_ended = self.ended and at - (self.lifecycle.state_since or 0.0) > FORGOTTEN_SECONDS
        return self.declared.expected or (self.lifecycle.ever_ran and not long_ended)

    def removable(self, at: float) -> bool:
        """Return whether a discovered daemon can be removed from the node."""
        empty = self.runtime.process is None and not self.servers and not self.clients
        not_observed = empty and at - self.declared.observed_at > 2 * FORGOTTEN_SECONDS
        return self.discovered and (not_observed or (self.lifecycle.ever_ran and not self.is_reported(at)))

    @property
    def clients_known(self) -> bool:
        """Whether all connected clients are known. An ended daemon has none."""
        listed = self.connections.listed_at is not None
        return self.ended or (listed and all(server.clients_known for server in self.servers.values()))

    @property
    def log_followed(self) -> bool:
        """Whether the daemon's own log is followed, so that a server's start is known at once."""
        if self.log.own_commands.blocked_since is not None or self.runtime.log_is_lost:
            return False
        files = ("control.log", "stdout.log", STDOUT)
        return any(self.log.problems.get(file) is None and self.totals.log_lines.get(file) for file in files)

    @property
    def in_journal(self) -> bool:
        """Whether the log is followed in the systemd journal, whose lines arrive a little later."""
        return self.follows_log(STDOUT)

    def follows_log(self, file: str) -> bool:
        """Return whether this log file of the daemon is followed without a problem."""
        return file in self.log.problems and self.log.problems[file] is None

    @property
    def pid_file_spoilt(self) -> bool:
        """Whether the daemon runs, but its pid file names another process, so that no command finds the daemon."""
        not_found = self.lifecycle.not_found_at is not None
        return self.state is None and self.runtime.process is not None and not_found and self.has_directory

    @property
    def has_directory(self) -> bool:
        """Whether the pipe directory is certainly the daemon's: it names its PID, or only it listens there."""
        directory = self.runtime.directory
        return directory is None or (directory.listening is True and not self.directory_taken)

    @property
    def directory_taken(self) -> bool:
        """Whether another daemon has the pipe directory, perhaps one of another node.

        At its own end, a daemon removes its PID file, and closes its socket.
        """
        directory, last = self.runtime.directory, self.runtime.last_process
        if directory is None or directory.pid is None or (last is not None and last.pid == directory.pid):
            return False
        return directory.other is not None or directory.listening is False

    @property
    def has_lost_directory(self) -> bool:
        """Whether neither commands nor new clients reach the daemon: its pipe directory is removed or taken."""
        return self.directory_taken or (self.runtime.directory is not None and not self.runtime.directory.exists)


def _changer(group: str, _kind: Callable[Fields, object]) -> Callable[Concatenate[Daemon, Fields], Daemon]:
    """Return a function that replaces fields in a group of a daemon's fields. All fields of the group have defaults."""

    def change(daemon: Daemon, /, *_: Fields.args, **changes: Fields.kwargs) -> Daemon:
        return updated(daemon, **{group: updated(getattr(daemon, group), **changes)})

    return change


with_declaration = _changer("declared", Declaration)
with_runtime = _changer("runtime", DaemonRuntime)
with_lifecycle = _changer("lifecycle", Lifecycle)
with_commands = _changer("commands", CommandState)
with_log = _changer("log", LogState)
with_connections = _changer("connections", Connections)
with_totals = _changer("totals", Totals)


def with_stdout(daemon: Daemon, *, foreground: bool | None, in_file: bool | None) -> Daemon:
    """Return the daemon with the place of its log; None is unknown. If the place changes, problems are cleared."""
    before = daemon.runtime
    if in_file is not None and in_file != (before.stdout_in_file or False):
        daemon = with_log(daemon, problems={}, sizes={}, unread={})
    after = replace(
        before,
        foreground=before.foreground if foreground is None else foreground,
        stdout_in_file=before.stdout_in_file if in_file is None else in_file,
    )
    if after.log_is_lost:
        return replace(with_log(daemon, problems={STDOUT: _LOST}), runtime=after)
    known = daemon.log.problems
    found = without(known, STDOUT) if known.get(STDOUT) == _LOST else known
    return replace(with_log(daemon, problems=found), runtime=after)
