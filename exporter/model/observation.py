"""Observations: raw results of collectors. A recording has one in each line. `at` is in seconds since the epoch."""

from collections.abc import Mapping
from dataclasses import field

from exporter.model.action import ActionKind, ActionReason
from exporter.model.identity import ConnectionHolders, ProcessIdentity, WorkloadProcess
from exporter.model.kernels import KernelReading
from exporter.model.launches import WorkReading
from exporter.model.reason import Reason
from exporter.model.sharing import GpuUse
from exporter.model.values import frozen

DaemonName = str
GpuUuid = str


@frozen
class DaemonObservation:
    """What was observed of a daemon."""

    at: float
    daemon: DaemonName


@frozen
class LogObservation(DaemonObservation):
    """What was observed of a log of a daemon, by its file."""

    file: str


@frozen
class ProcessObservation:
    """What was observed of a process. PID and `start_ticks` (clock ticks since boot) together identify it."""

    at: float
    pid: int
    start_ticks: int


@frozen
class ActionDone(DaemonObservation):
    """The end of an action. `problem` is why a step failed, `evidence` the directory of the saved files."""

    kind: ActionKind
    reason: ActionReason
    seconds: float
    problem: Reason | None = None
    evidence: str | None = None


@frozen
class Resumed(DaemonObservation):
    """The command `resume DAEMON` of an operator."""


@frozen
class Paused:
    """The command `pause` of an operator, or `resume` without a daemon."""

    at: float
    paused: bool


@frozen
class ProcessState(ProcessObservation):
    """A changed state of an MPS process: the letter of proc_pid_stat(5). R, S and I count as one state.

    `wait_channel` is the kernel function in which a process in state D sleeps (/proc/PID/wchan); None if it is unknown.
    `children_page_faults` is the sum of the minor page faults of its ended children. The reducer stores in
    `child_ended_at` when that last grew.
    """

    state: str
    wait_channel: str | None = None
    children_page_faults: int | None = None
    child_ended_at: float | None = None


@frozen
class ControlSocket(DaemonObservation):
    """Whether a process listens on a daemon's control socket, and whether it answers there; None if it is unknown.

    `answers` is the result of a connection of the exporter without the control program: True if the daemon answered or
    closed it, False if it did neither in time or accepted no connection. `wait_channel` is the kernel function in which
    a daemon that does not answer sleeps. `others` is whether another process was connected to a daemon that did not
    answer, so that it may have waited for that process.
    """

    listening: bool | None
    answers: bool | None = None
    others: bool | None = False
    wait_channel: str | None = None


@frozen
class SocketProbes:
    """The exporter's connections to a daemon's socket since commands get no answer.

    `unanswered` counts consecutive ones without an answer while no other process was connected. `others` is whether
    another process was connected at the last one without an answer: then the daemon may wait for that process.
    """

    since: float
    unanswered: int = 0
    others: bool | None = False
    answered_at: float | None = None
    wait_channel: str | None = None

    @property
    def answered(self) -> bool:
        """Whether the last connection was answered."""
        return self.answered_at is not None and not self.unanswered


@frozen
class LoggedCommands:
    """The exporter's own commands in a daemon's log file."""

    read_at: float | None = None  # When one of them was last read.
    writer: int | None = None  # PID of the daemon that wrote it.
    awaited: tuple[float, float] | None = None  # When a command was sent, and answered, whose line was not read yet.
    missing_since: float | None = None  # Since when a command is known to be missing in the log.
    blocked_since: float | None = None  # Since when a second consecutive command is missing.


@frozen
class SessionHolder(DaemonObservation):
    """The process that is connected to a daemon (mostly `nvidia-cuda-mps-control`). Without `pid` and `uid`: none."""

    pid: int | None = None
    start_ticks: int | None = None
    started: float | None = None
    uid: int | None = None
    user: str | None = None


@frozen
class UnitState:
    """State of a systemd unit in systemd's terms (org.freedesktop.systemd1(5)), or the `problem` of its collection.

    `restart` is its Restart=, `restarts` how often systemd restarted it because of that.
    """

    at: float
    unit: str
    problem: Reason | None = None
    load: str = ""
    active: str = ""
    sub: str = ""
    result: str = ""
    restart: str = ""
    restarts: int = 0

    @property
    def known(self) -> bool:
        """Whether systemd has loaded the unit."""
        return self.problem is None and self.load == "loaded"


@frozen
class Wanted:
    """What to collect: states of processes, and session holders, control sockets and exited clients of daemons."""

    states: frozenset[int] = frozenset()
    holders: frozenset[str] = frozenset()
    sockets: frozenset[str] = frozenset()
    exited: Mapping[str, Mapping[int, "ProcessReading | None"]] = field(default_factory=dict, compare=False)
    """Last readings of clients that may have exited, by daemon. Each new client is among them for a moment."""


