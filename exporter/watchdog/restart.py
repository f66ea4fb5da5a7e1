"""Whether a daemon is restarted now, and how: budget, backoff, circuit breaker, systemd."""

from collections.abc import Iterator, Mapping

from exporter.model.action import (
    ActionKind,
    ActionReason,
    ActionResult,
    ActionStep,
    EndProcess,
    GiveCommand,
    RestartUnit,
    Role,
    RunCommand,
    SaveEvidence,
)
from exporter.model.daemon import Daemon, DaemonState
from exporter.model.event import Event, EventName
from exporter.model.identity import ProcessIdentity, identity_of
from exporter.model.node import Node
from exporter.model.observation import DaemonProcess, ProcessReading, UnitState
from exporter.model.reason import Reason, ReasonCode
from exporter.model.settings import (
    ACTIVE_THREAD_PERCENTAGE,
    LOG_DIRECTORY,
    PIPE_DIRECTORY,
    VISIBLE_DEVICES,
    Mode,
    Thresholds,
)
from exporter.model.values import replace
from exporter.model.watchdog import Condition, WatchdogPhase, WatchdogState
from exporter.parse.proc import mps_program
from exporter.state import hang_detection, process_states
from exporter.watchdog import limits
from exporter.watchdog.context import Context, DaemonPolicy, Decision, Evaluated, PlannedAction, Wait, with_count

FAILED_IN_A_ROW = 3
"""So many restarts that did not bring the daemon back open the breaker, whatever is left of the budget."""

_MOST_DOUBLINGS = 32


def spent(watch: WatchdogState, thresholds: Thresholds, at: float) -> int:
    """How many restarts there were within the window, whoever did them."""
    return sum(at - each < thresholds.window for each in watch.restarts)


def left(watch: WatchdogState, thresholds: Thresholds, at: float) -> int:
    """How many more there may be now: none while the breaker is open."""
    return 0 if watch.circuit_opened_at is not None else max(0, thresholds.restarts - spent(watch, thresholds, at))


def backoff(times: int, thresholds: Thresholds, chance: float) -> float:
    """How long to wait before the next restart, in seconds, where there were so many within the window.

    None of them can have helped for long. The first comes at once.
    """
    if times == 0:
        return 0.0
    seconds = thresholds.backoff * 2.0 ** min(times - 1, _MOST_DOUBLINGS)
    return min(seconds, thresholds.longest_backoff) * (1 + chance / 4)


def pruned(watch: WatchdogState, thresholds: Thresholds, at: float) -> WatchdogState:
    """Without the restarts that count no more."""
    kept = tuple(each for each in watch.restarts if at - each < thresholds.window)
    return watch if len(kept) == len(watch.restarts) else replace(watch, restarts=kept)


def opened(watch: WatchdogState, daemon: str, at: float, reason: Reason) -> Evaluated:
    """Open the breaker: the daemon is not restarted until an operator resumes it, or it was well for a whole window."""
    if watch.circuit_opened_at is not None:
        return watch, ()
    return replace(watch, circuit_opened_at=at), (
        Event(at=at, event=EventName.CIRCUIT_OPENED, daemon=daemon, reason=reason),
    )


def closed(watch: WatchdogState, daemon: str, at: float, reason: Reason) -> Evaluated:
    """Close the breaker."""
    if watch.circuit_opened_at is None:
        return watch, ()
    return replace(watch, circuit_opened_at=None), (
        Event(at=at, event=EventName.CIRCUIT_CLOSED, daemon=daemon, reason=reason),
    )


_TELLING_SECONDS = 5.0
"""How long it may take until systemd's word of a unit is known."""

_RESTARTING = ("always", "on-failure", "on-abnormal", "on-abort")
"""Those Restart= that hold for a process which a signal has ended (systemd.service(5))."""

_AT_IT = ("activating", "deactivating", "reloading")


def left_to_systemd(context: Context, since: float) -> Wait | None:
    """Why a daemon that died at `since` is not ours to restart, by its unit; None where it is."""
    name, unit, waited = context.daemon_policy.unit, context.unit, context.at - since
    if unit is None or unit.at < since:
        if waited <= _TELLING_SECONDS:
            return Wait(reason=None)
        if unit is None:
            return Wait(reason=Reason(ReasonCode.SYSTEMD_UNREACHABLE, unit=name))
    unusable = unusable_because(unit)
    if unusable is not None:
        return Wait(reason=unusable)
    if unit.active == "failed" and unit.result == "start-limit-hit":
        given_up = Reason(ReasonCode.START_LIMIT_HIT, unit=name)
        return Wait(reason=given_up, phase=WatchdogPhase.DEFERRED_TO_SYSTEMD)
    if _at_it(unit) and waited <= context.thresholds.systemd:
        restarts = Reason(ReasonCode.RESTARTED_BY_SYSTEMD, unit=name)
        return Wait(reason=restarts, phase=WatchdogPhase.DEFERRED_TO_SYSTEMD)
    return None


