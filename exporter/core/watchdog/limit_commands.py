"""Commands that set limits, given as often as may help, and no oftener."""

from collections.abc import Mapping

from exporter.core import process_states
from exporter.core.watchdog.drift import Demand, Standing
from exporter.model.action import Action, ActionKind, ActionReason, GiveCommand
from exporter.model.daemon import Daemon
from exporter.model.enforcing import Drifting
from exporter.model.event import Event, EventName
from exporter.model.node import Node
from exporter.model.reason import Reason, ReasonCode
from exporter.model.replace import revised
from exporter.model.server import ServerState
from exporter.model.watch import Watch
from exporter.parse.control_reply import query_changed_by

AGAIN_SECONDS = 5.0
"""A command that did not help is not given again within this time."""

MANY = 3
"""After so many tries it is given once in `SELDOM_SECONDS`."""

SELDOM_SECONDS = 60.0

MOST_COMMANDS = 64
"""So many limits are set in one action; the rest in the next."""


def attempt(
    node: Node, daemon: Daemon, watch: Watch, found: Mapping[str, Demand], at: float
) -> tuple[Watch, tuple[Event, ...], Action | None]:
    """Set what is not in force; and of a new daemon, whose defaults nobody has asked for yet, all of them at once.

    The commands are followed by the questions that tell what now holds. What does not help is said once.
    """
    before = watch.enforcing
    due = [each for each in found.values() if _may_be_set(node, daemon, each) and _due(each, watch, at)]
    due = due[:MOST_COMMANDS]
    drifting = {**before.drifting, **{each.command: _tried(before.drifting.get(each.command), at) for each in due}}
    hopeless = [each for each in found.values() if _in_vain(before.drifting.get(each.command), each, at)]
    for each in hopeless:
        drifting[each.command] = revised(drifting[each.command], hopeless=True)
    events = tuple(_hopeless(daemon, each, at) for each in hopeless)
    watch = revised(watch, enforcing=revised(before, drifting=drifting))
    # One that is just back answers before its process is known: it is taken for its predecessor's user's.
    process = daemon.runtime.process or watch.process
    uid = None if process is None else process.uid
    return watch, events, _action(daemon, due, uid, restoring=before.restoring) if due else None


def _may_be_set(node: Node, daemon: Daemon, demand: Demand) -> bool:
    """A server in FAULT has no clients to come; one that was stopped hangs the daemon that is to tell it anything."""
    server = None if demand.server is None else daemon.servers.get(demand.server)
    if server is None:
        return True
    return server.state is not ServerState.FAULT and process_states.askable(node, server.pid)


def _due(demand: Demand, watch: Watch, at: float) -> bool:
    unasked = watch.enforcing.restoring and demand.server is None and demand.standing is Standing.UNKNOWN
    if demand.standing is not Standing.DRIFTED and not unasked:
        return False
    known = watch.enforcing.drifting.get(demand.command)
    if known is None or known.tried_at is None:
        return True
    return at - known.tried_at >= (AGAIN_SECONDS if known.tries < MANY else SELDOM_SECONDS)


def _tried(known: Drifting | None, at: float) -> Drifting:
    known = known or Drifting()
    return revised(known, tries=known.tries + 1, tried_at=at)


def _in_vain(known: Drifting | None, demand: Demand, at: float) -> bool:
    if known is None or known.hopeless or known.tries < MANY or known.tried_at is None:
        return False
    return demand.standing is Standing.DRIFTED and at - known.tried_at >= AGAIN_SECONDS


def _hopeless(daemon: Daemon, demand: Demand, at: float) -> Event:
    problem = Reason(ReasonCode.LIMIT_COMMAND_INEFFECTIVE, command=demand.command, count=MANY, seconds=SELDOM_SECONDS)
    return Event(
        at=at,
        event=EventName.LIMITS_DRIFTED,
        daemon=daemon.name,
        server=demand.server,
        reason=demand.reason,
        problem=problem,
    )


def _action(daemon: Daemon, due: list[Demand], uid: int | None, *, restoring: bool) -> Action:
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
