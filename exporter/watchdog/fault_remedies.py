"""Escalation steps against a fault that does not end."""

from collections.abc import Iterator
from itertools import chain

from exporter.incidents import incidents
from exporter.model.action import ActionKind, ActionReason, ActionStep, EndProcess, GiveCommand, Role, SaveEvidence
from exporter.model.daemon import Daemon
from exporter.model.identity import ProcessIdentity, identity_of
from exporter.model.incident import Incident
from exporter.model.reason import Reason, ReasonCode
from exporter.model.settings import AllowedAction
from exporter.model.watchdog import EscalationStep
from exporter.parse.proc import mps_program
from exporter.parse.protocol3 import PREFIX_OF_USER, PROTOCOL
from exporter.state.processes import client_id
from exporter.watchdog import restart_budget
from exporter.watchdog.context import Context, Decision, PlannedAction, Wait
from exporter.watchdog.diagnosis import open_faults

_Step = tuple[ActionKind, bool]
"""An action, and whether it is forced."""

_STEPS: dict[_Step, AllowedAction] = {
    (ActionKind.KILL_CLIENTS, False): AllowedAction.KILL_CLIENTS,
    (ActionKind.SHUT_DOWN_SERVER, False): AllowedAction.SHUT_DOWN_SERVER,
    (ActionKind.SHUT_DOWN_SERVER, True): AllowedAction.SHUT_DOWN_SERVER,
    (ActionKind.RESTART, False): AllowedAction.RESTART_DAEMON,
}
"""The escalation steps in their order, with the action that the configuration must list."""


def remedy_fault(context: Context) -> Decision:
    """Decide about the daemon's oldest open fault."""
    incident = next(iter(open_faults(context)), None)
    if incident is None:
        return None
    waits = Wait(reason=_wait_reason(incident))
    if context.at - incident.started_at < context.thresholds.fault or not _is_confirmed(context, incident):
        return waits
    last = context.watch.escalation
    if last is not None and last.incident != incident.id:
        last = None
    if last is not None and context.at - last.at < context.thresholds.step:
        return Wait(reason=Reason(ReasonCode.REMEDY_TAKES_EFFECT, action=last.kind))
    if incidents.all_disconnected(incident) and not incident.stuck:
        return waits
    for step in _remaining_steps(context, incident, last):
        decision = _take(context, incident, step)
        if decision is not None:
            return decision
    return waits


def kill_blockers(context: Context) -> PlannedAction | None:
    """Return the action that ends affected clients for which the daemon waits; None if that is not the next step.

    After an operator's `terminate_client` for such a client, the daemon answers no command until the client has exited
    (measured, R580).
    """
    decision = remedy_fault(context)
    return decision if isinstance(decision, PlannedAction) and decision.kind is ActionKind.KILL_CLIENTS else None


def _is_confirmed(context: Context, incident: Incident) -> bool:
    """Return whether a reply of the daemon has shown the fault: any user can write the log (measured, R580)."""
    reported_at = context.daemon.servers[incident.server].fault_reported_at
    return reported_at is not None and reported_at >= incident.detected_at


def _wait_reason(incident: Incident) -> Reason:
    if incident.stuck:
        return Reason(ReasonCode.FAULT_NEEDS_SERVER_END, server=incident.server)
    pids = tuple(sorted(incident.blockers)) or None
    return Reason(ReasonCode.FAULT_WAITS_FOR_CLIENTS, server=incident.server, pids=pids)


def _remaining_steps(context: Context, incident: Incident, last: EscalationStep | None) -> Iterator[_Step]:
    """Yield the permitted steps after the last one. The end of a server that is stuck must be forced."""
    steps = list(_STEPS)
    for step in steps if last is None else steps[steps.index((last.kind, last.forced)) + 1 :]:
        kind, forced = step
        effective = not incident.stuck or forced or kind is ActionKind.RESTART
        if effective and _STEPS[step] in context.thresholds.allow:
            yield step


