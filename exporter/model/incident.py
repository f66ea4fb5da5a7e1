"""Xids, faults and deaths: what failed, which clients it affected, who may have caused it, what delays recovery."""

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum

from exporter.model.identity import Confidence, Workload
from exporter.model.kernels import FaultKernels
from exporter.model.observation import DaemonName, GpuUuid, ProcessReading
from exporter.model.reason import Reason
from exporter.model.values import frozen


class XidSource(StrEnum):
    """Source that reports Xids."""

    KERNEL = "kernel"
    NVML = "nvml"


@frozen
class XidCount:
    """How often an Xid occurred, and when it did so last."""

    total: int = 0
    last_at: float = 0.0


INSTRUCTIONS = "GCC"  # The GPU's cache of instructions and constants, which fetches the instructions of kernels.

HIGHEST_ADDRESS = 1 << 47
"""The upper end of a process' addresses. The kernel of a client that has exited cannot fetch its instructions. A wild
pointer fails elsewhere, and a wild jump above (measured, R580)."""


class AccessKind(StrEnum):
    """What an access does."""

    READ = "read"
    WRITE = "write"
    ATOMIC = "atomic"


@frozen
class FailedAccess:
    """A memory access that failed.

    `unit` is the GPU's unit: GCC for GPCCLIENT_GCC, T1 for any GPCCLIENT_T1_n, HUB_CE0 for HUBCLIENT_CE0. `address` is
    the first one of its page. `fault` is the driver's kind, such as FAULT_PDE.
    """

    unit: str
    address: int
    engine: str | None = None
    fault: str | None = None
    kind: AccessKind | None = None

    @property
    def is_fetch(self) -> bool:
        """Whether instructions could not be fetched at an address that a process can have."""
        return self.unit == INSTRUCTIONS and self.address < HIGHEST_ADDRESS


@frozen
class IncidentXid:
    """One Xid, with what all sources report about it."""

    at: float  # When the first source reported it.
    number: int
    gpu: GpuUuid | None = None  # None if the GPU is unknown. It is a MIG instance if the source names one.
    bus_id: str = ""
    pid: int | None = None  # The process that the kernel log names. It did not always cause the Xid.
    name: str | None = None
    access: FailedAccess | None = None
    core_dump: bool = False  # Whether its text is that of a fault while a client has GPU core dumps on.
    kernel_seconds: float | None = None  # When it occurred, by the clock of the kernel log.
    settled: bool = False  # Whether it belongs to a fault, or is too old to do so.


@frozen
class XidReport(IncidentXid):
    """One Xid as one source reports it."""

    source: XidSource
    parent: GpuUuid | None = None  # The whole GPU, also if `gpu` is a MIG instance.


@frozen
class XidBurst:
    """How many Xids of one number on one GPU were events of their own since the first one."""

    since: float
    reported: int


@frozen
class RecoveryAction:
    """What the driver demands for a GPU, in the words of NVIDIA's catalogue: RESET_GPU, RESTART_BM."""

    at: float
    action: str


@frozen
class Xids:
    """Xids since the exporter started."""

    counts: Mapping[tuple[str, str], XidCount] = field(default_factory=dict)
    """By GPU and number. The GPU is its UUID, else its bus id (`PCI:0000:00:06`), else empty. Counts never decrease."""
    addresses: Mapping[str, GpuUuid] = field(default_factory=dict)  # GPUs by bus id.
    unmatched: tuple[XidReport, ...] = ()
    """Reports that the other source has not confirmed yet. Those with a GPU are counted."""
    recent: tuple[IncidentXid, ...] = ()
    """Xids of the last seconds, the oldest first, which may still belong to a fault."""
    bursts: Mapping[tuple[str | None, int], XidBurst] = field(default_factory=dict)
    """Recent Xids of no fault, by GPU and number."""
    addresses_unrecognized: int = 0  # Xids 31 whose text has no faulting address in a known form.
    recovery_actions: Mapping[GpuUuid, RecoveryAction] = field(default_factory=dict)
    resets: Mapping[str, float] = field(default_factory=dict)
    """When each GPU was reset last: as the driver or NVML shows, or an operator states with `resume`."""
    leftovers: Mapping[GpuUuid, "Leftover"] = field(default_factory=dict)
    """The last kernel that a client left behind on each GPU."""