@frozen
class ControlReply(DaemonObservation):
    """A command to a control daemon and its reply.

    `exit_code` is None if no answer came within the deadline. The command has PIDs of this namespace, the reply has
    those of the daemon's: `pids` is as in `LogLine`.
    """

    command: str
    exit_code: int | None
    stdout: str = ""
    stderr: str = ""
    seconds: float | None = None
    pids: Mapping[int, int] | None = None

    @property
    def asked_at(self) -> float:
        """When the command was sent. The content of the reply may be as old."""
        return self.at - (self.seconds or 0.0)


@frozen
class LogLine(LogObservation):
    """A complete line of control.log, server.log, or a foreground daemon's stdout.

    If the daemon is in another PID namespace, `pids` maps the known PIDs in the line to PIDs of this namespace.
    Otherwise it is None.
    """

    line: str
    pids: Mapping[int, int] | None = None


@frozen
class LogGap(LogObservation):
    """The number of lines of a log that were lost before they could be read."""

    lines: int


@frozen
class LogUnrecognized(LogObservation):
    """The number of unrecognized lines of a log that were only counted, because they were too many."""

    lines: int


@frozen
class DaemonFound(DaemonObservation):
    """A control daemon that was found or declared, or (`expected` is False) is no longer declared.

    `by` is the source: a value of `NamedBy`. None: the source does not know it.
    `clients_limit` is from a recording, `visible_devices` from the unit, `owner` (a UID) from configuration or unit.
    """

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


@frozen
class GpuProcess:
    """A process in one of NVML's lists."""

    pid: int
    used_bytes: int | None = None


@frozen
class ProcessUtilization:
    """One sample of NVML's process utilization. With MPS, the server has all of it (measured, R580)."""

    pid: int
    timestamp_us: int
    sm_percent: int


@frozen
class MigInstance:
    """A compute instance of a GPU with MIG, by NVML's numbers. `profile` is such as 1g.10gb or 1c.2g.20gb."""

    parent: GpuUuid
    gpu_instance: int
    compute_instance: int
    profile: str | None = None
    sms: int | None = None


@frozen
class GpuReading:
    """NVML's data of one GPU, or the `problem` of its collection. None: this GPU or driver does not have the value.

    A MIG instance has a reading of its own, with `mig`. The reading of a GPU with MIG has the UUIDs of its `instances`.
    If several compute instances share a GPU instance, only the first one has its memory.

    With `unified_memory`, the system has the memory (GB10, Jetson Thor), or uses it as a NUMA node (GH200 by default,
    nvml.h): what is free is not known, and without a size of its own, nor is what is used.

    ECC errors are counted since the board was made. SM utilization and DRAM bandwidth, 0 to 1, are those of the last
    `gpm_seconds`, since the reading before.
    """

    at: float
    gpu: GpuUuid
    problem: Reason | None = None
    index: int | None = None
    name: str | None = None
    compute_processes: tuple[GpuProcess, ...] | None = None
    mps_processes: tuple[GpuProcess, ...] | None = None
    process_utilization: tuple[ProcessUtilization, ...] | None = None
    gpu_percent: int | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    unified_memory: bool | None = None
    energy_millijoules: int | None = None
    pci_bus_id: str | None = None
    driver_version: str | None = None
    cuda_version: str | None = None
    compute_capability: str | None = None
    compute_mode: str | None = None
    mig_mode: bool | None = None
    persistence_mode: bool | None = None
    power_milliwatts: int | None = None
    sm_utilization: float | None = None
    dram_bandwidth: float | None = None
    gpm_seconds: float | None = None
    gpm_supported: bool | None = None
    sms: int | None = None
    mig: MigInstance | None = None
    instances: tuple[GpuUuid, ...] | None = None
    failed: Mapping[str, Reason] = field(default_factory=dict)
    """Why single values could not be read this time, by name. These are None too."""


@frozen
class GpuEvent:
    """An NVML event: `type` is NVML's number (8 is a critical Xid), `xid` its data."""

    at: float
    type: int
    xid: int
    gpu: GpuUuid | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None


@frozen
class KernelRecord:
    """One record of /dev/kmsg, `priority,sequence,microseconds,flags;text`.

    If the exporter is `apart`, its PIDs are those of the host, and name nobody in the exporter's PID namespace.
    """

    at: float
    record: str
    apart: bool = False


@frozen
class ProcessReading(ProcessObservation):
    """A process in /proc.

    `environment` has `CLIENT_LIMITS` and `CORE_DUMPS` at its start. It and `parent` are None if they were not read.
    `job_source` is what names its job if its cgroup does not suffice: the title of root's slurmstepd, the arguments of
    root's condor_starter with zero bytes between them, the working directory of root's sge_shepherd, or the UID of
    Flux's broker. It is empty if it is unknown, and None without a job, or if the Slurm in its pod is not trusted.

    `unit_users` are the real UIDs of all processes that were seen in its unit; None if unknown, or not needed because
    it is in a job or container, or the unit is shared by its name. A unit with jobs or containers is unknown too.
    """

    started: float
    uid: int | None = None
    user: str | None = None
    command: str | None = None
    executable: str | None = None
    cgroup: str | None = None
    job_source: str | None = None
    environment: Mapping[str, str] | None = None
    parent: ProcessIdentity | None = None
    unit_users: tuple[int, ...] | None = None
    ended: bool = False  # Whether it has exited: the reducer stores the last one of an exited client.