def unusable_because(unit: UnitState) -> Reason | None:
    """Return why a unit cannot be restarted at all; None if it can be."""
    if unit.problem is not None:
        problem = unit.problem
        return Reason(ReasonCode.UNIT_UNREADABLE, unit=unit.unit, state=problem.code, text=problem.detail or None)
    if unit.load != "loaded":
        return Reason(ReasonCode.UNIT_NOT_LOADED, unit=unit.unit, state=unit.load or None)
    return None


def _at_it(unit: UnitState) -> bool:
    """Whether systemd is about to restart it: it may not have noticed yet that it must."""
    return unit.active in _AT_IT or (unit.active == "active" and unit.restart in _RESTARTING)


def by_systemd(context: Context) -> Evaluated:
    """Count what systemd has restarted by itself, once the daemon is back."""
    watch, unit = context.watch, context.unit
    if unit is None or not unit.known or not context.ran_in_unit:
        return watch, ()
    before = watch.unit_restarts
    if before is None or unit.restarts < before:
        return replace(watch, unit_restarts=unit.restarts), ()
    new = unit.restarts - before
    if not new or not context.lives:
        return watch, ()
    watch = with_count(watch, ActionKind.RESTART, ActionReason.CRASHED, ActionResult.BY_SYSTEMD, by=new)
    restarts = (*watch.restarts, *(context.at,) * new)[-context.thresholds.restarts :]
    watch = replace(watch, unit_restarts=unit.restarts, restarts=restarts, last_restart_at=context.at)
    event = Event(
        at=context.at,
        event=EventName.WATCHDOG_ACTED,
        daemon=context.daemon.name,
        action=ActionKind.RESTART,
        reason=ActionReason.CRASHED,
        result=ActionResult.BY_SYSTEMD,
    )
    return watch, (event,)


MOST_CHILDREN = 16
"""How many servers of a daemon are remembered, the latest ones."""

_ILL = frozenset(
    {
        Condition.CRASHED,
        Condition.STOPPED,
        Condition.NEVER_SEEN,
        Condition.UNRESPONSIVE,
        Condition.SUSPENDED,
        Condition.STUCK_IN_DRIVER,
    }
)


def remembered(context: Context) -> WatchdogState:
    """Return the watch with the daemon's process and its servers, as long as it lives."""
    watch, daemon = context.watch, context.daemon
    if daemon.ended:
        return watch
    process = daemon.runtime.process or watch.process
    another = watch.process is not None and identity_of(process) != identity_of(watch.process)
    children = _children(context, process, () if another else watch.children)
    if (process, children) == (watch.process, watch.children):
        return watch
    healthy_since = None if another else watch.healthy_since
    return replace(watch, process=process, children=children, healthy_since=healthy_since)


def _children(
    context: Context, process: DaemonProcess | None, before: tuple[ProcessIdentity, ...]
) -> tuple[ProcessIdentity, ...]:
    """Return the servers that /proc has shown to be children of this process, without those that have ended.

    The daemon's answers and its log only say at which PIDs to look: any user may write into that log (measured, R580).
    """
    read = (context.node.processes.get(pid) for pid in context.daemon.servers)
    now = (identity_of(each) for each in read if each is not None and _is_child(each, process))
    found = dict.fromkeys((*before, *(each for each in now if each is not None)))
    return tuple(each for each in found if not _has_ended(context.node, each))[-MOST_CHILDREN:]


def _is_child(reading: ProcessReading, daemon: DaemonProcess | None) -> bool:
    """Return whether a process was started by this daemon, and runs a program of MPS as a user that it can have."""
    parent = identity_of(daemon)
    if daemon is None or parent is None or reading.parent != parent or reading.start_ticks < parent.start_ticks:
        return False
    of_mps = mps_program(reading.executable, reading.command) is not None
    return of_mps and daemon.uid is not None and daemon.uid in (0, reading.uid)


