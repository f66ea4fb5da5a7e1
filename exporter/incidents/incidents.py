"""Incidents: a fault is opened once, filled with evidence, and ended."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable

from exporter.incidents import root_cause
from exporter.incidents.details import gathered, opened
from exporter.incidents.fault_log import is_same
from exporter.model.daemon import RECOVERY_SECONDS, Daemon, RecoveryTimes
from exporter.model.event import Event, EventName
from exporter.model.incident import Incident, IncidentEnd, RecoveryDelay, Refusal
from exporter.model.node import Node
from exporter.model.server import RefusalReason, Server, ServerState
from exporter.model.values import replace
from exporter.parse.control_reply import LIST_CLIENTS
from exporter.parse.log_line import seconds_between
from exporter.state import processes
from exporter.state.xids import CLAIM_SECONDS

BLOCKING_SECONDS = 1.0
"""Those who exit when they get the error are gone within this time, so that whoever is still there holds it up."""

STUCK_SECONDS = 10.0
"""A server recovers some 30 ms after its last victim has gone, or never: where a client with contexts on two GPUs had
joined them, it lost one of the victims in 3 of 4 trials, and stayed in FAULT for good (measured, R580)."""

AGREEING_SECONDS = 2.0
"""Two clocks that tell of the same time differ by no more: the log is read a moment after it is written."""


def held_up(node: Node, incident: Incident) -> Incident:
    """Who of the affected has let go, and who has not."""
    daemon = node.daemons.get(incident.daemon)
    if daemon is None or not incident.open or not _clients_known(daemon, incident):
        return incident
    gone = tuple(
        pid for pid in incident.affected if pid in incident.disconnected or not _is_here(daemon, incident, pid)
    )
    blocking = {
        pid: replace(stay, until=node.at) if stay.until is None and pid in gone else stay
        for pid, stay in incident.blocking.items()
    }
    if node.at - incident.detected_at >= BLOCKING_SECONDS:
        staying = (pid for pid in incident.affected if pid not in gone and pid not in blocking)
        blocking.update((pid, RecoveryDelay(since=incident.detected_at)) for pid in staying)
    incident = replace(incident, disconnected=gone, blocking=blocking)
    return replace(incident, stuck=is_let_go(incident) and node.at - _let_go_at(incident) >= STUCK_SECONDS)


def is_let_go(incident: Incident) -> bool:
    """Whether all of the affected have let go, and the server ought to recover at once."""
    return incident.open and bool(incident.affected) and len(incident.disconnected) == len(incident.affected)


def _let_go_at(incident: Incident) -> float:
    return max((stay.until or 0.0 for stay in incident.blocking.values()), default=incident.detected_at)


def _clients_known(daemon: Daemon, incident: Incident) -> bool:
    """Of a server that is met again after a restart, it is not known at first who its clients are."""
    told = asked_for_clients(daemon, incident)
    return told or any(client.server == incident.server for client in daemon.clients.values())


def asked_for_clients(daemon: Daemon, incident: Incident) -> bool:
    """Whether the daemon was lately asked who the server's clients are."""
    return f"{LIST_CLIENTS} {incident.server}" in daemon.commands.asked_at


def _is_here(daemon: Daemon, incident: Incident, pid: int) -> bool:
    client = daemon.clients.get(pid)
    return client is not None and client.server == incident.server and pid not in daemon.connections.disconnects


def ended(node: Node, incident: Incident, ending: IncidentEnd) -> Incident:
    """It is over: nobody holds up anything any more."""
    blocking = {
        pid: replace(stay, until=node.at if stay.until is None else stay.until)
        for pid, stay in incident.blocking.items()
    }
    seconds = _by_the_log(node, incident) if ending is IncidentEnd.RECOVERED else None
    return replace(incident, ending=ending, ended_at=node.at, blocking=blocking, stuck=False, log_seconds=seconds)


def _by_the_log(node: Node, incident: Incident) -> float | None:
    """How long it took by the log's own clock, where that tells it and agrees with ours."""
    server = node.daemons[incident.daemon].servers.get(incident.server)
    if server is None or server.reset_stamp is None or incident.block_timestamp is None:
        return None
    seconds = seconds_between(incident.block_timestamp, server.reset_stamp)
    agrees = abs(seconds - (node.at - incident.detected_at)) <= AGREEING_SECONDS
    return seconds if agrees and seconds >= 0 else None