# -- faults ---------------------------------------------------------------------------------------------------------


@frozen
class Death:
    """A process that has exited recently."""

    at: float  # When the first sign of it was read.
    pid: int
    start_ticks: int | None = None
    """Distinguishes it from other processes with its PID; None if only the kernel log reported it."""
    process: ProcessReading | None = None
    wait_status: int | None = None  # As from waitpid(2); None if unknown.
    out_of_memory: bool = False  # Whether the kernel killed it for lack of memory.


@frozen
class EarlyDisconnect:
    """A client whose contexts ended shortly before a fault."""

    pid: int
    seconds_before: float
    terminated: bool = False  # Whether an operator had the server end it.
    wait_status: int | None = None  # As from waitpid(2); None if unknown.
    out_of_memory: bool = False

    @property
    def signal(self) -> int | None:
        """The signal that ended it; None if there was none, or if that is unknown."""
        return None if self.wait_status is None else (self.wait_status & 0x7F) or None

    @property
    def exit_code(self) -> int | None:
        """Its exit code; None if a signal ended it, or if that is unknown."""
        return None if self.wait_status is None or self.wait_status & 0x7F else self.wait_status >> 8


@frozen
class Leftover:
    """A kernel that a client left behind (`incidents/leftover.py`).

    `at` is when its access failed first. `exits` are the clients that ended then, with their details. `newcomers` are
    the affected clients that connected later.
    """

    at: float
    address: int
    exits: tuple[EarlyDisconnect, ...] = ()
    details: Mapping[int, "ClientDetails"] = field(default_factory=dict)
    newcomers: tuple[int, ...] = ()


@frozen
class InFlightWork:
    """Whether a client had work in flight at the time of a fault, by the libcuda probes."""

    pid: int
    in_flight: bool
    seconds_since_launch: float | None = None  # Time from its last launch to the fault; None if there was no launch.


NULL_BYTES = 1 << 16  # A smaller address is a null pointer with a small offset.

LOWEST_ADDRESS = 0x3_0200_0000
"""No client has memory below, but all have CUDA's own ranges (measured, R580). Such an address identifies nobody: it is
a null pointer with an offset."""


CHOSEN_BELOW = 1 << 44
"""Lower addresses are CUDA's own choice (of VMM, asynchronous pools) and similar in all processes. So neither the size
of a range there nor the distance to it distinguishes clients, and any client can use them on purpose."""

CLOSE = 1 << 30  # An address that is farther from a range may be a random pointer of any client.
CLOSE_TO_HOST = 64 << 20  # The same for ranges of the host, of which each process has many.

MIN_ADDRESS_SHARE = 0.5
"""If no client, or group of clients that are alike, has this share, the address distinguishes none."""


class Place(StrEnum):
    """Where an address lies, as seen from an address range."""

    INSIDE = "inside"
    BEFORE = "before"
    BEYOND = "beyond"


@frozen
class AddressMatch:
    """How well a faulting address fits the address ranges of one client.

    `share` is the probability that this client used the address, by the ranges of all candidates. `distance` is that
    to the nearest range, which has `range_bytes`; 0 inside. `is_host` is whether that range is memory of the host.
    `freed_seconds` is set if an earlier reading has the range and the one after the fault has not: the time between
    that reading and the fault. `alike` are other clients with the same ranges there.
    """

    pid: int
    share: float
    place: Place
    distance: int
    range_bytes: int
    is_host: bool = False
    freed_seconds: float | None = None
    alike: tuple[int, ...] = ()


