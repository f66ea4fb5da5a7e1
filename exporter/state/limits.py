"""Limits in force: thread percentage and pinned memory of each client."""

from collections.abc import Iterable, Mapping

from exporter.model.daemon import Daemon
from exporter.model.node import Node
from exporter.model.observation import ControlReply
from exporter.model.server import Server
from exporter.model.settings import Limits as SettingsLimits
from exporter.model.values import replace
from exporter.parse import control_reply
from exporter.parse.control_reply import (
    DEFAULT_PINNED_MEMORY,
    DEFAULT_PRIORITY,
    DEFAULT_THREADS,
    DEVICE_QUERY,
    PINNED_MEMORY,
    THREADS,
)
from exporter.parse.mps_variables import parse_byte_size, parse_percentage
from exporter.state import gpus, process_states
from exporter.state.servers import with_server

STARTING_SECONDS = 2.0
"""A server that the log saw start tells its limits itself, in this time (measured: 0.3 s)."""


def wanted(node: Node, daemon: Daemon) -> SettingsLimits:
    """The limits that are to hold there, as the watchdog has it."""
    watch = node.watches.get(daemon.name)
    return SettingsLimits() if watch is None or watch.wanted_limits is None else watch.wanted_limits


def questions(node: Node, daemon: Daemon) -> Iterable[tuple[str, float | None]]:
    """What may be asked about limits, and since when its answer is known: on each device there is, or is limited."""
    number = _devices(node, daemon)
    yield from ((command, daemon.commands.asked_at.get(command)) for command in _about_defaults(number))
    for server in daemon.servers.values():
        if not _starting(node.at, daemon, server) and process_states.can_query(node, server.pid):
            told_at, commands = server.limits_logged_at, _about_server(server.pid, number)
            yield from ((command, daemon.commands.asked_at.get(command, told_at)) for command in commands)


def _devices(node: Node, daemon: Daemon) -> int:
    """How many devices to ask about; a limit may be wanted for one of which nothing is known."""
    limited = wanted(node, daemon).pinned_memory
    return min(max((gpus.count(node, daemon), *(device + 1 for device in limited))), gpus.MOST_DEVICES)


def _about_defaults(number: int) -> Iterable[str]:
    yield DEFAULT_THREADS
    yield DEFAULT_PRIORITY
    yield from (f"{DEFAULT_PINNED_MEMORY} {device}" for device in range(number))


def _about_server(pid: int, number: int) -> Iterable[str]:
    yield f"{THREADS} {pid}"
    yield from (f"{PINNED_MEMORY} {pid} {device}" for device in range(number))


def about_all(daemon: Daemon) -> Iterable[str]:
    """Every question about limits that there can be."""
    yield from _about_defaults(gpus.MOST_DEVICES)
    for pid in daemon.servers:
        yield from _about_server(pid, gpus.MOST_DEVICES)


def _starting(at: float, daemon: Daemon, server: Server) -> bool:
    """Whether it is about to tell its limits itself, where its log is followed."""
    readable = daemon.log.problems.get("server.log") is None and daemon.log.own_commands.blocked_since is None
    followed = readable or daemon.in_journal
    begins = server.uid is not None and server.limits_logged_at is None and at - server.started_at < STARTING_SECONDS
    return followed and begins


Limits = Mapping[int, int]


def threads_told(daemon: Daemon, at: float, pid: int, percentage: float) -> Daemon:
    """A server begins to tell its limits; those on memory follow, where there are any, and the priority."""
    server = daemon.servers.get(pid)
    if server is None or not 0 < percentage <= 100:
        return daemon
    told = replace(server, active_thread_percentage=percentage)
    if server.limits_logged_at is None:
        told = replace(told, pinned_memory_limits={}, limits_logged_at=at)
    return with_server(daemon, told)


def memory_told(daemon: Daemon, pid: int, device: int, limit: int) -> Daemon:
    """A server tells its limit on a device's memory, in bytes."""
    server = daemon.servers.get(pid)
    if server is None:
        return daemon
    limits = _with(server.pinned_memory_limits, device, limit)
    return with_server(daemon, replace(server, pinned_memory_limits=limits))


