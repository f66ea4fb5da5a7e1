"""Daemons that are not well, as troubles: what the watchdog makes of each, and what brings it back by hand."""

from collections.abc import Iterable

from exporter.core.replies import CONTROL
from exporter.core.silence import STARTING_SECONDS
from exporter.core.watchdog.orders import Orders
from exporter.model.daemon import Daemon, DaemonState
from exporter.model.diagnosis import Condition
from exporter.model.node import Node
from exporter.model.settings import Mode
from exporter.model.watch import Block, Quarantine, Watch, WatchState
from exporter.parse.control_reply import LIST_SERVERS
from exporter.parse.printable import printable
from exporter.telling import quarantine_text
from exporter.telling.level import Level, level_of
from exporter.telling.moment import lasting
from exporter.telling.problem_text import problem_text
from exporter.telling.remedy import (
    DOCTOR,
    address_of,
    command_to_resume,
    command_to_tell,
    commands_to_renew,
    start_of,
)
from exporter.telling.short import counted
from exporter.telling.troubles.trouble import Trouble
from exporter.telling.watchdog_text import STATES, Account, account, history_of
from exporter.view import View

_SUSPENDED = (WatchState.CIRCUIT_OPEN, WatchState.STATE_LOST)
"""Nothing is restarted until an operator says `resume`."""

_IN_ORDER = "take these steps, in this order"


def daemon_troubles(node: Node, at: float, orders: Orders | None) -> Iterable[Trouble]:
    """Those that do not answer, whose servers do not, that would not be restarted, or at which somebody waits."""
    for daemon in View(node).daemons():
        watch, said = node.watches.get(daemon.name, Watch()), account(node, daemon)
        level = _level(node, daemon, at)
        if watch.quarantine is not None:
            yield _quarantined(node, at, daemon, watch.quarantine, orders)
        held_by = None if orders is None or not daemon.expected else orders.block_of(daemon)
        if orders is not None and held_by is not None and orders.configured_mode_of(daemon) is Mode.ACT:
            yield _only_observed(daemon, held_by)
        if daemon.foreign is not None:
            yield _foreign(daemon, daemon.foreign, level)
        elif level is not Level.WELL:
            yield _not_up(node, at, daemon, watch, said, level, orders)
        elif watch.quarantine is not None:
            continue
        elif _condition(watch) is Condition.PROGRAM_UNRESPONSIVE:
            yield _program_unresponsive(node, at, daemon, orders)
        elif said is not None and said.ill and not said.of_fault:
            yield _unwell(daemon, watch, said)
        elif watch.state in _SUSPENDED:
            yield _suspended(daemon, watch.state, said)
        elif daemon.waiting:
            yield _waiting(daemon)
        if daemon.logged.blocked_since is not None:
            yield _log_blocked(node, at, daemon, daemon.logged.blocked_since, orders)


def _condition(watch: Watch) -> Condition | None:
    return None if watch.diagnosis is None else watch.diagnosis.condition


def _level(node: Node, daemon: Daemon, at: float) -> Level:
    """How grave its state is. What is still not known after a daemon's start needs a look."""
    level = level_of(daemon)
    if level is Level.UNKNOWN and (_not_asked(node, daemon) or _unknown_for(node, daemon, at)):
        return Level.CARE
    return level


def _quarantined(node: Node, at: float, daemon: Daemon, quarantine: Quarantine, orders: Orders | None) -> Trouble:
    since, why = quarantine_text.quarantined_for(quarantine, at), quarantine_text.cause(node, quarantine)
    return Trouble(
        level=Level.GRAVE,
        what=f"daemon {printable(daemon.name)}: {since}: {why}; the watchdog does not restart it",
        next=_IN_ORDER,
        steps=quarantine_text.steps(node, quarantine.gpu, quarantine.action, daemon, orders),
        daemon=daemon.name,
        gpu=quarantine.gpu,
        word=STATES[WatchState.QUARANTINED],
    )