@frozen
class AddressClue:
    """The faulting address, and the candidates that it fits best, the likeliest first.

    `unread` are the candidates of which not all address ranges are known, also after the fault. `fault` is the driver's
    kind of fault, and `engine` its name of the GPU's engine.
    """

    address: int
    kind: AccessKind | None = None
    fault: str | None = None
    engine: str | None = None
    matches: tuple[AddressMatch, ...] = ()
    candidates: tuple[int, ...] = ()
    unread: tuple[int, ...] = ()

    @property
    def best(self) -> AddressMatch | None:
        """The best match, if it and those that are alike are together the likeliest; else the address shows nobody."""
        best = self.matches[0] if self.matches else None
        return None if best is None or best.share * (1 + len(best.alike)) < MIN_ADDRESS_SHARE else best

    @property
    def is_weak(self) -> bool:
        """Whether the address is not enough to name a client: any client may have used it, by chance or on purpose."""
        best = self.best
        return self.address < CHOSEN_BELOW or best is None or best.distance > (CLOSE_TO_HOST if best.is_host else CLOSE)


@frozen
class Clues:
    """All evidence of one fault, except its Xids."""

    named: int | None = None  # The client that the server's log named with `encountered a fatal GPU error`.
    in_reset: tuple[int, ...] = ()  # Clients whose worker was in reset when they disconnected.
    early_disconnects: tuple[EarlyDisconnect, ...] = ()
    in_flight_work: tuple[InFlightWork, ...] = ()  # Work of the affected clients for which it is known.
    kernels: tuple[FaultKernels, ...] = ()  # Those of affected clients and other candidates.
    address: AddressClue | None = None
    """None if no access of data failed, or if the kernel log did not report its address."""
    log_unreliable: bool = False
    """Whether lines of the log are missing or contradict other sources: a workload may have forged or removed some."""
    leftover: Leftover | None = None
    unlisted: tuple[int, ...] = ()
    """With GPU core dumps: other clients that were connected at the first sign. The log may not list the cause."""


class IncidentKind(StrEnum):
    """Kinds of faults and deaths."""

    MEMORY = "memory"
    EXECUTION = "execution"
    CLIENT_KILLED = "client_killed"
    HARDWARE = "hardware"
    UNKNOWN = "unknown"
    DAEMON_DIED = "daemon_died"
    SERVER_DIED = "server_died"
    RESTARTED = "restarted"  # The watchdog ended the daemon to restart it.


DEATHS = (IncidentKind.DAEMON_DIED, IncidentKind.SERVER_DIED, IncidentKind.RESTARTED)


class IncidentEnd(StrEnum):
    """How an incident ended: the server or the daemon works again, or it no longer exists."""

    RECOVERED = "recovered"
    SERVER_GONE = "server_gone"
    DAEMON_GONE = "daemon_gone"


@frozen
class ClientDetails:
    """What was known of a client at the time of a fault, or when it ended."""

    pid: int
    client: str
    uid: int | None = None
    user: str | None = None
    command: str | None = None
    workload: Workload | None = None
    unit: str | None = None
    container: str | None = None
    pod_uid: str | None = None
    pod: str | None = None
    namespace: str | None = None
    job_manager: str | None = None
    job_id: str | None = None
    core_dumps: bool | None = None  # Whether its environment turns on GPU core dumps.
    memory_bytes: Mapping[GpuUuid, int] = field(default_factory=dict)

    @property
    def workload_label(self) -> str:
        """Its workload as `kind/name`, else `pid/N`. The kind is first, so that no name looks like another kind's."""
        return f"pid/{self.pid}" if self.workload is None else f"{self.workload.kind}/{self.workload.name}"


@frozen
class Suspect:
    """A client that may have caused the fault, with the confidence, 0 to 1, and what indicates it."""

    client: ClientDetails
    confidence: float
    indications: tuple[Reason, ...]

    @property
    def level(self) -> Confidence:
        """The level of the confidence; from medium on, the workload is counted as suspected."""
        levels = ((0.8, Confidence.HIGH), (0.5, Confidence.MEDIUM))
        return next((level for least, level in levels if self.confidence >= least), Confidence.LOW)


@frozen
class Refusal:
    """A new client that was refused because the server was in FAULT; `pid` is None if the log did not give it."""

    at: float
    pid: int | None


@frozen
class RecoveryDelay:
    """How long an affected client has delayed recovery; `until` is None if it still does."""

    since: float
    until: float | None = None