def counted(recoveries: RecoveryTimes, seconds: float) -> RecoveryTimes:
    """One more recovery."""
    first = bisect_left(RECOVERY_SECONDS, seconds)
    within = tuple(count + (place >= first) for place, count in enumerate(recoveries.within))
    return RecoveryTimes(within=within, count=recoveries.count + 1, seconds=recoveries.seconds + seconds)


ANNOUNCED_SECONDS = 0.5
"""How long the opening waits for the log to tell whom and what the fault hit."""


def told(at: float, was: Incident, incident: Incident, *, force: bool) -> tuple[Incident, tuple[Event, ...]]:
    """The opening once its GPUs are known, each change that matters, the end once late evidence has had its time."""
    events: list[Event] = []
    if not incident.opening_reported and _announceable(at, incident, force=force):
        incident = replace(incident, opening_reported=True)
        events.append(_event(incident.detected_at, EventName.FAULT, incident))
    over = not incident.open and incident.settled
    if incident.opening_reported and not over and not force:
        events.extend(
            _event(at, EventName.FAULT_CHANGED, incident, reason=reason) for reason in _changes(was, incident)
        )
    if over:
        incident = replace(incident, end_reported=True)
        events.append(_event(incident.ended_at or at, EventName.FAULT_RECOVERED, incident, reason=incident.ending))
    return incident, tuple(events)


def _announceable(at: float, incident: Incident, *, force: bool) -> bool:
    told = incident.affected_confirmed and bool(incident.gpus)
    return told or force or not incident.open or at - incident.detected_at >= ANNOUNCED_SECONDS


def _changes(was: Incident, incident: Incident) -> Iterable[str]:
    """What a person who waits for recovery would want to hear."""
    if incident.settled and (not was.settled or _likeliest(was) != _likeliest(incident)):
        yield "suspects"
    if was.blockers.keys() != incident.blockers.keys() and incident.open:
        yield "blocking"
    if incident.stuck and not was.stuck:
        yield "stuck"
    if incident.refused_count and not was.refused_count:
        yield "refused"


def _likeliest(incident: Incident) -> int | None:
    return None if incident.suspect is None else incident.suspect.client.pid


def still_open(node: Node) -> tuple[Event, ...]:
    """What is to be told of the incidents that are open when a recording ends."""
    return tuple(_event(node.at, EventName.FAULT_OPEN, each) for each in node.incidents.values() if each.open)


def _event(at: float, name: EventName, incident: Incident, reason: str | None = None) -> Event:
    return Event(at=at, event=name, daemon=incident.daemon, server=incident.server, incident=incident, reason=reason)


Tracked = tuple[Node, tuple[Event, ...]]

SETTLED_SECONDS = CLAIM_SECONDS
"""How late evidence may come: no Xid joins an incident after that."""

REMEMBERED_SECONDS = 3600.0
MOST_REMEMBERED = 64
"""How long, and how many, incidents that are over are remembered."""

MOST_OPEN = 64
MOST_REFUSALS = 256
LOST_SECONDS = 300.0
"""How long the daemon of an open incident may not be known at all."""

SUSPECTED_FROM = 0.5
"""How sure it must be before an owner's account has the suspicion."""


def track(before: Node, node: Node, events: Iterable[Event], *, force: bool = False) -> Tracked:
    """Take what became known between two nodes to the incidents; with `force`, wait for nothing more."""
    news = tuple(events)
    node = _found(before, _adopted(before, node))
    told: list[Event] = []
    for incident in [each for each in node.incidents.values() if not each.end_reported]:
        stirred = force or _stirred(before, node, incident)
        if stirred or news:
            node, more = _advance(before, node, incident, news, stirred=stirred, force=force)
            told.extend(more)
    unchanged = node.incidents is before.incidents and node.at == before.at
    return (node if unchanged else _forgotten(node)), tuple(told)


def _adopted(before: Node, node: Node) -> Node:
    """After a restart a daemon may have another name: a fault is of the daemon that has its server."""
    if node.daemons is before.daemons:
        return node
    for orphan in [
        each for each in node.incidents.values() if not each.end_reported and each.daemon not in node.daemons
    ]:
        home = next((name for name, daemon in node.daemons.items() if orphan.server in daemon.servers), None)
        if home is not None and not _is_another_server(node, orphan):
            node = _with(node, replace(orphan, daemon=home))
    return node


