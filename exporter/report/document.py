"""The status of a node as one value of plain parts. The service, `status`, the page and the JSON API all have this one.

`exporter.model.values` converts it to JSON and back. It has values. Texts are those that only the service can make: of
findings, reasons, the watchdog, sharing and faults. Times are seconds since the epoch, and ratios are 0 to 1. All texts
but the names of kernels are printable; `printable_value` makes these so.
"""

from collections.abc import Mapping

from exporter.model.kernels import KernelUse
from exporter.model.sharing import SharingStatus
from exporter.model.values import frozen
from exporter.report.document_parts import Bytes, ClientIdentity, IncidentStatus, ProcessStatus, ReasonStatus, Severity

VERSION = 1
"""Of the document. It changes if a field changes its meaning or is removed."""


@frozen
class ManualStep:
    """One thing to do, with its commands. `ends` is how many clients these end; None if that is unknown."""

    text: str
    commands: tuple[str, ...] = ()
    ends: int | None = None


@frozen
class FindingStatus:
    """A problem that the node has now, of one daemon or alike of several ones.

    `code` and `label` name it, `text` says what is wrong, and `meaning` what that means. `affected` is who is affected,
    in a few words, and `affected_names` the known ones. `avoid` is what not to do. `facts` are what indicates the
    problem. `outlook` is what happens without an operator, and `steps` are what to do, in order. `follows` is another
    problem that may be the cause. `client` is a PID.
    """

    code: str
    label: str
    severity: Severity
    daemons: tuple[str, ...]
    server: int | None
    gpu: str | None
    client: int | None
    since: float | None
    text: str
    meaning: str
    affected: str
    affected_names: tuple[str, ...]
    avoid: str
    facts: tuple[str, ...]
    outlook: str
    steps: tuple[ManualStep, ...]
    follows: str | None
    runbook: str | None


@frozen
class ClientStatus(ClientIdentity):
    """A connected client. `gpus` are those that it uses. `failure_domain` is the name of its failure domain.

    `kernels` had most of its time in flight in the last minute; empty if none is known. `kernels_problem` is why some
    have no name. `streams` is how many had work at once.
    """

    connected_at: float
    gpus: tuple[str, ...]
    failure_domain: str | None
    kernels: tuple[KernelUse, ...] | None
    kernels_problem: str | None
    streams: int | None


@frozen
class ServerStatus:
    """A server. `user` is whom it serves. `clients_known` is whether `clients` has all of them."""

    pid: int
    name: str | None
    uid: int | None
    user: str
    state: str | None
    started_at: float
    clients_known: bool
    clients_limit: int | None
    active_thread_ratio: float | None
    low_priority: bool
    pinned_memory_limit_bytes: Bytes
    clients: tuple[ClientStatus, ...]


@frozen
class LogStatus:
    """A log file of a daemon with a problem. `blocked` is whether the daemon itself cannot write it."""

    file: str
    problem: str
    blocked: bool


@frozen
class ActionStatus:
    """An action of the watchdog, why it was taken, and when it began and ended. If not `begun`, it is only planned."""

    action: str
    reason: str
    begun: bool
    began_at: float | None
    done_at: float | None


@frozen
class ActionCountStatus:
    """How often the watchdog took an action for this reason, with this result."""

    action: str
    reason: str
    result: str
    count: int


@frozen
class WatchdogStatus:
    """The watchdog's state of a daemon.

    `label` and `severity` are those of its `state`. `process` is the PID that the `condition` concerns. `action` is the
    present one, or the last one. `restarts` are the times of the counted ones, and `restarts_left` how many more are
    permitted now. `text` is what it does or last did, would do if it acted, or why it waits; None if it is idle and the
    daemon well. `problem` is why the last action failed.
    """

    mode: str | None
    state: str
    label: str
    severity: Severity
    text: str | None
    condition: str | None
    since: float | None
    indications: tuple[ReasonStatus, ...]
    process: int | None
    action: ActionStatus | None
    reason: ReasonStatus | None
    problem: ReasonStatus | None
    counts: tuple[ActionCountStatus, ...]
    restarts: tuple[float, ...]
    restarts_left: int | None
    not_before: float | None
    circuit_opened_at: float | None
    state_lost_at: float | None
    stopped_at: float | None
    quarantined_at: float | None
    quarantine_gpu: str | None
    quarantine_xid: int | None


