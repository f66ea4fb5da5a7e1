"""Faults that are not over, as troubles: who holds each up, and what ends that."""

from collections.abc import Iterable

from exporter.model.incident import Incident
from exporter.model.server import ServerState
from exporter.page.level import Level
from exporter.page.sight import Sight
from exporter.page.troubles.trouble import MOST_COMMANDS, Trouble
from exporter.parse.printable import printable
from exporter.telling.moment import lasting
from exporter.telling.remedy import command_to_end, command_to_end_server
from exporter.telling.short import counted
from exporter.telling.verdict import verdict
from exporter.view import View, directory_of


def fault_troubles(sight: Sight) -> Iterable[Trouble]:
    """Those that somebody can end first."""
    open_ones = [each for each in sight.node.incidents.values() if each.open]
    yield from (_fault(sight, each) for each in sorted(open_ones, key=lambda each: not (each.blockers or each.stuck)))
    told = {(each.daemon, each.server) for each in open_ones}
    for daemon, server in View(sight.node).servers():
        if server.state is ServerState.FAULT and (daemon.name, server.pid) not in told:
            where = f"server {server.pid} of {printable(daemon.name)}"
            yield Trouble(level=Level.GRAVE, what=f"{where} is in FAULT", next="see below who is on it")


def _fault(sight: Sight, incident: Incident) -> Trouble:
    blockers = tuple(incident.blockers)
    commands = [command_to_end(pid) for pid in blockers]
    if incident.stuck:
        held = ", though all of its clients have gone"
        commands = [command_to_end_server(incident.server, directory_of(sight.node, incident.daemon))]
    else:
        held = f", held up by {counted(len(blockers), 'client')}" if blockers else ""
    since = lasting(max(0.0, sight.at - incident.started_at))
    where = f"server {incident.server} of {printable(incident.daemon)}"
    return Trouble(
        level=Level.GRAVE,
        what=f"{where} has been in FAULT for {since}{held}; suspected: {verdict(incident)}",
        next=_next(incident),
        commands=tuple(each for each in commands if each is not None)[:MOST_COMMANDS],
    )


def _next(incident: Incident) -> str:
    if incident.stuck:
        return "nobody can use it until it is ended; the daemon starts another"
    if incident.blockers:
        return "nobody else can use it until these have exited; end them"
    return "wait: its clients are being ended"