def _has_ended(node: Node, process: ProcessIdentity) -> bool:
    """Return whether its end was seen, or another process has its PID."""
    death, reading = node.deaths.get(process.pid), node.processes.get(process.pid)
    if reading is not None:
        return reading.start_ticks != process.start_ticks
    return death is not None and death.start_ticks == process.start_ticks


def leftovers(context: Context) -> tuple[ProcessIdentity, ...]:
    """Return the servers that may have outlived their daemon: one that was stopped does (measured, R580)."""
    return tuple(each for each in context.watch.children if not _has_ended(context.node, each))


def kept_well(context: Context) -> Evaluated:
    """How long it has been well. After a whole window, what went before is forgiven, and the breaker closes."""
    watch, at = pruned(context.watch, context.thresholds, context.at), context.at
    watch = _since(watch, context.condition, at)
    well_for = (
        0.0 if watch.healthy_since is None or context.condition is not Condition.WELL else at - watch.healthy_since
    )
    if well_for < context.thresholds.window:
        return watch, ()
    if watch.failures:
        watch = replace(watch, failures=0)
    return closed(watch, context.daemon.name, at, Reason(ReasonCode.WELL_FOR_WINDOW, seconds=context.thresholds.window))


def _since(watch: WatchdogState, condition: Condition, at: float) -> WatchdogState:
    if condition in _ILL:
        watch = watch if watch.healthy_since is None else replace(watch, healthy_since=None)
    elif condition is Condition.WELL and watch.healthy_since is None:
        watch = replace(watch, healthy_since=at)
    return watch


def crashed(context: Context, since: float) -> Decision:
    """It died at this time."""
    obstacle = _obstacle(context) or _systemds(context, since)
    return obstacle or _restart(context, ActionReason.CRASHED, since)


def hung(context: Context, since: float) -> Decision:
    """It has been known to hang since then; that may pass.

    A quit in its log changes nothing: every user can write that line. A daemon that quits answers connections until its
    end (measured, R580), and systemd knows of its own stops (`_irreplaceable`).
    """
    after = context.thresholds.hung_after
    if context.at - since < after or context.daemon.state is not DaemonState.UNRESPONSIVE:
        return Wait(reason=Reason(ReasonCode.HANG_TOO_RECENT, seconds=after))
    if _is_let_go_on(context):
        return Wait(reason=Reason(ReasonCode.PROCESS_CONTINUED))
    if not hang_detection.is_established(context.node, context.daemon, context.at):
        return Wait(reason=Reason(ReasonCode.HANG_UNCONFIRMED))
    return replaced(context, ActionReason.HUNG, since)


def _is_let_go_on(context: Context) -> bool:
    """Whether its process came to stand otherwise since it was last asked: that it hangs is old news then."""
    state, asked_at = process_states.of_daemon(context.node, context.daemon), context.daemon.commands.unanswered_at
    if state is None or asked_at is None or process_states.is_suspended(state):
        return False
    return state.at > asked_at


def replaced(context: Context, reason: ActionReason, since: float) -> Decision:
    """It is there, and has to go first."""
    return _obstacle(context) or _irreplaceable(context) or _restart(context, reason, since)


def _obstacle(context: Context) -> Wait | None:
    """What keeps it from being restarted whatever was the matter."""
    daemon_policy, daemon = context.daemon_policy, context.daemon
    if daemon.runtime.foreign_owner is not None:
        return Wait(reason=Reason(ReasonCode.FOREIGN_DIRECTORY, uid=daemon.runtime.foreign_owner))
    if daemon_policy.unit is None and not daemon_policy.command:
        return Wait(reason=Reason(ReasonCode.NO_RESTART_METHOD))
    if daemon_policy.unit is None and daemon.runtime.in_foreign_namespace:
        return Wait(reason=Reason(ReasonCode.DAEMON_IN_CONTAINER))
    if context.watch.circuit_opened_at is not None:
        return _open(Reason(ReasonCode.CIRCUIT_OPEN))
    return None


def _systemds(context: Context, since: float) -> Wait | None:
    return None if context.daemon_policy.unit is None else left_to_systemd(context, since)


def _irreplaceable(context: Context) -> Wait | None:
    """Nobody is ended whom nothing is known to bring back, or of whom it is not known who that is."""
    if context.daemon_policy.unit is None:
        known = identity_of(context.daemon.runtime.process) is not None
        return None if known else Wait(reason=Reason(ReasonCode.PROCESS_UNKNOWN))
    if context.unit is None:
        return Wait(reason=Reason(ReasonCode.UNIT_STATE_UNKNOWN, unit=context.daemon_policy.unit))
    unusable = unusable_because(context.unit)
    if unusable is None and context.unit.active == "deactivating":
        # A restart would take the place of that stop, and so undo what somebody wants.
        unusable = Reason(ReasonCode.UNIT_STOPPING, unit=context.unit.unit)
    return None if unusable is None else Wait(reason=unusable)


