"""The lifecycle of a control daemon: up, lost, stopped, unresponsive, held."""

from exporter.model.daemon import ClaimKind, Daemon, DaemonState, LossReason
from exporter.model.event import Event, EventName
from exporter.model.observation import DaemonProcess, UnitState
from exporter.model.server import DisconnectReason
from exporter.model.settings import VISIBLE_DEVICES
from exporter.model.values import replace
from exporter.parse.control_reply import LIST_SERVERS
from exporter.state import claims, log_files, process_states, servers
from exporter.state.transition import Transition, chain, counted, without, without_events

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

QUIT_REMEMBERED_SECONDS = 900.0
"""How long a daemon may take to end after it was told to quit. What ends it later is not that quit."""


def answered(daemon: Daemon, at: float) -> Transition:
    """The daemon has answered a command."""
    return chain(
        explain(daemon, at, force=daemon.ended),
        lambda daemon: enter_state(
            _heard(_reborn(daemon)),
            at,
            DaemonState.UP,
        ),
    )


def _heard(daemon: Daemon) -> Daemon:
    """The daemon without the doubts that its silence, or its refusals, have raised."""
    return replace(
        daemon,
        commands=replace(
            daemon.commands,
            unanswered_since=None,
            unanswered_at=None,
            unanswered=0,
            refused_since=None,
            session_holder=None,
            listening=None,
        ),
    )


def _reborn(daemon: Daemon) -> Daemon:
    """Where one had gone, this is another: it may be of another version, and nobody has told it to quit."""
    if not daemon.ended:
        return daemon
    if daemon.lifecycle.unexplained_end_at is None:
        daemon = replace(daemon, lifecycle=replace(daemon.lifecycle, quit_at=None, quit_claimed_at=None))
    return replace(
        daemon,
        runtime=replace(daemon.runtime, version=None, protocol=None, devices={}),
        commands=replace(daemon.commands, asked_at={}),
    )


def enter_state(daemon: Daemon, at: float, state: DaemonState) -> Transition:
    """The daemon is in a state; an event where that is news."""
    before = daemon.state
    if before is state:
        return without_events(daemon)
    daemon = replace(daemon, state=state, lifecycle=replace(daemon.lifecycle, state_since=at, ever_ran=True))
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
        commands=replace(
            daemon.commands,
            refused_since=None,
            session_holder=None,
            unanswered_since=at if daemon.commands.unanswered_since is None else daemon.commands.unanswered_since,
            unanswered_at=asked_at,
            unanswered=daemon.commands.unanswered + 1,
        ),
    )


def refused(daemon: Daemon, at: float) -> Transition:
    """A command was refused because another session is open: it lives, and nothing more is said.

    A daemon that has gone is not thereby back: a stale pid file may name some other process by now.
    """
    since = daemon.commands.refused_since
    known = _heard(daemon)
    daemon = replace(
        known,
        commands=replace(
            known.commands, refused_since=at if since is None else since, session_holder=daemon.commands.session_holder
        ),
    )
    if since is None or daemon.ended or at - since < HELD_AFTER_SECONDS:
        return without_events(daemon)
    return enter_state(daemon, at, DaemonState.HELD)


def unaskable(daemon: Daemon, at: float) -> Transition:
    """Take in that the control program cannot be used: the daemon cannot be asked.

    Without a process and without a pid file there is no daemon: NVIDIA's program would find none either. Otherwise the
    state is unknown. A pid file without a visible process may name a process of another PID namespace.
    """
    since = daemon.commands.unanswered_since
    if since is None:
        return without_events(replace(daemon, commands=replace(daemon.commands, unanswered_since=at)))
    if daemon.ended or at - since < SECOND_PROBE_SECONDS:
        return without_events(daemon)
    if daemon.runtime.process is None and daemon.lifecycle.pid_file_left is False:
        return gone(daemon, at)
    return without_events(daemon if daemon.state is None else unasked(daemon, at))


def not_found(daemon: Daemon, at: float) -> Transition:
    """The command found no daemon. Where its process is known to live, its pid file was spoilt: it cannot be asked.

    Everybody may write that file (measured, R580), so that nothing follows from it, not even that the daemon is well.
    """
    daemon = replace(daemon, lifecycle=replace(daemon.lifecycle, not_found_at=at))
    if daemon.runtime.process is None:
        return gone(daemon, at)
    since = daemon.commands.unanswered_since
    if since is None:
        return without_events(replace(daemon, commands=replace(daemon.commands, unanswered_since=at)))
    spoilt = at - since >= SECOND_PROBE_SECONDS and daemon.state is not None
    return without_events(unasked(daemon, at) if spoilt else daemon)


