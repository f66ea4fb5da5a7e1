"""Limits put and kept in force."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

from exporter.model.action import Action, ActionKind, ActionReason, GiveCommand
from exporter.model.daemon import Daemon, DaemonState
from exporter.model.event import Event, EventName
from exporter.model.identity import ProcessIdentity, identity_of
from exporter.model.node import Node
from exporter.model.reason import Reason, ReasonCode
from exporter.model.server import Server, ServerState
from exporter.model.settings import Limits, Mode
from exporter.model.values import revised
from exporter.model.watchdog import LimitDrift, LimitEnforcement, WatchdogState
from exporter.parse.control_reply import query_changed_by
from exporter.parse.mps_variables import format_byte_size
from exporter.state import process_states

BLOCK_SECONDS = 0.3
"""A server tells its limits line by line, the priority last, in some milliseconds; older ones do not tell that."""

PERCENTAGE_ERROR = 0.05
"""A daemon tells a percentage with one decimal."""


class LimitStatus(IntEnum):
    """How a limit stands."""

    IN_FORCE = 0
    UNKNOWN = 1
    DRIFTED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitDemand:
    """A limit that is to hold: of a server, or of future servers (None). `command` sets it.

    `reason` says how the actual limit differs, if it has drifted.
    """

    server: int | None
    command: str
    standing: LimitStatus
    reason: Reason


def demands(daemon: Daemon, wanted: Limits, at: float) -> tuple[LimitDemand, ...]:
    """Every limit that is wanted, the defaults first."""
    found = list(_of_defaults(daemon, wanted))
    for server in daemon.servers.values():
        found += _of_server(daemon, server, wanted, at)
    return tuple(found)


def commands_for_defaults(daemon: Daemon, wanted: Limits) -> tuple[str, ...]:
    """What sets the defaults of a daemon that has none yet."""
    return tuple(each.command for each in _of_defaults(daemon, wanted))


def _of_defaults(daemon: Daemon, wanted: Limits) -> Iterable[LimitDemand]:
    share, priority = wanted.active_thread_percentage, wanted.client_priority
    memory = daemon.default_limits.pinned_memory
    yield from _of_memory(daemon, None, "set_default_device_pinned_mem_limit", memory, wanted)
    if share is not None:
        command = f"set_default_active_thread_percentage {share:g}"
        yield _threads(daemon, None, command, daemon.default_limits.active_thread_percentage, share)
    if priority is not None:
        yield _priority(daemon, None, daemon.default_limits.client_priority, priority)


def _of_server(daemon: Daemon, server: Server, wanted: Limits, at: float) -> Iterable[LimitDemand]:
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
    if server.limits_logged_at is None:
        return False
    return server.client_priority is not None or at - server.limits_logged_at >= BLOCK_SECONDS


def _of_memory(
    daemon: Daemon, server: int | None, verb: str, limits: Mapping[int, int], wanted: Limits, *, told: bool = False
) -> Iterable[LimitDemand]:
    """An empty answer says that there is none; `told`: so does silence."""
    for device, limit in sorted(wanted.pinned_memory.items()):
        command = f"{verb} {device} {format_byte_size(limit)}"
        known = told or device in limits or _question(command) in daemon.commands.asked_at
        there = limits.get(device)
        reason = Reason(ReasonCode.MEMORY_LIMIT_DIFFERS, device=device, found=there, wanted=limit)
        yield _demand(daemon, server, command, reason, known=known, holds=there == limit)


def _threads(daemon: Daemon, server: int | None, command: str, there: float | None, share: float) -> LimitDemand:
    known = there is not None
    holds = there is not None and abs(there - share) <= PERCENTAGE_ERROR
    reason = Reason(ReasonCode.THREAD_PERCENTAGE_DIFFERS, found=there, wanted=share)
    return _demand(daemon, server, command, reason, known=known, holds=holds)


def _priority(daemon: Daemon, server: int | None, there: int | None, priority: int) -> LimitDemand:
    command = f"set_default_client_priority {priority}"
    reason = Reason(ReasonCode.PRIORITY_DIFFERS, found=there, wanted=priority)
    return _demand(daemon, server, command, reason, known=there is not None, holds=there == priority)


@lru_cache(maxsize=1024)
def _question(command: str) -> str | None:
    """That about what one of our own commands sets: of these there are few, and each is looked at twice a second."""
    return query_changed_by(command)


def _demand(
    daemon: Daemon, server: int | None, command: str, reason: Reason, *, known: bool, holds: bool
) -> LimitDemand:
    """What a command may have changed just now is not known, until it has been asked again."""
    if not known or _question(command) in daemon.default_limits.stale:
        standing = LimitStatus.UNKNOWN
    else:
        standing = LimitStatus.IN_FORCE if holds else LimitStatus.DRIFTED
    return LimitDemand(server=server, command=command, standing=standing, reason=reason)


AGAIN_SECONDS = 5.0
"""A command that did not help is not given again within this time."""

MANY = 3
"""After so many tries it is given once in `SELDOM_SECONDS`."""

SELDOM_SECONDS = 60.0

MOST_COMMANDS = 64
"""So many limits are set in one action; the rest in the next."""


def attempt(
    node: Node, daemon: Daemon, watch: WatchdogState, found: Mapping[str, LimitDemand], at: float
) -> tuple[WatchdogState, tuple[Event, ...], Action | None]:
    """Set what is not in force; and of a new daemon, whose defaults nobody has asked for yet, all of them at once.

    The commands are followed by the questions that tell what now holds. What does not help is said once.
    """
    before = watch.enforcement
    due = [each for each in found.values() if _may_be_set(node, daemon, each) and _due(each, watch, at)]
    due = due[:MOST_COMMANDS]
    drifts = {**before.drifts, **{each.command: _tried(before.drifts.get(each.command), at) for each in due}}
    ineffective = [each for each in found.values() if _in_vain(before.drifts.get(each.command), each, at)]
    for each in ineffective:
        drifts[each.command] = revised(drifts[each.command], ineffective=True)
    events = tuple(_hopeless(daemon, each, at) for each in ineffective)
    watch = revised(watch, enforcement=revised(before, drifts=drifts))
    # One that is just back answers before its process is known: it is taken for its predecessor's user's.
    process = daemon.runtime.process or watch.process
    uid = None if process is None else process.uid
    return watch, events, _action(daemon, due, uid, restoring=before.restoring) if due else None


def _may_be_set(node: Node, daemon: Daemon, demand: LimitDemand) -> bool:
    """A server in FAULT has no clients to come; one that was stopped hangs the daemon that is to tell it anything."""
    server = None if demand.server is None else daemon.servers.get(demand.server)
    if server is None:
        return True
    return server.state is not ServerState.FAULT and process_states.askable(node, server.pid)


def _due(demand: LimitDemand, watch: WatchdogState, at: float) -> bool:
    unasked = watch.enforcement.restoring and demand.server is None and demand.standing is LimitStatus.UNKNOWN
    if demand.standing is not LimitStatus.DRIFTED and not unasked:
        return False
    known = watch.enforcement.drifts.get(demand.command)
    if known is None or known.tried_at is None:
        return True
    return at - known.tried_at >= (AGAIN_SECONDS if known.tries < MANY else SELDOM_SECONDS)


def _tried(known: LimitDrift | None, at: float) -> LimitDrift:
    known = known or LimitDrift()
    return revised(known, tries=known.tries + 1, tried_at=at)


def _in_vain(known: LimitDrift | None, demand: LimitDemand, at: float) -> bool:
    if known is None or known.ineffective or known.tries < MANY or known.tried_at is None:
        return False
    return demand.standing is LimitStatus.DRIFTED and at - known.tried_at >= AGAIN_SECONDS


def _hopeless(daemon: Daemon, demand: LimitDemand, at: float) -> Event:
    problem = Reason(ReasonCode.LIMIT_COMMAND_INEFFECTIVE, command=demand.command, count=MANY, seconds=SELDOM_SECONDS)
    return Event(
        at=at,
        event=EventName.LIMITS_DRIFTED,
        daemon=daemon.name,
        server=demand.server,
        reason=demand.reason,
        problem=problem,
    )


def _action(daemon: Daemon, due: list[LimitDemand], uid: int | None, *, restoring: bool) -> Action:
    """All is set before anything is asked: clients do not wait for answers."""
    commands = [each.command for each in due]
    questions = [question for command in commands if (question := query_changed_by(command)) is not None]
    return Action(
        daemon=daemon.name,
        kind=ActionKind.SET_LIMITS,
        reason=ActionReason.LIMITS_LOST if restoring else ActionReason.LIMITS_DRIFTED,
        steps=tuple(GiveCommand(command=command) for command in (*commands, *questions)),
        uid=uid,
    )


WHOLE_GPU = 100.0
"""The percentage of a daemon that was told of none (R580)."""


def to_hold(configured: Limits, watch: WatchdogState) -> Limits:
    """What is to hold now: as configured; and where another daemon has taken over, what held before."""
    return wanted(configured, watch) if watch.enforcement.restoring else configured


def wanted(configured: Limits, watch: WatchdogState) -> Limits:
    """What the next daemon is to have: as configured, and else as it was, limit by limit and device by device."""
    before = watch.limits or Limits()
    share, priority = configured.active_thread_percentage, configured.client_priority
    return Limits(
        active_thread_percentage=before.active_thread_percentage if share is None else share,
        pinned_memory={**before.pinned_memory, **configured.pinned_memory},
        client_priority=before.client_priority if priority is None else priority,
    )


def followed(daemon: Daemon, watch: WatchdogState) -> WatchdogState:
    """What is remembered of a daemon's limits, after this was seen of it."""
    process = identity_of(daemon.runtime.process)
    enforcement = watch.enforcement
    if _is_another(daemon, process, enforcement):
        enforcement = LimitEnforcement(restoring=True)
    if process is not None and process != enforcement.process:
        enforcement = revised(enforcement, process=process)
    if daemon.state is not DaemonState.UP:
        return revised(watch, enforcement=enforcement)
    limits, seen = _held(watch.limits or Limits(), enforcement.defaults, daemon), _seen(enforcement.defaults, daemon)
    return revised(watch, limits=limits or None, enforcement=revised(enforcement, defaults=seen))