def _is_another_server(node: Node, incident: Incident) -> bool:
    """Whether the process that has the server's PID now is known not to be the one that it was."""
    process, ticks = node.processes.get(incident.server), incident.server_start_ticks
    return process is not None and ticks is not None and process.start_ticks != ticks


def _found(before: Node, node: Node) -> Node:
    for name, daemon in node.daemons.items():
        known = before.daemons.get(name)
        if known is None or daemon.servers is not known.servers:
            for server in daemon.servers.values():
                node = _found_on(node, node.daemons[name], server)
    return node


def _found_on(node: Node, daemon: Daemon, server: Server) -> Node:
    """One fault is one incident: the block that tells of it, the state, and a second telling of either.

    The state may be told before the block is read, and that it is well again too. A block from before the server was in
    FAULT is an earlier fault's.
    """
    if server.state is not ServerState.FAULT:
        return node
    block = server.fault_block
    if block is not None and not (block.confirmed and block.at >= (server.state_since or 0.0)):
        block = None
    of_server = [each for each in node.incidents.values() if (each.daemon, each.server) == (daemon.name, server.pid)]
    here = [each for each in of_server if each.open]
    if block is not None and not any(
        is_same(block, each.detected_at, each.block_timestamp) for each in of_server if each.block_timestamp is not None
    ):
        untold = next((each for each in of_server if each.block_timestamp is None and not each.end_reported), None)
        if untold is not None:
            return _with(node, replace(untold, block_timestamp=block.stamp, ending=None, ended_at=None))
        if not here or _of_others(block.sticky_error, here):
            return _opened(node, daemon, server)
    elif not here:
        return _opened(node, daemon, replace(server, fault_block=None))
    return node


def _of_others(victims: tuple[int, ...], incidents: Iterable[Incident]) -> bool:
    """Whether a block that comes while the server is in FAULT tells of another fault, on GPUs that had none."""
    affected = {pid for each in incidents for pid in each.affected}
    return bool(victims) and not affected & set(victims)


def _opened(node: Node, daemon: Daemon, server: Server) -> Node:
    """Beyond `MOST_OPEN` each daemon has one: what one of them says, true or not, hides no fault of another."""
    here = [each.daemon for each in node.incidents.values() if each.open]
    if len(here) >= MOST_OPEN and daemon.name in here:
        return node
    incident = opened(node, daemon, server)
    totals = replace(daemon.totals, faults=daemon.totals.faults + 1)
    daemon = replace(daemon, totals=totals, connections=replace(daemon.connections, last_fault_at=incident.detected_at))
    return _with(replace(node, daemons={**node.daemons, daemon.name: daemon}), incident)


def _stirred(before: Node, node: Node, incident: Incident) -> bool:
    """Whether anything may be new of an incident: time that is up, or something that it hangs on."""
    if before.incidents.get(incident.id) is not incident or before.xids.recent is not node.xids.recent:
        return True
    waits = (ANNOUNCED_SECONDS, BLOCKING_SECONDS, SETTLED_SECONDS)
    was, now = before.at - incident.detected_at, node.at - incident.detected_at
    if any(was < wait <= now for wait in waits) or before.deaths is not node.deaths:
        return True
    if is_let_go(incident) and not incident.stuck:
        return True
    if before.work is not node.work and not incident.settled:
        return True
    old, new = before.daemons.get(incident.daemon), node.daemons.get(incident.daemon)
    if old is None or new is None:
        return True
    parts: tuple[Callable[[Daemon], object], ...] = (
        lambda daemon: incident.server in daemon.servers,
        lambda daemon: getattr(daemon.servers.get(incident.server), "state", None),
        lambda daemon: getattr(daemon.servers.get(incident.server), "fault_block", None),
        lambda daemon: daemon.clients,
        lambda daemon: daemon.connections.disconnects,
        lambda daemon: daemon.state,
        lambda daemon: daemon.connections.listed_at is None,
        lambda daemon: asked_for_clients(daemon, incident),
    )
    return any(part(old) is not part(new) for part in parts)


def _advance(
    before: Node, node: Node, incident: Incident, news: tuple[Event, ...], *, stirred: bool, force: bool
) -> Tracked:
    """One incident, with what is new of it, and what is to be told of that; refusals alone change nothing else."""
    was = incident
    incident = _refusing(incident, news)
    if stirred:
        incident = root_cause.ranked(gathered(before, node, incident))
        incident = _ended(node, held_up(node, incident))
    age = node.at - incident.detected_at
    incident = replace(incident, settled=incident.settled or force or age >= SETTLED_SECONDS)
    incident = replace(incident, affected_counted=max(incident.affected_counted, _sure_affected(incident)))
    incident, events = told(node.at, was, incident, force=force)
    node = _counted(node, was, incident)
    return (node if incident == was else _with(node, incident)), events