@frozen
class Incident:
    """One fault of one server, or the death of a daemon or a server with its clients."""

    id: str
    daemon: DaemonName
    server: int  # 0 if the daemon ended.
    server_start_ticks: int | None = None  # Distinguishes the server from a later process with its PID.
    block_timestamp: str | None = None
    """The log's timestamp of the fault block, None without one. A block that is read again is the same fault."""
    started_at: float  # When its first sign occurred, by the kernel's clock if the kernel log has it.
    detected_at: float  # When it was known to be a fault.
    ended_at: float | None = None
    log_seconds: float | None = None  # Duration by the log's timestamps, which are finer than the exporter's.
    ending: IncidentEnd | None = None  # None while the server is in FAULT, or the daemon does not run again.
    kind: IncidentKind = IncidentKind.UNKNOWN
    gpus: tuple[GpuUuid, ...] = ()
    xids: tuple[IncidentXid, ...] = ()
    affected: tuple[int, ...] = ()
    """Clients that got the sticky error: as logged, else inferred from the clients on the GPUs. Suspicion never alters
    it. Of a death, those that ended."""
    affected_confirmed: bool = False  # Whether the log listed the affected clients; of a death, whether all are known.
    affected_counted: int = 0  # How many the daemon's total has counted: the least number that is certain.
    client_details: Mapping[int, ClientDetails] = field(default_factory=dict)
    """Details of the affected clients and the suspects, by PID."""
    clues: Clues = field(default_factory=Clues)
    suspects: tuple[Suspect, ...] = ()
    refused: tuple[Refusal, ...] = ()  # The first of the refused clients.
    refused_count: int = 0
    blocking: Mapping[int, RecoveryDelay] = field(default_factory=dict)
    """Affected clients that did not disconnect in time, by PID."""
    disconnected: tuple[int, ...] = ()  # Affected clients that have disconnected.
    stuck: bool = False  # Whether all affected clients have disconnected and the server is still in FAULT.
    daemon_missing_since: float | None = None  # Since when its daemon is unknown.
    opening_reported: bool = False
    settled: bool = False  # Whether the time for late evidence has passed.
    end_reported: bool = False  # Whether the end was reported, after which nothing changes.
    replaces: tuple[str, ...] = ()
    """IDs of the deaths of servers that this death of their daemon includes. They are records of their own no more."""

    @property
    def is_fault(self) -> bool:
        """Whether it is a fault, and not a death."""
        return self.kind not in DEATHS

    @property
    def open(self) -> bool:
        """Whether the server is still in FAULT, or the daemon does not run again."""
        return self.ending is None

    @property
    def core_dumps(self) -> bool:
        """Whether a client had GPU core dumps on, by the kernel log.

        If that has no Xid: by Xids 31 and 43, which NVML reports of no other fault (R580), or by an environment.
        """
        if any(xid.core_dump or xid.kernel_seconds is not None for xid in self.xids):
            return any(xid.core_dump for xid in self.xids)
        on = any(each.core_dumps for each in self.client_details.values())
        return on or {xid.number for xid in self.xids} >= {31, 43}

    def details_of(self, pid: int) -> ClientDetails:
        """Return the details of a client, which are empty if nothing is known."""
        return self.client_details.get(pid, ClientDetails(pid=pid, client=""))

    @property
    def seconds(self) -> float | None:
        """How long the server was in FAULT; None if it still is."""
        if self.log_seconds is not None:
            return self.log_seconds
        return None if self.ended_at is None else max(0.0, self.ended_at - self.started_at)

    @property
    def suspect(self) -> Suspect | None:
        """The only likeliest suspect; None if there is none."""
        if not self.suspects or (len(self.suspects) > 1 and self.suspects[0].confidence <= self.suspects[1].confidence):
            return None
        return self.suspects[0]

    @property
    def blockers(self) -> Mapping[int, RecoveryDelay]:
        """The affected clients that delay recovery now."""
        return {pid: delay for pid, delay in self.blocking.items() if delay.until is None} if self.open else {}