def _is_another(daemon: Daemon, process: ProcessIdentity | None, enforcement: LimitEnforcement) -> bool:
    """Whether it is not the one that it was. Where that cannot be told, its having gone says so."""
    if process is not None and enforcement.process is not None:
        return process != enforcement.process
    return daemon.ended


def _held(before: Limits, seen: Limits, daemon: Daemon) -> Limits:
    """A default that has changed was set, and so was any that a daemon does not have of its own."""
    share, priority = daemon.default_limits.active_thread_percentage, daemon.default_limits.client_priority
    if share is not None and seen.active_thread_percentage not in (None, share):
        before = revised(before, active_thread_percentage=None if share == WHOLE_GPU else share)
    if priority or (priority == 0 and seen.client_priority is not None):
        before = revised(before, client_priority=priority or None)
    return revised(before, pinned_memory={**before.pinned_memory, **daemon.default_limits.pinned_memory})


def _seen(before: Limits, daemon: Daemon) -> Limits:
    share, priority = daemon.default_limits.active_thread_percentage, daemon.default_limits.client_priority
    return Limits(
        active_thread_percentage=before.active_thread_percentage if share is None else share,
        client_priority=before.client_priority if priority is None else priority,
    )


LimitsEvaluated = tuple[WatchdogState, tuple[Event, ...]]