def _refusing(incident: Incident, news: Iterable[Event]) -> Incident:
    turned_away = [
        Refusal(at=each.at, pid=each.pid)
        for each in news
        if each.event is EventName.CLIENT_REFUSED
        and each.reason == RefusalReason.FAULT
        and (each.daemon, each.server) == (incident.daemon, incident.server)
    ]
    if not turned_away or not incident.open:
        return incident
    refused = (*incident.refused, *turned_away)[:MOST_REFUSALS]
    return replace(incident, refused=refused, refused_count=incident.refused_count + len(turned_away))


def _ended(node: Node, incident: Incident) -> Incident:
    """Whether it is over: the server is well again, or there is no more of it."""
    if not incident.open:
        return incident
    daemon = node.daemons.get(incident.daemon)
    ending = None
    if daemon is None:
        lost = incident.daemon_missing_since is not None and node.at - incident.daemon_missing_since > LOST_SECONDS
        incident = replace(incident, daemon_missing_since=incident.daemon_missing_since or node.at)
        ending = IncidentEnd.DAEMON_GONE if lost else None
    elif daemon.ended:
        ending = IncidentEnd.DAEMON_GONE
    else:
        ending = _ending_of_server(node, daemon, incident)
    if ending is None:
        return incident
    return ended(node, incident, ending)


def _ending_of_server(node: Node, daemon: Daemon, incident: Incident) -> IncidentEnd | None:
    """A daemon that lists its servers lists this one; of one that is another by now, it is known that it went."""
    server = daemon.servers.get(incident.server)
    known_gone = daemon.connections.listed_at is not None or incident.server in daemon.connections.server_exited_at
    if _is_another_server(node, incident) or (server is None and known_gone):
        return IncidentEnd.SERVER_GONE
    well = server is not None and server.state not in (None, ServerState.FAULT)
    return IncidentEnd.RECOVERED if well else None


def _counted(node: Node, was: Incident, incident: Incident) -> Node:
    """Counters grow with what was added, so that none of it is counted twice."""
    affected = incident.affected_counted - was.affected_counted
    daemon = node.daemons.get(incident.daemon)
    if daemon is not None and (affected or incident.end_reported):
        totals = replace(daemon.totals, fault_affected=daemon.totals.fault_affected + affected)
        if incident.end_reported and incident.ending is IncidentEnd.RECOVERED and incident.seconds is not None:
            totals = replace(totals, fault_recoveries=counted(totals.fault_recoveries, incident.seconds))
        node = replace(node, daemons={**node.daemons, daemon.name: replace(daemon, totals=totals)})
    if incident.settled and not was.settled:
        hit = [incident.client_details[pid] for pid in incident.affected if pid in incident.client_details]
        node = processes.faulted(node, hit, None)
    if incident.end_reported and incident.suspect is not None and incident.suspect.confidence >= SUSPECTED_FROM:
        node = processes.faulted(node, (), incident.suspect.client)
    return node


def _sure_affected(incident: Incident) -> int:
    """How many it hit; what was inferred may yet give way to what the log tells."""
    return len(incident.affected) if incident.affected_confirmed or incident.settled else 0


def _with(node: Node, incident: Incident) -> Node:
    return replace(node, incidents={**node.incidents, incident.id: incident})


def _forgotten(node: Node) -> Node:
    """Of too many, the eldest of the daemons that have the most: none puts out another's."""
    over = [each for each in node.incidents.values() if each.end_reported]
    kept = [each for each in over if node.at - (each.ended_at or 0.0) <= REMEMBERED_SECONDS]
    if len(kept) > MOST_REMEMBERED:
        later: Counter[str] = Counter()
        places: dict[str, int] = {}
        for each in reversed(kept):
            places[each.id] = later[each.daemon]
            later[each.daemon] += 1
        kept = sorted(kept, key=lambda each: places[each.id])[:MOST_REMEMBERED]
    if len(kept) == len(over):
        return node
    forgotten = {each.id for each in over} - {each.id for each in kept}
    return replace(node, incidents={name: each for name, each in node.incidents.items() if name not in forgotten})
