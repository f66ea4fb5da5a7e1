"""Observations: what a collector read, raw and with its time. A recording is a file of these, one in a line.

`at` is in seconds since the epoch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from exporter.model.action import ActionKind, ActionReason
from exporter.model.identity import ProcessIdentity
from exporter.model.launches import GpuUse, WorkReading
from exporter.model.problem import Problem
from exporter.model.reason import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionDone:
    """An action has ended: an observation.

    `problem` is why a step failed, and `evidence` the directory of files that were saved before.
    """

    at: float
    daemon: str
    kind: ActionKind
    reason: ActionReason
    seconds: float
    problem: Reason | None = None
    evidence: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """An operator has said `resume DAEMON`: an observation."""

    at: float
    daemon: str


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


DaemonName = str
GpuUuid = str


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlReply:
    """One command to a control daemon and what came back.

    `exit_code` is None where no answer came within the deadline; `seconds` is how long the asking took. The command
    speaks in this namespace's PIDs, the answer in the daemon's: `pids` is as a log line's.
    """

    at: float
    daemon: DaemonName
    command: str
    exit_code: int | None
    stdout: str = ""
    stderr: str = ""
    seconds: float | None = None
    pids: Mapping[int, int] | None = None

    @property
    def asked_at(self) -> float:
        """When the command was sent: what the reply says may be as old as this."""
        return self.at - (self.seconds or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One whole line of control.log, server.log, or a foreground daemon's stdout.

    Where the daemon lives in another PID namespace, `pids` has this namespace's PIDs for those in the line, as far as
    they are known; it is None where the line's PIDs are this namespace's.
    """

    at: float
    daemon: DaemonName
    file: str
    line: str
    pids: Mapping[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogGap:
    """Lines of a daemon's log that were lost before they could be read; `lines` is how many."""

    at: float
    daemon: DaemonName
    file: str
    lines: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogUnrecognized:
    """Lines of a daemon's log that no rule knows, and that were only counted because they were too many."""

    at: float
    daemon: DaemonName
    file: str
    lines: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonFound:
    """A control daemon's place was found, or named.

    It is `expected` where the configuration, an enabled unit or the node's device plugin names it; what these named and
    name no more is not. `by` says who tells this: "configuration", "unit", "device_plugin" or "discovered". Whatever is
    None, whoever found it does not know.
    `clients_limit` is how many clients fit into one of its servers, as a recording has it; `visible_devices` is
    CUDA_VISIBLE_DEVICES, as the unit has it; `foreground` and `stdout_kept` are as in `DaemonProcess`. `owner` is the
    UID of the user who runs it, as the configuration or the unit has it.
    """

    at: float
    daemon: DaemonName
    pipe_directory: str
    log_directory: str
    expected: bool | None = None
    unit: str | None = None
    foreground: bool | None = None
    stdout_in_file: bool | None = None
    clients_limit: int | None = None
    visible_devices: str | None = None
    by: str | None = None
    owner: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process in one of NVML's lists; `used_bytes` is None where NVML does not tell."""

    pid: int
    used_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUtilization:
    """One sample of NVML's process utilisation. Under MPS the server's PID has it all (measured, R580)."""

    pid: int
    timestamp_us: int
    sm_percent: int
    memory_percent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """NVML's word on one GPU, or the `problem` that kept it from one; None where this GPU or driver cannot tell.

    ECC errors are those of the board's life; SM utilisation and DRAM bandwidth, 0 to 1, those of the last
    `gpm_seconds`, since the look before. `gpm_supported` is whether NVML says that this GPU has GPM.
    """

    at: float
    gpu: GpuUuid
    problem: Problem | None = None
    index: int | None = None
    name: str | None = None
    compute_processes: tuple[GpuProcess, ...] | None = None
    mps_processes: tuple[GpuProcess, ...] | None = None
    process_utilization: tuple[ProcessUtilization, ...] | None = None
    gpu_percent: int | None = None
    memory_percent: int | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    energy_millijoules: int | None = None
    pci_bus_id: str | None = None
    driver_version: str | None = None
    cuda_version: str | None = None
    compute_capability: str | None = None
    compute_mode: str | None = None
    mig_mode: bool | None = None
    persistence_mode: bool | None = None
    temperature_celsius: int | None = None
    power_milliwatts: int | None = None
    clocks_event_reasons: int | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    sm_utilization: float | None = None
    dram_bandwidth: float | None = None
    gpm_seconds: float | None = None
    gpm_supported: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuEvent:
    """An NVML event: `type` as NVML numbers it (8 is a critical Xid), `xid` its data."""

    at: float
    type: int
    xid: int
    gpu: GpuUuid | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRecord:
    """One record of /dev/kmsg, `priority,sequence,microseconds,flags;text`."""

    at: float
    record: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessReading:
    """What /proc says of a process. `start_ticks` (clock ticks since boot) and the PID together are its identity.

    `environment` holds those of the variables CLIENT_LIMITS that it was started with; None where it was not read.
    `parent` is the process that was its parent then; None where that was not read, as in older recordings.
    """

    at: float
    pid: int
    start_ticks: int
    started: float
    uid: int | None = None
    user: str | None = None
    command: str | None = None
    executable: str | None = None
    cgroup: str | None = None
    environment: Mapping[str, str] | None = None
    parent: ProcessIdentity | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFound:
    """The name and namespace of the pod that has this UID."""

    at: float
    uid: str
    name: str
    namespace: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessExit:
    """A process that was seen alive has gone. `wait_status` is as from waitpid(2), where that could be seen."""

    at: float
    pid: int
    start_ticks: int
    wait_status: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonProcess:
    """The process behind a pipe directory's pid file; `pid` is None where no control daemon runs behind it.

    `environment` holds the daemon's CUDA_VISIBLE_DEVICES, where it is set and may be read, and nothing else. `protocol`
    is MPS' own, 2 or 3 (R615); `foreground` is whether it writes its logs to stdout (`-f`), `stdout_kept` whether that
    is the file stdout.log of its log directory; `unit` is its systemd unit.
    `left` is whether a pid file is there though no daemon runs, as after SIGKILL and not after `quit` (measured, R580).
    `quit` is whether the directory looks as after a quit: the pid file and the fifo are gone, the sockets are there
    (measured, R580). `same_as` is another daemon whose pipe directory this one is, by its device and inode.
    `foreign` is the user to whom the pipe directory, or what runs there, belongs, if they may not run this daemon.
    """

    at: float
    daemon: DaemonName
    pid: int | None
    start_ticks: int | None = None
    started: float | None = None
    uid: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    protocol: int | None = None
    foreground: bool | None = None
    stdout_in_file: bool | None = None
    unit: str | None = None
    pid_file_left: bool | None = None
    quit_traces: bool | None = None
    same_as: DaemonName | None = None
    foreign_owner: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile:
    """Whether a log file can be followed; `problem` says why not, None that it is.

    `size` is how many bytes it has, with those of its renamed predecessors that are still written to; told anew where
    that is another number of MiB, and None where nobody looked, or it is no file. `followed` is False once it is
    none of the daemon's logs any more: these turned out to be others.
    """

    at: float
    daemon: DaemonName
    file: str
    problem: Problem | None = None
    size: int | None = None
    unread: int | None = None
    followed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReading:
    """One of the exporter's own eyes looked: how long it took, and its `problem` if it saw nothing.

    `daemon` is the one that the eye is for, where each has its own; `more` says that something was left unread.
    """

    at: float
    name: str
    seconds: float
    problem: Problem | None = None
    daemon: DaemonName | None = None
    more: bool = False


Observation = (
    ControlReply
    | LogLine
    | LogGap
    | LogUnrecognized
    | DaemonFound
    | GpuReading
    | GpuUse
    | WorkReading
    | GpuEvent
    | KernelRecord
    | ProcessReading
    | ProcessExit
    | PodFound
    | DaemonProcess
    | LogFile
    | SourceReading
    | ProcessState
    | ControlSocket
    | SessionHolder
    | UnitState
    | ActionDone
    | Resumed
)
