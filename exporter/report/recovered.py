"""Problems that are over, for about as long as their alerts fire."""

from collections.abc import Iterable

from exporter.model.daemon import Daemon, DaemonState
from exporter.model.node import Node
from exporter.model.watchdog import WatchdogState
from exporter.report.finding import Finding
from exporter.report.incident_status import verdict
from exporter.report.problems import DaemonProblem
from exporter.report.text import counted
from exporter.view import View

ALERT_SECONDS = 105.0
"""For how long the alert of an event fires after it, or after the daemon's return (alerts/cuda-mps.rules.yml)."""


def recovered(node: Node, at: float) -> Iterable[Finding]:
    """Yield the deaths and restarts of daemons that are up again, and the faults that ended."""
    for daemon in View(node).daemons():
        if daemon.state is DaemonState.UP:
            yield from _returned(daemon, node.watches.get(daemon.name, WatchdogState()), at)
    for incident in node.incidents.values():
        if incident.ended_at is not None and at - incident.ended_at < ALERT_SECONDS:
            affected = counted(len(incident.affected), "client")
            values = {"affected": affected, "suspect": verdict(incident)}
            since, server = incident.started_at, incident.server
            yield Finding(DaemonProblem.FAULT, at=at, since=since, daemon=incident.daemon, server=server, values=values)


def _returned(daemon: Daemon, watch: WatchdogState, at: float) -> Iterable[Finding]:
    lost_at, clients = daemon.lifecycle.last_loss_at, daemon.lifecycle.clients_at_end
    back_at = daemon.lifecycle.state_since or 0.0
    if lost_at is not None and at - max(lost_at, back_at) < ALERT_SECONDS:
        ended = f"{'an unknown number of clients' if clients is None else counted(len(clients), 'client')} ended"
        problem = DaemonProblem.DAEMON_DIED_WITH_CLIENTS if clients else DaemonProblem.DAEMON_DIED
        yield Finding(problem, at=at, since=lost_at, daemon=daemon.name, values={"ended": ended})
    elif watch.last_restart_at is not None and at - max(watch.last_restart_at, back_at) < ALERT_SECONDS:
        yield Finding(DaemonProblem.DAEMON_RESTARTED, at=at, since=watch.last_restart_at, daemon=daemon.name)
