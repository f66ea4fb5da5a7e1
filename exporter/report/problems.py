"""The catalogue of problems: each problem that a node can have is defined here, and nowhere else.

Alerts, runbooks, dashboards, `status`, the page, the JSON and `doctor` take their texts and severities from this table,
or tests compare them with it. Conditions of daemons, phases of the watchdog and reasons why it is blocked map to it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Protocol

from exporter.model.values import frozen
from exporter.model.watchdog import BlockReason, Condition, WatchdogPhase
from exporter.report.document_parts import Severity

RUNBOOKS = "/runbooks"
"""The path of runbooks below the URL of the exporter, and below the directory of this package."""

RUN_DOCTOR = "Run `cuda-mps-exporter doctor`: it reports what the exporter lacks."

ON_NODE = (" on {node}", " of {node}")
"""Parts of a summary that only alerts show."""


@frozen
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

    avoid: str = ""
    """What not to do, with what it would end or damage; empty if nothing suggests itself."""

    severity: Severity = Severity.WARNING

    alert: str | None = None
    """The alert that has the texts of this definition."""

    runbook: str | None = None
    """The page that explains the problem, if it is not that of `alert`: a runbook, or a path below the project."""

    @property
    def page(self) -> str | None:
        """The path of the runbook below the URL of the exporter; without a leading slash, below the project."""
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
    summary="CUDA processes [have bypassed MPS for {since}|bypass MPS][ on GPU {gpu}| daemon {daemon} on {node}]"
    "[: {processes}]",
    meaning="CUDA processes run on a GPU that MPS serves, but not through MPS. No limit applies to them, and "
    "MPS clients wait while they compute.",
    remedy="Restart the processes with CUDA_MPS_PIPE_DIRECTORY set to the daemon's directory.",
    alert="CudaMpsProcessBypassing",
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
        summary="Processes [have used MPS for {since}|use MPS] on GPU {gpu} of {node}, but no control daemon is known",
        meaning="NVML lists MPS clients, or a server runs, but the exporter does not find their control daemon. It "
        "reports nothing else about them.",
        remedy="Find the control daemon, and name its directories in [[daemons]] of the configuration. It may run in a "
        "container that the exporter cannot examine.",
        runbook="CudaMpsExporterCannotCollect",
    )
    GPU_RESET_NEEDED = critical(
        label="needs a reset or a reboot",
        summary="[{which} has needed {needed} for {since}|GPU {gpu} on {node} needs a reset or a reboot (Xid {xid})]",
        meaning="The driver reported an error that no program causes, and NVIDIA advises a reset of the GPU or a "
        "reboot. Work on that GPU fails.",
        avoid="Do not restart MPS instead: that does not repair the GPU. A reboot ends all work of the machine.",
        remedy="Take the node out of scheduling. Then reset the GPU or reboot. A restart of MPS does not help.",
        alert="CudaMpsGpuResetNeeded",
    )
    HARDWARE_XID = Definition(
        label="hardware Xid recently",
        summary="GPU {gpu} on {node} reported a hardware error (Xid {xid})[ {since} ago]",
        meaning="The driver reported a failure of memory or of a link. No program causes such an error.",
        remedy="Look up the number in the runbook: it lists what NVIDIA advises for each.",
        alert="CudaMpsHardwareXid",
    )
    GPU_XID = Definition(
        label="Xid recently",
        summary="The driver on {node} reported Xid {xid} for GPU {gpu}",
        meaning="The driver reported an error of the GPU or of a program.",
        remedy="Look up the number in the runbook of CudaMpsHardwareXid.",
        runbook="CudaMpsHardwareXid",
    )
    GPU_LOST = critical(
        label="GPU lost",
        summary="GPU {gpu} on {node} [has been lost for {since}|is lost][: {problem}]",
        meaning="The GPU does not respond to the driver, or NVML no longer lists it. All CUDA processes on it fail.",
        avoid="Do not start work on the GPU. A reset ends all work on it, and a reboot all work of the machine.",
        remedy="Take the node out of scheduling. Read what the kernel reports (`journalctl -k`). Then reset the GPU "
        "or reboot. A restart of MPS does not help.",
        alert="CudaMpsGpuLost",
    )
    GPU_UNREADABLE = critical(
        label="GPU cannot be read",
        summary="Exporter on {node} [has been unable for {since} to|cannot] read GPU {gpu}[: {problem}]",
        meaning="NVML returns an error for this GPU. Its memory, its processes and its Xids are unknown.",
        remedy="Read what the driver and the kernel report (`nvidia-smi -q`, `journalctl -k`). The GPU may need a "
        "reset.",
        runbook="CudaMpsGpuLost",
    )
    WORKLOAD_FILLS_MEMORY = Definition(
        label="workload fills memory",
        summary="Workload {workload} [has filled the memory of GPU {gpu} for {since}|fills the memory of GPU {gpu} on "
        "{node}][: it has {part} of it, and {free} are free]",
        meaning="More than 95 % of the GPU's memory is used, and one workload has more than half of it. Allocations "
        "of the other workloads fail.",
        remedy="Limit the workload's memory (`pinned_memory_limits` in the configuration), or move it.",
        alert="CudaMpsWorkloadFillsMemory",
    )
    CLIENT_STARVED = Definition(
        label="client starved",
        summary="Client {client} on GPU {gpu} of {node} [has been starved for {since}|is starved][ by its {neighbours}]"
        "[: {slowdown}]",
        meaning="For ten minutes, the client's work has taken more than twice as long as on a quiet GPU. MPS "
        "guarantees no client SMs or memory bandwidth. If it waits for neither, its own work may have changed.",
        remedy="Ask the client's owner first whether its work has changed. If not, take the step for the resource that "
        "it waits for.",
        alert="CudaMpsClientStarved",
    )
    CLIENTS_WAITING = Definition(
        label="clients waiting",
        summary="Clients of MPS daemon {daemon} on {node} [have waited {since}|wait] for another user's clients to exit"
        "[: {clients}]",
        meaning="A server serves one user at a time. The waiting clients hang, without an error, until the last "
        "client of the current user has exited.",
        remedy="Wait, or end the current user's clients. To keep users apart, give each user a node or a daemon. If "
        "users may share faults and memory, start the daemon with -multiuser-server.",
        alert="CudaMpsClientsWaiting",
    )
    CLIENTS_REFUSED = Definition(
        label="clients refused",
        summary="MPS daemon {daemon} on {node} refused new clients[, last {since} ago][; now {slots} slots are used]",
        meaning="MPS refused new clients for another reason than a fault; their programs ended with an error. "
        "Usually all client slots of the server were taken.",
        remedy="If slots are free again, start the refused programs again. If not, move work to another node, or end "
        "idle clients.",
        alert="CudaMpsClientsRefused",
    )
    CLIENT_SLOTS_NEARLY_FULL = Definition(
        label="client slots nearly full",
        summary="MPS server {server} of {daemon} on {node} has few free client slots",
        meaning="At least nine tenths of the server's client slots have been taken for ten minutes. When all are "
        "taken, new CUDA processes fail.",
        remedy="Move work to another node, or spread it over one daemon for each GPU.",
        alert="CudaMpsClientSlotsNearlyFull",
    )
    CLIENT_SLOTS_FULL = Definition(
        label="client slots full",
        summary="MPS server {server} of {daemon} on {node} [has had no free client slot for {since}|has no free client "
        "slot][ ({clients} of {limit})]",
        meaning="All client slots of the server on a GPU are taken. New CUDA processes there fail when they start.",
        remedy="End clients that are idle, or start new work later.",
        runbook="CudaMpsClientsRefused",
    )
    PROCESS_BYPASSING = _BYPASSING
    PROCESS_BYPASSING_AFTER_DEATH = replace(
        _BYPASSING,
        severity=Severity.CRITICAL,
        label="bypasses MPS after a death",
        summary="CUDA processes bypass MPS[ on GPU {gpu} after a daemon died| daemon {daemon} on {node} after it died]"
        "[: {processes}]",
    )
    LIMITS_DRIFTED = Definition(
        label="limits drifted",
        summary="Limits of MPS daemon {daemon} on {node} [have differed for {since}|differ] from the configured ones"
        "[: {limits}]",
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
    )
    LOG_BLOCKED = Definition(
        label="log blocked",
        summary="MPS daemon {daemon} [has not written its logs for {since}|on {node} no longer writes its logs]",
        meaning="The control daemon answers commands, but they do not appear in its log. A process wrote data "
        "without a valid header into the log fifo, or reads from it. Until the daemon is restarted, the exporter "
        "does not know which clients a fault affects or which are refused.",
        remedy="Restart the daemon when its clients may end. The restart makes a new log fifo.",
        alert="CudaMpsLogBlocked",
    )
    LOG_CONTRADICTED = Definition(
        label="log contradicted",
        summary="Logs of MPS daemon {daemon} on {node} contradict other sources[, last {since} ago]",
        meaning="No other source confirms some lines of the daemon's logs. A user of the node may forge log lines. "
        "The watchdog does not act on such lines.",
        remedy="Restrict the log fifo to the daemon's user: `cuda-mps-exporter doctor` shows the command.",
        alert="CudaMpsLogContradicted",
    )
    LOG_NOT_FOLLOWED = Definition(
        label="log not followed",
        summary="Exporter on {node} cannot read a log of MPS daemon {daemon}[: {problem}]",
        meaning="The exporter misses short faults, the affected clients, and refused clients.",
        remedy="Let the exporter read the log.",
        runbook="CudaMpsExporterCannotCollect",
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
        avoid="Do not restart MPS: it does not need the exporter.",
        remedy="Restart the exporter. No client is affected.",
        alert="CudaMpsExporterStalled",
    )
    NVML_UNUSABLE = critical(
        label="driver unusable",
        summary="NVML [has not worked for {since}|does not work on {node}][: {problem}]",
        meaning="The exporter cannot read the GPUs. If the driver itself is missing or broken, no CUDA process and no "
        "MPS server can start.",
        avoid="Do not restart a daemon that runs: without the driver, it does not start again.",
        remedy="Run `cuda-mps-exporter doctor`: it shows what is missing, and how to repair it. In a container, "
        "provide the driver's libraries and devices (--gpus all, or NVIDIA_VISIBLE_DEVICES).",
        alert="CudaMpsNvmlUnusable",
    )
    EXPORTER_CANNOT_COLLECT = Definition(
        label="exporter cannot collect",
        summary="CUDA MPS exporter on {node} [has been unable for {since} to|cannot] collect {source}[: {problem}]",
        meaning="A collector has failed, completely or in part. What it collects is missing, not zero.",
        remedy=RUN_DOCTOR,
        alert="CudaMpsExporterCannotCollect",
    )
    EXPORTER_PAUSED = Definition(
        label="exporter paused",
        summary="CUDA MPS exporter [has been paused for {since}|on {node} is paused]",
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


_DIED = Definition(
    label="daemon died recently",
    summary="MPS daemon {daemon} [died {since} ago, and is up again; {ended}|on {node} died]",
    meaning="The control daemon ended, and no operator stopped it. Its clients, if it had any, ended with it. Limits "
    "that were set by command are lost, unless the watchdog sets them again.",
    remedy="Restart the processes that bypass MPS. Then look for the cause in the daemon's log and in the kernel log.",
    alert="CudaMpsDaemonDied",
)


_NEW_PROCESSES = (
    "Unless the GPU's compute mode is EXCLUSIVE_PROCESS, new CUDA processes run without MPS and without limits, and "
    "get no error. In that mode, one of them has the GPU, and all others fail."
)


class DaemonProblem(Problem):
    """Problems of control daemons and their servers, and what the watchdog does about them."""

    WELL = Definition(
        severity=Severity.WELL,
        label="well",
        summary="No problem is known",
        meaning="Nothing that the exporter collects shows a problem.",
        remedy="",
    )
    DAEMON_DOWN = critical(
        label="daemon down",
        summary="MPS daemon {daemon} [has been down for {since}|on {node} is down]",
        meaning="The control daemon does not run, and no operator stopped it. Any clients ended with it. "
        + _NEW_PROCESSES,
        avoid="Do not start CUDA programs before the daemon: they would run without MPS and without limits.",
        remedy="Start the daemon. Then restart the processes that bypass MPS.",
        alert="CudaMpsDaemonDown",
    )
    DAEMON_NEVER_STARTED = critical(
        label="never started",
        summary="MPS daemon {daemon} on {node} has never run",
        meaning="The configuration, a unit or Kubernetes declares the control daemon, but it has never run here.",
        avoid="Do not start CUDA programs before the daemon: they would run without MPS and without limits.",
        remedy="Start the daemon, or remove it from the configuration.",
        runbook="CudaMpsDaemonDown",
    )
    DAEMON_ENDED = Definition(
        label="ended",
        summary="MPS daemon {daemon} [ended {since} ago|on {node} has ended]; it was not expected to run",
        meaning="A discovered control daemon has ended. Neither the configuration nor an enabled unit declares it.",
        remedy="If clients ended with it, inform their owners and start it again; otherwise do nothing.",
    )
    DAEMON_STOPPED = Definition(
        label="stopped",
        summary="An operator stopped MPS daemon {daemon} [{since} ago|on {node}]",
        meaning="An operator stopped the control daemon. " + _NEW_PROCESSES,
        remedy="Start the daemon when it is needed again.",
    )
    DAEMON_DIED = _DIED
    DAEMON_WAS_DOWN = replace(_DIED, label="daemon was down recently", alert=None, runbook="CudaMpsDaemonDied")
    DAEMON_RESTARTED = Definition(
        label="restarted by the watchdog",
        summary="The watchdog restarted MPS daemon {daemon} [{since} ago|on {node}]",
        meaning="The control daemon was hung, or a fault did not end, so the watchdog ended the daemon and started "
        "it again. Its clients ended with it.",
        remedy="Check that the clients run again.",
        alert="CudaMpsDaemonRestarted",
    )
    DAEMON_STARTING = Definition(
        label="starting",
        summary="MPS daemon {daemon} [has been starting for {since}|on {node} is starting]",
        meaning="The control daemon's process runs, but has not answered yet.",
        remedy="Wait 30 s for the first answer.",
    )
    DAEMON_UNKNOWN = Definition(
        severity=Severity.UNKNOWN,
        label="unknown",
        summary="The state of MPS daemon {daemon} on {node} is not known yet",
        meaning="The control daemon has not answered the exporter yet.",
        remedy="Wait 30 s for the first answer.",
    )
    DAEMON_STATE_UNKNOWN = Definition(
        label="unknown",
        summary="The state of MPS daemon {daemon} [has been unknown for {since}|on {node} is unknown]",
        meaning="The control daemon has not answered since the exporter found it.",
        remedy=RUN_DOCTOR,
    )
    DAEMON_NOT_QUERIED = Definition(
        label="not queried",
        summary="Exporter on {node} cannot query MPS daemon {daemon}[: {problem}]",
        meaning="The exporter cannot send commands to the control daemon, so the daemon's state is unknown.",
        remedy=RUN_DOCTOR,
    )
    DAEMON_UNSUPPORTED = Definition(
        label="unsupported",
        summary="MPS daemon {daemon} on {node} uses a protocol that the exporter does not support",
        meaning="The exporter sends no commands to this control daemon. It knows its servers from /proc and their "
        "clients from NVML, but no states, limits and namespaces.",
        remedy="Nothing. A newer version of the exporter may support the protocol.",
    )
    DAEMON_UNRESPONSIVE = critical(
        label="daemon unresponsive",
        summary="MPS daemon {daemon} [has not answered for {since}|on {node} does not answer]",
        meaning="The control daemon's process exists, but answers no command. New CUDA processes hang when they "
        "start. Connected clients continue.",
        avoid="Do not restart the daemon before you have tried to resume it: a restart ends its clients.",
        remedy="If a process is stopped, resume it with `kill -CONT` before you restart anything: a restart ends "
        "all clients.",
        alert="CudaMpsDaemonUnresponsive",
    )
    DAEMON_SUSPENDED = critical(
        label="stopped by a signal",
        summary="MPS daemon {daemon} [has been stopped by a signal or a debugger for {since}|"
        "on {node} is stopped by a signal or a debugger]",
        meaning="The control daemon's process is stopped (SIGSTOP or a debugger). New CUDA processes hang when they "
        "start.",
        avoid="Do not restart the daemon: that ends its clients.",
        remedy="Resume the process with `kill -CONT`. No client ends.",
        runbook="CudaMpsDaemonUnresponsive",
    )
    DAEMON_STUCK_IN_DRIVER = critical(
        label="stuck in the driver",
        summary="MPS daemon {daemon} [has been stuck in the driver for {since}|on {node} is stuck in the driver]",
        meaning="The control daemon, or one of its servers, is in uninterruptible sleep in the driver. No signal "
        "ends it.",
        avoid="Do not wait for `kill -KILL`: the process ends only when the driver returns. A reboot ends all work "
        "of the machine.",
        remedy="Look for Xids in the kernel log. Usually the machine needs a reboot.",
        runbook="CudaMpsDaemonUnresponsive",
    )
    DAEMON_HELD = Definition(
        label="session held open",
        summary="An open session [has blocked commands to MPS daemon {daemon} for {since}|"
        "blocks commands to MPS daemon {daemon} on {node}]",
        meaning="A process is connected to the control daemon, usually a prompt of nvidia-cuda-mps-control, so no "
        "other command can be sent. If that process has sent nothing, new clients wait too. Running clients are not "
        "affected, but a hang would not be detected.",
        avoid="Do not type `quit` at the prompt, and do not restart the daemon: both end its clients.",
        remedy="Ask the owner to leave the prompt with Ctrl-D (`quit` would end the daemon), or end that process. "
        "No client ends.",
        alert="CudaMpsDaemonHeld",
    )
    CONTROL_PROGRAM_UNRESPONSIVE = Definition(
        label="not queried",
        summary="The control program [has not answered for MPS daemon {daemon} for {since},|"
        "does not answer for MPS daemon {daemon} on {node},] but the daemon accepts connections",
        meaning="Clients are not affected. Lists of clients, limits and states of servers are as old as the last "
        "answer.",
        remedy="Find out why nvidia-cuda-mps-control hangs: run it by hand. Do not restart the daemon.",
        runbook="CudaMpsExporterCannotCollect",
    )
    PID_FILE_WRONG = critical(
        label="wrong PID file",
        summary="The PID file of MPS daemon {daemon} on {node} does not contain the daemon's PID[ ({pid})]",
        meaning="The control program reads the PID file, so no command reaches the control daemon.",
        avoid="Do not restart the daemon: it runs, and a restart ends its clients.",
        remedy="Write the PID of the daemon into the PID file.",
    )
    DIRECTORY_LOST = Definition(
        label="lost its directory",
        summary="The pipe directory of MPS daemon {daemon} on {node} [{how}|was removed, or is another daemon's]",
        meaning="New clients here fail, or bypass MPS, unless another daemon of this node has the directory. The "
        "control daemon cannot be queried. Its clients continue.",
        remedy="Change no file there. When its clients have ended, restart the daemon in a directory of this node.",
        runbook="CudaMpsDaemonUnresponsive",
    )
    FOREIGN_DIRECTORY = critical(
        label="directory of another user",
        summary="The pipe directory of MPS daemon {daemon} on {node} belongs to a user who must not run this daemon"
        "[ (UID {uid}, {directory})]",
        meaning="The configuration does not allow the directory's owner to run this daemon. Clients that connect "
        "there may reach another user's daemon.",
        remedy="Remove the directory, and start the daemon. If that user is to run the daemon, set `user` in "
        "[[daemons]].",
        runbook="CudaMpsWatchdogBlocked",
    )
    SERVER_FAULT = critical(
        label="server in FAULT",
        summary="MPS server {server} of {daemon} [has been in FAULT for {since}|"
        "on {node} is in FAULT and refuses new clients][{recovery}; suspect: {suspect}]",
        meaning="A fatal GPU error affects the clients of the server. Until the last of these clients has exited, the "
        "server refuses new clients on all of its GPUs.",
        avoid="Do not restart the daemon: that ends its clients. Do not use terminate_client: the daemon hangs then.",
        remedy="End the affected clients that are connected.",
        alert="CudaMpsServerFault",
    )
    FAULT = Definition(
        label="fault recently",
        summary="A fatal GPU error affected [{affected}|clients] of MPS daemon {daemon} [{since} ago and has ended; "
        "suspect: {suspect}|on {node}]",
        meaning="A client caused a fatal GPU error. MPS ended all clients that share a GPU with it, directly or "
        "through other clients. The server recovers after the exit of the last of them, as a rule within a minute.",
        remedy="Start the affected clients that do not restart by themselves. The daemon needs no action.",
        alert="CudaMpsFault",
    )
    FAULT_LASTED = replace(FAULT, alert=None, runbook="CudaMpsFault")
    SERVER_SUSPENDED = critical(
        label="server stopped by a signal",
        summary="A server of MPS daemon {daemon} [has been stopped by a signal or a debugger for {since}|"
        "on {node} is stopped by a signal or a debugger]",
        meaning="A server's process is stopped. Its clients make no progress, and the control daemon hangs as soon "
        "as it queries that server.",
        avoid="Do not restart the daemon: that ends its clients.",
        remedy="Resume the process with `kill -CONT`. No client ends.",
        runbook="CudaMpsDaemonUnresponsive",
    )
    SERVER_UNRESPONSIVE = critical(
        label="server unresponsive",
        summary="MPS daemon {daemon} [has waited for a server that does not answer for {since}|"
        "on {node} waits for a server that does not answer]",
        meaning="The control daemon answers no command, because it waits for one of its servers.",
        avoid="Do not restart the daemon first: that ends the clients of all its servers.",
        remedy="Find out why the server hangs. Resume it if it is stopped, otherwise end it: this ends its clients.",
        runbook="CudaMpsDaemonUnresponsive",
    )
    SERVER_CRASH_LOOP = critical(
        label="server crash loop",
        summary="Servers of MPS daemon {daemon} on {node} exit before they are ready[: {failed}]",
        meaning="At least three servers in a row exited before they were ready. No new client gets a GPU from this "
        "daemon. Clients of older servers continue.",
        avoid="Do not restart the daemon: that does not help, and it ends the clients of older servers.",
        remedy="Read the cause in the logs of the daemon. Check that MPS supports the GPUs and that the daemon "
        "finds the driver's libraries.",
        alert="CudaMpsServerCrashLoop",
    )
    CIRCUIT_OPEN = critical(
        label="circuit open",
        summary="Restarts of MPS daemon {daemon} [have been suspended for {since}|"
        "on {node} are suspended] (circuit open)",
        meaning="The control daemon was restarted as often as its budget allows. If it fails again, the watchdog "
        "does not restart it.",
        avoid="Do not resume restarts before the cause is corrected.",
        remedy="Find out why the daemon failed and correct the cause. Then resume restarts.",
        alert="CudaMpsCircuitOpen",
    )
    QUARANTINED = critical(
        label="quarantined",
        summary="MPS daemon {daemon} [has been quarantined for {since}|on {node} is quarantined because of its GPU]"
        "[: {cause}]",
        meaning="A GPU of the daemon needs a reset, or the machine needs a reboot. The watchdog does not restart "
        "the control daemon until an operator ends the quarantine.",
        avoid="Do not restart the daemon instead: that does not repair the GPU, and it ends the clients.",
        remedy="Take the node out of scheduling. Then take the steps that `cuda-mps-exporter status` lists, in this "
        "order.",
        alert="CudaMpsQuarantined",
    )
    WATCHDOG_STATE_LOST = critical(
        label="watchdog state lost",
        summary="The watchdog's state of MPS daemon {daemon} [has been lost for {since}|on {node} is lost]",
        meaning="The exporter could not read or write its state directory, so earlier restarts of the daemon are "
        "unknown. The watchdog does not restart the daemon.",
        remedy="Make the state directory writable. Check that the daemon answers. Then resume restarts.",
        runbook="CudaMpsWatchdogBlocked",
    )
    WATCHDOG_BLOCKED = Definition(
        label="watchdog blocked",
        summary="The watchdog on {node} cannot act for MPS daemon {daemon} ({reason})",
        meaning="The configuration allows the watchdog to act for the daemon, but something prevents it. If the "
        "daemon fails, this exporter does not restart it.",
        remedy="Remove the cause, which the label `reason` names.",
        alert="CudaMpsWatchdogBlocked",
    )
    ANOTHER_EXPORTER = Definition(
        label="only observed",
        summary="Another exporter on {node} acts for MPS daemon {daemon}; this one only observes",
        meaning="Another exporter of this machine holds the daemon's lock. If the daemon fails, that exporter "
        "restarts it.",
        remedy="Stop one of the two exporters, or set `watchdog.mode` of one to observe.",
        runbook="CudaMpsWatchdogBlocked",
    )
    NO_LOCK = Definition(
        label="only observed",
        summary="The watchdog on {node} cannot lock MPS daemon {daemon}; it only observes",
        meaning="The lock prevents two exporters from acting for one daemon. Without it, the watchdog does not act.",
        remedy="Make /run/cuda-mps-exporter a directory that only root and the exporter's user can write to.",
        runbook="CudaMpsWatchdogBlocked",
    )
    WATCHDOG_ACTING = Definition(
        label="acting",
        summary="The watchdog acts for MPS daemon {daemon} on {node}",
        meaning="An action of the watchdog is in progress, or its effect is not known yet.",
        remedy="Wait for the result.",
    )
    WATCHDOG_BACKOFF = Definition(
        label="waiting to restart",
        summary="The watchdog waits before it restarts MPS daemon {daemon} on {node} again",
        meaning="The last restart did not help, so the watchdog waits before the next one.",
        remedy="Find out why the daemon fails.",
    )
    WATCHDOG_DEFERRED_TO_SYSTEMD = Definition(
        label="left to systemd",
        summary="systemd restarts MPS daemon {daemon} on {node}",
        meaning="The unit of the daemon has a Restart= that applies, so the watchdog waits for systemd.",
        remedy="Wait for the restart.",
    )


PROBLEMS: Sequence[Problem] = (*DaemonProblem, *NodeProblem)

CONDITION_PROBLEMS: Mapping[Condition, Problem] = {
    Condition.WELL: DaemonProblem.WELL,
    Condition.STARTING: DaemonProblem.DAEMON_STARTING,
    Condition.UNKNOWN: DaemonProblem.DAEMON_UNKNOWN,
    Condition.DOWN: DaemonProblem.DAEMON_DOWN,
    Condition.STOPPED: DaemonProblem.DAEMON_STOPPED,
    Condition.NEVER_STARTED: DaemonProblem.DAEMON_NEVER_STARTED,
    Condition.UNRESPONSIVE: DaemonProblem.DAEMON_UNRESPONSIVE,
    Condition.SUSPENDED: DaemonProblem.DAEMON_SUSPENDED,
    Condition.STUCK_IN_DRIVER: DaemonProblem.DAEMON_STUCK_IN_DRIVER,
    Condition.SERVER_SUSPENDED: DaemonProblem.SERVER_SUSPENDED,
    Condition.SERVER_UNRESPONSIVE: DaemonProblem.SERVER_UNRESPONSIVE,
    Condition.PROGRAM_UNRESPONSIVE: DaemonProblem.CONTROL_PROGRAM_UNRESPONSIVE,
    Condition.HELD: DaemonProblem.DAEMON_HELD,
    Condition.FAULT: DaemonProblem.SERVER_FAULT,
    Condition.CRASH_LOOP: DaemonProblem.SERVER_CRASH_LOOP,
}

PHASE_PROBLEMS: Mapping[WatchdogPhase, Problem] = {
    WatchdogPhase.IDLE: DaemonProblem.WELL,
    WatchdogPhase.ACTING: DaemonProblem.WATCHDOG_ACTING,
    WatchdogPhase.BACKOFF: DaemonProblem.WATCHDOG_BACKOFF,
    WatchdogPhase.QUARANTINED: DaemonProblem.QUARANTINED,
    WatchdogPhase.CIRCUIT_OPEN: DaemonProblem.CIRCUIT_OPEN,
    WatchdogPhase.DEFERRED_TO_SYSTEMD: DaemonProblem.WATCHDOG_DEFERRED_TO_SYSTEMD,
    WatchdogPhase.STATE_LOST: DaemonProblem.WATCHDOG_STATE_LOST,
}

BLOCK_PROBLEMS: Mapping[BlockReason, Problem] = {
    BlockReason.ANOTHER_EXPORTER: DaemonProblem.ANOTHER_EXPORTER,
    BlockReason.NO_LOCK: DaemonProblem.NO_LOCK,
    BlockReason.STATE_LOST: DaemonProblem.WATCHDOG_STATE_LOST,
    BlockReason.FOREIGN_DIRECTORY: DaemonProblem.FOREIGN_DIRECTORY,
}


class Situation(Enum):
    """What to do instead of the remedy of the catalogue, because something prevents that one."""

    CANNOT_QUERY = (
        "Fix what prevents the exporter from querying the daemon: `cuda-mps-exporter doctor` reports what is missing."
    )
    SERVER_STUCK = (
        "All affected clients have exited, and the server does not recover. End it: the daemon starts another one."
    )
    CLIENTS_ENDING = "Wait: the affected clients are exiting."
    FAULT_WITHOUT_INCIDENT = "Look in the table for the clients of that server."
    UNSUPPORTED = "Nothing: of this daemon, the exporter reads only the process."
    PRIVATE_TMP = (
        "Move the daemon to /run, or set PrivateTmp=no. To move it, set CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps for it "
        "and its clients."
    )
    CONTAINER_WITHOUT_DIRECTORY = "Mount the pipe directory and /dev/shm into the container."
    LOG_TO_STDOUT = (
        "Append (>>) the daemon's standard output to the file stdout.log in its log directory, as "
        "nvidia-cuda-mps.service does. Or start the daemon with -d instead of -f. Both need a restart, which ends "
        "clients."
    )


def of_phase(phase: WatchdogPhase) -> Definition:
    """Return the definition of a phase of the watchdog."""
    return PHASE_PROBLEMS[phase].definition
