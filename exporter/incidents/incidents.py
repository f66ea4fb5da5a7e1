"""Incidents: a fault is opened once, filled with evidence, and ended."""

from bisect import bisect_left
from collections.abc import Iterable

from exporter.incidents.evidence import add_details, new_incident
from exporter.incidents.fault_kernels import settled_kernels
from exporter.incidents.leftover import remember, with_leftover
from exporter.incidents.root_cause import rank_suspects
from exporter.model.daemon import RECOVERY_SECONDS, Daemon, RecoveryTimes, with_connections, with_totals
from exporter.model.event import Event, EventName
from exporter.model.incident import Incident, IncidentEnd, RecoveryDelay, Refusal
from exporter.model.node import Node, expected_daemons, select_fairly
from exporter.model.server import RefusalReason, Server, ServerState
from exporter.model.values import replace
from exporter.parse.log_line import seconds_between
from exporter.state import processes
from exporter.state.log_lines import is_same_block
from exporter.state.xids import CLAIM_SECONDS

REPORT_SECONDS = 0.5  # How long the report of a fault waits until the log shows its clients and GPUs.

BLOCKING_SECONDS = 1.0
"""An affected client that is still connected after this time delays recovery: others exit when they get the error."""

SETTLED_SECONDS = CLAIM_SECONDS  # Evidence is accepted for this time: no Xid joins an incident after it.

STUCK_SECONDS = 10.0
"""A server recovers about 30 ms after its last affected client has disconnected, or never: after a client with contexts
on two GPUs had joined, it stayed in FAULT in 3 of 4 trials (measured, R580)."""

CLOCK_TOLERANCE_SECONDS = 2.0
"""The log's and the exporter's measurement of one duration differ by at most this. Logs are read late."""

DAEMON_LOST_SECONDS = 300.0  # How long the daemon of an open incident may be unknown.

REMEMBERED_SECONDS = 3600.0
MAX_ENDED = 64
"""How long, and how many, ended incidents are remembered."""

MAX_OPEN = 64
MAX_REFUSALS = 256

Tracked = tuple[Node, tuple[Event, ...]]


def track(before: Node, node: Node, events: Iterable[Event], *, force: bool = False) -> Tracked:
    """Update all incidents with the changes between two nodes. With `force`, wait for no more evidence."""
    new_events = tuple(events)
    node = _follow_renamed_daemons(before, node)
    for name, daemon in node.daemons.items():
        known = before.daemons.get(name)
        changed_servers = () if known is not None and daemon.servers is known.servers else daemon.servers.values()
        for server in changed_servers:
            if server.state is ServerState.FAULT:
                node = _find_fault(node, node.daemons[name], server)
    reported: list[Event] = []
    for incident in [each for each in node.incidents.values() if each.is_fault and not each.end_reported]:
        changed = force or _may_have_changed(before, node, incident)
        if changed or new_events:
            node, more = _update(before, node, incident, new_events, changed=changed, force=force)
            reported.extend(more)
    node = remember(before, node)
    unchanged = node.incidents is before.incidents and node.at == before.at
    return (node if unchanged else _prune(node)), tuple(reported)


def report_open(node: Node) -> tuple[Event, ...]:
    """Return an event for each incident that is open at the end of a recording."""
    faults = (each for each in node.incidents.values() if each.is_fault)
    return tuple(_event(node.at, EventName.FAULT_OPEN, each) for each in faults if each.open)


def last_sign_at(node: Node) -> float:
    """Return when the newest sign of a fault was found, an Xid or an incident; 0 if there is none."""
    faults = (each.detected_at for each in node.incidents.values() if each.is_fault)
    return max((*(each.at for each in node.xids.recent), *faults), default=0.0)


def all_disconnected(incident: Incident) -> bool:
    """Return whether all affected clients have disconnected, so that the server should recover at once."""
    return incident.open and bool(incident.affected) and len(incident.disconnected) == len(incident.affected)


def were_clients_queried(daemon: Daemon, incident: Incident) -> bool:
    """Return whether the daemon was recently queried for the server's clients."""
    return daemon.dialect.list_clients.format(server=incident.server) in daemon.commands.asked_at


