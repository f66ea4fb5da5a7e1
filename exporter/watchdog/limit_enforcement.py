"""Limits of a daemon: compare them with the wanted ones, set them, restore them after a restart."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

from exporter.model.action import Action, ActionKind, ActionReason, GiveCommand
from exporter.model.daemon import Daemon, DaemonState
from exporter.model.event import Event, EventName
from exporter.model.identity import identity_of
from exporter.model.node import Node
from exporter.model.reason import Reason, ReasonCode
from exporter.model.server import Server, ServerState
from exporter.model.settings import Limits, Mode
from exporter.model.values import updated
from exporter.model.watchdog import LimitDrift, LimitEnforcement, WatchdogState
from exporter.parse.control_reply import query_changed_by
from exporter.parse.mps_variables import format_byte_size
from exporter.parse.protocol3 import PROTOCOL
from exporter.state import processes
from exporter.watchdog.context import Evaluated

LOG_SECONDS = 0.3
"""A server logs its limits within some milliseconds, the priority last. Older servers do not log the priority."""

PERCENTAGE_ERROR = 0.05  # A daemon reports percentages with one decimal.
WHOLE_GPU = 100.0  # The percentage of a daemon for which none was set (R580).
RETRY_SECONDS = 5.0  # How long the watchdog waits before it sends a command again that had no effect.
MAX_TRIES = 3  # After this many tries, the watchdog sends the command only once in `SLOW_RETRY_SECONDS`.

SLOW_RETRY_SECONDS = 60.0

_DEFAULT_PRIORITY = "set_default_client_priority "  # It also applies to running servers (R580).
MAX_COMMANDS = 64  # How many limits one action sets. The next action sets the others.


class LimitStatus(IntEnum):
    """Whether a limit is in force."""

    IN_FORCE = 0
    UNKNOWN = 1
    DRIFTED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitCheck:
    """A wanted limit of a server, or of future servers (None). `command` sets it; it is empty if none can.

    `reason` is how the actual limit differs, if it has drifted.
    """

    server: int | None
    command: str
    status: LimitStatus
    reason: Reason


def check_limits(daemon: Daemon, wanted: Limits, at: float) -> tuple[LimitCheck, ...]:
    """Compare all wanted limits with the actual ones, the defaults first. Protocol 3 has no defaults."""
    servers = (each for server in daemon.servers.values() for each in _check_server(daemon, server, wanted, at))
    return (*check_defaults(daemon, wanted), *servers)


def check_defaults(daemon: Daemon, wanted: Limits) -> Iterator[LimitCheck]:
    """Compare the wanted limits with the defaults for future servers, of which protocol 3 has none."""
    if daemon.runtime.protocol == PROTOCOL:
        return
    found, threads = daemon.default_limits, "set_default_active_thread_percentage "
    yield from _check_memory(daemon, None, "set_default_device_pinned_mem_limit", found, wanted, logged=False)
    yield from _check_others(daemon, None, (threads, _DEFAULT_PRIORITY), found, wanted)


def _check_server(daemon: Daemon, server: Server, wanted: Limits, at: float) -> Iterator[LimitCheck]:
    if daemon.runtime.protocol == PROTOCOL:
        yield from _check_named(daemon, server, wanted)
        return
    pid, found, logged_at = server.pid, server.limits, server.limits_logged_at
    # If the log has all limits of the server, it has no memory limit that the log does not have.
    logged = logged_at is not None and (found.client_priority is not None or at - logged_at >= LOG_SECONDS)
    yield from _check_memory(daemon, pid, f"set_device_pinned_mem_limit {pid}", found, wanted, logged=logged)
    if found.client_priority is None:
        wanted = updated(wanted, client_priority=None)
    commands = (f"set_active_thread_percentage {pid} ", _DEFAULT_PRIORITY)
    yield from _check_others(daemon, pid, commands, found, wanted)


def _check_named(daemon: Daemon, server: Server, wanted: Limits) -> Iterator[LimitCheck]:
    """Compare the limits of a server's default namespace, with protocol 3. Its memory limit is for all devices.

    So no command can set different limits for several devices. They are compared all the same.
    """
    if server.name is None or not server.namespaces:
        return
    verb = f"server set {server.name}"
    in_force = next(iter(server.limits.pinned_memory.values()), None)
    differ = len(set(wanted.pinned_memory.values())) > 1
    devices = sorted(wanted.pinned_memory.items())
    for device, limit in devices if differ else devices[:1]:
        command = "" if differ else f"{verb} --pinned-memory-limit={format_byte_size(limit)}"
        reason = Reason(ReasonCode.MEMORY_LIMIT_DIFFERS, device=device, found=in_force, wanted=limit)
        yield _check(daemon, server.pid, command, reason, known=True, holds=in_force == limit)
    commands = (f"{verb} --active-thread-percentage=", f"{verb} --client-priority=")
    yield from _check_others(daemon, server.pid, commands, server.limits, wanted)


def _check_memory(
    daemon: Daemon, server: int | None, verb: str, found: Limits, wanted: Limits, *, logged: bool
) -> Iterator[LimitCheck]:
    """An empty reply, or a complete log without the limit (`logged`), shows that there is none."""
    for device, limit in sorted(wanted.pinned_memory.items()):
        command, in_force = f"{verb} {device} {format_byte_size(limit)}", found.pinned_memory.get(device)
        known = logged or in_force is not None or _query(command) in daemon.commands.asked_at
        reason = Reason(ReasonCode.MEMORY_LIMIT_DIFFERS, device=device, found=in_force, wanted=limit)
        yield _check(daemon, server, command, reason, known=known, holds=in_force == limit)


def _check_others(
    daemon: Daemon, server: int | None, commands: tuple[str, str], found: Limits, wanted: Limits
) -> Iterator[LimitCheck]:
    """Compare the thread percentage and the priority. `commands` set them, without the value at the end.

    With static SM partitions, thread percentages do not apply.
    """
    share, in_force = wanted.active_thread_percentage, found.active_thread_percentage
    if share is not None and not daemon.has_static_partitions:
        reason = Reason(ReasonCode.THREAD_PERCENTAGE_DIFFERS, found=in_force, wanted=share)
        holds = in_force is not None and abs(in_force - share) <= PERCENTAGE_ERROR
        yield _check(daemon, server, f"{commands[0]}{share:g}", reason, known=in_force is not None, holds=holds)
    priority, in_force = wanted.client_priority, found.client_priority
    if priority is not None:
        reason = Reason(ReasonCode.PRIORITY_DIFFERS, found=in_force, wanted=priority)
        holds = in_force == priority
        yield _check(daemon, server, f"{commands[1]}{priority}", reason, known=in_force is not None, holds=holds)


def _check(daemon: Daemon, server: int | None, command: str, reason: Reason, *, known: bool, holds: bool) -> LimitCheck:
    """A limit that a command may have changed is unknown until the next query."""
    status = LimitStatus.IN_FORCE if holds else LimitStatus.DRIFTED
    if not known or _query(command) in daemon.default_limits.stale:
        status = LimitStatus.UNKNOWN
    return LimitCheck(server=server, command=command, status=status, reason=reason)


@lru_cache(maxsize=1024)
def _query(command: str) -> str | None:
    """Return the query for the limit that the command sets. There are few commands, parsed twice a second."""
    return query_changed_by(command)


# -- Limits of a daemon and of its successor ---------------------------------------------------------------------------


def limits_to_enforce(configured: Limits, watch: WatchdogState) -> Limits:
    """Return the configured limits; after a restart, also those that were in force before."""
    return limits_to_restore(configured, watch) if watch.enforcement.restoring else configured


def limits_to_restore(configured: Limits, watch: WatchdogState) -> Limits:
    """Return the limits of the next daemon: for each limit and device the configured value, else the last one."""
    before = watch.limits or Limits()
    wanted = _overlaid(before, configured.active_thread_percentage, configured.client_priority)
    return updated(wanted, pinned_memory={**before.pinned_memory, **configured.pinned_memory})


def _overlaid(before: Limits, share: float | None, priority: int | None) -> Limits:
    return Limits(
        active_thread_percentage=before.active_thread_percentage if share is None else share,
        client_priority=before.client_priority if priority is None else priority,
    )


def _track_daemon(daemon: Daemon, watch: WatchdogState) -> WatchdogState:
    process, enforcement = identity_of(daemon.runtime.process), watch.enforcement
    replaced = daemon.ended
    if process is not None and enforcement.process is not None:
        replaced = process != enforcement.process
    if replaced:
        enforcement = LimitEnforcement(restoring=True)
    if process is not None:
        enforcement = updated(enforcement, process=process)
    if daemon.state is not DaemonState.UP:
        return updated(watch, enforcement=enforcement)
    found, known = daemon.default_limits, enforcement.defaults
    share, priority = found.active_thread_percentage, found.client_priority
    limits = watch.limits or Limits()
    # A default was set if it has changed, or if a daemon does not have it by itself.
    if share is not None and known.active_thread_percentage not in (None, share):
        limits = updated(limits, active_thread_percentage=None if share == WHOLE_GPU else share)
    if priority or (priority == 0 and known.client_priority is not None):
        limits = updated(limits, client_priority=priority or None)
    limits = updated(limits, pinned_memory={**limits.pinned_memory, **found.pinned_memory})
    enforcement = updated(enforcement, defaults=_overlaid(known, share, priority))
    return updated(watch, limits=limits or None, enforcement=enforcement)


def enforce(
    node: Node, daemon: Daemon, watch: WatchdogState, configured: Limits, mode: Mode, at: float
) -> tuple[WatchdogState, tuple[Event, ...], Action | None]:
    """Return the new state, the events, and the action that sets limits. The caller must take the action.

    It must be called in every evaluation, also while the daemon does not run.
    """
    watch = _track_daemon(daemon, watch)
    wanted = limits_to_enforce(configured, watch)
    watch = updated(watch, wanted_limits=wanted or None)
    # A daemon that has just not answered may hang. A command would hang, too, and delay what helps.
    if daemon.state is not DaemonState.UP or daemon.commands.unanswered_since is not None:
        return watch, (), None
    found = check_limits(daemon, wanted, at)
    checks: dict[str, LimitCheck] = {}
    # One priority applies to all servers: for each command, the worst status counts.
    for each in found:
        if each.command not in checks or each.status > checks[each.command].status:
            checks[each.command] = each
    watch, drifted = _track_drifts(daemon, watch, checks, at)
    watch, bypassed = _count_clients_before_limits(daemon, watch, found, at)
    watch, in_force = _track_in_force(daemon, watch, found, at)
    events = (*drifted, *bypassed, *in_force)
    if mode is Mode.OBSERVE:
        return watch, events, None
    watch, ineffective, action = _set_limits(node, daemon, watch, checks, at)
    return watch, (*events, *ineffective), action


def _track_drifts(daemon: Daemon, watch: WatchdogState, found: Mapping[str, LimitCheck], at: float) -> Evaluated:
    """Remember since when each limit has drifted, until it is in force. An unknown limit changes nothing."""
    drifts: dict[str, LimitDrift] = {}
    events: list[Event] = []
    for command, check in found.items():
        known = watch.enforcement.drifts.get(command)
        if check.status is LimitStatus.DRIFTED and (known is None or known.since is None):
            known = updated(known or LimitDrift(), since=at)
            events.append(_drifted(daemon, check, at))
        if check.status is not LimitStatus.IN_FORCE and known is not None:
            drifts[command] = known
    return updated(watch, enforcement=updated(watch.enforcement, drifts=drifts)), tuple(events)


def _drifted(daemon: Daemon, check: LimitCheck, at: float, problem: Reason | None = None) -> Event:
    name, reason = EventName.LIMITS_DRIFTED, check.reason
    return Event(at=at, event=name, daemon=daemon.name, server=check.server, reason=reason, problem=problem)


def _count_clients_before_limits(
    daemon: Daemon, watch: WatchdogState, found: Iterable[LimitCheck], at: float
) -> Evaluated:
    """Count the clients that connected to a server before its limits, when all its limits are in force."""
    before = watch.enforcement
    worst: dict[int | None, LimitStatus] = {}
    for each in found:
        worst[each.server] = max(each.status, worst.get(each.server, each.status))
    unlimited_since: dict[int, float] = {}
    limited: list[int] = []
    events: list[Event] = []
    for server in daemon.servers.values():
        since, status = before.unlimited_since.get(server.pid), worst.get(server.pid, LimitStatus.IN_FORCE)
        was_limited = server.pid in before.limited_servers
        if since is None and status is LimitStatus.DRIFTED:
            since = at if was_limited else server.started_at
        if since is not None and status is not LimitStatus.IN_FORCE:
            unlimited_since[server.pid] = since
        elif since is not None:
            clients = daemon.clients.values()
            count = sum(client.server == server.pid and client.connected_at >= since for client in clients)
            name, reason = EventName.LIMITS_BYPASSED, Reason(ReasonCode.CONNECTED_BEFORE_LIMITS)
            if count:
                event = Event(at=at, event=name, daemon=daemon.name, server=server.pid, count=count, reason=reason)
                events.append(event)
        if was_limited or status is LimitStatus.IN_FORCE:
            limited.append(server.pid)
    bypassed = watch.bypassed + sum(event.count or 0 for event in events)
    enforcement = updated(before, unlimited_since=unlimited_since, limited_servers=tuple(limited))
    return updated(watch, enforcement=enforcement, bypassed=bypassed), tuple(events)


def _track_in_force(daemon: Daemon, watch: WatchdogState, found: Iterable[LimitCheck], at: float) -> Evaluated:
    before, worst = watch.enforcement, max((each.status for each in found), default=None)
    if worst is LimitStatus.UNKNOWN:
        return watch, ()
    in_force = worst is LimitStatus.IN_FORCE
    restoring = before.restoring and worst is LimitStatus.DRIFTED
    if in_force and before.in_force:
        return watch, ()
    events = (Event(at=at, event=EventName.LIMITS_IN_FORCE, daemon=daemon.name),) if in_force else ()
    return updated(watch, enforcement=updated(before, in_force=in_force, restoring=restoring)), events


def _set_limits(
    node: Node, daemon: Daemon, watch: WatchdogState, found: Mapping[str, LimitCheck], at: float
) -> tuple[WatchdogState, tuple[Event, ...], Action | None]:
    """Return the action that sets the drifted limits; for a new daemon, also those that were not queried yet.

    Commands without effect are reported once.
    """
    drifts, restoring = dict(watch.enforcement.drifts), watch.enforcement.restoring
    events: list[Event] = []
    due = [each for each in found.values() if _may_set(node, daemon, each) and _is_due(each, watch, at)][:MAX_COMMANDS]
    for check in found.values():
        known, drifted = drifts.get(check.command), check.status is LimitStatus.DRIFTED
        if known is None or known.ineffective or known.tries < MAX_TRIES or known.tried_at is None:
            continue
        if drifted and at - known.tried_at >= RETRY_SECONDS:
            drifts[check.command] = updated(known, ineffective=True)
            code, command = ReasonCode.LIMIT_COMMAND_INEFFECTIVE, check.command
            problem = Reason(code, command=command, count=MAX_TRIES, seconds=SLOW_RETRY_SECONDS)
            events.append(_drifted(daemon, check, at, problem))
    for check in due:
        known = drifts.get(check.command) or LimitDrift()
        drifts[check.command] = updated(known, tries=known.tries + 1, tried_at=at)
    watch = updated(watch, enforcement=updated(watch.enforcement, drifts=drifts))
    if not due:
        return watch, tuple(events), None
    # All limits are set before any is queried: clients do not wait for replies.
    commands = [each.command for each in due]
    queries = [query for command in commands if (query := _query(command)) is not None]
    # A new daemon may answer before its process is known: then it has the same user as the one before.
    process = daemon.runtime.process or watch.process
    action = Action(
        daemon=daemon.name,
        kind=ActionKind.SET_LIMITS,
        reason=ActionReason.LIMITS_LOST if restoring else ActionReason.LIMITS_DRIFTED,
        steps=tuple(GiveCommand(command=command) for command in (*commands, *dict.fromkeys(queries))),
        uid=None if process is None else process.uid,
    )
    return watch, tuple(events), action


def _may_set(node: Node, daemon: Daemon, check: LimitCheck) -> bool:
    """Return False for a server in FAULT, which gets no clients, and a suspended server, which hangs the daemon.

    With protocol 3, a limit cannot be set while a client uses its namespace (driver 615).
    """
    server = None if check.server is None else daemon.servers.get(check.server)
    if server is None:
        return True
    if daemon.runtime.protocol == PROTOCOL and any(each.server == server.pid for each in daemon.clients.values()):
        return False
    return server.state is not ServerState.FAULT and processes.can_query(node, server.pid)


def _is_due(check: LimitCheck, watch: WatchdogState, at: float) -> bool:
    not_queried = watch.enforcement.restoring and check.server is None and check.status is LimitStatus.UNKNOWN
    if not check.command or (check.status is not LimitStatus.DRIFTED and not not_queried):
        return False
    known = watch.enforcement.drifts.get(check.command)
    if known is None or known.tried_at is None:
        return True
    return at - known.tried_at >= (RETRY_SECONDS if known.tries < MAX_TRIES else SLOW_RETRY_SECONDS)
