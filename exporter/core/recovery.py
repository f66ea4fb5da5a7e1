"""Who holds up recovery: a server stays in FAULT until the last affected client has let go (measured, R580)."""

from bisect import bisect_left

from exporter.model.daemon import RECOVERY_SECONDS, Daemon, Recoveries
from exporter.model.incident import Ending, Incident, Stay
from exporter.model.node import Node
from exporter.model.replace import replace
from exporter.parse.control_reply import LIST_CLIENTS
from exporter.parse.log_line import seconds_between

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
    gone = tuple(pid for pid in incident.affected if pid in incident.gone or not _is_here(daemon, incident, pid))
    blocking = {
        pid: replace(stay, until=node.at) if stay.until is None and pid in gone else stay
        for pid, stay in incident.blocking.items()
    }
    if node.at - incident.detected_at >= BLOCKING_SECONDS:
        staying = (pid for pid in incident.affected if pid not in gone and pid not in blocking)
        blocking.update((pid, Stay(since=incident.detected_at)) for pid in staying)
    incident = replace(incident, gone=gone, blocking=blocking)
    return replace(incident, stuck=is_let_go(incident) and node.at - _let_go_at(incident) >= STUCK_SECONDS)


def is_let_go(incident: Incident) -> bool:
    """Whether all of the affected have let go, and the server ought to recover at once."""
    return incident.open and bool(incident.affected) and len(incident.gone) == len(incident.affected)


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


def ended(node: Node, incident: Incident, ending: Ending) -> Incident:
    """It is over: nobody holds up anything any more."""
    blocking = {
        pid: replace(stay, until=node.at if stay.until is None else stay.until)
        for pid, stay in incident.blocking.items()
    }
    seconds = _by_the_log(node, incident) if ending is Ending.RECOVERED else None
    return replace(incident, ending=ending, ended_at=node.at, blocking=blocking, stuck=False, log_seconds=seconds)


def _by_the_log(node: Node, incident: Incident) -> float | None:
    """How long it took by the log's own clock, where that tells it and agrees with ours."""
    server = node.daemons[incident.daemon].servers.get(incident.server)
    if server is None or server.reset_stamp is None or incident.block_stamp is None:
        return None
    seconds = seconds_between(incident.block_stamp, server.reset_stamp)
    agrees = abs(seconds - (node.at - incident.detected_at)) <= AGREEING_SECONDS
    return seconds if agrees and seconds >= 0 else None


def counted(recoveries: Recoveries, seconds: float) -> Recoveries:
    """One more recovery."""
    first = bisect_left(RECOVERY_SECONDS, seconds)
    within = tuple(count + (place >= first) for place, count in enumerate(recoveries.within))
    return Recoveries(within=within, count=recoveries.count + 1, seconds=recoveries.seconds + seconds)