def _follow_renamed_daemons(before: Node, node: Node) -> Node:
    """Assign incidents to the daemons that have their servers: a daemon may have another name after a restart."""
    if node.daemons is before.daemons:
        return node
    for each in [each for each in node.incidents.values() if not each.end_reported and each.daemon not in node.daemons]:
        name = next((name for name, daemon in node.daemons.items() if each.server in daemon.servers), None)
        if name is not None and not _is_another_server(node, each):
            node = _with_incident(node, replace(each, daemon=name))
    return node


def _is_another_server(node: Node, incident: Incident) -> bool:
    """Return whether another process is known to have the server's PID now."""
    process, ticks = node.processes.get(incident.server), incident.server_start_ticks
    return process is not None and ticks is not None and process.start_ticks != ticks


def _find_fault(node: Node, daemon: Daemon, server: Server) -> Node:
    """Open an incident for a server in FAULT, unless it has one.

    The daemon may report FAULT, and even the recovery, before the block is read. A block from before the server was in
    FAULT is of an earlier fault.
    """
    block = server.fault_block
    if block is not None and not (block.confirmed and block.at >= (server.state_since or 0.0)):
        block = None
    of_server = [each for each in node.incidents.values() if (each.daemon, each.server) == (daemon.name, server.pid)]
    open_ones = [each for each in of_server if each.open]
    known = [(each.detected_at, each.block_timestamp) for each in of_server if each.block_timestamp is not None]
    if block is None or any(is_same_block(block, at, timestamp) for at, timestamp in known):
        return node if open_ones else _open(node, daemon, replace(server, fault_block=None))
    without_block = next((each for each in of_server if each.block_timestamp is None and not each.end_reported), None)
    if without_block is not None:
        return _with_incident(node, replace(without_block, block_timestamp=block.stamp, ending=None, ended_at=None))
    # A second block while the server is in FAULT is another fault only if it affects other clients, on other GPUs.
    affected = {pid for each in open_ones for pid in each.affected}
    if not open_ones or (block.sticky_error and affected.isdisjoint(block.sticky_error)):
        return _open(node, daemon, server)
    return node


def _open(node: Node, daemon: Daemon, server: Server) -> Node:
    """Open an incident. Beyond `MAX_OPEN`, each daemon has one, so that none hides the faults of another."""
    daemons = [each.daemon for each in node.incidents.values() if each.is_fault and each.open]
    if len(daemons) >= MAX_OPEN and daemon.name in daemons:
        return node
    incident = new_incident(node, daemon, server)
    daemon = with_totals(daemon, faults=daemon.totals.faults + 1)
    daemon = with_connections(daemon, last_fault_at=incident.detected_at)
    return _with_incident(replace(node, daemons={**node.daemons, daemon.name: daemon}), incident)


def _may_have_changed(before: Node, node: Node, incident: Incident) -> bool:
    """Return whether an incident needs an update: a time has passed, or a value that it depends on has changed."""
    if before.incidents.get(incident.id) is not incident or before.xids.recent is not node.xids.recent:
        return True
    old_age, age = before.at - incident.detected_at, node.at - incident.detected_at
    if any(old_age < limit <= age for limit in (REPORT_SECONDS, BLOCKING_SECONDS, SETTLED_SECONDS)):
        return True
    if before.deaths is not node.deaths or (all_disconnected(incident) and not incident.stuck):
        return True
    readings = ("work", "fault_kernels", "address_ranges")
    if any(getattr(before, each) is not getattr(node, each) for each in readings) and not incident.settled:
        return True
    old, new = before.daemons.get(incident.daemon), node.daemons.get(incident.daemon)
    if old is None or new is None:
        return True
    return any(was is not now for was, now in zip(_inputs(old, incident), _inputs(new, incident), strict=True))


def _inputs(daemon: Daemon, incident: Incident) -> tuple[object, ...]:
    server = daemon.servers.get(incident.server)
    return (
        server is None,
        None if server is None else server.state,
        None if server is None else server.fault_block,
        daemon.clients,
        daemon.connections.disconnects,
        daemon.state,
        daemon.connections.listed_at is None,
        were_clients_queried(daemon, incident),
    )


