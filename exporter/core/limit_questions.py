"""What to ask a control daemon about limits: its defaults, and its servers' own."""

from collections.abc import Iterable

from exporter.core import devices, process_states
from exporter.model.daemon import Daemon
from exporter.model.limits import Limits
from exporter.model.node import Node
from exporter.model.server import Server
from exporter.parse.control_reply import (
    DEFAULT_PINNED_MEMORY,
    DEFAULT_PRIORITY,
    DEFAULT_THREADS,
    PINNED_MEMORY,
    THREADS,
)

STARTING_SECONDS = 2.0
"""A server that the log saw start tells its limits itself, in this time (measured: 0.3 s)."""


def wanted(node: Node, daemon: Daemon) -> Limits:
    """The limits that are to hold there, as the watchdog has it."""
    watch = node.watches.get(daemon.name)
    return Limits() if watch is None or watch.wanted is None else watch.wanted


def questions(node: Node, daemon: Daemon) -> Iterable[tuple[str, float | None]]:
    """What may be asked about limits, and since when its answer is known: on each device there is, or is limited."""
    number = _devices(node, daemon)
    yield from ((command, daemon.commands.asked_at.get(command)) for command in _about_defaults(number))
    for server in daemon.servers.values():
        if not _starting(node.at, daemon, server) and process_states.askable(node, server.pid):
            told_at, commands = server.limits_told_at, _about_server(server.pid, number)
            yield from ((command, daemon.commands.asked_at.get(command, told_at)) for command in commands)


def _devices(node: Node, daemon: Daemon) -> int:
    """How many devices to ask about; a limit may be wanted for one of which nothing is known."""
    limited = wanted(node, daemon).pinned_memory
    return min(max((devices.count(node, daemon), *(device + 1 for device in limited))), devices.MOST_DEVICES)


def _about_defaults(number: int) -> Iterable[str]:
    yield DEFAULT_THREADS
    yield DEFAULT_PRIORITY
    yield from (f"{DEFAULT_PINNED_MEMORY} {device}" for device in range(number))


def _about_server(pid: int, number: int) -> Iterable[str]:
    yield f"{THREADS} {pid}"
    yield from (f"{PINNED_MEMORY} {pid} {device}" for device in range(number))


def about_all(daemon: Daemon) -> Iterable[str]:
    """Every question about limits that there can be."""
    yield from _about_defaults(devices.MOST_DEVICES)
    for pid in daemon.servers:
        yield from _about_server(pid, devices.MOST_DEVICES)


def _starting(at: float, daemon: Daemon, server: Server) -> bool:
    """Whether it is about to tell its limits itself, where its log is followed."""
    readable = daemon.log.problems.get("server.log") is None and daemon.log.own_commands.blocked_since is None
    followed = readable or daemon.in_journal
    begins = server.uid is not None and server.limits_told_at is None and at - server.started_at < STARTING_SECONDS
    return followed and begins
