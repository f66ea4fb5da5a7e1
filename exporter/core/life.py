"""The control daemon's own life: up, lost, stopped by an operator, unresponsive, held by somebody's session."""

from exporter.core import log_files, servers, units
from exporter.core.step import Step, chain, counted, quiet
from exporter.model.daemon import Daemon, DaemonState, LossReason
from exporter.model.event import Event, EventName
from exporter.model.observation import DaemonProcess
from exporter.model.replace import replace
from exporter.model.server import DepartureReason
from exporter.model.variables import VISIBLE_DEVICES
from exporter.model.witnesses import UnitState

SECOND_PROBE_SECONDS = 1.0
"""One command that got no answer says little; a second one, this much later, says more."""

HELD_AFTER_SECONDS = 2.0
"""Refusals this long without an answer between them are somebody's open session; shorter ones are collisions."""

LAST_WORDS_SECONDS = 1.0
"""How long the log may take to tell that a daemon which has gone had been told to quit."""

SYSTEMD_SECONDS = 2.0
"""How long systemd may take to tell that it was an operator who stopped the daemon's unit."""

LEAVING_SECONDS = 5.0
"""How long systemd has where it says that it is just stopping the unit: a moment later it says whether that is all."""

SAME_START_SECONDS = 10.0
"""A start that the log tells within this time of the daemon's first answer is that same start."""

QUIT_REMEMBERED_SECONDS = 900.0
"""How long a daemon may take to end after it was told to quit. What ends it later is not that quit."""


def answered(daemon: Daemon, at: float) -> Step:
    """The daemon has answered a command."""
    return chain(
        explain(daemon, at, force=daemon.gone),
        lambda daemon: enter(
            _heard(_reborn(daemon)),
            at,
            DaemonState.UP,
        ),
    )


def _heard(daemon: Daemon) -> Daemon:
    """The daemon without the doubts that its silence, or its refusals, have raised."""
    return replace(
        daemon,
        unanswered_since=None,
        unanswered_at=None,
        unanswered=0,
        refused_since=None,
        holder=None,
        listening=None,
    )


def _reborn(daemon: Daemon) -> Daemon:
    """Where one had gone, this is another: it may be of another version, and nobody has told it to quit."""
    if not daemon.gone:
        return daemon
    quit_at = daemon.quit_at if daemon.gone_at is not None else None
    return replace(daemon, start_logged=False, quit_at=quit_at, version=None, protocol=None, devices={}, asked={})


def enter(daemon: Daemon, at: float, state: DaemonState) -> Step:
    """The daemon is in a state; an event where that is news."""
    before = daemon.state
    if before is state:
        return quiet(daemon)
    daemon = replace(daemon, state=state, state_since=at, seen=True)
    name = {
        DaemonState.UP: _news_of_responding(before),
        DaemonState.HELD: _news_of_responding(before),
        DaemonState.UNRESPONSIVE: EventName.DAEMON_UNRESPONSIVE,
    }.get(state)
    return daemon, () if name is None else (Event(at=at, event=name, daemon=daemon.name),)


def _news_of_responding(before: DaemonState | None) -> EventName | None:
    if before in (DaemonState.UP, DaemonState.HELD):
        return None
    return EventName.DAEMON_RESPONSIVE if before is DaemonState.UNRESPONSIVE else EventName.DAEMON_UP


def unanswered(daemon: Daemon, at: float, asked_at: float) -> Daemon:
    """A command got no answer within its deadline: perhaps the daemon hangs, or one of its servers does."""
    return replace(
        daemon,
        refused_since=None,
        holder=None,
        unanswered_since=at if daemon.unanswered_since is None else daemon.unanswered_since,
        unanswered_at=asked_at,
        unanswered=daemon.unanswered + 1,
    )


def refused(daemon: Daemon, at: float) -> Step:
    """A command was refused because another session is open: it lives, and nothing more is said.

    A daemon that has gone is not thereby back: a stale pid file may name some other process by now.
    """
    since = daemon.refused_since
    daemon = replace(_heard(daemon), refused_since=at if since is None else since, holder=daemon.holder)
    if since is None or daemon.gone or at - since < HELD_AFTER_SECONDS:
        return quiet(daemon)
    return enter(daemon, at, DaemonState.HELD)