def _restart(context: Context, reason: ActionReason, since: float) -> Decision:
    """Now, or when the time has come, or not at all any more."""
    thresholds, watch = context.thresholds, context.watch
    times = spent(watch, thresholds, context.at)
    answers = f"{reason} {since:.3f}"
    backoff_for = f"{answers} {times}"
    deed = PlannedAction(kind=ActionKind.RESTART, reason=reason, steps=_steps(context), answers=answers)
    if context.mode is Mode.OBSERVE:
        return deed
    if times >= thresholds.restarts:
        return _open(Reason(ReasonCode.RESTARTS_DID_NOT_HELP, count=times, seconds=thresholds.window))
    until = watch.not_before if watch.backoff_for == backoff_for else None
    if until is None:
        until = context.at + backoff(times, thresholds, context.chance)
    if context.at < until:
        waits = Reason(ReasonCode.BACKOFF, count=times, seconds=thresholds.window)
        return Wait(reason=waits, phase=WatchdogPhase.BACKOFF, backoff_for=backoff_for, until=until)
    return deed


def _open(reason: Reason) -> Wait:
    return Wait(reason=reason, phase=WatchdogPhase.CIRCUIT_OPEN)


def _steps(context: Context) -> tuple[ActionStep, ...]:
    """Evidence first; then whoever is left of it goes, and last it comes.

    A unit's own daemon goes by the unit's restart: killed by us, systemd may have started another by then, which that
    restart would end (tried: 252).
    """
    daemon, unit = identity_of(context.daemon.runtime.process), context.daemon_policy.unit
    if unit is not None and daemon is not None and context.daemon.runtime.unit == unit:
        return SaveEvidence(), RestartUnit(unit=unit), *_limits(context)
    itself = () if daemon is None else (EndProcess(identity=daemon, role=Role.DAEMON),)
    servers = (EndProcess(identity=each, role=Role.SERVER) for each in leftovers(context))
    start = _command(context) if unit is None else RestartUnit(unit=unit, only_start=_restarting_has_ended(context))
    return (SaveEvidence(), *itself, *servers, start, *_limits(context))


def _restarting_has_ended(context: Context) -> bool:
    """Whether the unit is no more than its daemon; one that systemd takes to run would not be started."""
    unit = context.unit
    return context.daemon.ended and unit is not None and unit.active in ("failed", "inactive")


def _limits(context: Context) -> Iterator[GiveCommand]:
    """Given as soon as it answers: a client that waits has a server before what is read of it comes round to us.

    Where that does not do, the daemon is back all the same, and its limits are seen to afterwards.
    """
    wanted = limits.wanted(context.daemon_policy.limits, context.watch)
    for command in limits.commands_for_defaults(context.daemon, wanted):
        yield GiveCommand(command=command, vital=False)


def _command(context: Context) -> RunCommand:
    process, owner = context.watch.process, context.daemon.declared.owner
    uid = owner if owner is not None or process is None else process.uid
    environment = start_environment(context.daemon, context.watch, context.daemon_policy)
    return RunCommand(arguments=context.daemon_policy.command, environment=environment, uid=uid)


def start_environment(daemon: Daemon, watch: WatchdogState, daemon_policy: DaemonPolicy) -> Mapping[str, str]:
    """Return the environment in which a daemon is started: its own variables, then the limits.

    A thread percentage given here holds from the first server.
    """
    process = watch.process
    devices = daemon.runtime.visible_devices
    if devices is None and process is not None and process.uid in (0, daemon.declared.owner or process.uid):
        devices = process.environment.get(VISIBLE_DEVICES)
    return {
        PIPE_DIRECTORY: daemon.pipe_directory,
        LOG_DIRECTORY: daemon.log_directory,
        **({} if devices is None else {VISIBLE_DEVICES: devices}),
        **_threads(limits.wanted(daemon_policy.limits, watch).active_thread_percentage),
    }


def _threads(percentage: float | None) -> Mapping[str, str]:
    return {} if percentage is None else {ACTIVE_THREAD_PERCENTAGE: f"{percentage:g}"}
