"""Escalation steps for a fault that does not end."""

from collections.abc import Iterable, Iterator
from itertools import chain

from exporter.incidents import incidents
from exporter.model.action import ActionKind, ActionReason, ActionStep, EndProcess, GiveCommand, Role, SaveEvidence
from exporter.model.identity import ProcessIdentity, identity_of
from exporter.model.incident import Incident
from exporter.model.reason import Reason, ReasonCode
from exporter.model.settings import AllowedAction
from exporter.model.watchdog import EscalationStep
from exporter.parse.proc import mps_program
from exporter.state.transition import client_id
from exporter.watchdog import restart
from exporter.watchdog.context import Context, Decision, PlannedAction, Wait
from exporter.watchdog.diagnosis import faults

_Place = tuple[ActionKind, bool]
"""A rung, and whether it is forced."""

_LADDER: tuple[tuple[AllowedAction, _Place], ...] = (
    (AllowedAction.KILL_CLIENTS, (ActionKind.KILL_CLIENTS, False)),
    (AllowedAction.SHUT_DOWN_SERVER, (ActionKind.SHUT_DOWN_SERVER, False)),
    (AllowedAction.SHUT_DOWN_SERVER, (ActionKind.SHUT_DOWN_SERVER, True)),
    (AllowedAction.RESTART_DAEMON, (ActionKind.RESTART, False)),
)


def remedied(context: Context) -> Decision:
    """What is to be done about the daemon's eldest fault."""
    incident = next(iter(faults(context)), None)
    if incident is None:
        return None
    waits = Wait(reason=_who_is_waited_for(incident))
    if context.at - incident.started_at < context.thresholds.fault or not _is_confirmed(context, incident):
        return waits
    last = _last(context, incident)
    if last is not None and context.at - last.at < context.thresholds.step:
        return Wait(reason=Reason(ReasonCode.REMEDY_TAKES_EFFECT, action=last.kind))
    if incidents.all_disconnected(incident) and not incident.stuck:
        return waits
    for place in _places(context, incident, last):
        resolve = _climbed(context, incident, place)
        if resolve is not None:
            return resolve
    return waits


def _is_confirmed(context: Context, incident: Incident) -> bool:
    """Whether the daemon, asked since, has said so too: the log is where everybody may write (measured, R580)."""
    told_at = context.daemon.servers[incident.server].fault_reported_at
    return told_at is not None and told_at >= incident.detected_at


def unblocked(context: Context) -> PlannedAction | None:
    """What has a daemon answer again that waits for a client which a fault has hit.

    So it does after somebody's `terminate_client` for such a one, until that client has gone (measured, R580).
    """
    resolve = remedied(context)
    return resolve if isinstance(resolve, PlannedAction) and resolve.kind is ActionKind.KILL_CLIENTS else None


def _who_is_waited_for(incident: Incident) -> Reason:
    if incident.stuck:
        return Reason(ReasonCode.FAULT_NEEDS_SERVER_END, server=incident.server)
    pids = tuple(sorted(incident.blockers)) or None
    return Reason(ReasonCode.FAULT_WAITS_FOR_CLIENTS, server=incident.server, pids=pids)


def _last(context: Context, incident: Incident) -> EscalationStep | None:
    escalation = context.watch.escalation
    return escalation if escalation is not None and escalation.incident == incident.id else None


def _places(context: Context, incident: Incident, last: EscalationStep | None) -> Iterator[_Place]:
    """Return the steps that are left and that the configuration lists. A server that is stuck must be forced."""
    allowed = [place for action, place in _LADDER if action in context.thresholds.allow]
    if incident.stuck:
        allowed = [(kind, forced) for kind, forced in allowed if forced or kind is ActionKind.RESTART]
    places = [place for _, place in _LADDER]
    above = -1 if last is None else places.index((last.kind, last.forced))
    return (place for place in allowed if places.index(place) > above)


def _climbed(context: Context, incident: Incident, place: _Place) -> Decision:
    """One rung; None where there is nothing to do on it."""
    kind, forced = place
    match kind:
        case ActionKind.KILL_CLIENTS:
            doomed = (_victim(context, incident, pid) for pid in _blockers(incident))
            ends = (EndProcess(identity=each, role=Role.CLIENT) for each in doomed if each is not None)
            return _deed(context, incident, place, ends)
        case ActionKind.SHUT_DOWN_SERVER:
            command = f"shutdown_server {incident.server}{' -f' if forced else ''}"
            step = GiveCommand(command=command)
            return _spared(context, incident.server) or _deed(context, incident, place, (step,))
        case _:
            return _spared(context, None) or _restarted(context, incident)


def _deed(context: Context, incident: Incident, place: _Place, steps: Iterable[ActionStep]) -> PlannedAction | None:
    kind, forced = place
    done = tuple(steps)
    if not done:
        return None
    return PlannedAction(
        kind=kind,
        reason=ActionReason.FAULT,
        steps=(SaveEvidence(), *done),
        answers=f"{kind.value} {incident.id}{' -f' if forced else ''}",
        escalation=EscalationStep(incident=incident.id, kind=kind, at=context.at, forced=forced),
    )


def _restarted(context: Context, incident: Incident) -> Decision:
    return restart.replaced(context, ActionReason.FAULT, incident.started_at)


def _blockers(incident: Incident) -> list[int]:
    """Those of the affected who hold it up. Who has no PID here is nobody's to end."""
    return [pid for pid in sorted(incident.blockers) if pid > 1 and pid in incident.affected]


def _victim(context: Context, incident: Incident, pid: int) -> ProcessIdentity | None:
    """Return the process that the fault hit, if it still has its PID, and the daemon and NVML name it too."""
    process, client = context.node.processes.get(pid), context.daemon.clients.get(pid)
    details = incident.client_details.get(pid)
    if process is None or client is None or details is None or client.server != incident.server:
        return None
    same = process.uid is not None and details.client == client_id(client, process)
    named = client.listed_at is not None and client.listed_at >= incident.detected_at
    of_mps = mps_program(process.executable, process.command) is not None
    return identity_of(process) if same and named and not of_mps and _is_on_gpu(context, incident, pid) else None


def _is_on_gpu(context: Context, incident: Incident, pid: int) -> bool:
    """Return whether NVML shows the process on a GPU, if it has listed MPS clients since the fault; else True."""
    readings = (each.reading for each in context.node.gpus.values())
    lists = [
        each.mps_processes for each in readings if each.at >= incident.detected_at and each.mps_processes is not None
    ]
    return not lists or any(each.pid == pid for each in chain(*lists))


def _spared(context: Context, server: int | None) -> Wait | None:
    """Why a server, or the daemon with all of them, may not go: somebody is well there, or it is not known who is."""
    daemon = context.daemon
    open_faults = tuple(faults(context))
    hit = {(each.server, pid) for each in open_faults for pid in each.affected}
    well = sorted(
        client.pid
        for client in daemon.clients.values()
        if server in (None, client.server) and (client.server, client.pid) not in hit
    )
    if well:
        return Wait(reason=Reason(ReasonCode.CLIENTS_UNAFFECTED, server=server, pids=tuple(well)))
    if not all(_clients_known(context, each) for each in open_faults if server in (None, each.server)):
        return Wait(reason=Reason(ReasonCode.CLIENTS_UNKNOWN, server=server))
    return None


def _clients_known(context: Context, incident: Incident) -> bool:
    server = context.daemon.servers[incident.server]
    told = server.uid is not None and context.daemon.log_followed
    return told or incidents.were_clients_queried(context.daemon, incident)
