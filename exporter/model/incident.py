"""Faults: what failed, which clients it affected, who may have caused it, what delays recovery."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from exporter.model.gpu import IncidentXid
from exporter.model.identity import Workload
from exporter.model.observation import DaemonName, GpuUuid, ProcessReading
from exporter.model.reason import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """A process that has exited lately: who it was, and how it ended, as far as that could be seen.

    `at` is when the first sign of it was seen. `wait_status` is as from waitpid(2), None where nobody could tell;
    `out_of_memory` says that the kernel killed it for want of memory. `start_ticks` tells it from others that had its
    PID; None where only the kernel told of it.
    """

    at: float
    pid: int
    start_ticks: int | None = None
    process: ProcessReading | None = None
    wait_status: int | None = None
    out_of_memory: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyDisconnect:
    """A client whose contexts ended shortly before a fault, `seconds_before` it.

    `wait_status` is as from waitpid(2), None where nobody saw it; `terminated` says that an operator had the server end
    it.
    """

    pid: int
    seconds_before: float
    terminated: bool = False
    wait_status: int | None = None
    out_of_memory: bool = False

    @property
    def signal(self) -> int | None:
        """The signal that ended it; None where none did, or nobody knows."""
        return None if self.wait_status is None else (self.wait_status & 0x7F) or None

    @property
    def exit_code(self) -> int | None:
        """What it exited with; None where it did not, or nobody knows."""
        return None if self.wait_status is None or self.wait_status & 0x7F else self.wait_status >> 8


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlightWork:
    """Whether a client had work in flight when a fault struck, as far as could be seen at the doors of its libcuda.

    `launched_before` is how many seconds before the fault was told of it had launched last; None where it never had.
    """

    pid: int
    in_flight: bool
    seconds_since_launch: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Clues:
    """All evidence of one fault but its Xids.

    `named` is whom the server's log named with `encountered a fatal GPU error`; `in_reset` are those whose worker was
    in reset when they left. `log_in_doubt` is whether lines of the log are missing, or contradict other sources: a
    tenant may have forged or removed some. `flights` has those of the affected of whom it is known whether they had
    work in flight.
    """

    named: int | None = None
    in_reset: tuple[int, ...] = ()
    early_disconnects: tuple[EarlyDisconnect, ...] = ()
    in_flight_work: tuple[InFlightWork, ...] = ()
    log_unreliable: bool = False


class FaultKind(StrEnum):
    """What broke."""

    MEMORY = "memory"
    EXECUTION = "execution"
    CLIENT_KILLED = "client_killed"
    HARDWARE = "hardware"
    UNKNOWN = "unknown"


class IncidentEnd(StrEnum):
    """How an incident ended: the server is well again, or it is no more."""

    RECOVERED = "recovered"
    SERVER_GONE = "server_gone"
    DAEMON_GONE = "daemon_gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientDetails:
    """What is known of a client at the time of a fault; `memory_bytes` by GPU, as NVML last read it."""

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
    slurm_job_id: str | None = None
    memory_bytes: Mapping[GpuUuid, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A client that may have caused the fault, with the confidence, 0 to 1, and what indicates it."""

    client: ClientDetails
    confidence: float
    indications: tuple[Reason, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A newcomer that was turned away while the server was in FAULT; `pid` is None where it was not told."""

    at: float
    pid: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryDelay:
    """How long an affected client has held up recovery; `until` is None while it does."""

    since: float
    until: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """One fault of one server.

    `block_stamp` is the log's own time of the line that told of it, None where none did: the same line, read again, is
    the same fault. `server_start_ticks` tells the server from a later one with its PID.

    `started_at` is when the first evidence was seen, `detected_at` when it was known to be a fault. `log_seconds` is
    how long it took by the log's own clock, which is finer than the looks at it.

    `affected` are those with the sticky error, as the log told (`affected_told`), else as far as can be inferred from
    who shares the GPUs; suspicion never alters it. `tenants` has what is known of them and of the suspects, `gone` are
    those of the affected who have let go, `blocking` those who had not for a while. It is `stuck` where all have let go
    and the server is in FAULT all the same. `affected_counted` is how many the daemon's total has: the most that there
    surely were. `refused` are the first newcomers that were turned away, `refused_count` is how many were.

    `unseen_since` is since when its daemon has not been known at all. `announced` says that its opening has been told,
    and `settled` that evidence which comes late has had its time. `ending` and `ended_at` are None while the server is
    in FAULT; `told` says that the incident's end has been told, after which nothing changes.
    """

    id: str
    daemon: DaemonName
    server: int
    server_start_ticks: int | None = None
    block_timestamp: str | None = None
    started_at: float
    detected_at: float
    ended_at: float | None = None
    log_seconds: float | None = None
    ending: IncidentEnd | None = None
    kind: FaultKind = FaultKind.UNKNOWN
    gpus: tuple[GpuUuid, ...] = ()
    xids: tuple[IncidentXid, ...] = ()
    affected: tuple[int, ...] = ()
    affected_confirmed: bool = False
    affected_counted: int = 0
    client_details: Mapping[int, ClientDetails] = field(default_factory=dict)
    clues: Clues = field(default_factory=Clues)
    suspects: tuple[Suspect, ...] = ()
    refused: tuple[Refusal, ...] = ()
    refused_count: int = 0
    blocking: Mapping[int, RecoveryDelay] = field(default_factory=dict)
    disconnected: tuple[int, ...] = ()
    stuck: bool = False
    daemon_missing_since: float | None = None
    opening_reported: bool = False
    settled: bool = False
    end_reported: bool = False

    @property
    def open(self) -> bool:
        """Whether the server is still in FAULT."""
        return self.ending is None

    def details_of(self, pid: int) -> ClientDetails:
        """What is known of a client, be it nothing."""
        return self.client_details.get(pid, ClientDetails(pid=pid, client=""))

    @property
    def seconds(self) -> float | None:
        """How long the server was in FAULT; None while it is."""
        if self.log_seconds is not None:
            return self.log_seconds
        return None if self.ended_at is None else max(0.0, self.ended_at - self.started_at)

    @property
    def suspect(self) -> Suspect | None:
        """The likeliest one; None where nobody stands out."""
        if not self.suspects or (len(self.suspects) > 1 and self.suspects[0].confidence <= self.suspects[1].confidence):
            return None
        return self.suspects[0]

    @property
    def blockers(self) -> Mapping[int, RecoveryDelay]:
        """The affected clients that hold up recovery now."""
        return {pid: stay for pid, stay in self.blocking.items() if stay.until is None} if self.open else {}