def unaskable(daemon: Daemon, at: float) -> Step:
    """Take in that the control program cannot be used: the daemon cannot be asked.

    Without a process and without a pid file there is no daemon: NVIDIA's program would find none either. Otherwise the
    state is unknown. A pid file without a visible process may name a process of another PID namespace.
    """
    since = daemon.unanswered_since
    if since is None:
        return quiet(replace(daemon, unanswered_since=at))
    if daemon.gone or at - since < SECOND_PROBE_SECONDS:
        return quiet(daemon)
    if daemon.process is None and daemon.left_behind is False:
        return gone(daemon, at)
    return quiet(daemon if daemon.state is None else unasked(daemon, at))


def not_found(daemon: Daemon, at: float) -> Step:
    """The command found no daemon. Where its process is known to live, its pid file was spoilt: it cannot be asked.

    Everybody may write that file (measured, R580), so that nothing follows from it, not even that the daemon is well.
    """
    daemon = replace(daemon, not_found_at=at)
    if daemon.process is None:
        return gone(daemon, at)
    since = daemon.unanswered_since
    if since is None:
        return quiet(replace(daemon, unanswered_since=at))
    spoilt = at - since >= SECOND_PROBE_SECONDS and daemon.state is not None
    return quiet(unasked(daemon, at) if spoilt else daemon)


def process_read(daemon: Daemon, reading: DaemonProcess) -> Step:
    """The process behind the pid file was looked up."""
    at = reading.at
    known = daemon.process
    daemon = replace(daemon, left_behind=reading.left)
    if reading.pid is None:
        return quiet(daemon) if known is None else gone(daemon, at)
    same = known is not None and (known.pid, known.start_ticks) == (reading.pid, reading.start_ticks)
    replaced = quiet(daemon) if known is None or same else gone(daemon, at, LossReason.REPLACED)
    return chain(
        replaced,
        lambda daemon: quiet(_with_process(daemon, reading)),
        lambda daemon: _begin(_reborn(daemon), at),
    )


def _with_process(daemon: Daemon, reading: DaemonProcess) -> Daemon:
    return replace(
        log_files.told(daemon, foreground=reading.foreground, stdout_kept=reading.stdout_kept),
        process=reading,
        visible_devices=reading.environment.get(VISIBLE_DEVICES),
        protocol=daemon.protocol or reading.protocol,
        unit=reading.unit or daemon.unit,
    )


def start_told(daemon: Daemon, at: float) -> Step:
    """The log tells of a control daemon's start: where one was up, it had died and is already back.

    A daemon whose process is known to live has not: another one writes to the same log.
    """
    if daemon.process is not None:
        return quiet(replace(daemon, start_logged=True))
    begun = daemon.state is None or daemon.gone or (daemon.state is DaemonState.STARTING and not daemon.start_logged)
    early = daemon.state_since is None or at - daemon.state_since <= SAME_START_SECONDS
    if daemon.state is DaemonState.UP and not daemon.start_logged and early:
        return quiet(replace(daemon, start_logged=True))
    return chain(
        quiet(daemon) if begun else gone(daemon, at, LossReason.REPLACED),
        lambda daemon: explain(daemon, at, force=True),
        lambda daemon: quiet(replace(_reborn(daemon), start_logged=True, listed_at=at, quit_at=None)),
        lambda daemon: _begin(daemon, at),
    )


def protocol_told(daemon: Daemon, at: float, protocol: int) -> Daemon:
    """The daemon's log tells which of MPS' protocols it speaks."""
    daemon = replace(daemon, protocol=protocol)
    return daemon if daemon.supported or daemon.gone else unasked(daemon, at)


def unasked(daemon: Daemon, at: float) -> Daemon:
    """A daemon that is there, and not asked how it is: it has no state that could be told."""
    return replace(daemon, state=None, state_since=at, seen=True)