def _update(
    before: Node, node: Node, incident: Incident, events: tuple[Event, ...], *, changed: bool, force: bool
) -> Tracked:
    """Update one incident and report the changes. Unless an input has `changed`, only refusals are new."""
    was = incident
    incident = _add_refusals(incident, events)
    if changed:
        incident = rank_suspects(with_leftover(before, node, add_details(before, node, incident)))
        incident = _end_if_over(node, _update_blocking(node, incident))
    settled = incident.settled or force or node.at - incident.detected_at >= SETTLED_SECONDS
    if settled and not incident.settled:
        incident = replace(incident, clues=replace(incident.clues, kernels=settled_kernels(incident)))
    # Inferred clients may still be replaced by those in the log.
    certain = len(incident.affected) if incident.affected_confirmed or settled else 0
    incident = replace(incident, settled=settled, affected_counted=max(incident.affected_counted, certain))
    incident, reported = _report(node.at, was, incident, force=force)
    node = _count(node, was, incident)
    return (node if incident == was else _with_incident(node, incident)), reported


def _add_refusals(incident: Incident, events: Iterable[Event]) -> Incident:
    of_server = (each for each in events if (each.daemon, each.server) == (incident.daemon, incident.server))
    new = (each for each in of_server if each.event is EventName.CLIENT_REFUSED and each.reason == RefusalReason.FAULT)
    refusals = [Refusal(at=each.at, pid=each.pid) for each in new]
    if not refusals or not incident.open:
        return incident
    refused = (*incident.refused, *refusals)[:MAX_REFUSALS]
    return replace(incident, refused=refused, refused_count=incident.refused_count + len(refusals))


def _update_blocking(node: Node, incident: Incident) -> Incident:
    daemon = node.daemons.get(incident.daemon)
    if daemon is None or not incident.open:
        return incident
    clients = {pid for pid, client in daemon.clients.items() if client.server == incident.server}
    if not clients and not were_clients_queried(daemon, incident):
        return incident  # After a restart of the exporter, the clients are not known at first.
    connected = clients.difference(daemon.connections.disconnects)
    # It becomes known a moment later that another process holds the connection of a client that has exited.
    exited = {pid for pid in connected if daemon.clients[pid].exited_at}
    held = {pid for pid in exited if processes.holders_of(node, pid) or processes.shown_at(node, pid)}
    gone = set(incident.disconnected) - held
    disconnected = tuple(pid for pid in incident.affected if pid in gone or pid not in connected)
    blocking = {
        pid: replace(delay, until=(delay.until or node.at) if pid in disconnected else None)
        for pid, delay in incident.blocking.items()
    }
    if node.at - incident.detected_at >= BLOCKING_SECONDS:
        remaining = (pid for pid in incident.affected if pid not in disconnected and pid not in blocking)
        blocking.update((pid, RecoveryDelay(since=incident.detected_at)) for pid in remaining)
    incident = replace(incident, disconnected=disconnected, blocking=blocking)
    last_at = max((delay.until or 0.0 for delay in blocking.values()), default=incident.detected_at)
    return replace(incident, stuck=all_disconnected(incident) and node.at - last_at >= STUCK_SECONDS)


def _end_if_over(node: Node, incident: Incident) -> Incident:
    if not incident.open:
        return incident
    daemon, ending, seconds = node.daemons.get(incident.daemon), None, None
    if daemon is None:
        since = incident.daemon_missing_since or node.at
        incident = replace(incident, daemon_missing_since=since)
        ending = IncidentEnd.DAEMON_GONE if node.at - since > DAEMON_LOST_SECONDS else None
    elif daemon.ended:
        ending = IncidentEnd.DAEMON_GONE
    else:
        server, exited_at = daemon.servers.get(incident.server), daemon.connections.server_exited_at
        known_gone = daemon.connections.listed_at is not None or incident.server in exited_at
        if _is_another_server(node, incident) or (server is None and known_gone):
            ending = IncidentEnd.SERVER_GONE
        elif server is not None and server.state not in (None, ServerState.FAULT):
            ending = IncidentEnd.RECOVERED
            if server.reset_stamp is not None and incident.block_timestamp is not None:
                # By the log's timestamps, if they are plausible.
                logged = seconds_between(incident.block_timestamp, server.reset_stamp)
                agrees = abs(logged - (node.at - incident.detected_at)) <= CLOCK_TOLERANCE_SECONDS
                seconds = logged if agrees and logged >= 0 else None
    if ending is None:
        return incident
    ended = {pid: replace(delay, until=node.at) for pid, delay in incident.blockers.items()}
    blocking = {**incident.blocking, **ended}
    return replace(incident, ending=ending, ended_at=node.at, blocking=blocking, stuck=False, log_seconds=seconds)


