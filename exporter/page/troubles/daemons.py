"""Daemons that are not well, as troubles: what the watchdog makes of each, and what brings it back by hand."""

import shlex
from collections.abc import Iterable

from exporter.model.daemon import Daemon, DaemonState
from exporter.model.watch import Watch, WatchState
from exporter.page.daemons import level_of
from exporter.page.level import Level
from exporter.page.sight import Sight
from exporter.page.troubles.trouble import Trouble
from exporter.parse.printable import LONGEST_PROBLEM, printable
from exporter.telling.moment import lasting
from exporter.telling.short import counted
from exporter.telling.watchdog_text import plight
from exporter.view import View

_REFUSES = (WatchState.CIRCUIT_OPEN, WatchState.QUARANTINED)


def daemon_troubles(sight: Sight) -> Iterable[Trouble]:
    """Those that do not answer, that would not be restarted any more, or at which somebody waits."""
    for daemon in View(sight.node).daemons():
        watch = sight.node.watches.get(daemon.name, Watch())
        level = level_of(daemon)
        if level is not Level.WELL:
            yield _not_up(sight, daemon, watch, level)
        elif watch.state in _REFUSES:
            yield _left_alone(sight, daemon)
        elif daemon.waiting:
            yield _waiting(daemon)


def _not_up(sight: Sight, daemon: Daemon, watch: Watch, level: Level) -> Trouble:
    name, found = printable(daemon.name), plight(sight.node, daemon)
    since = "" if daemon.state_since is None else f" for {lasting(max(0.0, sight.at - daemon.state_since))}"
    told = f"{daemon.state or 'in a state not known'}{since}" if found is None else found.matter
    commands = _brings_back(sight, daemon, watch)
    says = _unless_watched(daemon) if found is None or found.says is None else _speaking(found.says, commands)
    return Trouble(level=level, what=f"daemon {name}: {told}", next=says, commands=commands)


def _speaking(says: str, commands: tuple[str, ...]) -> str:
    if not says.startswith("would "):
        return f"the watchdog says: {says}"
    by_hand = "; by hand, this does" if commands else ""
    return f"the watchdog only observes; it {says}{by_hand}"


def _unless_watched(daemon: Daemon) -> str:
    match daemon.state:
        case DaemonState.HELD:
            return "whoever has nvidia-cuda-mps-control open there must close it"
        case DaemonState.STARTING | None:
            return "wait some seconds"
        case _:
            return "start it again" if daemon.expected else "nobody expects it: nothing, unless you miss it"


def _brings_back(sight: Sight, daemon: Daemon, watch: Watch) -> tuple[str, ...]:
    """What starts one that is gone, as far as it is known how; while the watchdog is at it, nobody else need be."""
    if sight.orders is None or not daemon.expected or not daemon.gone:
        return ()
    if watch.state in _REFUSES:
        return (_resume(daemon),)
    mandate = sight.orders.mandate_of(daemon)
    if watch.state is not WatchState.IDLE:
        return ()
    if mandate.unit is not None:
        return (f"systemctl restart {shlex.quote(printable(mandate.unit))}",)
    words = shlex.join(mandate.command)
    return (words,) if words and words.isprintable() and len(words) <= LONGEST_PROBLEM else ()


def _left_alone(sight: Sight, daemon: Daemon) -> Trouble:
    found = plight(sight.node, daemon)
    return Trouble(
        level=Level.CARE,
        what=f"daemon {printable(daemon.name)} answers, but would not be restarted any more",
        next="find out why it needed that, then resume" if found is None or found.says is None else found.says,
        commands=(_resume(daemon),),
    )


def _resume(daemon: Daemon) -> str:
    return f"cuda-mps-exporter resume {shlex.quote(printable(daemon.name))}"


def _waiting(daemon: Daemon) -> Trouble:
    return Trouble(
        level=Level.CARE,
        what=f"{counted(len(daemon.waiting), 'client')} of another user must wait at {printable(daemon.name)}",
        next="nothing, unless it lasts: the present user's last client has to leave first",
    )