def enforce(
    node: Node, daemon: Daemon, watch: WatchdogState, configured: Limits, mode: Mode, at: float
) -> tuple[WatchdogState, tuple[Event, ...], Action | None]:
    """How a daemon's limits stand now, and what is to be done about it: an action, which must be carried out.

    To be called at every judgement, also while the daemon is not there.
    """
    watch = followed(daemon, watch)
    limits = to_hold(configured, watch)
    watch = revised(watch, wanted_limits=limits or None)
    # One that has just not answered may hang: a command would hang with it, and hold up what helps.
    if daemon.state is not DaemonState.UP or daemon.commands.unanswered_since is not None:
        return watch, (), None
    found = demands(daemon, limits, at)
    watch, drifted = _drifted(daemon, watch, _worst(found), at)
    watch, bypassed = _exposed(daemon, watch, found, at)
    watch, in_force = _in_force(daemon, watch, found, at)
    events = (*drifted, *bypassed, *in_force)
    if mode is Mode.OBSERVE:
        return watch, events, None
    watch, ineffective, action = attempt(node, daemon, watch, _worst(found), at)
    return watch, (*events, *ineffective), action


def _worst(found: Iterable[LimitDemand]) -> Mapping[str, LimitDemand]:
    """By the command that sets it, how each limit stands where it stands worst: one priority is for all servers."""
    worst: dict[str, LimitDemand] = {}
    for each in found:
        if each.command not in worst or each.standing > worst[each.command].standing:
            worst[each.command] = each
    return worst