@frozen
class DaemonStatus:
    """A control daemon with its servers.

    `label` is its state, or in a few words its problem. `owner` has its user, and its job or pod, if it is not expected
    and they are known. The limits are those of the next server. `died`, `faults`, `fault_affected` (clients) and
    `refused` (by reason) are counts.
    """

    name: str
    state: str
    state_since: float | None
    severity: Severity
    label: str
    expected: bool
    owner: str
    pid: int | None
    unit: str | None
    foreign_uid: int | None
    version: str | None
    static_partitions: bool
    active_thread_ratio: float | None
    pinned_memory_limit_bytes: Bytes
    client_count: int
    clients_known: bool
    died: int
    faults: int
    fault_affected: int
    refused: Mapping[str, int]
    logs: tuple[LogStatus, ...]
    waiting: tuple[ProcessStatus, ...]
    watchdog: WatchdogStatus | None
    servers: tuple[ServerStatus, ...]


@frozen
class NeighbourStatus:
    """A client that uses the resource for which another one waits, and the fraction of it."""

    pid: int
    used_ratio: float


@frozen
class SlowdownStatus:
    """By what factor a client is slower than alone; `at_least`: a lower bound. `text` is empty if that is not clear."""

    ratio: float
    error_ratio: float
    at_least: bool
    resource: str | None
    neighbours: tuple[NeighbourStatus, ...]
    text: str


@frozen
class GpuProcess(ProcessStatus):
    """A process on a GPU. `role` is `client`, `bypassing`, `server` or `other`.

    `other` is a process of a user that no daemon of the GPU serves, or one that may be any of these. `sm_ratio` is what
    it used in the last minute, or since its first use, with one standard error. What follows `method` is known of
    clients only: what they may use, and whether their launches are `watched`. A limit that is not `certain` is an upper
    bound: the process may have set a lower one.
    """

    role: str
    memory_used_bytes: int | None
    sm_ratio: float | None
    sm_error_ratio: float | None
    method: str | None
    client: str | None = None
    daemon: str | None = None
    server: int | None = None
    connected_at: float | None = None
    active_thread_ratio: float | None = None
    active_thread_certain: bool | None = None
    usable_sms: int | None = None
    memory_limit_bytes: int | None = None
    memory_limit_certain: bool | None = None
    dram_bandwidth_ratio: float | None = None
    dram_bandwidth_error_ratio: float | None = None
    slowdown: SlowdownStatus | None = None
    watched: bool | None = None


@frozen
class Sentence:
    """A sentence, and how urgent what it says is."""

    text: str
    severity: Severity


@frozen
class GpuStatus:
    """A GPU or a MIG instance.

    `number` is how texts name it: its index, with the two numbers of a MIG instance, or else its UUID. `mode` is how
    processes share it. `label` is that in words, or its problem. With `unified_memory`, the GPU and the system share
    the memory. `processes` are those with the most memory first. `sharing_sentences` describe how its clients share it.
    """

    uuid: str
    number: str
    index: int | None
    name: str | None
    is_mig_instance: bool
    mig_mode: bool
    severity: Severity
    label: str
    mode: str | None
    problem: ReasonStatus | None
    utilization_ratio: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    unified_memory: bool | None
    processes: tuple[GpuProcess, ...]
    sharing: SharingStatus | None
    sharing_sentences: tuple[Sentence, ...]


@frozen
class FailureDomainStatus:
    """Clients (PIDs) that one fault would end together; if `upper_bound`, some of them may survive."""

    name: str
    daemon: str
    clients: tuple[int, ...]
    gpus: tuple[str, ...]
    upper_bound: bool


@frozen
class CollectorStatus:
    """A collector. `failed` is whether its last collection did, for these `reasons`. `problem` has all current ones."""

    name: str
    failed: bool
    problem: str | None
    reasons: tuple[ReasonStatus, ...]
    last_success_at: float | None
    seconds: float


@frozen
class StatusDocument:
    """The status of a node `at` a time.

    `summary` counts what is there, and `findings` are the problems, the most urgent first. `watchdog` is its mode; None
    if there is none. `incidents` are the open ones and the newest others, `older_incidents` are more.
    `attribution_problem` is why the SM time by client is not known.
    """

    version: int
    severity: Severity
    summary: str
    findings: tuple[FindingStatus, ...]
    at: float
    host: str
    simulated: bool
    watchdog: str | None
    daemons: tuple[DaemonStatus, ...]
    gpus: tuple[GpuStatus, ...]
    failure_domains: tuple[FailureDomainStatus, ...]
    incidents: tuple[IncidentStatus, ...]
    older_incidents: int
    collectors: tuple[CollectorStatus, ...]
    attribution_problem: str | None
