"""The one door into the watchdog: a node goes in, and what is to be done comes out."""

from collections.abc import Callable

from exporter.core.watchdog import diagnosis, limits, memory, owner, quarantine, results
from exporter.core.watchdog.carrying_out import Decided, begun, carried_out
from exporter.core.watchdog.matter import Matter, Told
from exporter.core.watchdog.orders import Orders
from exporter.core.watchdog.policy import resolved
from exporter.model.action import Action
from exporter.model.event import Event
from exporter.model.node import Node
from exporter.model.replace import replace, revised
from exporter.model.settings import Mode
from exporter.model.watch import Watch

Judged = tuple[Node, tuple[Event, ...], tuple[Action, ...]]

_STEPS: tuple[Callable[[Matter], Told], ...] = (
    diagnosis.diagnosed,
    memory.kept_well,
    quarantine.quarantined,
    results.settled,
    owner.by_systemd,
)
"""What is to be known before anything is resolved, in this order."""


def judge(node: Node, orders: Orders, *, at: float, chance: float) -> Judged:
    """Diagnose every expected daemon, and decide what is to be done now.

    `at` is now, in seconds since the epoch; `chance`, 0 to 1, is for the jitter. To be called after each batch of
    observations, and every second anyhow. The actions that it returns must be carried out; it counts on them.
    """
    watches = dict(node.watches)
    events: list[Event] = []
    actions: list[Action] = []
    for name, daemon in node.daemons.items():
        if not daemon.declared.expected or daemon.runtime.same_as is not None:
            continue
        matter = Matter(
            node=node,
            daemon=daemon,
            watch=node.watches.get(name) or Watch(lost_at=at if orders.state_lost else None),
            mandate=orders.mandate_of(daemon),
            mode=orders.mode_of(daemon),
            rules=orders.rules,
            at=at,
            chance=chance,
        )
        watches[name], told, action = _judged(matter)
        events.extend(told)
        if action is not None:
            actions.append(action)
    return node if watches == node.watches else replace(node, watches=watches), tuple(events), tuple(actions)


def _judged(matter: Matter) -> Decided:
    matter = revised(matter, watch=memory.remembered(matter))
    events: tuple[Event, ...] = ()
    for step in _STEPS:
        watch, told = step(matter)
        matter, events = revised(matter, watch=watch), events + told
    decided: Decided = (matter.watch, (), None)
    if matter.watch.acting is None:
        decided = carried_out(matter, resolved(matter))
    watch, told, action = decided
    watch, limited, more = _limited(revised(matter, watch=watch))
    return watch, events + told + limited, action or more


def _limited(matter: Matter) -> Decided:
    """The limits that should be in force are, or are being put; not while something else is under way."""
    free = matter.watch.acting is None
    mode = matter.mode if free else Mode.OBSERVE
    configured = matter.mandate.limits
    watch, events, action = limits.enforce(matter.node, matter.daemon, matter.watch, configured, mode, matter.at)
    if action is None:
        return watch, events, None
    watch, acts, action = begun(replace(matter, watch=watch), action)
    return watch, events + acts, action
