"""Limits that do not hold, and servers that have reached theirs, as troubles."""

from collections.abc import Iterable, Sequence

from exporter.core.client_slots import clients_limit
from exporter.core.watchdog.drift import Demand, Standing, demands
from exporter.core.watchdog.orders import Orders
from exporter.model.daemon import Daemon
from exporter.model.node import Node
from exporter.parse.printable import printable
from exporter.telling.level import Level
from exporter.telling.reasons import text_of
from exporter.telling.remedy import address_of, command_to_tell
from exporter.telling.short import counted
from exporter.telling.troubles.trouble import MOST_COMMANDS, Trouble
from exporter.view import View, clients_of


def full_servers(node: Node) -> Iterable[Trouble]:
    """Servers that take nobody more, all as one."""
    taken = (
        (daemon, server, len(clients_of(daemon, server)), clients_limit(node, daemon, server))
        for daemon, server in View(node).servers()
    )
    found = [
        f"server {server.pid} of {printable(daemon.name)} has {clients} of {limit} clients"
        for daemon, server, clients, limit in taken
        if limit is not None and clients >= limit
    ]
    if found:
        others = counted(len(found) - 1, "more server is full", "more servers are full")
        more = f", and {others}" if len(found) > 1 else ""
        yield Trouble(
            level=Level.CARE,
            what=f"{found[0]}{more}: whoever comes next is turned away",
            next="end clients that nobody needs, or have newcomers wait",
            fails=False,
        )


def drifted_limits(node: Node, at: float, orders: Orders | None) -> Iterable[Trouble]:
    """Limits that are not as they should be, by daemon."""
    for daemon in View(node).daemons():
        watch = node.watches.get(daemon.name)
        if watch is None or watch.wanted is None or not daemon.answers:
            continue
        drifted = [each for each in demands(daemon, watch.wanted, at) if each.standing is Standing.DRIFTED]
        if drifted:
            yield _drifted(node, daemon, drifted, orders)


def _drifted(node: Node, daemon: Daemon, drifted: Sequence[Demand], orders: Orders | None) -> Trouble:
    address = address_of(node, daemon.name, orders)
    first = drifted[0]
    whose = "of servers to come" if first.server is None else f"of server {first.server}"
    commands = (command_to_tell(each.command, address) for each in drifted[:MOST_COMMANDS])
    return Trouble(
        level=Level.CARE,
        what=f"{counted(len(drifted), 'limit')} not in force at {printable(daemon.name)}: "
        f"{text_of(first.reason)} {whose}",
        next="the watchdog sets it, where it may act; to do this by hand, run",
        commands=tuple(each for each in commands if each is not None),
        daemon=daemon.name,
        word="limits drifted",
    )
