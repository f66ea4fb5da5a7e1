"""How the node is, for a person and for a program."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from exporter.core.watchdog.orders import Orders
from exporter.model.daemon import Daemon, DaemonState
from exporter.model.node import Node
from exporter.model.observation import DaemonName
from exporter.model.problem import LOG_BLOCKED
from exporter.model.server import Server, ServerState
from exporter.parse.printable import printable
from exporter.plain import plain
from exporter.telling import status_rows, watchdog_text
from exporter.telling.headline import daemons_and_clients, headline
from exporter.telling.incident_text import brief, details
from exporter.telling.line import Line, doubtful, faint, said, shell, text_of
from exporter.telling.problem_text import log_text, problem_text, source_text
from exporter.telling.remedy import address_of
from exporter.telling.sheet import Sheet
from exporter.telling.status_domains import joined, lettered
from exporter.telling.status_object import node_object
from exporter.telling.status_sharing import sharing
from exporter.telling.troubles import troubles
from exporter.view import View

MOST_BLOCKERS = 8
"""So many are named in one line."""


def sheet(node: Node, orders: Orders | None = None, width: int | None = None) -> Sheet:
    """All that a person is shown; the table is no wider than `width`, None: as wide as it becomes.

    `orders` are the watchdog's, None where there is none.
    """
    found = lettered(node)
    known = (*_problems(node), *watchdog_text.lines(node), *_open(node, orders))
    return Sheet(
        at=node.at,
        head=tuple(headline(node, orders)),
        table=(*status_rows.lines(node, found, width), *joined(node, found)),
        # What the watchdog says stands below what could not be seen: on that it is founded.
        troubles=(*known, *_remedies(node, orders, known)),
        past=tuple(_over(node)),
        sharing=tuple(sharing(node, width)),
    )


def table(node: Node, orders: Orders | None = None) -> str:
    """One table of daemons, servers and clients, and of the processes beside them; what could not be seen; faults."""
    shown = sheet(node, orders)
    return text_of((*shown.table, *shown.sharing, *shown.troubles, *shown.past))


def line(node: Node, orders: Orders | None = None) -> str:
    """One line for the service manager; `orders` are the watchdog's, None where there is none."""
    faults = (_fault(node, *each) for each in View(node).servers() if each[1].state is ServerState.FAULT)
    blind = [name for name, source in node.sources.items() if source.last.problem is not None]
    unseen = [f"blind: {', '.join(blind)}"] if blind else []
    watchdog = [] if orders is None else [watchdog_text.modes(node, orders)]
    return "; ".join([*watchdog, daemons_and_clients(node), *faults, *watchdog_text.briefly(node), *unseen])


def told(
    node: Node,
    orders: Orders | None = None,
    *,
    as_json: bool = False,
    daemon: DaemonName | None = None,
    width: int | None = None,
) -> Mapping[str, Any]:
    """What is told to whoever asks: an object or a sheet, of one `daemon` or of all, and the exit code."""
    if daemon is not None:
        there = [each.name for each in View(node).daemons()]
        if daemon not in there:
            others = ", ".join(map(printable, there)) or "none"
            return {"problem": f"no daemon {printable(daemon)} is here; there are: {others}"}
        node = _only(node, daemon)
    shown = {"node": node_object(node, orders)} if as_json else {"sheet": plain(sheet(node, orders, width))}
    return {**shown, "exit_code": exit_code(node)}


def exit_code(node: Node) -> int:
    """0 where daemons and servers are well, limits in force and all eyes open; else 1."""
    return int(any(each.fails for each in troubles(node, node.at)))


def _fault(node: Node, daemon: Daemon, server: Server) -> str:
    """Where one is, and who holds up recovery."""
    here = (each for each in node.incidents.values() if (each.daemon, each.server) == (daemon.name, server.pid))
    blockers = [str(pid) for incident in here for pid in incident.blockers]
    named = ", ".join(blockers[:MOST_BLOCKERS])
    more = f" and {len(blockers) - MOST_BLOCKERS} more" if len(blockers) > MOST_BLOCKERS else ""
    return f"FAULT of server {server.pid}" + (f", held up by {named}{more}" if blockers else "")


def _only(node: Node, name: DaemonName) -> Node:
    """The node as if it had one daemon; of who is beside MPS, nobody is that daemon's."""
    return replace(
        node,
        daemons={name: node.daemons[name]},
        gpus={uuid: replace(gpu, strangers={}) for uuid, gpu in node.gpus.items()},
        incidents={key: each for key, each in node.incidents.items() if each.daemon == name},
    )


def _remedies(node: Node, orders: Orders | None, above: Sequence[Line]) -> Iterable[Line]:
    """What helps a daemon or a GPU, with its commands, unless these stand `above` already."""
    told = text_of(above)
    for trouble in troubles(node, node.at, orders):
        new = [command for command in trouble.commands if command not in told] if trouble.daemon is not None else []
        if new or trouble.steps:
            yield from (said(), said(f"What to do: {trouble.what}"), said(f"  {trouble.next}"))
        yield from (said("  ", shell(command)) for command in new)
        for number, step in enumerate(trouble.steps, start=1):
            yield said(faint(f"  {number}. "), step.text, indent=5)
            yield from (said(" " * 5, shell(command), indent=5) for command in step.commands)


def _open(node: Node, orders: Orders | None) -> Iterable[Line]:
    """The faults that are not over, each after an empty line."""
    for incident in node.incidents.values():
        if incident.open:
            yield from (said(), *details(incident, node.at, address_of(node, incident.daemon, orders)))


def _over(node: Node) -> Iterable[Line]:
    """The last ones that are, the latest first."""
    over = [incident for incident in node.incidents.values() if not incident.open][::-1]
    return (
        (said(), said("Faults of the last hour:"), *(said(faint(brief(each, node.at))) for each in over))
        if over
        else ()
    )


def _problems(node: Node) -> Iterable[Line]:
    return (said(doubtful(words)) for words in _problems_in_words(node))


def _problems_in_words(node: Node) -> Iterable[str]:
    for name, source in sorted(node.sources.items()):
        if source.last.problem is not None:
            yield f"{name}: {source_text(name, source)}"
    for daemon in View(node).daemons():
        if not daemon.supported:
            name = printable(daemon.name)
            yield f"{name}: MPS protocol {daemon.protocol} is not supported yet: only its process is seen"
        if daemon.pid_file_spoilt and daemon.process is not None:
            name, pid = printable(daemon.name), daemon.process.pid
            yield f"{name}: its pid file was spoilt, so that nobody can ask it: write {pid} into it"
        if daemon.state is DaemonState.UP:
            files = daemon.log_problems.items()
            yield from (f"log: {log_text(file, problem)}" for file, problem in files if problem is not None)
        if daemon.logged.blocked_since is not None:
            yield f"log of {printable(daemon.name)}: {problem_text(LOG_BLOCKED)}"
