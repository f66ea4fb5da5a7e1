"""All problems that the node has now, the most urgent first; those of GPUs, logs and the exporter itself are here."""

from collections.abc import Iterable, Mapping

from exporter.model.daemon import DaemonState
from exporter.model.node import CollectorName, Node
from exporter.model.reason import Reason, ReasonCode
from exporter.model.values import replace
from exporter.parse.kernel_log import REBOOT, RESET
from exporter.parse.printable import printable
from exporter.report.client_findings import (
    bypassing,
    drifted_limits,
    filled_memory,
    full_servers,
    lost_directories,
    mps_without_daemon,
)
from exporter.report.daemon_findings import daemon_findings
from exporter.report.finding import Finding, observed
from exporter.report.incident_findings import faults, recovered
from exporter.report.problems import DaemonProblem, NodeProblem, Situation
from exporter.report.process_status import owner_of
from exporter.report.reasons import log_text, reason_text, source_text
from exporter.report.remedy import DOCTOR, gpu_text, needed, recovery_steps
from exporter.report.slowdowns import starved_clients
from exporter.state import xids
from exporter.state.devices import LOST, is_lost
from exporter.view import View, gpu_name
from exporter.watchdog.context import Policy

CONTRADICTED_SECONDS = 3600.0
"""For how long a contradiction of a daemon's log is reported."""

_NEED_NVML = (CollectorName.NVML_EVENTS, CollectorName.LIBCUDA_PROBES)
"""Collectors that fail if NVML does."""

_DOCTOR_FOR: Mapping[str, str] = {CollectorName.LIBCUDA_PROBES: f"{DOCTOR} --attribution=bpf"}
"""The service has this option from its unit; a command in a shell needs it too."""

_NEED_DRIVER = (
    DaemonProblem.DAEMON_DOWN,
    DaemonProblem.DAEMON_NEVER_STARTED,
    DaemonProblem.SERVER_CRASH_LOOP,
    NodeProblem.EXPORTER_CANNOT_COLLECT,
)
"""What a missing driver can cause."""

_NO_DRIVER = {ReasonCode.DRIVER_NOT_LOADED, ReasonCode.LIBRARY_MISSING, ReasonCode.LIBRARY_UNUSABLE}


def findings(node: Node, at: float, policy: Policy | None = None, view: View | None = None) -> tuple[Finding, ...]:
    """Return all problems; `policy` is None if there is no watchdog. A `view` of the node, if given, is not made."""
    daemons = list((view := view or View(node)).daemons())
    unknown = (each.state is None and each.supported and not each.pid_file_spoilt for each in daemons)
    if not node.sources and all(unknown):
        return (Finding(NodeProblem.NOTHING_COLLECTED),)
    found = (
        *faults(node, policy),
        *daemon_findings(node, at, policy),
        *recovered(node, at),
        *mps_without_daemon(node, at),
        *lost_directories(node, policy),
        *_lost_gpus(node),
        *_hardware_xids(node),
        *full_servers(view, at),
        *filled_memory(node),
        *starved_clients(view, at),
        *bypassing(node, at),
        *drifted_limits(node, at, policy),
        *_not_collected(node),
        *_contradicted_logs(node, at),
    )
    if any(each.problem is NodeProblem.NVML_UNUSABLE for each in found):
        cause = NodeProblem.NVML_UNUSABLE.definition.label
        found = tuple(replace(each, follows=cause) if each.problem in _NEED_DRIVER else each for each in found)
    owners = {daemon.name: owner for daemon in daemons if (owner := owner_of(node, daemon))}
    found = tuple(
        replace(each, facts=(f"the daemon belongs to {owners[each.daemon]}", *each.facts))
        if each.daemon in owners
        else each
        for each in found
    )
    # Causes come before what may follow from them.
    order = (NodeProblem.NVML_UNUSABLE, NodeProblem.GPU_LOST)
    in_order = sorted(found, key=lambda each: (-each.severity.rank, each.problem not in order))
    return tuple(replace(each, at=at) for each in in_order)


def _lost_gpus(node: Node) -> Iterable[Finding]:
    for gpu, problem in lost_gpus(node):
        values = {"gpu": printable(gpu_name(node, gpu)), "problem": reason_text(problem, CollectorName.NVML)}
        action = RESET if problem.code is ReasonCode.GPU_LOST else REBOOT
        steps = () if xids.is_in_quarantine(node, gpu) else recovery_steps(node, gpu, action)
        since = observed(node, node.gpus[gpu].failing_since if gpu in node.gpus else None)
        yield Finding(NodeProblem.GPU_LOST, since=since, gpu=gpu, values=values, steps=steps)


def lost_gpus(node: Node) -> Iterable[tuple[str, Reason]]:
    """Yield the lost GPUs with their problems. A GPU that was lost before the exporter started has only an index."""
    for uuid, gpu in node.gpus.items():
        if gpu.reading.problem is not None and is_lost(gpu.reading):
            yield uuid, gpu.reading.problem
    # A known GPU that NVML does not list may be the one of which it lists only the index.
    if not any(each.reading.problem == Reason(ReasonCode.GPU_NOT_REPORTED) for each in node.gpus.values()):
        for problem in _problems(node, CollectorName.NVML):
            if problem.code is ReasonCode.GPU_LOST:
                yield problem.parameters.get("subject") or "", problem.about(None)