def _take(context: Context, incident: Incident, step: _Step) -> Decision:
    """Return the decision for one step; None if the step has nothing to do."""
    kind, forced = step
    steps: tuple[ActionStep, ...]
    match kind:
        case ActionKind.KILL_CLIENTS:
            # A client without a visible PID cannot be signalled.
            pids = (pid for pid in sorted(incident.blockers) if pid > 1 and pid in incident.affected)
            clients = (_affected_process(context, incident, pid) for pid in pids)
            steps = tuple(EndProcess(identity=each, role=Role.CLIENT) for each in clients if each is not None)
            if not steps:
                return None
        case ActionKind.SHUT_DOWN_SERVER:
            unsafe = _why_unsafe(context, incident.server)
            if unsafe is not None:
                return unsafe
            command = _shutdown_command(context.daemon, incident.server, forced=forced)
            if command is None:
                return None
            steps = (GiveCommand(command=command),)
        case _:
            unsafe = _why_unsafe(context, None)
            return unsafe or restart_budget.restart_running(context, ActionReason.FAULT, incident.started_at)
    return PlannedAction(
        kind=kind,
        reason=ActionReason.FAULT,
        steps=(SaveEvidence(), *steps),
        cause=f"{kind.value} {incident.id}{' -f' if forced else ''}",
        escalation=EscalationStep(incident=incident.id, kind=kind, at=context.at, forced=forced),
    )


def _shutdown_command(daemon: Daemon, pid: int, *, forced: bool) -> str | None:
    """Return what shuts down a server. With protocol 3, None unless the daemon creates the server again by itself."""
    if daemon.runtime.protocol != PROTOCOL:
        return f"shutdown_server {pid}{' -f' if forced else ''}"
    name = daemon.servers[pid].name or ""
    return f"server delete {name}{' --force' if forced else ''}" if name.startswith(PREFIX_OF_USER) else None


def _affected_process(context: Context, incident: Incident, pid: int) -> ProcessIdentity | None:
    """Return the affected process if it still has its PID, and if the daemon and NVML list it since the fault."""
    process, client = context.node.processes.get(pid), context.daemon.clients.get(pid)
    details = incident.client_details.get(pid)
    if process is None or client is None or details is None or client.server != incident.server:
        return None
    same = process.uid is not None and details.client == client_id(client, process)
    listed = client.listed_at is not None and client.listed_at >= incident.detected_at
    of_mps = mps_program(process.executable, process.command) is not None
    return identity_of(process) if same and listed and not of_mps and _is_on_gpu(context, incident, pid) else None


def _is_on_gpu(context: Context, incident: Incident, pid: int) -> bool:
    """Return whether NVML lists the process on a GPU. True if NVML has listed no MPS clients since the fault."""
    readings = (each.reading for each in context.node.gpus.values())
    lists = [
        each.mps_processes for each in readings if each.at >= incident.detected_at and each.mps_processes is not None
    ]
    return not lists or any(each.pid == pid for each in chain(*lists))


def _why_unsafe(context: Context, server: int | None) -> Wait | None:
    """Return why a server, or the daemon (None), must not be ended: unaffected or unknown clients use it."""
    daemon, faults = context.daemon, tuple(open_faults(context))
    affected = {(each.server, pid) for each in faults for pid in each.affected}
    clients = [each for each in daemon.clients.values() if server in (None, each.server)]
    unaffected = sorted(each.pid for each in clients if (each.server, each.pid) not in affected)
    if unaffected:
        return Wait(reason=Reason(ReasonCode.CLIENTS_UNAFFECTED, server=server, pids=tuple(unaffected)))
    if all(_clients_known(context, each) for each in faults if server in (None, each.server)):
        return None
    return Wait(reason=Reason(ReasonCode.CLIENTS_UNKNOWN, server=server))


def _clients_known(context: Context, incident: Incident) -> bool:
    logged = context.daemon.servers[incident.server].uid is not None and context.daemon.log_followed
    return logged or incidents.were_clients_queried(context.daemon, incident)