def priority_told(daemon: Daemon, pid: int, priority: int) -> Daemon:
    """A server tells which priority its clients have; a daemon's default reaches those that run at once (R580)."""
    server = daemon.servers.get(pid)
    return daemon if server is None else with_server(daemon, replace(server, client_priority=priority))


def default_memory_claimed(daemon: Daemon, device: int | None) -> Daemon:
    """Have the daemon asked for its default limit on a device's memory: the log says that it has changed."""
    return daemon if device is None else _doubted(daemon, f"{DEFAULT_PINNED_MEMORY} {device}")


def command_seen(daemon: Daemon, text: str) -> Daemon:
    """Somebody gave a command. One that sets a limit is not believed, since it may be refused: it makes for a doubt."""
    question = control_reply.query_changed_by(text)
    if question is None:
        return daemon
    return _doubted(daemon, question)


def unanswered(daemon: Daemon, question: str) -> Daemon:
    """A question got no answer: it is asked again as soon as the daemon is well."""
    return _doubted(daemon, question)


def _doubted(daemon: Daemon, question: str) -> Daemon:
    return replace(
        daemon,
        default_limits=replace(
            daemon.default_limits, stale=(daemon.default_limits.stale | {question}).intersection(about_all(daemon))
        ),
    )


def answer_read(daemon: Daemon, reply: ControlReply) -> Daemon:
    """The daemon answers a question about limits, or a command that sets a percentage, with what now holds.

    An empty answer may be none at all (R580), and takes nothing back.
    """
    question = control_reply.query_changed_by(reply.command) or reply.command
    daemon = replace(
        daemon, default_limits=replace(daemon.default_limits, stale=daemon.default_limits.stale - {reply.command})
    )
    match question.split():
        case [verb] if verb == DEFAULT_THREADS:
            percentage = parse_percentage(reply.stdout) or daemon.default_limits.active_thread_percentage
            return replace(daemon, default_limits=replace(daemon.default_limits, active_thread_percentage=percentage))
        case [verb, device] if verb == DEFAULT_PINNED_MEMORY:
            limit = parse_byte_size(reply.stdout)
            told = _with(daemon.default_limits.pinned_memory, _number(device), limit)
            return replace(daemon, default_limits=replace(daemon.default_limits, pinned_memory=told))
        case [verb] if verb == DEFAULT_PRIORITY:
            priority = control_reply.parse_priority(reply.stdout)
            return (
                daemon
                if priority is None
                else replace(daemon, default_limits=replace(daemon.default_limits, client_priority=priority))
            )
        case [verb, pid, *rest] if verb in (THREADS, PINNED_MEMORY) and (server := _server(daemon, pid)) is not None:
            return with_server(daemon, _answer_of_server(server, rest, reply.stdout))
        case _ if question == DEVICE_QUERY:
            return replace(
                daemon,
                runtime=replace(
                    daemon.runtime, devices=control_reply.parse_devices(reply.stdout) or daemon.runtime.devices
                ),
            )
        case _:
            return daemon


def _answer_of_server(server: Server, device: list[str], stdout: str) -> Server:
    match device:
        case []:
            told = parse_percentage(stdout)
            return replace(server, active_thread_percentage=told or server.active_thread_percentage)
        case [ordinal]:
            limits = _with(server.pinned_memory_limits, _number(ordinal), parse_byte_size(stdout))
            return replace(server, pinned_memory_limits=limits)
        case _:
            return server


def _server(daemon: Daemon, pid: str) -> Server | None:
    number = _number(pid)
    return None if number is None else daemon.servers.get(number)


def _number(word: str) -> int | None:
    return int(word) if word.isdecimal() and len(word) < 10 else None


def _with(limits: Limits, device: int | None, limit: int | None) -> Limits:
    """The limits with that of one device, where both are known."""
    if device is None or limit is None or device >= gpus.MOST_DEVICES:
        return limits
    return {**limits, device: limit}
