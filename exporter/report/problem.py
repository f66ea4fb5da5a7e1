"""What a problem of a node is, and the catalogue of problems, first part: GPUs, clients, limits, logs, the exporter."""

from dataclasses import dataclass, replace
from enum import Enum, StrEnum
from functools import partial
from typing import Protocol

RUNBOOKS = "alerts/runbooks"

RUN_DOCTOR = "Run `cuda-mps-exporter doctor`: it reports what the exporter lacks."

ON_NODE = (" on {node}", " of {node}")
"""Parts of a summary that only alerts show."""


class Severity(StrEnum):
    """How urgent a problem is: one scale for alerts, dashboards, `status`, the page and `doctor`."""

    WELL = "well"
    INFO = "info"
    """Only `doctor` has it: nothing fails, but something could be better."""
    UNKNOWN = "unknown"
    WARNING = "warning"
    CRITICAL = "critical"

    @property
    def rank(self) -> int:
        """The position on the scale; a higher one is more urgent."""
        return tuple(Severity).index(self)

    @property
    def words(self) -> str:
        """The name of the severity in a sentence."""
        return "not known yet" if self is Severity.UNKNOWN else self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """The definition of a problem, which all texts about it use.

    Placeholders in braces are filled from a finding's values, or from an alert's labels. `meaning` and `remedy` have
    none, since the alert's description and its runbook contain them as they are.
    """

    label: str
    """Two or three words: the state of a daemon or GPU on the page, and the problem in a dashboard's table."""

    summary: str
    """One line that names the problem, the daemon or GPU, and the node. `{since}` is the duration so far.

    Parts in brackets are as in texts of reasons (`model/reason_code.py`). Without any values, it is the title of the
    alert.
    """

    meaning: str
    """What the problem is, and what it means for clients."""

    remedy: str
    """What to do about it, before any commands for the daemon concerned."""

    severity: Severity = Severity.WARNING

    alert: str | None = None
    """The alert that has the texts of this definition."""

    runbook: str | None = None
    """The page that explains the problem, if it is not that of `alert`: a runbook, or a path below the project."""

    fails: bool = True
    """Whether `status` exits with code 1 while the problem exists."""

    @property
    def page(self) -> str | None:
        """The file of the runbook."""
        name = self.runbook or self.alert
        return name if name is None or "/" in name else f"{RUNBOOKS}/{name}.md"


critical = partial(Definition, severity=Severity.CRITICAL)
"""Defines a critical problem."""


class Entry(Protocol):
    """An entry of the catalogue: a problem that a node can have, or a mistake that a check of `doctor` finds."""

    @property
    def code(self) -> str:
        """The name of the problem for programs."""

    @property
    def definition(self) -> Definition:
        """Its texts and its severity."""


class Problem(Enum):
    """A problem that a node can have. `WELL` is the absence of problems."""

    @property
    def code(self) -> str:
        """The name of the problem for programs."""
        return self.name.lower()

    @property
    def definition(self) -> Definition:
        """Its texts and its severity."""
        definition: Definition = self.value
        return definition


_BYPASSING = Definition(
    label="process bypasses MPS",
    summary="CUDA processes bypass MPS on GPU {gpu} of {node}[: {processes}]",
    meaning="CUDA processes run on a GPU that MPS serves, but not through MPS. No limit applies to them, and "
    "MPS clients wait while they compute.",
    remedy="Restart the processes with CUDA_MPS_PIPE_DIRECTORY set to the daemon's directory.",
    alert="CudaMpsProcessBypassing",
    fails=False,
)


