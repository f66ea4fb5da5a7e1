"""What is not well with a node, each in one line: what makes `status` end with 1, and what may need somebody."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from exporter.core.watchdog.drift import Standing, demands
from exporter.model.daemon import Daemon, DaemonState
from exporter.model.node import Node
from exporter.model.server import Server, ServerState
from exporter.parse.printable import printable
from exporter.telling.short import short_name
from exporter.telling.watchdog_text import plight
from exporter.view import View, gpu_name

MOST_BLOCKERS = 8
"""So many are named in one line."""


@dataclass(frozen=True, slots=True)
class Plight:
    """Something that is not well; what is `grave`, somebody must act on."""

    words: str
    grave: bool = True


def plights(node: Node) -> Sequence[Plight]:
    """All of them, the grave ones first."""
    found = (*_of_daemons(node), *_faults(node), *_limits(node), *_unseen(node), *_waiting(node), *_beside(node))
    return sorted(found, key=lambda each: not each.grave)


def in_fault(node: Node) -> Iterable[tuple[Daemon, Server]]:
    """The servers that are in FAULT, each with its daemon."""
    return (each for each in View(node).servers() if each[1].state is ServerState.FAULT)


def fault(node: Node, daemon: Daemon, server: Server) -> str:
    """Where one is, and who holds up recovery."""
    here = (each for each in node.incidents.values() if (each.daemon, each.server) == (daemon.name, server.pid))
    blockers = [str(pid) for incident in here for pid in incident.blockers]
    named = ", ".join(blockers[:MOST_BLOCKERS])
    more = f" and {len(blockers) - MOST_BLOCKERS} more" if len(blockers) > MOST_BLOCKERS else ""
    return f"FAULT of server {server.pid}" + (f", held up by {named}{more}" if blockers else "")


def blind(node: Node) -> Sequence[str]:
    """The sources that see nothing now."""
    return [name for name, source in node.sources.items() if source.last.problem is not None]


def _of_daemons(node: Node) -> Iterable[Plight]:
    for daemon in View(node).daemons():
        matter = plight(node, daemon)
        if daemon.state is not DaemonState.UP:
            state = daemon.state or ("not known" if daemon.supported else "unsupported")
            yield Plight(f"{short_name(daemon.name)}: " + ", ".join(each for each in (state, matter) if each))
        elif matter is not None:
            yield Plight(f"{short_name(daemon.name)}: {matter}")


def _faults(node: Node) -> Iterable[Plight]:
    return (Plight(f"{short_name(daemon.name)}: {fault(node, daemon, server)}") for daemon, server in in_fault(node))


def _limits(node: Node) -> Iterable[Plight]:
    """Those that are known not to be in force, of daemons that can be asked."""
    for daemon in View(node).daemons():
        watch = node.watches.get(daemon.name)
        if watch is None or watch.wanted is None or not daemon.answers:
            continue
        drifted = [each for each in demands(daemon, watch.wanted, node.at) if each.standing is Standing.DRIFTED]
        if drifted:
            first, more = drifted[0], f" and {len(drifted) - 1} more" if len(drifted) > 1 else ""
            whose = "of servers to come" if first.server is None else f"of server {first.server}"
            yield Plight(f"{short_name(daemon.name)}: limits have drifted: {printable(first.words)} {whose}{more}")


def _unseen(node: Node) -> Iterable[Plight]:
    if unseen := blind(node):
        yield Plight(f"blind: {', '.join(unseen)}")
    for uuid, gpu in node.gpus.items():
        if gpu.reading.problem is not None and not unseen:
            yield Plight(f"GPU {gpu_name(node, uuid)}: {printable(gpu.reading.problem)}", grave=False)


def _waiting(node: Node) -> Iterable[Plight]:
    for daemon in View(node).daemons():
        if daemon.waiting:
            yield Plight(
                f"{short_name(daemon.name)}: {_counted(len(daemon.waiting), 'client waits', 'clients wait')}",
                grave=False,
            )


def _beside(node: Node) -> Iterable[Plight]:
    gpus = {gpu_name(node, uuid): gpu.bypassing for uuid, gpu in node.gpus.items() if gpu.bypassing}
    pids = {pid for bypassing in gpus.values() for pid in bypassing}
    if pids:
        where = f"GPU{'s' if len(gpus) > 1 else ''} {', '.join(gpus)}"
        yield Plight(f"{_counted(len(pids), 'process bypasses', 'processes bypass')} MPS on {where}", grave=False)


def _counted(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"