def _not_up(
    node: Node, at: float, daemon: Daemon, watch: Watch, said: Account | None, level: Level, orders: Orders | None
) -> Trouble:
    unasked = _not_asked(node, daemon)
    matter = _state(node, daemon, at) if said is None or not said.ill else said.matter
    commands = _brings_back(node, daemon, watch, orders)
    if unasked is not None:
        matter, commands = f"{matter}: it cannot be asked: {unasked}", (DOCTOR,)
        then = "correct what keeps the exporter from asking it; this says what is missing"
    elif said is None or said.says is None:
        then, commands = _unless_watched(node, daemon, at, commands)
    else:
        then = _speaking(said.says, commands, planned=said.planned)
    return Trouble(
        level=level,
        what=f"daemon {printable(daemon.name)}: {', '.join((matter, *history_of(watch)))}",
        next=then,
        commands=commands,
        daemon=daemon.name,
        word="cannot be asked" if unasked is not None and not daemon.gone else "",
    )


def _unwell(daemon: Daemon, watch: Watch, said: Account) -> Trouble:
    return Trouble(
        level=Level.GRAVE,
        what=f"daemon {printable(daemon.name)}: {', '.join((said.matter, *history_of(watch)))}",
        next="see below which process it is" if said.says is None else _speaking(said.says, (), planned=said.planned),
        daemon=daemon.name,
        word="not well",
    )


def _program_unresponsive(node: Node, at: float, daemon: Daemon, orders: Orders | None) -> Trouble:
    """Clients are well; lists of them, limits and servers' states are as old as the last answer."""
    since = "" if daemon.unanswered_since is None else f" for {lasting(at - daemon.unanswered_since)}"
    run = command_to_tell(LIST_SERVERS, address_of(node, daemon.name, orders), deadline=10)
    return Trouble(
        level=Level.CARE,
        what=f"daemon {printable(daemon.name)}: its control program has not answered{since}, but the daemon answers "
        "connections: nothing can be asked or set",
        next=f"find out why the program hangs; do not restart the daemon{'' if run is None else '. Run it by hand'}",
        commands=() if run is None else (run,),
        daemon=daemon.name,
        word="cannot be asked",
    )


def _log_blocked(node: Node, at: float, daemon: Daemon, since: float, orders: Orders | None) -> Trouble:
    return Trouble(
        level=Level.CARE,
        what=f"daemon {printable(daemon.name)}: its log has been blocked for {lasting(at - since)}: commands that it "
        "answered do not appear there. Who a fault hit, and which clients were refused, is unknown",
        next="when its clients may end, restart the daemon, which makes a new log fifo",
        commands=commands_to_renew(node, daemon, orders),
        fails=False,
        daemon=daemon.name,
        word="log blocked",
    )


def _state(node: Node, daemon: Daemon, at: float) -> str:
    if daemon.pid_file_spoilt:
        return "its pid file does not name it, so that nobody can ask it"
    if daemon.state is None:
        since = _unknown_for(node, daemon, at)
        known = "in a state not known" if since is None else f"in a state not known for {lasting(since)}"
        return known if daemon.supported else "of a protocol that is not supported"
    return daemon.state if daemon.state_since is None else f"{daemon.state} for {lasting(at - daemon.state_since)}"


def _not_asked(node: Node, daemon: Daemon) -> str | None:
    """Return what keeps the exporter from asking a daemon that is gone, or whose state is unknown; None: nothing."""
    source = node.sources.get(CONTROL)
    if source is None or not daemon.supported or daemon.pid_file_spoilt:
        return None
    problem = source.problems.get(daemon.name)
    return problem_text(problem, CONTROL) if problem is not None and (daemon.gone or daemon.state is None) else None