class NodeProblem(Problem):
    """Problems of GPUs, clients, limits, logs and the exporter."""

    WORKLOAD_OFTEN_SUSPECTED = Definition(
        label="workload often suspected",
        summary="Workload {workload} on {node} is often suspected of faults",
        meaning="The workload was the main suspect of several faults within a day. Another client can cause such "
        "a suspicion on purpose, so the number of faults proves nothing.",
        remedy="Compare the evidence of these faults, as `cuda-mps-exporter incidents ID` shows it. Do not end or move "
        "the workload only because of this alert.",
        alert="CudaMpsWorkloadOftenSuspected",
    )
    MPS_WITHOUT_DAEMON = Definition(
        label="no known daemon",
        summary="Processes use MPS on GPU {gpu} of {node}, but no control daemon is known",
        meaning="NVML lists MPS clients, or a server runs, but the exporter does not find their control daemon. It "
        "reports nothing else about them.",
        remedy="Find the control daemon, and name its directories in [[daemons]] of the configuration. It may run in a "
        "container that the exporter cannot examine.",
        runbook="CudaMpsExporterCannotCollect",
    )
    GPU_RESET_NEEDED = critical(
        label="needs a reset or a reboot",
        summary="[{which} needs {needed}|GPU {gpu} on {node} needs a reset or a reboot (Xid {xid})]",
        meaning="The driver reported an error that no program causes, and NVIDIA advises a reset of the GPU or a "
        "reboot. Work on that GPU fails.",
        remedy="Take the node out of scheduling. Then reset the GPU or reboot. A restart of MPS does not help.",
        alert="CudaMpsGpuResetNeeded",
    )
    HARDWARE_XID = Definition(
        label="hardware Xid recently",
        summary="GPU {gpu} on {node} reported a hardware error (Xid {xid})",
        meaning="The driver reported a failure of memory or of a link. No program causes such an error.",
        remedy="Look up the number in the runbook: it lists what NVIDIA advises for each.",
        alert="CudaMpsHardwareXid",
        fails=False,
    )
    GPU_XID = Definition(
        label="Xid recently",
        summary="The driver on {node} reported Xid {xid} for GPU {gpu}",
        meaning="The driver reported an error of the GPU or of a program.",
        remedy="Look up the number in the runbook of CudaMpsHardwareXid.",
        runbook="CudaMpsHardwareXid",
        fails=False,
    )
    GPU_LOST = critical(
        label="GPU lost",
        summary="GPU {gpu} on {node} is lost[: {problem}]",
        meaning="The GPU does not respond to the driver, or NVML no longer lists it. All CUDA processes on it fail.",
        remedy="Take the node out of scheduling. Read what the kernel reports (`journalctl -k`). Then reset the GPU "
        "or reboot. A restart of MPS does not help.",
        alert="CudaMpsGpuLost",
    )
    GPU_UNREADABLE = critical(
        label="GPU cannot be read",
        summary="Exporter on {node} cannot read GPU {gpu}[: {problem}]",
        meaning="NVML returns an error for this GPU. Its memory, its processes and its Xids are unknown.",
        remedy="Read what the driver and the kernel report (`nvidia-smi -q`, `journalctl -k`). The GPU may need a "
        "reset.",
        runbook="CudaMpsGpuLost",
        fails=False,
    )
    WORKLOAD_FILLS_MEMORY = Definition(
        label="workload fills memory",
        summary="Workload {workload} fills the memory of GPU {gpu} on {node}"
        "[: it has {part} of it, and {free} are free]",
        meaning="More than 95 % of the GPU's memory is used, and one workload has more than half of it. Allocations "
        "of the other workloads fail.",
        remedy="Limit the workload's memory (`pinned_memory_limits` in the configuration), or move it.",
        alert="CudaMpsWorkloadFillsMemory",
        fails=False,
    )
    CLIENT_STARVED = Definition(
        label="client starved",
        summary="Client {client} on GPU {gpu} of {node} is starved[ by its {neighbours}][: {slowdown}]",
        meaning="For ten minutes, the client's work has taken more than twice as long as on a quiet GPU. MPS "
        "guarantees no client SMs or memory bandwidth. If it waits for neither, its own work may have changed.",
        remedy="Ask the client's owner first whether its work has changed. If not, and it waits for SMs, limit its "
        "neighbours' threads. If it waits for memory bandwidth, that does not help: move it to another GPU. This ends "
        "its process.",
        alert="CudaMpsClientStarved",
        fails=False,
    )
    CLIENTS_WAITING = Definition(
        label="clients waiting",
        summary="Clients of MPS daemon {daemon} on {node} wait for another user's clients to exit[: {clients}]",
        meaning="A server serves one user at a time. The waiting clients hang, without an error, until the last "
        "client of the current user has exited.",
        remedy="Wait, or end the current user's clients. To keep users apart, give each user a node or a daemon. If "
        "users may share faults and memory, start the daemon with -multiuser-server.",
        alert="CudaMpsClientsWaiting",
        fails=False,
    )
    CLIENTS_REFUSED = Definition(
        label="clients refused",
        summary="MPS daemon {daemon} on {node} refuses new clients",
        meaning="MPS refused new clients for another reason than a fault; their programs ended with an error. "
        "Usually all client slots of the server are taken.",
        remedy="Move work to another node, or end idle clients.",
        alert="CudaMpsClientsRefused",
        fails=False,
    )
    CLIENT_SLOTS_NEARLY_FULL = Definition(
        label="client slots nearly full",
        summary="MPS server {server} of {daemon} on {node} has few free client slots",
        meaning="At least nine tenths of the server's client slots have been taken for ten minutes. When all are "
        "taken, new CUDA processes fail.",
        remedy="Move work to another node, or spread it over one daemon for each GPU.",
        alert="CudaMpsClientSlotsNearlyFull",
        fails=False,
    )
    CLIENT_SLOTS_FULL = Definition(
        label="client slots full",
        summary="MPS server {server} of {daemon} on {node} has no free client slot[ ({clients} of {limit})]",
        meaning="All client slots of the server are taken. New CUDA processes fail when they start.",
        remedy="End clients that are idle, or start new work later.",
        runbook="CudaMpsClientsRefused",
        fails=False,
    )
    PROCESS_BYPASSING = _BYPASSING
    PROCESS_BYPASSING_AFTER_DEATH = replace(
        _BYPASSING,
        severity=Severity.CRITICAL,
        label="bypasses MPS after a death",
        summary="CUDA processes bypass MPS on GPU {gpu} of {node} after a daemon died",
        fails=True,
    )
    LIMITS_DRIFTED = Definition(
        label="limits drifted",
        summary="Limits of MPS daemon {daemon} on {node} differ from the configured ones[: {limits}]",
        meaning="A command changed a limit, or the daemon was started without it. Clients can use more of the GPU "
        "than was configured, or less.",
        remedy='Set the limit again. If the watchdog may act (watchdog.mode = "act"), it sets the limit itself. '
        "Neither ends a client.",
        alert="CudaMpsLimitsDrifted",
    )
    LOG_GROWING = Definition(
        label="log not rotated",
        summary="Log {file} of MPS daemon {daemon} on {node} is larger than 1 GB",
        meaning="The log has been larger than 1 GB for an hour, and is not rotated. When the file system is full, "
        "the logs end in the middle of a line.",
        remedy="Set up logrotate with copytruncate: the daemon never opens its log again, and continues to write "
        "into a renamed file.",
        alert="CudaMpsLogGrowing",
        fails=False,
    )
    LOG_BLOCKED = Definition(
        label="log blocked",
        summary="MPS daemon {daemon} [has not written its logs for {since}|on {node} no longer writes its logs]",
        meaning="The control daemon answers commands, but they do not appear in its log. A process wrote data "
        "without a valid header into the log fifo, or reads from it. Until the daemon is restarted, the exporter "
        "does not know which clients a fault affects or which are refused.",
        remedy="Restart the daemon when its clients may end. The restart makes a new log fifo.",
        alert="CudaMpsLogBlocked",
        fails=False,
    )
    LOG_CONTRADICTED = Definition(
        label="log contradicted",
        summary="Logs of MPS daemon {daemon} on {node} contradict other sources",
        meaning="No other source confirms some lines of the daemon's logs. A user of the node may forge log lines. "
        "The watchdog does not act on such lines.",
        remedy="Restrict the log fifo to the daemon's user: `cuda-mps-exporter doctor` shows the command.",
        alert="CudaMpsLogContradicted",
        fails=False,
    )
    LOG_NOT_FOLLOWED = Definition(
        label="log not followed",
        summary="Exporter on {node} cannot read a log of MPS daemon {daemon}[: {problem}]",
        meaning="The exporter misses short faults, the affected clients, and refused clients.",
        remedy="Let the exporter read the log.",
        runbook="CudaMpsExporterCannotCollect",
        fails=False,
    )
    NOTHING_COLLECTED = Definition(
        severity=Severity.UNKNOWN,
        label="not known yet",
        summary="The exporter has not collected anything yet",
        meaning="The exporter has just started.",
        remedy="Wait a few seconds.",
    )
    EXPORTER_DOWN = critical(
        label="exporter down",
        summary="CUDA MPS exporter on {node} is down",
        meaning="Prometheus cannot scrape the exporter. MPS is not monitored on this node, and no other alert can "
        "fire for it.",
        remedy="Run `systemctl status cuda-mps-exporter`, and read its journal.",
        alert="CudaMpsExporterDown",
    )
    EXPORTER_STALLED = critical(
        label="exporter stalled",
        summary="[The exporter has been stalled for {since}; the data below is not current|"
        "CUDA MPS exporter on {node} serves outdated data]",
        meaning="The exporter's main loop has stopped, or the clocks of the node and of Prometheus differ. Other "
        "alerts of this node may be wrong.",
        remedy="Restart the exporter. No client is affected.",
        alert="CudaMpsExporterStalled",
    )
    NVML_UNUSABLE = critical(
        label="driver unusable",
        summary="NVML does not work on {node}[: {problem}]",
        meaning="The exporter cannot read the GPUs. If the driver itself is missing or broken, no CUDA process and no "
        "MPS server can start.",
        remedy="Run `cuda-mps-exporter doctor`: it shows what is missing, and how to repair it. In a container, "
        "provide the driver's libraries and devices (--gpus all, or NVIDIA_VISIBLE_DEVICES).",
        alert="CudaMpsNvmlUnusable",
    )
    EXPORTER_CANNOT_COLLECT = Definition(
        label="exporter cannot collect",
        summary="CUDA MPS exporter on {node} cannot collect {source}[: {problem}]",
        meaning="A collector has failed, completely or in part. What it collects is missing, not zero.",
        remedy=RUN_DOCTOR,
        alert="CudaMpsExporterCannotCollect",
    )
    EXPORTER_PAUSED = Definition(
        label="exporter paused",
        summary="CUDA MPS exporter on {node} is paused",
        meaning="An operator paused the exporter, so it has closed the driver. It collects nothing from the GPUs.",
        remedy="When the work on the driver is done, run `cuda-mps-exporter resume` on the node.",
        alert="CudaMpsExporterPaused",
    )
    CONFIG_RELOAD_FAILED = Definition(
        label="configuration rejected",
        summary="CUDA MPS exporter on {node} rejected its new configuration",
        meaning="The exporter could not use the configuration that it was to load. The previous one stays in force, "
        "but the exporter would not start again.",
        remedy="Read the line reload_failed in the exporter's journal and correct the file. Then run `systemctl "
        "reload cuda-mps-exporter`.",
        alert="CudaMpsConfigReloadFailed",
    )
