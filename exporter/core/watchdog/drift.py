"""How each limit that is to hold stands: on every server, and as the default of servers to come.

What counts is the server's own word, or its daemon's about it: a default reaches only servers that start later, and a
client that connects at once starts one before anybody can set it (measured, R580). The priority alone reaches servers
that run; no question tells it of one, only its log.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

from exporter.model.daemon import Daemon
from exporter.model.limits import Limits
from exporter.model.reason import Reason, ReasonCode
from exporter.model.server import Server
from exporter.parse.control_reply import query_changed_by
from exporter.parse.mps_variables import format_byte_size

BLOCK_SECONDS = 0.3
"""A server tells its limits line by line, the priority last, in some milliseconds; older ones do not tell that."""

PERCENTAGE_ERROR = 0.05
"""A daemon tells a percentage with one decimal."""


class Standing(IntEnum):
    """How a limit stands."""

    IN_FORCE = 0
    UNKNOWN = 1
    DRIFTED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """A limit that is to hold: of a server, or of future servers (None). `command` sets it.

    `reason` says how the actual limit differs, if it has drifted.
    """

    server: int | None
    command: str
    standing: Standing
    reason: Reason


def demands(daemon: Daemon, wanted: Limits, at: float) -> tuple[Demand, ...]:
    """Every limit that is wanted, the defaults first."""
    found = list(_of_defaults(daemon, wanted))
    for server in daemon.servers.values():
        found += _of_server(daemon, server, wanted, at)
    return tuple(found)


def commands_for_defaults(daemon: Daemon, wanted: Limits) -> tuple[str, ...]:
    """What sets the defaults of a daemon that has none yet."""
    return tuple(each.command for each in _of_defaults(daemon, wanted))


def _of_defaults(daemon: Daemon, wanted: Limits) -> Iterable[Demand]:
    share, priority = wanted.active_thread_percentage, wanted.client_priority
    memory = daemon.default_limits.pinned_memory
    yield from _of_memory(daemon, None, "set_default_device_pinned_mem_limit", memory, wanted)
    if share is not None:
        command = f"set_default_active_thread_percentage {share:g}"
        yield _threads(daemon, None, command, daemon.default_limits.active_thread_percentage, share)
    if priority is not None:
        yield _priority(daemon, None, daemon.default_limits.client_priority, priority)


def _of_server(daemon: Daemon, server: Server, wanted: Limits, at: float) -> Iterable[Demand]:
    share, priority = wanted.active_thread_percentage, wanted.client_priority
    verb, told = f"set_device_pinned_mem_limit {server.pid}", _has_told(server, at)
    yield from _of_memory(daemon, server.pid, verb, server.pinned_memory_limits, wanted, told=told)
    if share is not None:
        command = f"set_active_thread_percentage {server.pid} {share:g}"
        yield _threads(daemon, server.pid, command, server.active_thread_percentage, share)
    if priority is not None and server.client_priority is not None:
        yield _priority(daemon, server.pid, server.client_priority, priority)


def _has_told(server: Server, at: float) -> bool:
    """Whether its log has told all its limits: those on memory that it did not tell, it does not have."""
    if server.limits_told_at is None:
        return False
    return server.client_priority is not None or at - server.limits_told_at >= BLOCK_SECONDS


def _of_memory(
    daemon: Daemon, server: int | None, verb: str, limits: Mapping[int, int], wanted: Limits, *, told: bool = False
) -> Iterable[Demand]:
    """An empty answer says that there is none; `told`: so does silence."""
    for device, limit in sorted(wanted.pinned_memory.items()):
        command = f"{verb} {device} {format_byte_size(limit)}"
        known = told or device in limits or _question(command) in daemon.commands.asked_at
        there = limits.get(device)
        reason = Reason(ReasonCode.MEMORY_LIMIT_DIFFERS, device=device, found=there, wanted=limit)
        yield _demand(daemon, server, command, reason, known=known, holds=there == limit)


def _threads(daemon: Daemon, server: int | None, command: str, there: float | None, share: float) -> Demand:
    known = there is not None
    holds = there is not None and abs(there - share) <= PERCENTAGE_ERROR
    reason = Reason(ReasonCode.THREAD_PERCENTAGE_DIFFERS, found=there, wanted=share)
    return _demand(daemon, server, command, reason, known=known, holds=holds)


def _priority(daemon: Daemon, server: int | None, there: int | None, priority: int) -> Demand:
    command = f"set_default_client_priority {priority}"
    reason = Reason(ReasonCode.PRIORITY_DIFFERS, found=there, wanted=priority)
    return _demand(daemon, server, command, reason, known=there is not None, holds=there == priority)


@lru_cache(maxsize=1024)
def _question(command: str) -> str | None:
    """That about what one of our own commands sets: of these there are few, and each is looked at twice a second."""
    return query_changed_by(command)


def _demand(daemon: Daemon, server: int | None, command: str, reason: Reason, *, known: bool, holds: bool) -> Demand:
    """What a command may have changed just now is not known, until it has been asked again."""
    if not known or _question(command) in daemon.default_limits.stale:
        standing = Standing.UNKNOWN
    else:
        standing = Standing.IN_FORCE if holds else Standing.DRIFTED
    return Demand(server=server, command=command, standing=standing, reason=reason)
