"""Limits of a daemon: compare them with the wanted ones, set them, restore them after a restart."""

from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from functools import lru_cache

from exporter.model.action import Action, ActionKind, ActionReason, GiveCommand
from exporter.model.daemon import Daemon, DaemonState
from exporter.model.dialect import LimitCommands
from exporter.model.event import Event, EventName
from exporter.model.identity import identity_of
from exporter.model.node import Node
from exporter.model.reason import Reason, ReasonCode
from exporter.model.server import Server, ServerState
from exporter.model.settings import Limits, Mode
from exporter.model.values import frozen, updated
from exporter.model.watchdog import LimitDrift, LimitEnforcement, WatchdogState
from exporter.parse.control_reply import query_changed_by
from exporter.parse.mps_variables import format_byte_size
from exporter.state import processes
from exporter.watchdog.context import Evaluated

LOG_SECONDS = 0.3
"""A server logs its limits within some milliseconds, the priority last. Older servers do not log the priority."""

PERCENTAGE_ERROR = 0.05  # A daemon reports percentages with one decimal.
WHOLE_GPU = 100.0  # The percentage of a daemon for which none was set (R580).
RETRY_SECONDS = 5.0  # How long the watchdog waits before it sends a command again that had no effect.
MAX_TRIES = 3  # After this many tries, the watchdog sends the command only once in `SLOW_RETRY_SECONDS`.

SLOW_RETRY_SECONDS = 60.0

MAX_COMMANDS = 64  # How many limits one action sets. The next action sets the others.


class LimitStatus(IntEnum):
    """Whether a limit is in force."""

    IN_FORCE = 0
    UNKNOWN = 1
    DRIFTED = 2


@frozen
class LimitCheck:
    """A wanted limit of a server, or of future servers (None). `command` sets it; it is empty if none can.

    `reason` is how the actual limit differs, if it has drifted.
    """

    server: int | None
    command: str
    status: LimitStatus
    reason: Reason


def check_limits(daemon: Daemon, wanted: Limits, at: float) -> tuple[LimitCheck, ...]:
    """Compare all wanted limits with the actual ones, the defaults first."""
    servers = (each for server in daemon.servers.values() for each in _check_server(daemon, server, wanted, at))
    return (*check_defaults(daemon, wanted), *servers)


def check_defaults(daemon: Daemon, wanted: Limits) -> Iterator[LimitCheck]:
    """Compare the wanted limits with the defaults for future servers, if the daemon has any."""
    commands = daemon.dialect.default_limits
    if commands is not None:
        yield from _check_all(daemon, None, commands, daemon.default_limits, wanted, complete=False)


def _check_server(daemon: Daemon, server: Server, wanted: Limits, at: float) -> Iterator[LimitCheck]:
    actual, logged_at = server.limits, server.limits_logged_at
    # If the log has all limits of the server, it has no memory limit that the log does not have.
    complete = logged_at is not None and (actual.client_priority is not None or at - logged_at >= LOG_SECONDS)
    if daemon.dialect.limits_by_namespace:
        complete = bool(server.name and server.namespaces)
        wanted = wanted if complete else Limits()
    elif actual.client_priority is None:
        wanted = updated(wanted, client_priority=None)
    yield from _check_all(daemon, server.pid, daemon.dialect.limit_commands(server), actual, wanted, complete=complete)