def process_read(daemon: Daemon, reading: DaemonProcess) -> Transition:
    """The process behind the pid file was looked up."""
    at = reading.at
    known = daemon.runtime.process
    daemon = replace(
        daemon,
        lifecycle=replace(daemon.lifecycle, pid_file_left=reading.pid_file_left, quit_traces=bool(reading.quit_traces)),
        runtime=replace(daemon.runtime, foreign_owner=reading.foreign_owner),
    )
    if reading.pid is None and known is None and reading.foreign_owner is None:
        quit_shown = daemon.lifecycle.unexplained_end_at is not None and _was_quit(
            daemon, daemon.lifecycle.unexplained_end_at, waited=False
        )
        return explain(daemon, at) if quit_shown else without_events(daemon)
    if reading.pid is None:
        return gone(daemon, at)
    if known is not None and (known.pid, known.start_ticks) == (reading.pid, reading.start_ticks):
        return without_events(_with_process(daemon, reading))
    replaced = without_events(daemon) if known is None else gone(daemon, at, LossReason.REPLACED)
    return chain(
        replaced,
        lambda daemon: without_events(_with_process(daemon, reading)),
        lambda daemon: _begin(_reborn(daemon), at),
    )


def _with_process(daemon: Daemon, reading: DaemonProcess) -> Daemon:
    known = log_files.logs_declared(daemon, foreground=reading.foreground, stdout_in_file=reading.stdout_in_file)
    return replace(
        known,
        runtime=replace(
            known.runtime,
            process=reading,
            visible_devices=reading.environment.get(VISIBLE_DEVICES),
            protocol=daemon.runtime.protocol or reading.protocol,
            unit=reading.unit or daemon.runtime.unit,
        ),
    )


def start_claimed(daemon: Daemon) -> Daemon:
    """The log tells of a control daemon's start. The daemon is asked at once; its process or its answer shows it.

    Several daemons may write to one log, and every user can write into it (measured, R580).
    """
    return replace(daemon, commands=replace(daemon.commands, asked_at={})) if daemon.runtime.process is None else daemon


def protocol_told(daemon: Daemon, at: float, protocol: int) -> Daemon:
    """The log tells which of MPS' protocols the daemon speaks. One that answers questions of protocol 2 speaks that."""
    if daemon.answers:
        return daemon
    daemon = replace(daemon, runtime=replace(daemon.runtime, protocol=protocol))
    return daemon if daemon.supported or daemon.ended else unasked(daemon, at)


def unasked(daemon: Daemon, at: float) -> Daemon:
    """A daemon that is there, and not asked how it is: it has no state that could be told."""
    return replace(daemon, state=None, lifecycle=replace(daemon.lifecycle, state_since=at, ever_ran=True))


def _begin(daemon: Daemon, at: float) -> Transition:
    if not daemon.supported:
        return without_events(unasked(daemon, at))
    return (
        enter_state(daemon, at, DaemonState.STARTING)
        if daemon.state is None or daemon.ended
        else without_events(daemon)
    )


def quit_told(daemon: Daemon, at: float) -> Daemon:
    """An operator's `quit` was obeyed, as its reply shows."""
    return replace(daemon, lifecycle=replace(daemon.lifecycle, quit_at=at))


def quit_claimed(daemon: Daemon, at: float) -> Daemon:
    """The log says that the daemon was given a `quit`, or that it ends."""
    return replace(daemon, lifecycle=replace(daemon.lifecycle, quit_claimed_at=at))


def quit_claim_ended(daemon: Daemon) -> Daemon:
    """The log says that a quit was refused, or that the session which gave it was closed (measured, R580).

    A quit that is obeyed leaves its session open until the daemon's end.
    """
    return replace(daemon, lifecycle=replace(daemon.lifecycle, quit_claimed_at=None))


def _was_recent(quit_at: float | None, ended_at: float) -> bool:
    return quit_at is not None and ended_at - quit_at <= QUIT_REMEMBERED_SECONDS


def exit_claimed(daemon: Daemon, at: float, writer: int) -> Transition:
    """The log says that the daemon ends because of a quit. Its process, or a command that finds none, shows its end."""
    if daemon.lifecycle.unexplained_end_at is not None:
        return explain(quit_claimed(daemon, at), at)
    if daemon.ended or (daemon.runtime.process is not None and daemon.runtime.process.pid != writer):
        return without_events(daemon)
    known = quit_claimed(daemon, at)
    daemon = replace(
        known,
        commands=replace(known.commands, asked_at=without(daemon.commands.asked_at, LIST_SERVERS)),
    )
    return without_events(claims.made(daemon, at, ClaimKind.DAEMON_EXIT, 0))