def _unknown_for(node: Node, daemon: Daemon, at: float) -> float | None:
    """Return how long its state has been unknown; None for as long as a daemon may take to start, or to be asked."""
    if daemon.state is not None or not daemon.supported:
        return None
    since = (daemon.unanswered_since, daemon.state_since, node.began_at)
    seconds = at - next((each for each in since if each is not None), at)
    return seconds if seconds > STARTING_SECONDS else None


def _speaking(says: str, commands: tuple[str, ...], *, planned: bool) -> str:
    by_hand = "; to do this by hand, run" if commands and commands[0] not in says else ""
    return f"the watchdog only observes; it {says}{by_hand}" if planned else f"the watchdog says: {says}{by_hand}"


def _unless_watched(node: Node, daemon: Daemon, at: float, commands: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    if daemon.pid_file_spoilt and daemon.process is not None:
        return f"write its PID, {daemon.process.pid}, into the pid file", ()
    match daemon.state:
        case DaemonState.HELD:
            return "whoever has nvidia-cuda-mps-control open there must close it", ()
        case DaemonState.STARTING | None if not daemon.supported:
            return "nothing: of this daemon, only its process is seen", ()
        case None if _unknown_for(node, daemon, at) is not None:
            return "find out why it does not answer; this may tell", (DOCTOR,)
        case DaemonState.STARTING | None:
            return f"wait: within {STARTING_SECONDS:g} s more is known", ()
        case _ if daemon.expected:
            return "start it again", commands
        case _:
            return "nobody expects it: nothing, unless you miss it", ()


def _brings_back(node: Node, daemon: Daemon, watch: Watch, orders: Orders | None) -> tuple[str, ...]:
    """What starts one that is gone, as far as it is known how; while the watchdog is at it, nobody else need be."""
    if not daemon.expected or not daemon.gone or watch.quarantine is not None:
        return ()
    if watch.state in _SUSPENDED:
        return _resume(daemon)
    return start_of(node, daemon, orders) if watch.state is WatchState.IDLE else ()


def _resume(daemon: Daemon) -> tuple[str, ...]:
    command = command_to_resume(daemon.name)
    return () if command is None else (command,)


def _suspended(daemon: Daemon, state: WatchState, said: Account | None) -> Trouble:
    return Trouble(
        level=Level.GRAVE,
        what=f"daemon {printable(daemon.name)} answers, but would not be restarted any more",
        next="find out why it needed that, then resume" if said is None or said.says is None else said.says,
        commands=_resume(daemon),
        daemon=daemon.name,
        word=STATES[state],
    )


def _foreign(daemon: Daemon, uid: int, level: Level) -> Trouble:
    directory = printable(daemon.pipe_directory)
    return Trouble(
        level=level,
        what=f"daemon {printable(daemon.name)}: {daemon.state or 'absent'}: its pipe directory {directory} belongs to"
        f" UID {uid}, who must not run this daemon",
        next="remove that directory, and start the daemon; or, if that user is to run it, set `user` in [[daemons]]",
        daemon=daemon.name,
        word="directory of another user",
    )


def _only_observed(daemon: Daemon, held_by: Block) -> Trouble:
    what, then = {
        Block.ANOTHER_EXPORTER: (
            "another exporter of this machine acts for it, so that this one only observes",
            "stop one of the two exporters, or set `watchdog.mode` of one to observe",
        ),
    }.get(
        held_by,
        (
            "the watchdog cannot take its lock, so that it only observes",
            "make /run/cuda-mps-exporter a directory that the exporter, and no other user, can write to",
        ),
    )
    return Trouble(
        level=Level.CARE,
        what=f"daemon {printable(daemon.name)}: {what}",
        next=then,
        daemon=daemon.name,
        word="only observed",
    )


def _waiting(daemon: Daemon) -> Trouble:
    clients = counted(len(daemon.waiting), "client")
    return Trouble(
        level=Level.CARE,
        what=f"{clients} of another user must wait at {printable(daemon.name)}",
        next="nothing, unless it lasts: the present user's last client has to leave first",
        fails=False,
        daemon=daemon.name,
        word="clients wait",
    )
