"""Deaths: a record of each daemon or server that ended, with the clients that ended with it."""

from collections.abc import Mapping, Sequence

from exporter.incidents.evidence import client_details, new_id
from exporter.incidents.incidents import DAEMON_LOST_SECONDS
from exporter.model.daemon import DaemonState, StopReason, with_lifecycle
from exporter.model.event import Event, EventName
from exporter.model.incident import ClientDetails, Incident, IncidentEnd, IncidentKind
from exporter.model.node import Node
from exporter.model.server import DisconnectReason
from exporter.model.values import replace, without
from exporter.state.known_daemons import with_daemon

TOGETHER_SECONDS = 5.0
"""If a server ends at most so long before its daemon, both are one death, as when the kernel ends a whole cgroup.

Collectors run in threads of their own. So the end of the server may be read first, and with the later time.
"""

_KINDS = {
    EventName.SERVER_EXITED: IncidentKind.SERVER_DIED,
    EventName.DAEMON_LOST: IncidentKind.DAEMON_DIED,
    EventName.DAEMON_STOPPED: IncidentKind.RESTARTED,
}


def track(last: Node, node: Node, events: Sequence[Event]) -> Node:
    """Return the node with a record of each death among the events, and the end of those that are over."""
    if node.daemons is last.daemons and not events:
        return node
    for name, daemon in node.daemons.items():
        pids, known = daemon.lifecycle.clients_at_end, last.daemons.get(name, daemon)
        if known.lifecycle.clients_at_end is not pids:
            # Those that only waited for a server did not end with it.
            details = client_details(last, node, known, sorted((pids or frozenset()) & known.clients.keys()), {})
            node = with_daemon(node, with_lifecycle(daemon, details_at_end=details))
    ended: dict[tuple[str | None, int | None], list[int]] = {}
    for event in events:
        if event.event is EventName.CLIENT_DISCONNECTED and event.reason == DisconnectReason.SERVER_GONE:
            ended.setdefault((event.daemon, event.server), []).append(event.pid or 0)
        elif event.event is EventName.SERVER_EXITED:
            node = _server_died(last, node, event, ended.get((event.daemon, event.server), []))
        elif event.event is EventName.DAEMON_LOST or event.reason == StopReason.WATCHDOG:
            node = _daemon_ended(last, node, event)
    for incident in node.incidents.values():
        if incident.open and not incident.is_fault:
            node = _end_if_over(node, incident)
    return node


def _server_died(last: Node, node: Node, event: Event, pids: list[int]) -> Node:
    """Add the death of a server with clients, unless all of them are those that a fault affected."""
    daemon, server = last.daemons.get(event.daemon or ""), event.server or 0
    faults = (each for each in node.incidents.values() if (each.daemon, each.server) == (event.daemon, server))
    explained = {pid for each in faults if each.is_fault for pid in each.affected}
    if daemon is None or explained.issuperset(pids):
        return node
    details = client_details(last, node, daemon, pids, {})
    return _add(node, event, new_id(node, server), details, complete=daemon.clients_known)


def _daemon_ended(last: Node, node: Node, event: Event) -> Node:
    """Add the death of a daemon, with the clients of servers that died just before.

    If a daemon dies again before it answers, no other client ended. A daemon that was not expected and had no client
    has no record.
    """
    # This observation may have renamed or removed it.
    daemon = node.daemons.get(event.daemon or "") or last.daemons.get(event.daemon or "")
    if daemon is None:
        return node
    lifecycle, of_daemon = daemon.lifecycle, [each for each in node.incidents.values() if each.daemon == daemon.name]
    is_open = any(each.open and not each.is_fault for each in of_daemon)
    process, known = lifecycle.process_at_end, lifecycle.clients_at_end
    died = [each for each in of_daemon if each.kind is IncidentKind.SERVER_DIED]
    together = [each for each in died if abs(event.at - each.started_at) <= TOGETHER_SECONDS]
    *others, own = [each.id for each in together] or [new_id(node, 0 if process is None else process.pid or 0)]
    before = {pid: client for each in together for pid, client in each.client_details.items()}
    details = {**before, **lifecycle.details_at_end}
    if not details and (is_open or (known is not None and not daemon.declared.expected)):
        return node
    return _add(node, event, own, details, complete=known is not None, replaces=tuple(others))


def _add(
    node: Node,
    event: Event,
    id_: str,
    details: Mapping[int, ClientDetails],
    *,
    complete: bool,
    replaces: tuple[str, ...] = (),
) -> Node:
    incident = Incident(
        id=id_,
        daemon=event.daemon or "",
        server=event.server or 0,
        started_at=event.at,
        detected_at=node.at,
        ended_at=event.at if event.server else None,
        ending=IncidentEnd.SERVER_GONE if event.server else None,
        kind=_KINDS[event.event],
        gpus=tuple(sorted({gpu for each in details.values() for gpu in each.memory_bytes})),
        affected=tuple(details),
        affected_confirmed=complete,
        client_details=details,
        settled=True,
        end_reported=event.server is not None,
        replaces=replaces,
    )
    return replace(node, incidents={**without(node.incidents, *replaces), id_: incident})


def _end_if_over(node: Node, incident: Incident) -> Node:
    """Return the node after the daemon answers again, or an operator stopped or removed it."""
    daemon, ending = node.daemons.get(incident.daemon), IncidentEnd.DAEMON_GONE
    at = node.at if daemon is None else max(incident.started_at, daemon.lifecycle.state_since or node.at)
    if daemon is None:
        # After a restart of the exporter, the daemons are not known at first.
        over = node.at - (node.began_at or node.at) > DAEMON_LOST_SECONDS
    elif daemon.answers:
        over, ending = True, IncidentEnd.RECOVERED
    else:
        # One that runs, but cannot be queried or hangs, is not down any more.
        runs = daemon.runtime.process is not None and daemon.state is not DaemonState.STARTING
        over = runs or daemon.state is DaemonState.STOPPED or not daemon.declared.expected
    if not over:
        return node
    incident = replace(incident, ending=ending, ended_at=at, end_reported=True)
    return replace(node, incidents={**node.incidents, incident.id: incident})