def _begin(daemon: Daemon, at: float) -> Step:
    if not daemon.supported:
        return quiet(unasked(daemon, at))
    return enter(daemon, at, DaemonState.STARTING) if daemon.state is None or daemon.gone else quiet(daemon)


def quit_told(daemon: Daemon, at: float) -> Daemon:
    """An operator told the daemon to quit."""
    return replace(daemon, quit_at=at)


def quit_taken_back(daemon: Daemon) -> Daemon:
    """A quit was refused, as an ordinary user's is; or the session that gave it was closed (measured, R580).

    One that is obeyed leaves its session open until the daemon's end, and keeps all others out.
    """
    return replace(daemon, quit_at=None)


def _told_to_quit(daemon: Daemon, gone_at: float) -> bool:
    return daemon.quit_at is not None and gone_at - daemon.quit_at <= QUIT_REMEMBERED_SECONDS


def exit_told(daemon: Daemon, at: float, writer: int) -> Step:
    """The daemon says that it ends, as it does only when it was told to; or its predecessor did, read late."""
    if daemon.gone_at is not None:
        return explain(quit_told(daemon, at), at)
    if daemon.gone or (daemon.process is not None and daemon.process.pid != writer):
        return quiet(daemon)
    return gone(quit_told(daemon, at), at)


def gone(daemon: Daemon, at: float, how: LossReason = LossReason.DIED) -> Step:
    """The daemon is no more, and so are its servers and clients (measured: they die with it)."""
    if daemon.gone:
        return quiet(replace(daemon, process=None))
    return chain(explain(daemon, at, force=True), lambda daemon: _go(daemon, at, how))


def _go(daemon: Daemon, at: float, how: LossReason) -> Step:
    was_there = daemon.state is not None or daemon.process is not None
    daemon = replace(
        _heard(daemon),
        process=None,
        state=DaemonState.ABSENT,
        state_since=at,
        gone_at=at if was_there or _told_to_quit(daemon, at) else None,
        gone_how=how,
        spoke_at=None,
        at_command=None,
        pending={},
        waiting=frozenset(),
        listed_at=None,
        echoing=False,
        default_active_thread_percentage=None,
        default_pinned_memory_limits={},
        default_client_priority=None,
        limits_in_doubt=frozenset(),
    )
    return chain(
        servers.end_all(daemon, at, DepartureReason.DAEMON_GONE),
        lambda daemon: explain(daemon, at),
    )


def explain(daemon: Daemon, at: float, *, unit: UnitState | None = None, force: bool = False) -> Step:
    """Say whether a daemon that has gone was stopped or lost: at once if it was told to quit, else after a moment.

    That moment is its log's, or that of the `unit` that ran it, and passes also where another daemon is there already.
    """
    gone_at = daemon.gone_at
    if gone_at is None:
        return quiet(daemon)
    if _told_to_quit(daemon, gone_at) or units.stopped(unit, gone_at):
        if daemon.state is DaemonState.ABSENT:
            daemon = replace(daemon, state=DaemonState.STOPPED, state_since=gone_at)
        daemon = replace(daemon, gone_at=None, quit_at=None)
        return daemon, (Event(at=gone_at, event=EventName.DAEMON_STOPPED, daemon=daemon.name),)
    if not force and at - gone_at < _patience(unit, gone_at):
        return quiet(daemon)
    return _lose(replace(daemon, gone_at=None), gone_at)


def _patience(unit: UnitState | None, gone_at: float) -> float:
    """How long the log, or systemd, has to tell that it was somebody's will."""
    if units.is_leaving(unit, gone_at):
        return LEAVING_SECONDS
    return SYSTEMD_SECONDS if units.may_yet_tell(unit, gone_at) else LAST_WORDS_SECONDS


def _lose(daemon: Daemon, at: float) -> Step:
    totals = replace(daemon.totals, losses=counted(daemon.totals.losses, daemon.gone_how))
    daemon = replace(daemon, totals=totals, last_loss_at=at)
    return daemon, (Event(at=at, event=EventName.DAEMON_LOST, daemon=daemon.name, reason=daemon.gone_how),)
