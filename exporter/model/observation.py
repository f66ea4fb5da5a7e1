"""What was seen: raw, timed, and never interpreted before the core reads it.

`at` is the time at which it was seen, in seconds since the epoch. A recording is a file of these, one a line.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from exporter.model.action import ActionDone, Resumed
from exporter.model.identity import ProcessIdentity
from exporter.model.launches import GpuUse, WorkReading
from exporter.model.problem import Problem
from exporter.model.witnesses import ControlSocket, ProcessState, SessionHolder, UnitState

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
    stdout_kept: bool | None = None
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
    stdout_kept: bool | None = None
    unit: str | None = None
    left: bool | None = None
    quit: bool | None = None
    same_as: DaemonName | None = None
    foreign: int | None = None


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