def gone(daemon: Daemon, at: float, how: LossReason = LossReason.DIED, *, killed: bool | None = None) -> Transition:
    """The daemon is no more, and so are its servers and clients (measured: they die with it).

    `killed` is whether a signal ended its process; None: not known.
    """
    if daemon.ended:
        return without_events(
            replace(
                daemon,
                runtime=replace(daemon.runtime, process=None),
                lifecycle=replace(daemon.lifecycle, killed=daemon.lifecycle.killed if killed is None else killed),
            )
        )
    return chain(
        explain(daemon, at, force=True),
        lambda daemon: _go(
            replace(
                daemon,
                lifecycle=replace(daemon.lifecycle, killed=killed, traces_expected=daemon.runtime.process is not None),
            ),
            at,
            how,
        ),
    )


def _go(daemon: Daemon, at: float, how: LossReason) -> Transition:
    was_there = daemon.state is not None or daemon.runtime.process is not None
    known = _heard(daemon)
    daemon = replace(
        known,
        runtime=replace(known.runtime, process=None),
        state=DaemonState.ABSENT,
        lifecycle=replace(
            known.lifecycle,
            state_since=at,
            unexplained_end_at=at if was_there or _was_recent(daemon.lifecycle.quit_at, at) else None,
            loss_reason=how,
        ),
        log=replace(known.log, last_command=None, echoing=False),
        connections=replace(known.connections, queued={}, waiting=frozenset(), listed_at=None),
        default_limits=replace(
            known.default_limits,
            active_thread_percentage=None,
            pinned_memory={},
            client_priority=None,
            stale=frozenset(),
        ),
    )
    return chain(
        servers.end_all(daemon, at, DisconnectReason.DAEMON_GONE),
        lambda daemon: explain(daemon, at),
    )


def explain(daemon: Daemon, at: float, *, unit: UnitState | None = None, force: bool = False) -> Transition:
    """Say whether a daemon that has gone was stopped or lost: at once if it was told to quit, else after a moment.

    That moment is its log's, or that of the `unit` that ran it, and passes also where another daemon is there already.
    """
    ended_at = daemon.lifecycle.unexplained_end_at
    if ended_at is None:
        return without_events(daemon)
    waited = force or at - ended_at >= _patience(unit, ended_at)
    meant = _was_recent(daemon.lifecycle.quit_at, ended_at) or process_states.stopped(unit, ended_at)
    if meant or _was_quit(daemon, ended_at, waited=waited):
        if daemon.state is DaemonState.ABSENT:
            daemon = replace(
                daemon, state=DaemonState.STOPPED, lifecycle=replace(daemon.lifecycle, state_since=ended_at)
            )
        daemon = replace(
            daemon, lifecycle=replace(daemon.lifecycle, unexplained_end_at=None, quit_at=None, quit_claimed_at=None)
        )
        return daemon, (Event(at=ended_at, event=EventName.DAEMON_STOPPED, daemon=daemon.name),)
    if not waited:
        return without_events(daemon)
    return _lose(
        replace(daemon, lifecycle=replace(daemon.lifecycle, unexplained_end_at=None, quit_claimed_at=None)), ended_at
    )


def _was_quit(daemon: Daemon, ended_at: float, *, waited: bool) -> bool:
    """Return whether a daemon that has gone ended by a quit: by the traces of its end, or by its log.

    A quit removes the pid file and the fifo; SIGKILL, SIGTERM and SIGINT leave them (measured, R580). The log, from
    which any user can take lines away, need not say so. Without a view of the traces, its word has to do.
    """
    if daemon.lifecycle.killed or daemon.lifecycle.pid_file_left:
        return False
    if daemon.lifecycle.quit_traces:
        return True
    told = _was_recent(daemon.lifecycle.quit_claimed_at, ended_at)
    return told and (daemon.lifecycle.pid_file_left is False or not daemon.lifecycle.traces_expected or waited)


def _patience(unit: UnitState | None, ended_at: float) -> float:
    """How long the log, or systemd, has to tell that it was somebody's will."""
    if process_states.is_leaving(unit, ended_at):
        return LEAVING_SECONDS
    return SYSTEMD_SECONDS if process_states.may_yet_tell(unit, ended_at) else LAST_WORDS_SECONDS


def _lose(daemon: Daemon, at: float) -> Transition:
    totals = replace(daemon.totals, losses=counted(daemon.totals.losses, daemon.lifecycle.loss_reason))
    daemon = replace(daemon, totals=totals, lifecycle=replace(daemon.lifecycle, last_loss_at=at))
    return daemon, (Event(at=at, event=EventName.DAEMON_LOST, daemon=daemon.name, reason=daemon.lifecycle.loss_reason),)