def _check_all(
    daemon: Daemon, server: int | None, commands: LimitCommands, actual: Limits, wanted: Limits, *, complete: bool
) -> Iterator[LimitCheck]:
    """Compare all limits. An empty reply, or `complete` limits without one for memory, show that there is none.

    If the memory limit is for all devices, no command can set different limits for them. They are compared all the
    same. With static SM partitions, thread percentages do not apply.
    """
    set_memory, set_threads, set_priority = commands
    memory = sorted(wanted.pinned_memory.items())
    limits, for_all = actual.pinned_memory, daemon.dialect.limits_by_namespace
    differ = for_all and len(set(wanted.pinned_memory.values())) > 1
    for device, limit in memory[:1] if for_all and not differ else memory:
        command = "" if differ else set_memory.format(device=device, value=format_byte_size(limit))
        actual_limit = next(iter(limits.values()), None) if for_all else limits.get(device)
        known = complete or actual_limit is not None or _query(command) in daemon.commands.asked_at
        reason = Reason(ReasonCode.MEMORY_LIMIT_DIFFERS, device=device, found=actual_limit, wanted=limit)
        yield _check(daemon, server, command, reason, known=known, in_force=actual_limit == limit)
    wanted_percentage, actual_percentage = wanted.active_thread_percentage, actual.active_thread_percentage
    if wanted_percentage is not None and not daemon.has_static_partitions:
        command, known = set_threads.format(value=f"{wanted_percentage:g}"), actual_percentage is not None
        reason = Reason(ReasonCode.THREAD_PERCENTAGE_DIFFERS, found=actual_percentage, wanted=wanted_percentage)
        in_force = actual_percentage is not None and abs(actual_percentage - wanted_percentage) <= PERCENTAGE_ERROR
        yield _check(daemon, server, command, reason, known=known, in_force=in_force)
    wanted_priority, actual_priority = wanted.client_priority, actual.client_priority
    if wanted_priority is not None:
        command, known = set_priority.format(value=wanted_priority), actual_priority is not None
        reason = Reason(ReasonCode.PRIORITY_DIFFERS, found=actual_priority, wanted=wanted_priority)
        yield _check(daemon, server, command, reason, known=known, in_force=actual_priority == wanted_priority)


def _check(
    daemon: Daemon, server: int | None, command: str, reason: Reason, *, known: bool, in_force: bool
) -> LimitCheck:
    """A limit that a command may have changed is unknown until the next query."""
    status = LimitStatus.IN_FORCE if in_force else LimitStatus.DRIFTED
    if not known or _query(command) in daemon.default_limits.stale:
        status = LimitStatus.UNKNOWN
    return LimitCheck(server=server, command=command, status=status, reason=reason)


_query = lru_cache(maxsize=1024)(query_changed_by)  # There are few commands, parsed twice a second.


# -- Limits of a daemon and of its successor ---------------------------------------------------------------------------


def limits_to_enforce(configured: Limits, watch: WatchdogState) -> Limits:
    """Return the configured limits; after a restart, also those that were in force before."""
    return limits_to_restore(configured, watch) if watch.enforcement.restoring else configured


def limits_to_restore(configured: Limits, watch: WatchdogState) -> Limits:
    """Return the limits of the next daemon: for each limit and device the configured value, else the last one."""
    before = watch.limits or Limits()
    wanted = _overlaid(before, configured.active_thread_percentage, configured.client_priority)
    return updated(wanted, pinned_memory={**before.pinned_memory, **configured.pinned_memory})


def _overlaid(before: Limits, percentage: float | None, priority: int | None) -> Limits:
    return Limits(
        active_thread_percentage=before.active_thread_percentage if percentage is None else percentage,
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
    actual, known = daemon.default_limits, enforcement.defaults
    percentage, priority = actual.active_thread_percentage, actual.client_priority
    limits = watch.limits or Limits()
    # A default was set if it has changed, or if a daemon does not have it by itself.
    if percentage is not None and known.active_thread_percentage not in (None, percentage):
        limits = updated(limits, active_thread_percentage=None if percentage == WHOLE_GPU else percentage)
    if priority or (priority == 0 and known.client_priority is not None):
        limits = updated(limits, client_priority=priority or None)
    limits = updated(limits, pinned_memory={**limits.pinned_memory, **actual.pinned_memory})
    enforcement = updated(enforcement, defaults=_overlaid(known, percentage, priority))
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
    checks = check_limits(daemon, wanted, at)
    by_command: dict[str, LimitCheck] = {}
    # One priority applies to all servers: for each command, the worst status counts.
    for check in checks:
        if check.command not in by_command or check.status > by_command[check.command].status:
            by_command[check.command] = check
    watch, drifted = _track_drifts(daemon, watch, by_command, at)
    watch, bypassed = _count_clients_before_limits(daemon, watch, checks, at)
    watch, in_force = _track_in_force(daemon, watch, checks, at)
    events = (*drifted, *bypassed, *in_force)
    if mode is Mode.OBSERVE:
        return watch, events, None
    watch, ineffective, action = _set_limits(node, daemon, watch, by_command, at)
    return watch, (*events, *ineffective), action


def _track_drifts(daemon: Daemon, watch: WatchdogState, checks: Mapping[str, LimitCheck], at: float) -> Evaluated:
    """Remember since when each limit has drifted, until it is in force. An unknown limit changes nothing."""
    drifts: dict[str, LimitDrift] = {}
    events: list[Event] = []
    for command, check in checks.items():
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
    daemon: Daemon, watch: WatchdogState, checks: Iterable[LimitCheck], at: float
) -> Evaluated:
    """Count the clients that connected to a server before its limits, when all its limits are in force."""
    before = watch.enforcement
    worst: dict[int | None, LimitStatus] = {}
    for check in checks:
        worst[check.server] = max(check.status, worst.get(check.server, check.status))
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


