"""Limits put and kept in force: what was configured, and after a restart what was set by command before.

A limit on memory, and a server's percentage, hold for clients that connect later (measured, R580; NVIDIA's guide): who
was there first is counted.
"""

from collections.abc import Iterable, Mapping

from exporter.core.watchdog import remembered_limits
from exporter.core.watchdog.drift import Demand, Standing, demands
from exporter.core.watchdog.limit_commands import attempt
from exporter.model.action import Action
from exporter.model.daemon import Daemon, DaemonState
from exporter.model.enforcing import Drifting
from exporter.model.event import Event, EventName
from exporter.model.limits import Limits
from exporter.model.node import Node
from exporter.model.reason import Reason, ReasonCode
from exporter.model.replace import revised
from exporter.model.settings import Mode
from exporter.model.watch import Watch

Told = tuple[Watch, tuple[Event, ...]]


def enforce(
    node: Node, daemon: Daemon, watch: Watch, configured: Limits, mode: Mode, at: float
) -> tuple[Watch, tuple[Event, ...], Action | None]:
    """How a daemon's limits stand now, and what is to be done about it: an action, which must be carried out.

    To be called at every judgement, also while the daemon is not there.
    """
    watch = remembered_limits.followed(daemon, watch)
    limits = remembered_limits.to_hold(configured, watch)
    watch = revised(watch, wanted=limits or None)
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
    watch, hopeless, action = attempt(node, daemon, watch, _worst(found), at)
    return watch, (*events, *hopeless), action


def _worst(found: Iterable[Demand]) -> Mapping[str, Demand]:
    """By the command that sets it, how each limit stands where it stands worst: one priority is for all servers."""
    worst: dict[str, Demand] = {}
    for each in found:
        if each.command not in worst or each.standing > worst[each.command].standing:
            worst[each.command] = each
    return worst


def _drifted(daemon: Daemon, watch: Watch, found: Mapping[str, Demand], at: float) -> Told:
    """Each limit that is not as it should be is told once, until it is. While nobody knows, nothing has changed."""
    before = watch.enforcing.drifting
    now: dict[str, Drifting] = {}
    events: list[Event] = []
    for command, demand in found.items():
        known = before.get(command)
        if demand.standing is Standing.DRIFTED and (known is None or known.since is None):
            known = revised(known or Drifting(), since=at)
            events.append(
                Event(
                    at=at,
                    event=EventName.LIMITS_DRIFTED,
                    daemon=daemon.name,
                    server=demand.server,
                    reason=demand.reason,
                )
            )
        if demand.standing is not Standing.IN_FORCE and known is not None:
            now[command] = known
    return revised(watch, enforcing=revised(watch.enforcing, drifting=now)), tuple(events)


def _exposed(daemon: Daemon, watch: Watch, found: Iterable[Demand], at: float) -> Told:
    """Whose clients have come without limits; where a server has them all at last, those are counted and told."""
    before, standings = watch.enforcing, _by_server(found)
    exposed: dict[int, float] = {}
    sound: list[int] = []
    events: list[Event] = []
    for server in daemon.servers.values():
        since, standing = before.exposed.get(server.pid), standings.get(server.pid, Standing.IN_FORCE)
        was_sound = server.pid in before.sound
        if since is None and standing is Standing.DRIFTED:
            since = at if was_sound else server.started_at
        if since is not None and standing is Standing.IN_FORCE:
            events += _slipped_in(daemon, server.pid, since, at)
        elif since is not None:
            exposed[server.pid] = since
        if was_sound or standing is Standing.IN_FORCE:
            sound.append(server.pid)
    bypassed = watch.bypassed + sum(event.count or 0 for event in events)
    enforcing = revised(before, exposed=exposed, sound=tuple(sound))
    return revised(watch, enforcing=enforcing, bypassed=bypassed), tuple(events)


def _by_server(found: Iterable[Demand]) -> Mapping[int | None, Standing]:
    worst: dict[int | None, Standing] = {}
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


def _in_force(daemon: Daemon, watch: Watch, found: Iterable[Demand], at: float) -> Told:
    """All that is wanted is verified: told once, until some of it is not."""
    before = watch.enforcing
    worst = max((each.standing for each in found), default=None)
    match worst:
        case None:
            return revised(watch, enforcing=revised(before, in_force=False, restoring=False)), ()
        case Standing.IN_FORCE if not before.in_force:
            event = Event(at=at, event=EventName.LIMITS_IN_FORCE, daemon=daemon.name)
            return revised(watch, enforcing=revised(before, in_force=True, restoring=False)), (event,)
        case Standing.DRIFTED if before.in_force:
            return revised(watch, enforcing=revised(before, in_force=False)), ()
        case _:
            return watch, ()
