"""Daemons that are not well, as troubles: what the watchdog makes of each, and what brings it back by hand."""

import shlex
from collections.abc import Iterable

from exporter.core.watchdog.orders import Orders
from exporter.model.daemon import Daemon, DaemonState
from exporter.model.node import Node
from exporter.model.watch import Watch, WatchState
from exporter.parse.printable import LONGEST_PROBLEM, printable
from exporter.telling.level import Level, level_of
from exporter.telling.moment import lasting
from exporter.telling.remedy import command_to_resume
from exporter.telling.short import counted
from exporter.telling.troubles.trouble import Trouble
from exporter.telling.watchdog_text import GIVEN_UP, Account, account, history_of
from exporter.view import View


def daemon_troubles(node: Node, at: float, orders: Orders | None) -> Iterable[Trouble]:
    """Those that do not answer, whose servers do not, that would not be restarted, or at which somebody waits."""
    for daemon in View(node).daemons():
        watch, said = node.watches.get(daemon.name, Watch()), account(node, daemon)
        level = level_of(daemon)
        if level is not Level.WELL:
            yield _not_up(daemon, watch, said, level, at, orders)
        elif said is not None and said.ill and not said.of_fault:
            yield _unwell(daemon, watch, said)
        elif watch.state in GIVEN_UP:
            yield _left_alone(daemon, said)
        elif daemon.waiting:
            yield _waiting(daemon)


def _not_up(
    daemon: Daemon, watch: Watch, said: Account | None, level: Level, at: float, orders: Orders | None
) -> Trouble:
    matter = _state(daemon, at) if said is None else said.matter
    commands = _brings_back(daemon, watch, orders)
    return Trouble(
        level=level,
        what=_of(daemon, watch, matter),
        next=_unless_watched(daemon) if said is None or said.says is None else _speaking(said.says, commands),
        commands=commands,
    )


def _unwell(daemon: Daemon, watch: Watch, said: Account) -> Trouble:
    return Trouble(
        level=Level.GRAVE,
        what=_of(daemon, watch, said.matter),
        next="see below which process it is" if said.says is None else _speaking(said.says, ()),
    )


def _of(daemon: Daemon, watch: Watch, matter: str) -> str:
    return f"daemon {printable(daemon.name)}: {', '.join((matter, *history_of(watch)))}"


def _state(daemon: Daemon, at: float) -> str:
    if daemon.pid_file_spoilt:
        return "its pid file does not name it, so that nobody can ask it"
    if daemon.state is None:
        return "in a state not known" if daemon.supported else "of a protocol that is not supported"
    return daemon.state if daemon.state_since is None else f"{daemon.state} for {lasting(at - daemon.state_since)}"


def _speaking(says: str, commands: tuple[str, ...]) -> str:
    if not says.startswith("would "):
        return f"the watchdog says: {says}"
    by_hand = "; by hand, this does" if commands else ""
    return f"the watchdog only observes; it {says}{by_hand}"


def _unless_watched(daemon: Daemon) -> str:
    if daemon.pid_file_spoilt and daemon.process is not None:
        return f"write its PID, {daemon.process.pid}, into the pid file"
    match daemon.state:
        case DaemonState.HELD:
            return "whoever has nvidia-cuda-mps-control open there must close it"
        case DaemonState.STARTING | None:
            return "wait some seconds" if daemon.supported else "nothing: of this daemon, only its process is seen"
        case _:
            return "start it again" if daemon.expected else "nobody expects it: nothing, unless you miss it"


def _brings_back(daemon: Daemon, watch: Watch, orders: Orders | None) -> tuple[str, ...]:
    """What starts one that is gone, as far as it is known how; while the watchdog is at it, nobody else need be."""
    if orders is None or not daemon.expected or not daemon.gone:
        return ()
    if watch.state in GIVEN_UP:
        return (command_to_resume(daemon.name),)
    mandate = orders.mandate_of(daemon)
    if watch.state is not WatchState.IDLE:
        return ()
    if mandate.unit is not None:
        return (f"systemctl restart {shlex.quote(printable(mandate.unit))}",)
    words = shlex.join(mandate.command)
    return (words,) if words and words.isprintable() and len(words) <= LONGEST_PROBLEM else ()


def _left_alone(daemon: Daemon, said: Account | None) -> Trouble:
    return Trouble(
        level=Level.GRAVE,
        what=f"daemon {printable(daemon.name)} answers, but would not be restarted any more",
        next="find out why it needed that, then resume" if said is None or said.says is None else said.says,
        commands=(command_to_resume(daemon.name),),
    )


def _waiting(daemon: Daemon) -> Trouble:
    clients = counted(len(daemon.waiting), "client")
    return Trouble(
        level=Level.CARE,
        what=f"{clients} of another user must wait at {printable(daemon.name)}",
        next="nothing, unless it lasts: the present user's last client has to leave first",
        fails=False,
    )