def _track_in_force(daemon: Daemon, watch: WatchdogState, checks: Iterable[LimitCheck], at: float) -> Evaluated:
    before, worst = watch.enforcement, max((check.status for check in checks), default=None)
    if worst is LimitStatus.UNKNOWN:
        return watch, ()
    in_force = worst is LimitStatus.IN_FORCE
    restoring = before.restoring and worst is LimitStatus.DRIFTED
    if in_force and before.in_force:
        return watch, ()
    events = (Event(at=at, event=EventName.LIMITS_IN_FORCE, daemon=daemon.name),) if in_force else ()
    return updated(watch, enforcement=updated(before, in_force=in_force, restoring=restoring)), events


def _set_limits(
    node: Node, daemon: Daemon, watch: WatchdogState, checks: Mapping[str, LimitCheck], at: float
) -> tuple[WatchdogState, tuple[Event, ...], Action | None]:
    """Return the action that sets the drifted limits; for a new daemon, also those that were not queried yet.

    Commands without effect are reported once.
    """
    drifts, restoring = dict(watch.enforcement.drifts), watch.enforcement.restoring
    events: list[Event] = []
    due = [each for each in checks.values() if _may_set(node, daemon, each) and _is_due(each, watch, at)][:MAX_COMMANDS]
    for check in checks.values():
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
    commands = tuple(each.command for each in due)
    # A new daemon may answer before its process is known: then it has the same user as the one before.
    process = daemon.runtime.process or watch.process
    action = Action(
        daemon=daemon.name,
        kind=ActionKind.SET_LIMITS,
        reason=ActionReason.LIMITS_LOST if restoring else ActionReason.LIMITS_DRIFTED,
        steps=tuple(GiveCommand(command=command) for command in (*commands, *_queries_of(commands))),
        uid=None if process is None else process.uid,
    )
    return watch, tuple(events), action


def commands_to_restore(daemon: Daemon, wanted: Limits) -> tuple[str, ...]:
    """Return the first commands of a restarted daemon: they set its limits, then query them."""
    commands = tuple(each.command for each in check_defaults(daemon, wanted))
    return (*commands, *_queries_of(commands))


def _queries_of(commands: Iterable[str]) -> tuple[str, ...]:
    """Return the queries of the limits that these commands set."""
    return tuple(dict.fromkeys(query for command in commands if (query := _query(command)) is not None))


def _may_set(node: Node, daemon: Daemon, check: LimitCheck) -> bool:
    """Return False for a server in FAULT, which gets no clients, and a suspended server, which hangs the daemon."""
    server = None if check.server is None else daemon.servers.get(check.server)
    if server is None:
        return True
    if daemon.dialect.limits_by_namespace and any(each.server == server.pid for each in daemon.clients.values()):
        return False  # No limit can be set while a client uses its namespace (driver 615).
    return server.state is not ServerState.FAULT and processes.can_query(node, server.pid)


def _is_due(check: LimitCheck, watch: WatchdogState, at: float) -> bool:
    not_queried = watch.enforcement.restoring and check.server is None and check.status is LimitStatus.UNKNOWN
    if not check.command or (check.status is not LimitStatus.DRIFTED and not not_queried):
        return False
    known = watch.enforcement.drifts.get(check.command)
    if known is None or known.tried_at is None:
        return True
    return at - known.tried_at >= (RETRY_SECONDS if known.tries < MAX_TRIES else SLOW_RETRY_SECONDS)
