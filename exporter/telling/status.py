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
from exporter.report.status_view import StatusView, view_of
from exporter.telling import status_rows, watchdog_text
from exporter.telling.headline import daemons_and_clients, headline
from exporter.telling.incident_text import brief, details
from exporter.telling.line import Line, Sheet, doubtful, faint, said, shell, text_of
from exporter.telling.problem_text import log_text, problem_text
from exporter.telling.remedy import address_of
from exporter.telling.status_domains import joined
from exporter.telling.status_object import node_object
from exporter.telling.status_sharing import sharing
from exporter.view import View

MOST_BLOCKERS = 8
"""So many are named in one line."""


def sheet(node: Node, orders: Orders | None = None, width: int | None = None) -> Sheet:
    """Return all that a person is shown; the table is no wider than `width`, None: as wide as it becomes.

    `orders` are the watchdog's, None if there is no watchdog.
    """
    return _sheet(view_of(node, orders), width)


def _sheet(view: StatusView, width: int | None) -> Sheet:
    # What the watchdog reports stands below what could not be collected, since it depends on that.
    known = (*_problems(view), *watchdog_text.lines(view.node), *_open(view))
    return Sheet(
        at=view.at,
        head=tuple(headline(view)),
        table=(*status_rows.lines(view, width), *joined(view.node, view.domains)),
        troubles=(*known, *_remedies(view, known)),
        past=tuple(_over(view)),
        sharing=tuple(sharing(view, width)),
    )


def table(node: Node, orders: Orders | None = None) -> str:
    """Return the sheet without its head: daemons, servers and clients, sharing, problems, faults."""
    shown = sheet(node, orders)
    return text_of((*shown.table, *shown.sharing, *shown.troubles, *shown.past))


def line(node: Node, orders: Orders | None = None) -> str:
    """Return one line for the service manager; `orders` are the watchdog's, None if there is no watchdog."""
    faults = (_fault(node, *each) for each in View(node).servers() if each[1].state is ServerState.FAULT)
    failed = [name for name, source in node.sources.items() if source.last.problem is not None]
    missing = [f"cannot collect: {', '.join(failed)}"] if failed else []
    watchdog = [] if orders is None else [watchdog_text.modes(node, orders)]
    return "; ".join([*watchdog, daemons_and_clients(node), *faults, *watchdog_text.briefly(node), *missing])


def told(
    node: Node,
    orders: Orders | None = None,
    *,
    as_json: bool = False,
    daemon: DaemonName | None = None,
    width: int | None = None,
) -> Mapping[str, Any]:
    """Return an object or a sheet, of one `daemon` or of all, and the exit code."""
    if daemon is not None:
        there = [each.name for each in View(node).daemons()]
        if daemon not in there:
            others = ", ".join(map(printable, there)) or "none"
            return {"problem": f"no daemon {printable(daemon)} is here; there are: {others}"}
        node = _only(node, daemon)
    view = view_of(node, orders)
    shown = {"node": node_object(view)} if as_json else {"sheet": plain(_sheet(view, width))}
    return {**shown, "exit_code": int(view.fails)}


def exit_code(node: Node, orders: Orders | None = None) -> int:
    """Return 0 if daemons and servers are well, limits in force and all collectors work; otherwise 1."""
    return int(view_of(node, orders).fails)


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


def _remedies(view: StatusView, above: Sequence[Line]) -> Iterable[Line]:
    """Return what helps a daemon or a GPU, with its commands, unless these stand `above` already."""
    shown = text_of(above)
    for finding in view.findings:
        new = [command for command in finding.commands if command not in shown] if finding.daemon is not None else []
        if new or finding.steps:
            yield from (said(), said(f"What to do: {finding.text}"), said(f"  {finding.definition.meaning}"))
            yield said(f"  {finding.remedy}")
        yield from (said("  ", shell(command)) for command in new)
        for number, step in enumerate(finding.steps, start=1):
            yield said(faint(f"  {number}. "), step.text, indent=5)
            yield from (said(" " * 5, shell(command), indent=5) for command in step.commands)


def _open(view: StatusView) -> Iterable[Line]:
    """Return the faults that are not over, each after an empty line."""
    for incident in view.incidents:
        if incident.open:
            yield from (said(), *details(incident, view.at, address_of(view.node, incident.daemon, view.orders)))


def _over(view: StatusView) -> Iterable[Line]:
    """Return the last faults that are over, the latest first."""
    over = [incident for incident in view.incidents if not incident.open][::-1]
    if over:
        yield from (said(), said("Faults of the last hour:"), *(said(faint(brief(each, view.at))) for each in over))


def _problems(view: StatusView) -> Iterable[Line]:
    return (said(doubtful(words)) for words in _problems_in_words(view))


def _problems_in_words(view: StatusView) -> Iterable[str]:
    for collector in view.collectors:
        if collector.problem is not None:
            yield f"{collector.name}: {collector.text}"
    for shown in view.daemons:
        daemon, name = shown.daemon, printable(shown.daemon.name)
        if not daemon.supported:
            yield f"{name}: MPS protocol {daemon.runtime.protocol} is not supported yet: only its process is seen"
        if daemon.pid_file_spoilt and daemon.runtime.process is not None:
            yield f"{name}: its PID file is wrong, so no command reaches it: write {daemon.runtime.process.pid} into it"
        if daemon.state is DaemonState.UP:
            files = daemon.log.problems.items()
            yield from (f"log: {log_text(file, problem)}" for file, problem in files if problem is not None)
        if daemon.log.own_commands.blocked_since is not None:
            yield f"log of {name}: {problem_text(LOG_BLOCKED)}"