def _report(at: float, was: Incident, incident: Incident, *, force: bool) -> tuple[Incident, tuple[Event, ...]]:
    """Report the fault when its GPUs are known, each important change, and the end when it has settled."""
    events: list[Event] = []
    known = incident.affected_confirmed and bool(incident.gpus)
    due = known or force or not incident.open or at - incident.detected_at >= REPORT_SECONDS
    if due and not incident.opening_reported:
        incident = replace(incident, opening_reported=True)
        events.append(_event(incident.detected_at, EventName.FAULT, incident))
    over = not incident.open and incident.settled
    if incident.opening_reported and not over and not force:
        events.extend(_event(at, EventName.FAULT_CHANGED, incident, change) for change in _changes(was, incident))
    if over:
        incident = replace(incident, end_reported=True)
        events.append(_event(incident.ended_at or at, EventName.FAULT_RECOVERED, incident, incident.ending))
    return incident, tuple(events)


def _changes(was: Incident, incident: Incident) -> Iterable[str]:
    """Yield the changes that matter to a person who waits for recovery."""
    suspects = [None if each.suspect is None else each.suspect.client.pid for each in (was, incident)]
    if incident.settled and (not was.settled or suspects[0] != suspects[1]):
        yield "suspects"
    if was.blockers.keys() != incident.blockers.keys() and incident.open:
        yield "blocking"
    if incident.stuck and not was.stuck:
        yield "stuck"
    if incident.refused_count and not was.refused_count:
        yield "refused"


def _event(at: float, name: EventName, incident: Incident, reason: str | None = None) -> Event:
    return Event(at=at, event=name, daemon=incident.daemon, server=incident.server, incident=incident, reason=reason)


def _count(node: Node, was: Incident, incident: Incident) -> Node:
    daemon, affected = node.daemons.get(incident.daemon), incident.affected_counted - was.affected_counted
    if daemon is not None and (affected or incident.end_reported):
        totals = replace(daemon.totals, fault_affected=daemon.totals.fault_affected + affected)
        if incident.end_reported and incident.ending is IncidentEnd.RECOVERED and incident.seconds is not None:
            times, seconds = totals.fault_recoveries, incident.seconds
            first = bisect_left(RECOVERY_SECONDS, seconds)
            within = tuple(count + (bucket >= first) for bucket, count in enumerate(times.within))
            times = RecoveryTimes(within=within, count=times.count + 1, seconds=times.seconds + seconds)
            totals = replace(totals, fault_recoveries=times)
        node = replace(node, daemons={**node.daemons, daemon.name: replace(daemon, totals=totals)})
    details = [incident.client_details[pid] for pid in incident.affected if pid in incident.client_details]
    if incident.settled and not was.settled:
        node = processes.count_fault(node, details)
    return processes.count_end_of_fault(node, details, incident.suspect) if incident.end_reported else node


def _with_incident(node: Node, incident: Incident) -> Node:
    return replace(node, incidents={**node.incidents, incident.id: incident})


def _prune(node: Node) -> Node:
    """Remove old incidents. Of too many, each daemon and kind has a share, for its newest ones."""
    ended = [each for each in node.incidents.values() if each.end_reported]
    recent = [each for each in reversed(ended) if node.at - (each.ended_at or 0.0) <= REMEMBERED_SECONDS]
    expected = expected_daemons(node) if len(recent) > MAX_ENDED else ()
    remaining = select_fairly(recent, MAX_ENDED, lambda each: each.daemon, expected, lambda each: each.kind)
    if len(remaining) == len(ended):
        return node
    removed = {each.id for each in ended} - {each.id for each in remaining}
    return replace(node, incidents={name: each for name, each in node.incidents.items() if name not in removed})
