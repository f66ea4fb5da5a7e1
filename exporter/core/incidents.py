"""Faults: each becomes one incident, which is found, fills with evidence, and ends.

A server's log tells of one in a block of lines; where that cannot be read, its state does. Recovery may be over 0.1 s
after the fault (measured, R580), and evidence may come later than that.
"""

from collections import Counter
from collections.abc import Callable, Iterable

from exporter.core import accounts, incident_events, recovery, suspicion
from exporter.core.block import is_same
from exporter.core.case import gathered, opened
from exporter.core.sightings import CLAIM_SECONDS
from exporter.model.daemon import Daemon
from exporter.model.event import Event, EventName
from exporter.model.incident import Ending, Incident, Refusal
from exporter.model.node import Node
from exporter.model.replace import replace
from exporter.model.server import RefusalReason, Server, ServerState

Told = tuple[Node, tuple[Event, ...]]

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


def follow(before: Node, node: Node, events: Iterable[Event], *, force: bool = False) -> Told:
    """Take what became known between two nodes to the incidents; with `force`, wait for nothing more."""
    news = tuple(events)
    node = _found(before, _adopted(before, node))
    told: list[Event] = []
    for incident in [each for each in node.incidents.values() if not each.told]:
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
    for orphan in [each for each in node.incidents.values() if not each.told and each.daemon not in node.daemons]:
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
    block = server.block
    if block is not None and not (block.confirmed and block.at >= (server.state_since or 0.0)):
        block = None
    of_server = [each for each in node.incidents.values() if (each.daemon, each.server) == (daemon.name, server.pid)]
    here = [each for each in of_server if each.open]
    if block is not None and not any(
        is_same(block, each.detected_at, each.block_stamp) for each in of_server if each.block_stamp is not None
    ):
        untold = next((each for each in of_server if each.block_stamp is None and not each.told), None)
        if untold is not None:
            return _with(node, replace(untold, block_stamp=block.stamp, ending=None, ended_at=None))
        if not here or _of_others(block.victims, here):
            return _opened(node, daemon, server)
    elif not here:
        return _opened(node, daemon, replace(server, block=None))
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
    waits = (incident_events.ANNOUNCED_SECONDS, recovery.BLOCKING_SECONDS, SETTLED_SECONDS)
    was, now = before.at - incident.detected_at, node.at - incident.detected_at
    if any(was < wait <= now for wait in waits) or before.deaths is not node.deaths:
        return True
    if recovery.is_let_go(incident) and not incident.stuck:
        return True
    if before.work is not node.work and not incident.settled:
        return True
    old, new = before.daemons.get(incident.daemon), node.daemons.get(incident.daemon)
    if old is None or new is None:
        return True
    parts: tuple[Callable[[Daemon], object], ...] = (
        lambda daemon: incident.server in daemon.servers,
        lambda daemon: getattr(daemon.servers.get(incident.server), "state", None),
        lambda daemon: getattr(daemon.servers.get(incident.server), "block", None),
        lambda daemon: daemon.clients,
        lambda daemon: daemon.connections.disconnects,
        lambda daemon: daemon.state,
        lambda daemon: daemon.connections.listed_at is None,
        lambda daemon: recovery.asked_for_clients(daemon, incident),
    )
    return any(part(old) is not part(new) for part in parts)


def _advance(
    before: Node, node: Node, incident: Incident, news: tuple[Event, ...], *, stirred: bool, force: bool
) -> Told:
    """One incident, with what is new of it, and what is to be told of that; refusals alone change nothing else."""
    was = incident
    incident = _refusing(incident, news)
    if stirred:
        incident = suspicion.judged(gathered(before, node, incident))
        incident = _ended(node, recovery.held_up(node, incident))
    age = node.at - incident.detected_at
    incident = replace(incident, settled=incident.settled or force or age >= SETTLED_SECONDS)
    incident = replace(incident, affected_counted=max(incident.affected_counted, _sure_affected(incident)))
    incident, events = incident_events.told(node.at, was, incident, force=force)
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
        lost = incident.unseen_since is not None and node.at - incident.unseen_since > LOST_SECONDS
        incident = replace(incident, unseen_since=incident.unseen_since or node.at)
        ending = Ending.DAEMON_GONE if lost else None
    elif daemon.gone:
        ending = Ending.DAEMON_GONE
    else:
        ending = _ending_of_server(node, daemon, incident)
    if ending is None:
        return incident
    return recovery.ended(node, incident, ending)


def _ending_of_server(node: Node, daemon: Daemon, incident: Incident) -> Ending | None:
    """A daemon that lists its servers lists this one; of one that is another by now, it is known that it went."""
    server = daemon.servers.get(incident.server)
    known_gone = daemon.connections.listed_at is not None or incident.server in daemon.connections.departed_servers
    if _is_another_server(node, incident) or (server is None and known_gone):
        return Ending.SERVER_GONE
    well = server is not None and server.state not in (None, ServerState.FAULT)
    return Ending.RECOVERED if well else None


def _counted(node: Node, was: Incident, incident: Incident) -> Node:
    """Counters grow with what was added, so that none of it is counted twice."""
    affected = incident.affected_counted - was.affected_counted
    daemon = node.daemons.get(incident.daemon)
    if daemon is not None and (affected or incident.told):
        totals = replace(daemon.totals, fault_affected=daemon.totals.fault_affected + affected)
        if incident.told and incident.ending is Ending.RECOVERED and incident.seconds is not None:
            totals = replace(totals, fault_recoveries=recovery.counted(totals.fault_recoveries, incident.seconds))
        node = replace(node, daemons={**node.daemons, daemon.name: replace(daemon, totals=totals)})
    if incident.settled and not was.settled:
        hit = [incident.tenants[pid] for pid in incident.affected if pid in incident.tenants]
        node = accounts.faulted(node, hit, None)
    if incident.told and incident.suspect is not None and incident.suspect.confidence >= SUSPECTED_FROM:
        node = accounts.faulted(node, (), incident.suspect.tenant)
    return node


def _sure_affected(incident: Incident) -> int:
    """How many it hit; what was inferred may yet give way to what the log tells."""
    return len(incident.affected) if incident.affected_told or incident.settled else 0


def _with(node: Node, incident: Incident) -> Node:
    return replace(node, incidents={**node.incidents, incident.id: incident})


def _forgotten(node: Node) -> Node:
    """Of too many, the eldest of the daemons that have the most: none puts out another's."""
    over = [each for each in node.incidents.values() if each.told]
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