def _problems(node: Node, name: str) -> Iterable[Reason]:
    source = node.sources.get(name)
    return () if source is None else (each for problem in source.problems.values() for each in problem.each)


def _hardware_xids(node: Node) -> Iterable[Finding]:
    """Yield GPUs that need a reset or a reboot, and other recent Xids of hardware, unless a quarantine reports them."""
    for each in xids.unresolved(node):
        values = {"which": gpu_text(node, each.gpu), "needed": needed(each.action)}
        problem, steps = NodeProblem.GPU_RESET_NEEDED, recovery_steps(node, each.gpu, each.action)
        if not each.action:
            values = {"gpu": printable(gpu_name(node, each.gpu)), "xid": str(each.xid)}
            problem, steps = NodeProblem.HARDWARE_XID, ()
        yield Finding(problem, since=each.at, gpu=each.gpu, values=values, steps=steps)


def _not_collected(node: Node) -> Iterable[Finding]:
    """Yield a paused driver, failing collectors, GPUs that cannot be read, and logs that are not followed."""
    # Other collectors fail if NVML does, so the cause comes first.
    in_order = sorted(node.sources.items(), key=lambda each: (each[0] != CollectorName.NVML, each[0]))
    failing = {name: source for name, source in in_order if source.problems}
    paused = {name for name in failing if all(each.code is ReasonCode.PAUSED for each in _problems(node, name))}
    if paused:
        since = observed(node, failing[min(paused)].failing_since)
        yield Finding(NodeProblem.EXPORTER_PAUSED, since=since, commands=("cuda-mps-exporter resume",))
    lost = any(lost_gpus(node))
    only_lost = all(each.code is ReasonCode.GPU_LOST for each in _problems(node, CollectorName.NVML))
    for name, source in failing.items():
        # Without NVML's last GPU there are no Xid events.
        if name not in paused and not (
            lost and (name == CollectorName.NVML_EVENTS or (name == CollectorName.NVML and only_lost))
        ):
            values = {"source": printable(name), "problem": source_text(name, source)}
            missing = name == CollectorName.NVML and _lacks_driver(node)
            entry = NodeProblem.NVML_UNUSABLE if missing else NodeProblem.EXPORTER_CANNOT_COLLECT
            cause = "NVML fails" if CollectorName.NVML in failing and name in _NEED_NVML else None
            commands = (_DOCTOR_FOR.get(name, DOCTOR),)
            since, again = observed(node, source.failing_since), "The exporter tries again by itself."
            yield Finding(entry, since=since, values=values, outlook=again, follows=cause, commands=commands)
    for uuid, gpu in node.gpus.items():
        problem, mig = gpu.reading.problem, gpu.reading.mig
        of_parent = mig is not None and problem == node.gpus[mig.parent].reading.problem
        if problem is not None and problem.code not in LOST and not of_parent and CollectorName.NVML not in failing:
            values = {"gpu": printable(gpu_name(node, uuid)), "problem": reason_text(problem, CollectorName.NVML)}
            show = ("nvidia-smi -q", "dmesg | grep -i -e NVRM -e Xid")
            since = observed(node, gpu.failing_since)
            yield Finding(NodeProblem.GPU_UNREADABLE, since=since, gpu=uuid, values=values, commands=show)
    for daemon in View(node).daemons():
        for file, problem in sorted(daemon.log.failing.items()):
            if daemon.state is DaemonState.UP:
                lost = problem.code is ReasonCode.LOG_TO_STDOUT
                yield Finding(
                    NodeProblem.LOG_NOT_FOLLOWED,
                    daemon=daemon.name if lost else None,
                    values={"daemon": printable(daemon.name), "problem": log_text(file, problem)},
                    situation=Situation.LOG_TO_STDOUT if lost else None,
                    commands=() if lost else (DOCTOR,),
                )


def _lacks_driver(node: Node) -> bool:
    """Return whether the node expects MPS, but no server can start. If one runs, its driver is or was there."""
    codes = {problem.code for problem in _problems(node, CollectorName.NVML)}
    no_driver = ReasonCode.DRIVER_MISMATCH in codes or (codes & _NO_DRIVER and not any(View(node).servers()))
    return bool(no_driver) and any(daemon.declared.expected for daemon in node.daemons.values())


def _contradicted_logs(node: Node, at: float) -> Iterable[Finding]:
    """Yield the daemons with a log that other sources contradicted recently."""
    for daemon in View(node).daemons():
        since = daemon.log.contradicted_at
        if since is not None and at - since <= CONTRADICTED_SECONDS:
            yield Finding(NodeProblem.LOG_CONTRADICTED, since=since, daemon=daemon.name, commands=(DOCTOR,))
