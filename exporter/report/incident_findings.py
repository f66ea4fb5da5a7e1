"""Problems of faults and deaths: faults that are open, and faults, deaths and restarts that are over."""

from collections.abc import Iterable
from typing import Any

from exporter.model.daemon import Daemon, DaemonState
from exporter.model.incident import Incident
from exporter.model.node import Node
from exporter.model.server import ServerState
from exporter.model.watchdog import WatchdogState
from exporter.report.document import ManualStep
from exporter.report.finding import COUNTED_SECONDS, Finding
from exporter.report.incident_status import incident_status, verdict
from exporter.report.incident_text import affected_count, client_text, fault_affected
from exporter.report.problems import DaemonProblem, Situation
from exporter.report.process_status import described
from exporter.report.remedy import (
    MOST_GROUPED,
    address_of,
    command_to_end_server,
    command_to_kill,
    commands_to_kill,
    known,
    last_log_lines,
)
from exporter.report.text import counted, listed, pid_text
from exporter.report.watchdog_text import outlook
from exporter.state.processes import holders_of
from exporter.view import View, clients_of
from exporter.watchdog.context import Policy

ALERT_SECONDS = 105.0
"""For how long the alert of an event fires after it, or after the daemon's return (alerts/cuda-mps.rules.yml)."""

PAGED_SECONDS = 60.0
"""After this time, CudaMpsDaemonDown or CudaMpsServerFault fired, and no other alert fires for the recovery."""

RESTART_ENDED = "Restart the clients that ended, unless they restart by themselves."

FIND_CAUSE = "Find the cause in the last lines of the daemon's logs."


def faults(node: Node, policy: Policy | None) -> Iterable[Finding]:
    """Yield the faults, first those that a command can end."""
    open_ones = [each for each in node.incidents.values() if each.is_fault and each.open]
    open_ones.sort(key=lambda each: not (each.blockers or each.stuck))
    yield from (_fault(node, each, policy) for each in open_ones)
    with_incident = {(each.daemon, each.server) for each in open_ones}
    for daemon, server in View(node).servers():
        if server.state is ServerState.FAULT and (daemon.name, server.pid) not in with_incident:
            yield Finding(
                DaemonProblem.SERVER_FAULT,
                since=server.state_since,
                daemon=daemon.name,
                server=server.pid,
                **of_clients(node, (each.pid for each in clients_of(daemon, server))),
                situation=Situation.FAULT_WITHOUT_INCIDENT,
            )


def _fault(node: Node, incident: Incident, policy: Policy | None) -> Finding:
    blockers = tuple(incident.blockers)
    daemon, address = node.daemons.get(incident.daemon), address_of(node, incident.daemon, policy)
    text, clients = DaemonProblem.SERVER_FAULT.definition.remedy, tuple(map(incident.details_of, blockers))
    killed = [each for each in clients if command_to_kill(each, address) is not None]
    kill = ManualStep(text=text, commands=commands_to_kill(killed, address), ends=len(killed))
    steps = [kill] if blockers else []
    if incident.stuck:
        server = None if daemon is None else daemon.servers.get(incident.server)
        left = None if daemon is None or server is None else [each.pid for each in clients_of(daemon, server)]
        commands = known(command_to_end_server(incident.server, address))
        ends = None if left is None else len(left)
        steps = [ManualStep(text=Situation.SERVER_STUCK.value, commands=commands, ends=ends)]
        if others := [described(node, pid) for pid in left or () if pid not in incident.affected]:
            wait = f"The fault did not affect {listed(others, MOST_GROUPED)}. If possible, wait until they have ended."
            steps.insert(0, ManualStep(text=wait))
    recovers = "" if incident.stuck else "The server recovers after the exit of the last affected client."
    blocking = f"{pid_text(blockers[0])} blocks" if len(blockers) == 1 else f"{len(blockers)} clients block"
    recovery = f"; {blocking} recovery" if blockers else ""
    ended = f", of which {len(incident.disconnected)} have disconnected" if incident.disconnected else ""
    return Finding(
        DaemonProblem.SERVER_FAULT,
        since=incident.started_at,
        daemon=incident.daemon,
        server=incident.server,
        client=blockers[0] if blockers else None,
        values={"suspect": verdict(incident), "recovery": recovery},
        affected=f"{fault_affected(len(incident.affected))}{ended}; new clients are refused",
        affected_names=affected_clients(incident, node),
        outlook=" ".join(filter(None, (recovers, "" if daemon is None else outlook(node, daemon, policy)))),
        situation=None if blockers else Situation.CLIENTS_ENDING,
        steps=tuple(steps),
    )


