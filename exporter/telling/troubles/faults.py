"""Faults that are not over, as troubles: who holds each up, and what ends that."""

from collections.abc import Iterable

from exporter.core.watchdog.orders import Orders
from exporter.model.incident import Incident
from exporter.model.node import Node
from exporter.model.server import ServerState
from exporter.parse.printable import printable
from exporter.telling.level import Level
from exporter.telling.moment import lasting
from exporter.telling.remedy import address_of, command_to_end, command_to_end_server
from exporter.telling.short import counted
from exporter.telling.troubles.trouble import MOST_COMMANDS, Trouble
from exporter.telling.verdict import verdict
from exporter.view import View

_WORD = "server in FAULT"


def fault_troubles(node: Node, at: float, orders: Orders | None) -> Iterable[Trouble]:
    """Those that somebody can end first."""
    open_ones = [each for each in node.incidents.values() if each.open]
    open_ones.sort(key=lambda each: not (each.blockers or each.stuck))
    yield from (_fault(node, at, each, orders) for each in open_ones)
    told = {(each.daemon, each.server) for each in open_ones}
    for daemon, server in View(node).servers():
        if server.state is ServerState.FAULT and (daemon.name, server.pid) not in told:
            where = f"server {server.pid} of {printable(daemon.name)}"
            yield Trouble(
                level=Level.GRAVE,
                what=f"{where} is in FAULT",
                next="see below who is on it",
                daemon=daemon.name,
                word=_WORD,
            )


def _fault(node: Node, at: float, incident: Incident, orders: Orders | None) -> Trouble:
    blockers = tuple(incident.blockers)
    commands = [command_to_end(pid) for pid in blockers]
    if incident.stuck:
        held = ", though all of its clients have gone"
        commands = [command_to_end_server(incident.server, address_of(node, incident.daemon, orders))]
    else:
        held = f", held up by {counted(len(blockers), 'client')}" if blockers else ""
    since = lasting(at - incident.started_at)
    where = f"server {incident.server} of {printable(incident.daemon)}"
    return Trouble(
        level=Level.GRAVE,
        what=f"{where} has been in FAULT for {since}{held}; suspected: {verdict(incident)}",
        next=_next(incident),
        commands=tuple(each for each in commands if each is not None)[:MOST_COMMANDS],
        daemon=incident.daemon,
        word=_WORD,
    )


def _next(incident: Incident) -> str:
    if incident.stuck:
        return "nobody can use it until it is ended; the daemon starts another"
    if incident.blockers:
        return "nobody else can use it until these have exited; end them"
    return "wait: its clients are being ended"
