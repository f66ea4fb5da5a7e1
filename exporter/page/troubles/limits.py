"""Limits that do not hold, and servers that have reached theirs, as troubles."""

from collections.abc import Iterable, Sequence

from exporter.core.watchdog.drift import Demand, Standing, demands
from exporter.model.daemon import Daemon
from exporter.page.level import Level
from exporter.page.sight import Sight
from exporter.page.troubles.trouble import MOST_COMMANDS, Trouble
from exporter.parse.printable import printable
from exporter.telling.remedy import command_to_tell
from exporter.telling.short import counted
from exporter.view import View, clients_limit, clients_of, directory_of


def full_servers(sight: Sight) -> Iterable[Trouble]:
    """Servers that take nobody more, all as one."""
    taken = (
        (daemon, server, len(clients_of(daemon, server)), clients_limit(daemon, server))
        for daemon, server in View(sight.node).servers()
    )
    found = [
        f"server {server.pid} of {printable(daemon.name)} has {clients} of {limit} clients"
        for daemon, server, clients, limit in taken
        if limit is not None and clients >= limit
    ]
    if found:
        others = len(found) - 1
        more = f", and {counted(others, 'more server')} {'is' if others == 1 else 'are'} full" if others else ""
        yield Trouble(
            level=Level.CARE,
            what=f"{found[0]}{more}: whoever comes next is turned away",
            next="end clients that nobody needs, or have newcomers wait",
        )


def drifted_limits(sight: Sight) -> Iterable[Trouble]:
    """Limits that are not as they should be, by daemon."""
    for daemon in View(sight.node).daemons():
        watch = sight.node.watches.get(daemon.name)
        if watch is None or watch.wanted is None or not daemon.answers:
            continue
        drifted = [each for each in demands(daemon, watch.wanted, sight.at) if each.standing is Standing.DRIFTED]
        if drifted:
            yield _drifted(sight, daemon, drifted)


def _drifted(sight: Sight, daemon: Daemon, drifted: Sequence[Demand]) -> Trouble:
    directory = directory_of(sight.node, daemon.name)
    commands = (command_to_tell(each.command, directory) for each in drifted[:MOST_COMMANDS])
    return Trouble(
        level=Level.CARE,
        what=f"{counted(len(drifted), 'limit')} not in force at {printable(daemon.name)}: {drifted[0].words}",
        next="the watchdog sets it, where it may act; by hand, this does",
        commands=tuple(each for each in commands if each is not None),
    )