def affected_clients(incident: Incident, node: Node) -> tuple[str, ...]:
    """Return the affected clients, first those that block recovery."""
    blockers = incident.blockers if incident.open else ()
    texts = {pid: client_text(incident.details_of(pid)) for pid in (*blockers, *incident.affected)}
    for pid in blockers:
        texts[pid] = f"{client_text(incident.details_of(pid), holders_of(node, pid))}, which blocks recovery"
    return tuple(texts.values())


def of_clients(node: Node, pids: Iterable[int], what: str = "client") -> dict[str, Any]:
    """Return that these clients are affected."""
    names = tuple(described(node, pid) for pid in sorted(pids))
    return {"affected": counted(len(names), what) if names else "", "affected_names": names}


def recovered(node: Node, at: float) -> Iterable[Finding]:
    """Yield the deaths and restarts of daemons that are up again, and the faults that ended.

    They are problems for about as long as their alerts fire.
    """
    for daemon in View(node).daemons():
        if daemon.state is DaemonState.UP:
            yield from _returned(node, daemon, node.watches.get(daemon.name, WatchdogState()), at)
    for incident in node.incidents.values():
        if incident.is_fault and incident.ended_at is not None and at - incident.ended_at < ALERT_SECONDS:
            lasted = incident.ended_at - incident.started_at >= PAGED_SECONDS
            affected = fault_affected(len(incident.affected))
            yield Finding(
                DaemonProblem.FAULT_LASTED if lasted else DaemonProblem.FAULT,
                since=incident.started_at,
                daemon=incident.daemon,
                server=incident.server,
                values={"affected": affected, "suspect": verdict(incident)},
                affected=affected,
                affected_names=affected_clients(incident, node),
            )


def _returned(node: Node, daemon: Daemon, watch: WatchdogState, at: float) -> Iterable[Finding]:
    lost_at, back_at = daemon.lifecycle.last_loss_at, daemon.lifecycle.state_since or 0.0
    if lost_at is not None and at - max(lost_at, back_at) < ALERT_SECONDS:
        was_down, ended = back_at - lost_at >= PAGED_SECONDS, ended_clients(node, daemon)
        yield Finding(
            DaemonProblem.DAEMON_WAS_DOWN if was_down else DaemonProblem.DAEMON_DIED,
            since=lost_at,
            daemon=daemon.name,
            values={"ended": ended["affected"]},
            **ended,
            steps=(
                ManualStep(text=f"{RESTART_ENDED} Restart the processes that bypass MPS."),
                ManualStep(text=FIND_CAUSE, commands=last_log_lines(daemon)),
            ),
        )
    elif watch.last_restart_at is not None and at - max(watch.last_restart_at, back_at) < COUNTED_SECONDS:
        ended = {} if daemon.lifecycle.watchdog_ended_at is None else ended_clients(node, daemon)
        yield Finding(DaemonProblem.DAEMON_RESTARTED, since=watch.last_restart_at, daemon=daemon.name, **ended)


def ended_clients(node: Node, daemon: Daemon) -> dict[str, Any]:
    """Return that the clients that ended with a daemon are affected, by the record of its death if it has one."""
    death, clients = last_death(node, daemon), daemon.lifecycle.clients_at_end
    names = () if death is None else tuple(client_text(death.details_of(pid)) for pid in death.affected)
    number = counted(len(clients), "client") if clients else "no client"
    ended = f"{'an unknown number of clients' if clients is None else number} ended"
    if death is not None and (death.affected or death.affected_confirmed):
        ended = affected_count(incident_status(death, node.at))
    return {"affected": ended, "affected_names": names}


def last_death(node: Node, daemon: Daemon) -> Incident | None:
    """Return the record of the daemon's last death. None if its death is not recorded.

    After a start of the exporter, only an open record shows when the daemon died, and which clients ended.
    """
    lost_at = max(daemon.lifecycle.last_loss_at or 0.0, daemon.lifecycle.watchdog_ended_at or 0.0)
    records = (each for each in node.incidents.values() if each.daemon == daemon.name and not each.server)
    if not lost_at:
        return next((each for each in records if each.open), None)
    return next((each for each in records if each.started_at <= lost_at <= (each.ended_at or lost_at)), None)