def _drifted(daemon: Daemon, watch: WatchdogState, found: Mapping[str, LimitDemand], at: float) -> LimitsEvaluated:
    """Each limit that is not as it should be is told once, until it is. While nobody knows, nothing has changed."""
    before = watch.enforcement.drifts
    now: dict[str, LimitDrift] = {}
    events: list[Event] = []
    for command, demand in found.items():
        known = before.get(command)
        if demand.standing is LimitStatus.DRIFTED and (known is None or known.since is None):
            known = revised(known or LimitDrift(), since=at)
            events.append(
                Event(
                    at=at,
                    event=EventName.LIMITS_DRIFTED,
                    daemon=daemon.name,
                    server=demand.server,
                    reason=demand.reason,
                )
            )
        if demand.standing is not LimitStatus.IN_FORCE and known is not None:
            now[command] = known
    return revised(watch, enforcement=revised(watch.enforcement, drifts=now)), tuple(events)


def _exposed(daemon: Daemon, watch: WatchdogState, found: Iterable[LimitDemand], at: float) -> LimitsEvaluated:
    """Whose clients have come without limits; where a server has them all at last, those are counted and told."""
    before, standings = watch.enforcement, _by_server(found)
    unlimited_since: dict[int, float] = {}
    limited_servers: list[int] = []
    events: list[Event] = []
    for server in daemon.servers.values():
        since, standing = before.unlimited_since.get(server.pid), standings.get(server.pid, LimitStatus.IN_FORCE)
        was_sound = server.pid in before.limited_servers
        if since is None and standing is LimitStatus.DRIFTED:
            since = at if was_sound else server.started_at
        if since is not None and standing is LimitStatus.IN_FORCE:
            events += _slipped_in(daemon, server.pid, since, at)
        elif since is not None:
            unlimited_since[server.pid] = since
        if was_sound or standing is LimitStatus.IN_FORCE:
            limited_servers.append(server.pid)
    bypassed = watch.bypassed + sum(event.count or 0 for event in events)
    enforcement = revised(before, unlimited_since=unlimited_since, limited_servers=tuple(limited_servers))
    return revised(watch, enforcement=enforcement, bypassed=bypassed), tuple(events)


def _by_server(found: Iterable[LimitDemand]) -> Mapping[int | None, LimitStatus]:
    worst: dict[int | None, LimitStatus] = {}
    for each in found:
        worst[each.server] = max(each.standing, worst.get(each.server, each.standing))
    return worst


def _slipped_in(daemon: Daemon, server: int, since: float, at: float) -> Iterable[Event]:
    clients = [each for each in daemon.clients.values() if each.server == server and each.connected_at >= since]
    if clients:
        yield Event(
            at=at,
            event=EventName.LIMITS_BYPASSED,
            daemon=daemon.name,
            server=server,
            count=len(clients),
            reason=Reason(ReasonCode.CONNECTED_BEFORE_LIMITS),
        )


def _in_force(daemon: Daemon, watch: WatchdogState, found: Iterable[LimitDemand], at: float) -> LimitsEvaluated:
    """All that is wanted is verified: told once, until some of it is not."""
    before = watch.enforcement
    worst = max((each.standing for each in found), default=None)
    match worst:
        case None:
            return revised(watch, enforcement=revised(before, in_force=False, restoring=False)), ()
        case LimitStatus.IN_FORCE if not before.in_force:
            event = Event(at=at, event=EventName.LIMITS_IN_FORCE, daemon=daemon.name)
            return revised(watch, enforcement=revised(before, in_force=True, restoring=False)), (event,)
        case LimitStatus.DRIFTED if before.in_force:
            return revised(watch, enforcement=revised(before, in_force=False)), ()
        case _:
            return watch, ()