@frozen
class PodFound:
    """The name and namespace of the pod that has this UID, and those of its labels that are shown; None if unknown."""

    at: float
    uid: str
    name: str
    namespace: str
    labels: Mapping[str, str] | None = None


@frozen
class ProcessExit(ProcessObservation):
    """The end of a monitored process. `wait_status` is that of waitpid(2), if it could be read."""

    wait_status: int | None = None


@frozen
class AddressWant:
    """A process whose address ranges are wanted. They are read again if its GPU memory or the last fault changes."""

    start_ticks: int
    memory: tuple[int, ...] = ()
    fault_at: float = 0.0


AddressRange = tuple[int, int]  # The first address of a range, and the one after its last.


@frozen
class AddressRanges(ProcessObservation):
    """The address ranges of a process: those that it reserves or maps for a GPU, and other large ones, in order.

    They are not all if `complete` is False, because the process has too many.
    """

    gpu: tuple[AddressRange, ...]
    host: tuple[AddressRange, ...]
    complete: bool = True


@frozen
class DirectoryReading:
    """A pipe directory that may no longer be the daemon's. What cannot be read is None."""

    exists: bool  # Whether it has a control socket.
    pid: int | None = None  # The PID in the pid file.
    listening: bool | None = None  # Whether a process of this machine listens on the control socket.
    other: int | None = None  # The PID here of another daemon with this directory.
    file_system: str | None = None  # Its type, as in /proc/PID/mountinfo.


@frozen
class DaemonProcess(DaemonObservation):
    """The process that a pid file names; `pid` is None if no control daemon runs there. `protocol` is 2 or 3 (R615)."""

    pid: int | None
    hidden: bool = False  # Whether the daemon may run in another PID namespace, which the exporter does not see.
    start_ticks: int | None = None
    started: float | None = None
    uid: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    """CUDA_VISIBLE_DEVICES, and CUDA_DEVICE_ORDER, which its numbers need, if they are set and readable; no others."""
    protocol: int | None = None
    servers: tuple[int, ...] | None = None
    """PIDs of its child processes that are servers; None with protocol 2, where a query lists them."""
    options: tuple[str, ...] = ()
    """Its options that a new daemon needs too: static partitioning, several users, configuration file."""
    foreground: bool | None = None  # Whether the daemon writes its log to stdout (`-f`).
    stdout_in_file: bool | None = None
    stdout_in_journal: bool | None = None
    """Whether that stdout is stdout.log of its log directory, or may be the journal (a socket). None: unknown."""
    unit: str | None = None
    user: str | None = None
    cgroup: str | None = None
    job_source: str | None = None  # as in `ProcessReading`
    peers: tuple[WorkloadProcess, ...] = ()
    pid_file_left: bool | None = None
    quit_traces: bool | None = None
    """Whether a pid file is left, as after SIGKILL, or only the sockets are, as after `quit` (both measured, R580)."""
    same_as: DaemonName | None = None  # Another daemon with the same pipe directory, by device and inode.
    foreign_owner: int | None = None
    """UID that owns the directory or the process there, if that user must not run this daemon."""
    directory: DirectoryReading | None = None
    """Its pipe directory, if that lacks the socket or has another PID than the daemon's; None also if it is unread."""
    entered_by: int | None = None
    """UID of the only user besides root who can enter the pipe directory, or can for certain; None if others can."""


@frozen
class LogFile(LogObservation):
    """A log file: `problem` is None if it is followed. `followed` is False if it is not a log of the daemon.

    `size` is in bytes and includes renamed predecessors that are still written. It is reported when its number of MiB
    changes; None if it was not read, or if there is no file.
    """

    problem: Reason | None = None
    size: int | None = None
    unread: int | None = None
    followed: bool = True


@frozen
class SourceReading:
    """The end of a collection. `daemon` is set if the collector is for one daemon.

    `more` is whether data remains unread.
    """

    at: float
    name: str
    seconds: float
    problem: Reason | None = None
    daemon: DaemonName | None = None
    more: bool = False


OfDaemon = ControlReply | LogLine | LogGap | LogUnrecognized | LogFile | DaemonFound | DaemonProcess
Routine = GpuUse | WorkReading | KernelReading | AddressRanges | DaemonProcess  # They are read often, without news.
OfProcess = ProcessReading | ProcessState | ProcessExit | AddressRanges | PodFound
OfWatchdog = ControlSocket | SessionHolder | ConnectionHolders | UnitState | ActionDone | Resumed | Paused
Observation = OfDaemon | GpuReading | Routine | GpuEvent | KernelRecord | OfProcess | OfWatchdog | SourceReading
