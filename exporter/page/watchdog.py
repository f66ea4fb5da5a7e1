"""The watchdog: what it may do for each daemon, what it is at, and what it did or would have done."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from exporter.core.watchdog import budget
from exporter.core.watchdog.orders import Orders
from exporter.model.daemon import Daemon
from exporter.model.event import Event, EventName
from exporter.model.reason import Reason
from exporter.model.settings import Mode
from exporter.model.watch import Watch, WatchState
from exporter.page.sight import Sight
from exporter.parse.printable import printable
from exporter.telling.level import Level
from exporter.telling.moment import lasting, local
from exporter.telling.reasons import text_of
from exporter.telling.short import counted, short_name
from exporter.telling.troubles import Trouble, standing, troubles
from exporter.telling.watchdog_text import STATES, account
from exporter.view import View

MOST_DEEDS = 12

_TOLD = {
    EventName.DAEMON_LOST: "the daemon was lost",
    EventName.DAEMON_UP: "the daemon answers",
    EventName.DAEMON_STOPPED: "an operator stopped the daemon",
    EventName.WATCHDOG_WOULD_ACT: "would",
    EventName.WATCHDOG_ACTS: "begins to",
    EventName.WATCHDOG_ACTED: "has done:",
    EventName.WATCHDOG_WAITS: "waits",
    EventName.CIRCUIT_OPENED: "circuit opened",
    EventName.CIRCUIT_CLOSED: "circuit closed",
    EventName.DAEMON_QUARANTINED: "quarantined",
    EventName.DAEMON_RELEASED: "released from quarantine",
    EventName.LIMITS_DRIFTED: "limits have drifted",
    EventName.LIMITS_IN_FORCE: "limits are in force",
    EventName.LIMITS_BYPASSED: "clients came before their limits",
    EventName.LOG_BLOCKED: "the daemon's log is blocked",
    EventName.LOG_UNBLOCKED: "the daemon's log is no longer blocked",
}

_LEVELS = {
    WatchState.IDLE: Level.WELL,
    WatchState.ACTING: Level.CARE,
    WatchState.BACKOFF: Level.CARE,
    WatchState.QUARANTINED: Level.GRAVE,
    WatchState.CIRCUIT_OPEN: Level.GRAVE,
    WatchState.DEFERRED_TO_SYSTEMD: Level.CARE,
    WatchState.STATE_LOST: Level.GRAVE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchRow:
    """What the watchdog is at for one daemon. `next` is what it says that it does, or would; empty where nothing."""

    daemon: str
    mode: str
    level: Level
    state: str
    next: str
    failed: str
    restarts: str
    counts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """Something that was done, would have been, or befell a daemon."""

    when: str
    ago: str
    daemon: str
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchdogView:
    """All of it; `rows` is empty where no daemon is expected, and `there` False where there is no watchdog."""

    there: bool
    rows: tuple[WatchRow, ...]
    deeds: tuple[Deed, ...]


def watchdog(sight: Sight) -> WatchdogView:
    """Of the daemons that are expected."""
    orders, node = sight.orders, sight.node
    watched = [daemon for daemon in View(node).daemons() if daemon.expected]
    found = troubles(node, sight.at, orders)
    return WatchdogView(
        there=orders is not None,
        rows=() if orders is None else tuple(_row(sight, daemon, orders, found) for daemon in watched),
        deeds=tuple(_deeds(sight)),
    )


def _row(sight: Sight, daemon: Daemon, orders: Orders, ill: Sequence[Trouble]) -> WatchRow:
    """An idle watchdog is no good sign for a daemon that is not well."""
    watch, found = sight.node.watches.get(daemon.name, Watch()), account(sight.node, daemon)
    well = standing(daemon, ill)[0] is Level.WELL
    return WatchRow(
        daemon=printable(daemon.name),
        mode="acts" if orders.mode_of(daemon) is Mode.ACT else "observes",
        level=Level.UNKNOWN if watch.state is WatchState.IDLE and not well else _LEVELS[watch.state],
        state=STATES[watch.state],
        next="" if found is None else found.says or "",
        failed="" if found is None else found.failed or "",
        restarts=f"{counted(budget.left(watch, orders.rules, sight.at), 'restart')} left",
        counts=tuple(
            f"{each.kind.replace('_', ' ')} ({each.reason}): {each.count} {each.result.replace('_', ' ')}"
            for each in watch.tallies
        ),
    )


def _deeds(sight: Sight) -> Iterable[Deed]:
    told = (event for event in sight.events if event.event in _TOLD)
    for _, event in zip(range(MOST_DEEDS), told, strict=False):
        yield Deed(
            when=local(event.at),
            ago=f"{lasting(sight.at - event.at)} ago",
            daemon=short_name(event.daemon),
            words=_words(event),
        )


def _words(event: Event) -> str:
    action = (event.action or "").replace("_", " ")
    head = " ".join(each for each in (_TOLD[event.event], action) if each)
    rest = (event.result, event.reason, event.problem)
    return "; ".join([head, *(_text(each) for each in rest if each)])


def _text(each: Reason | str) -> str:
    return text_of(each) if isinstance(each, Reason) else printable(each)
