"""The catalogue of problems: each problem that a node can have is defined here, and nowhere else.

Alerts, runbooks, dashboards, `status`, the page, the JSON and `doctor` take their texts and severities from this table,
or tests compare them with it. Conditions of daemons, phases of the watchdog and reasons why it is blocked map to it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import Enum

from exporter.model.watchdog import BlockReason, Condition, WatchdogPhase
from exporter.report.problem import RUN_DOCTOR, Definition, NodeProblem, Problem, Severity, critical

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
        fails=False,
    )
    DAEMON_DOWN = critical(
        label="daemon down",
        summary="MPS daemon {daemon} [has been down for {since}|on {node} is down]",
        meaning="The control daemon does not run, and no operator stopped it. Any clients ended with it. "
        + _NEW_PROCESSES,
        remedy="Start the daemon. Then restart the processes that bypass MPS.",
        alert="CudaMpsDaemonDown",
    )
    DAEMON_NEVER_STARTED = critical(
        label="never started",
        summary="MPS daemon {daemon} on {node} has never run",
        meaning="The configuration, a unit or Kubernetes declares the control daemon, but it has never run here.",
        remedy="Start the daemon, or remove it from the configuration.",
        runbook="CudaMpsDaemonDown",
    )
    DAEMON_ENDED = Definition(
        label="ended",
        summary="MPS daemon {daemon} on {node} has ended; it was not expected to run",
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
    DAEMON_DIED_WITH_CLIENTS = replace(_DIED, severity=Severity.CRITICAL, label="daemon died with clients")
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
        remedy="Resume the process with `kill -CONT`. No client ends.",
        runbook="CudaMpsDaemonUnresponsive",
    )
    DAEMON_STUCK_IN_DRIVER = critical(
        label="stuck in the driver",
        summary="MPS daemon {daemon} [has been stuck in the driver for {since}|on {node} is stuck in the driver]",
        meaning="The control daemon, or one of its servers, is in uninterruptible sleep in the driver. No signal "
        "ends it.",
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
        remedy="Do not restart the daemon, and do not use terminate_client. End the affected clients that are "
        "connected.",
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
        fails=False,
    )
    FAULT_LASTED = replace(FAULT, alert=None, runbook="CudaMpsFault")
    SERVER_SUSPENDED = critical(
        label="server stopped by a signal",
        summary="A server of MPS daemon {daemon} [has been stopped by a signal or a debugger for {since}|"
        "on {node} is stopped by a signal or a debugger]",
        meaning="A server's process is stopped. Its clients make no progress, and the control daemon hangs as soon "
        "as it queries that server.",
        remedy="Resume the process with `kill -CONT`. No client ends.",
        runbook="CudaMpsDaemonUnresponsive",
    )
    SERVER_UNRESPONSIVE = critical(
        label="server unresponsive",
        summary="MPS daemon {daemon} [has waited for a server that does not answer for {since}|"
        "on {node} waits for a server that does not answer]",
        meaning="The control daemon answers no command, because it waits for one of its servers.",
        remedy="Find out why the server hangs. Resume it if it is stopped, otherwise end it: this ends its clients.",
        runbook="CudaMpsDaemonUnresponsive",
    )
    SERVER_CRASH_LOOP = critical(
        label="server crash loop",
        summary="Servers of MPS daemon {daemon} on {node} exit before they are ready[: {failed}]",
        meaning="Three servers in a row exited before they were ready. No new client gets a GPU from this daemon. "
        "Clients of older servers continue.",
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
        remedy="Find out why the daemon failed and correct the cause. Then resume restarts.",
        alert="CudaMpsCircuitOpen",
    )
    QUARANTINED = critical(
        label="quarantined",
        summary="MPS daemon {daemon} [has been quarantined for {since}|on {node} is quarantined because of its GPU]"
        "[: {cause}]",
        meaning="A GPU of the daemon needs a reset, or the machine needs a reboot. The watchdog does not restart "
        "the control daemon until an operator ends the quarantine.",
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
        "All of its clients have exited, and it does not recover. End the server: the daemon starts another one."
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
