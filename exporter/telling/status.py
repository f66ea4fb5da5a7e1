"""How the node is, for a person and for a program."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from exporter.core.watchdog.orders import Orders
from exporter.model.daemon import Daemon, DaemonState
from exporter.model.node import Node
from exporter.model.server import Server, ServerState
from exporter.parse.printable import printable
from exporter.telling import status_rows, watchdog_text
from exporter.telling.incident_text import brief, details
from exporter.telling.status_domains import joined, lettered
from exporter.telling.status_object import node_object
from exporter.view import View, directory_of

MOST_BLOCKERS = 8
"""So many are named in one line."""


def table(node: Node) -> str:
    """One table of daemons, servers and clients, and of the processes beside them; what could not be seen; faults.

    What the watchdog says stands below what could not be seen: on that it is founded.
    """
    found = lettered(node)
    told = (
        status_rows.lines(node, found),
        joined(node, found),
        _problems(node),
        watchdog_text.lines(node),
        _open(node),
        _over(node),
    )
    return "\n".join(line for lines in told for line in lines) + "\n"


def line(node: Node, orders: Orders | None = None) -> str:
    """One line for the service manager; `orders` are the watchdog's, None where there is none."""
    daemons = list(View(node).daemons())
    up = sum(daemon.state is DaemonState.UP for daemon in daemons)
    clients = sum(len(daemon.clients) for daemon in daemons)
    blind = [f"blind: {', '.join(_blind(node))}"] if _blind(node) else []
    faults = [_fault(node, daemon, server) for daemon, server in _in_fault(node)]
    watchdog = [] if orders is None else [watchdog_text.modes(node, orders)]
    present = f"{up} of {len(daemons)} daemons up, {clients} clients"
    return "; ".join([*watchdog, present, *faults, *watchdog_text.briefly(node), *blind])


def told(node: Node, orders: Orders | None = None) -> Mapping[str, Any]:
    """All of it, as the service tells it to whoever asks: the table, the object, and the exit code."""
    return {"table": table(node), "node": node_object(node, orders), "exit_code": exit_code(node)}


def exit_code(node: Node) -> int:
    """0 where every daemon is up, no server is in FAULT, and all could be seen; else 1."""
    down = any(daemon.state is not DaemonState.UP for daemon in View(node).daemons())
    return int(down or any(_in_fault(node)) or bool(_blind(node)))


def _blind(node: Node) -> Sequence[str]:
    return [name for name, source in node.sources.items() if source.last.problem is not None]


def _in_fault(node: Node) -> Iterable[tuple[Daemon, Server]]:
    return (each for each in View(node).servers() if each[1].state is ServerState.FAULT)


def _fault(node: Node, daemon: Daemon, server: Server) -> str:
    """Where one is, and who holds up recovery."""
    here = (each for each in node.incidents.values() if (each.daemon, each.server) == (daemon.name, server.pid))
    blockers = [str(pid) for incident in here for pid in incident.blockers]
    named = ", ".join(blockers[:MOST_BLOCKERS])
    more = f" and {len(blockers) - MOST_BLOCKERS} more" if len(blockers) > MOST_BLOCKERS else ""
    return f"FAULT of server {server.pid}" + (f", held up by {named}{more}" if blockers else "")


def _open(node: Node) -> Iterable[str]:
    """The faults that are not over, each after an empty line."""
    for incident in node.incidents.values():
        if incident.open:
            yield from ("", *details(incident, node.at, directory_of(node, incident.daemon)))


def _over(node: Node) -> Iterable[str]:
    """The last ones that are, the latest first."""
    over = [incident for incident in node.incidents.values() if not incident.open][::-1]
    return ("", "Faults of the last hour:", *(brief(incident, node.at) for incident in over)) if over else ()


def _problems(node: Node) -> Iterable[str]:
    for name, source in sorted(node.sources.items()):
        if source.last.problem is not None:
            yield f"{name}: {source.last.problem}"
    for daemon in View(node).daemons():
        if not daemon.supported:
            name = printable(daemon.name)
            yield f"{name}: MPS protocol {daemon.protocol} is not supported yet: only its process is seen"
        if daemon.state is None and daemon.process is not None and daemon.not_found_at is not None:
            name, pid = printable(daemon.name), daemon.process.pid
            yield f"{name}: its pid file was spoilt, so that nobody can ask it: write {pid} into it"
        if daemon.state is DaemonState.UP:
            yield from (f"log: {problem}" for problem in daemon.log_problems.values() if problem is not None)
