"""Restarts of a daemon: budget, backoff, circuit breaker, systemd, steps; and the results of all actions."""

from collections.abc import Mapping

from exporter.model.action import (
    AGAINST_FAULTS,
    ActionKind,
    ActionReason,
    ActionResult,
    ActionStep,
    DeletePod,
    EndProcess,
    GiveCommand,
    RestartUnit,
    Role,
    RunCommand,
    SaveEvidence,
)
from exporter.model.daemon import Daemon, DaemonState
from exporter.model.dialect import Dialect, dialect_of
from exporter.model.event import Event, EventName
from exporter.model.identity import ProcessIdentity, identity_of
from exporter.model.node import Node
from exporter.model.observation import ActionDone, DaemonProcess, ProcessReading, Resumed, UnitState
from exporter.model.reason import Reason, ReasonCode
from exporter.model.settings import (
    ACTIVE_THREAD_PERCENTAGE,
    LOG_DIRECTORY,
    PIPE_DIRECTORY,
    VISIBLE_DEVICES,
    AllowedAction,
    Mode,
    Thresholds,
)
from exporter.model.values import replace, updated
from exporter.model.watchdog import Condition, OngoingAction, WatchdogPhase, WatchdogState
from exporter.parse.proc import mps_program
from exporter.state import devices, hangs, processes, xids
from exporter.watchdog import limit_enforcement
from exporter.watchdog.context import Context, Decision, Evaluated, PlannedAction, Policy, Wait, count_action

FAILURES_IN_A_ROW = 3  # This many failed restarts open the circuit breaker, even if the budget permits more.
MAX_CHILDREN = 16  # How many servers of a daemon are remembered, the newest ones.

_MAX_DOUBLINGS = 32

_UNIT_SECONDS = 5.0  # How long it may take until a change of a unit is observed.

_RESTARTING = ("always", "on-failure", "on-abnormal", "on-abort")
"""Values of Restart= that apply if a signal ended the process (systemd.service(5))."""

_IN_TRANSITION = ("activating", "deactivating", "reloading")

_NOT_RUNNING = (Condition.DOWN, Condition.STOPPED, Condition.NEVER_STARTED)
_HANGING = (Condition.UNRESPONSIVE, Condition.SUSPENDED, Condition.STUCK_IN_DRIVER)


def restarts_in_window(watch: WatchdogState, thresholds: Thresholds, at: float) -> int:
    """Return the number of restarts within the window, including those by systemd."""
    return sum(at - each < thresholds.window for each in watch.restarts)


def restarts_left(watch: WatchdogState, thresholds: Thresholds, at: float) -> int:
    """Return how many more restarts the budget permits; 0 while the circuit breaker is open."""
    if watch.circuit_opened_at is not None:
        return 0
    return max(0, thresholds.restarts - restarts_in_window(watch, thresholds, at))


def backoff(restarts: int, thresholds: Thresholds, chance: float) -> float:
    """Return the seconds until the next restart, after this many in the window. The first one comes at once."""
    if restarts == 0:
        return 0.0
    seconds = thresholds.backoff * 2.0 ** min(restarts - 1, _MAX_DOUBLINGS)
    return min(seconds, thresholds.longest_backoff) * (1 + chance / 4)


def open_circuit(watch: WatchdogState, daemon: str, at: float, reason: Reason) -> Evaluated:
    """Suspend restarts until an operator's `resume`, or until the daemon was well for a whole window."""
    if watch.circuit_opened_at is not None:
        return watch, ()
    event = Event(at=at, event=EventName.CIRCUIT_OPENED, daemon=daemon, reason=reason)
    return replace(watch, circuit_opened_at=at), (event,)


def close_circuit(watch: WatchdogState, daemon: str, at: float, reason: Reason) -> Evaluated:
    """Permit restarts again."""
    if watch.circuit_opened_at is None:
        return watch, ()
    event = Event(at=at, event=EventName.CIRCUIT_CLOSED, daemon=daemon, reason=reason)
    return replace(watch, circuit_opened_at=None), (event,)


def track_health(context: Context) -> Evaluated:
    """Track since when the daemon is well. After a whole window, the circuit closes and failures no longer count."""
    watch, at, window = context.watch, context.at, context.thresholds.window
    watch = updated(watch, restarts=tuple(each for each in watch.restarts if at - each < window))
    if context.condition is not Condition.WELL:
        return updated(watch, healthy_since=None) if context.condition in _NOT_RUNNING + _HANGING else watch, ()
    since = at if watch.healthy_since is None else watch.healthy_since
    watch = updated(watch, healthy_since=since)
    if at - since < window:
        return watch, ()
    watch = updated(watch, failures=0)
    return close_circuit(watch, context.daemon.name, at, Reason(ReasonCode.WELL_FOR_WINDOW, seconds=window))


def context_of(node: Node, daemon: Daemon, policy: Policy, *, at: float, chance: float = 0.0) -> Context:
    """Return the context of a daemon, with its processes."""
    context = Context(
        node=node,
        daemon=daemon,
        watch=node.watches.get(daemon.name) or WatchdogState(state_lost_at=at if policy.state_lost else None),
        daemon_policy=policy.daemon_policy_of(daemon),
        mode=policy.mode_of(daemon),
        thresholds=policy.thresholds,
        program=policy.program,
        at=at,
        chance=chance,
    )
    return updated(context, watch=_with_processes(context))


def _with_processes(context: Context) -> WatchdogState:
    """Return the state with the daemon's process and servers, while the daemon runs.

    Its servers are those that /proc has shown to be its children, without those that have ended. Replies and the log
    only show which PIDs to read: any user can write that log (measured, R580).
    """
    watch, daemon = context.watch, context.daemon
    if daemon.ended:
        return watch
    process = daemon.runtime.process or watch.process
    another = watch.process is not None and identity_of(process) != identity_of(watch.process)
    read = (context.node.processes.get(pid) for pid in daemon.servers)
    now = (identity_of(each) for each in read if each is not None and _is_child(each, process))
    known = {*(() if another else watch.children), *(child for child in now if child is not None)}
    left = (child for child in known if not _has_ended(context.node, child))
    children = tuple(sorted(left, key=lambda child: (child.start_ticks, child.pid))[-MAX_CHILDREN:])
    healthy_since = None if another else watch.healthy_since
    return updated(watch, process=process, children=children, healthy_since=healthy_since)


def _is_child(reading: ProcessReading, daemon: DaemonProcess | None) -> bool:
    """Return whether the daemon started the process, as an MPS program and as a user that it may use."""
    parent = identity_of(daemon)
    if daemon is None or parent is None or reading.parent != parent or reading.start_ticks < parent.start_ticks:
        return False
    of_mps = mps_program(reading.executable, reading.command) is not None
    return of_mps and daemon.uid is not None and daemon.uid in (0, reading.uid)


def _has_ended(node: Node, process: ProcessIdentity) -> bool:
    """Return whether the exit was observed, or another process has the PID."""
    death, reading = node.deaths.get(process.pid), node.processes.get(process.pid)
    if reading is not None:
        return reading.start_ticks != process.start_ticks
    return death is not None and death.start_ticks == process.start_ticks


def count_unit_restarts(context: Context) -> Evaluated:
    """Count the restarts by systemd once the daemon works again."""
    watch, unit, at = context.watch, context.unit, context.at
    if unit is None or not unit.known or not context.ran_in_unit:
        return watch, ()
    before = watch.unit_restarts
    if before is None or unit.restarts < before:
        return replace(watch, unit_restarts=unit.restarts), ()
    new = unit.restarts - before
    if not new or not context.works:
        return watch, ()
    action, reason, result = ActionKind.RESTART, ActionReason.DOWN, ActionResult.BY_SYSTEMD
    watch = count_action(watch, action, reason, result, by=new)
    restarts = (*watch.restarts, *(at,) * new)[-context.thresholds.restarts :]
    watch = replace(watch, unit_restarts=unit.restarts, restarts=restarts, last_restart_at=at)
    return watch, (context.event(EventName.WATCHDOG_ACTED, action=action, reason=reason, result=result),)


def _unit_obstacle(context: Context, since: float) -> Wait | None:
    """Return why the watchdog does not restart the unit of a daemon that ended at `since`; None if it does."""
    name, unit, waited = context.daemon_policy.unit, context.unit, context.at - since
    if name is None:
        return None
    if (unit is None or unit.at < since) and waited <= _UNIT_SECONDS:
        return Wait(reason=None)
    if unit is None:
        return Wait(reason=Reason(ReasonCode.SYSTEMD_UNREACHABLE, unit=name))
    unusable = _unusable(unit)
    if unusable is not None:
        return Wait(reason=unusable)
    if unit.active == "failed" and unit.result == "start-limit-hit":
        return Wait(reason=Reason(ReasonCode.START_LIMIT_HIT, unit=name), phase=WatchdogPhase.DEFERRED_TO_SYSTEMD)
    # An active unit restarts soon if Restart= applies: systemd may not have noticed the exit yet.
    restarts = unit.active in _IN_TRANSITION or (unit.active == "active" and unit.restart in _RESTARTING)
    if restarts and waited <= context.thresholds.systemd:
        return Wait(reason=Reason(ReasonCode.RESTARTED_BY_SYSTEMD, unit=name), phase=WatchdogPhase.DEFERRED_TO_SYSTEMD)
    return None


def _unusable(unit: UnitState) -> Reason | None:
    if unit.problem is not None:
        why = unit.problem.parameters.get("detail") or None
        return Reason(ReasonCode.UNIT_UNREADABLE, unit=unit.unit, state=unit.problem.code, text=why)
    if unit.load != "loaded":
        return Reason(ReasonCode.UNIT_NOT_LOADED, unit=unit.unit, state=unit.load or None)
    return None


def restart_down_daemon(context: Context, since: float) -> Decision:
    """Decide about a daemon that has been down since `since`."""
    obstacle = _obstacle(context) or _unit_obstacle(context, since)
    return obstacle or _restart(context, ActionReason.DOWN, since)


def restart_hung(context: Context, since: float) -> Decision:
    """Decide about a daemon that hangs since `since`; a hang may pass.

    A quit in its log changes nothing: every user can write that line. A daemon that quits answers connections until its
    end (measured, R580), and systemd reports its own stops (`_replacement_obstacle`).
    """
    after = context.thresholds.hung_after
    if context.at - since < after or context.daemon.state is not DaemonState.UNRESPONSIVE:
        return _obstacle(context) or recent_hang(context, after)
    state = processes.state_of_daemon(context.node, context.daemon)
    asked_at = context.daemon.commands.unanswered_at
    if state is not None and asked_at is not None and not processes.is_suspended(state) and state.at > asked_at:
        # The process continued after the last query: the daemon may answer again.
        return Wait(reason=Reason(ReasonCode.PROCESS_CONTINUED))
    if not hangs.is_established(context.node, context.daemon, context.at):
        return Wait(reason=Reason(ReasonCode.HANG_UNCONFIRMED))
    return restart_running(context, ActionReason.HUNG, since)


def recent_hang(context: Context, after: float, *, server: int | None = None) -> Wait:
    """Wait for a hang of the daemon, or of a server, to pass: for `after` seconds if the watchdog may act then."""
    if context.mode is Mode.OBSERVE:
        return Wait(reason=Reason(ReasonCode.HANG_OBSERVED, server=server))
    return Wait(reason=Reason(ReasonCode.HANG_TOO_RECENT, server=server, seconds=after))


def restart_running(context: Context, reason: ActionReason, since: float) -> Decision:
    """Decide about a daemon that runs, and must be ended first."""
    return _obstacle(context) or _replacement_obstacle(context) or _restart(context, reason, since)


def _obstacle(context: Context) -> Wait | None:
    policy, daemon = context.daemon_policy, context.daemon
    if daemon.runtime.foreign_owner is not None:
        return Wait(reason=Reason(ReasonCode.FOREIGN_DIRECTORY, uid=daemon.runtime.foreign_owner))
    if daemon.directory_taken:
        return Wait(reason=Reason(ReasonCode.DIRECTORY_TAKEN))
    if context.pod_uid is not None:
        if AllowedAction.DELETE_POD not in context.thresholds.allow:
            return Wait(reason=Reason(ReasonCode.POD_DELETION_NOT_ALLOWED))
        if context.pod_uid not in context.node.pods:
            return Wait(reason=Reason(ReasonCode.POD_NAME_UNKNOWN))
    elif policy.unit is None and not policy.command:
        return Wait(reason=Reason(ReasonCode.NO_RESTART_METHOD))
    elif policy.unit is None and daemon.runtime.in_foreign_namespace:
        return Wait(reason=Reason(ReasonCode.DAEMON_IN_CONTAINER))
    if context.watch.circuit_opened_at is not None:
        return Wait(reason=Reason(ReasonCode.CIRCUIT_OPEN), phase=WatchdogPhase.CIRCUIT_OPEN)
    return None


def _replacement_obstacle(context: Context) -> Wait | None:
    """Return why a running daemon is not ended: its process, or what would start it again, is unknown."""
    name, unit = context.daemon_policy.unit, context.unit
    if context.pod_uid is not None:
        return None
    if name is None:
        known = identity_of(context.daemon.runtime.process) is not None
        return None if known else Wait(reason=Reason(ReasonCode.PROCESS_UNKNOWN))
    if unit is None:
        return Wait(reason=Reason(ReasonCode.UNIT_STATE_UNKNOWN, unit=name))
    unusable = _unusable(unit)
    if unusable is None and unit.active == "deactivating":
        # A restart would cancel the stop that an operator wants.
        unusable = Reason(ReasonCode.UNIT_STOPPING, unit=unit.unit)
    return None if unusable is None else Wait(reason=unusable)


def _restart(context: Context, reason: ActionReason, since: float) -> Decision:
    thresholds, watch = context.thresholds, context.watch
    cause = f"{reason} {since:.3f}"
    planned = PlannedAction(kind=ActionKind.RESTART, reason=reason, steps=_steps(context), cause=cause)
    if context.mode is Mode.OBSERVE:
        return planned
    count, window = restarts_in_window(watch, thresholds, context.at), thresholds.window
    if count >= thresholds.restarts:
        exhausted = Reason(ReasonCode.RESTARTS_DID_NOT_HELP, count=count, seconds=window)
        return Wait(reason=exhausted, phase=WatchdogPhase.CIRCUIT_OPEN)
    backoff_for = f"{cause} {count}"
    until = watch.not_before if watch.backoff_for == backoff_for else None
    if until is None:
        until = context.at + backoff(count, thresholds, context.chance)
    if context.at >= until:
        return planned
    waits = Reason(ReasonCode.BACKOFF, count=count, seconds=window)
    return Wait(reason=waits, phase=WatchdogPhase.BACKOFF, backoff_for=backoff_for, until=until)


def _steps(context: Context) -> tuple[ActionStep, ...]:
    """Return the steps: evidence, the end of what remains of the daemon, its start, its default limits.

    A unit's own daemon is ended by the unit's restart. After a SIGKILL from here, systemd may have started another
    daemon, which the restart would end (tried: 252).

    The limits are set as soon as the daemon answers: a client that waits gets a server before the exporter has read
    anything of it. If a command fails, the daemon still runs, and `limit_enforcement.py` sets the limits later.
    """
    start, policy, watch = steps_to_start(context), context.daemon_policy, context.watch
    if context.pod_uid is not None:
        # Its own container sets its limits. A daemon that hangs ends with the pod.
        return SaveEvidence(), *start
    wanted = limit_enforcement.limits_to_restore(policy.limits, watch)
    has_defaults = _last_dialect(watch).default_limits is not None
    commands = limit_enforcement.commands_to_restore(context.daemon, wanted) if has_defaults else ()
    set_limits = tuple(GiveCommand(command=command, vital=False) for command in commands)
    runtime = context.daemon.runtime
    in_unit = policy.unit is not None and identity_of(runtime.process) is not None and runtime.unit == policy.unit
    return (SaveEvidence(), *(() if in_unit else steps_to_end(context)), *start, *set_limits)


def steps_to_end(context: Context) -> tuple[EndProcess, ...]:
    """Return the steps that end a daemon and its servers. One that was suspended outlives it (measured, R580)."""
    daemon, children = identity_of(context.daemon.runtime.process), context.watch.children
    processes = () if daemon is None else (EndProcess(identity=daemon, role=Role.DAEMON),)
    left = (each for each in children if not _has_ended(context.node, each))
    # New processes bypass MPS until the next daemon runs. Only where its server may need that, old contexts end first.
    waits = {gpu.reading.compute_mode for gpu in context.node.gpus.values()} != {"default"}
    return (*processes, *(EndProcess(identity=each, role=Role.SERVER, contexts=waits) for each in left))


def steps_to_start(context: Context) -> tuple[ActionStep, ...]:
    """Return the step that starts a daemon, by NVIDIA's command if none is configured; empty for an unnamed pod."""
    policy, process, daemon = context.daemon_policy, context.watch.process, context.daemon
    if context.pod_uid is not None:
        pod = context.node.pods.get(context.pod_uid)
        return () if pod is None else (DeletePod(namespace=pod.namespace, name=pod.name, uid=pod.uid),)
    if policy.unit is not None:
        # systemd would not start a unit that it takes to be active.
        inactive = context.unit is not None and context.unit.active in ("failed", "inactive")
        return (RestartUnit(unit=policy.unit, only_start=daemon.ended and inactive),)
    owner, options = daemon.declared.owner, () if process is None else process.options
    uid = owner if owner is not None or process is None else process.uid
    arguments = policy.command or (context.program, "-d", *options)
    return (RunCommand(arguments=arguments, environment=_start_environment(context), uid=uid),)


def _last_dialect(watch: WatchdogState) -> Dialect:
    """Return the dialect of the last process: after a start of the exporter, only it shows that of an ended daemon."""
    return dialect_of(None if watch.process is None else watch.process.protocol)


def _start_environment(context: Context) -> Mapping[str, str]:
    """Return the environment in which a daemon is started: its own variables, then the limits.

    The thread percentage applies from the first server on.
    """
    daemon, watch, process = context.daemon, context.watch, context.watch.process
    devices = daemon.runtime.visible_devices
    variables: Mapping[str, str] = {}
    if process is not None and process.uid in (0, daemon.declared.owner or process.uid):
        variables = process.environment
    percentage = limit_enforcement.limits_to_restore(context.daemon_policy.limits, watch).active_thread_percentage
    return {
        PIPE_DIRECTORY: daemon.pipe_directory,
        LOG_DIRECTORY: daemon.log_directory,
        **variables,
        **({} if devices is None else {VISIBLE_DEVICES: devices}),
        **_last_dialect(watch).variables,
        **({} if percentage is None else {ACTIVE_THREAD_PERCENTAGE: f"{percentage:g}"}),
    }


# -- results -----------------------------------------------------------------------------------------------------------


RESULT_SECONDS = 180.0
"""How long the watchdog waits for an action's result. The longest step, a unit's restart, may take 100 s."""

START_SECONDS = 1.0
"""A daemon runs 15 ms after its command (measured, R580), and a unit's daemon some tenths of a second later."""

POD_SECONDS = 120.0
"""A pod may take this long to end (its grace period is 30 s by default), and its successor to start."""


def record_result(node: Node, done: ActionDone) -> Node:
    """Record the end of an action. Its effect is verified later."""
    watch = node.watches.get(done.daemon)
    acting = None if watch is None else watch.acting
    if watch is None or acting is None or (acting.kind, acting.reason) != (done.kind, done.reason):
        return node
    ended = replace(acting, done_at=done.at, problem=done.problem, evidence=done.evidence)
    return replace(node, watches={**node.watches, done.daemon: replace(watch, acting=ended)})


def resume(node: Node, resumed: Resumed) -> tuple[Node, tuple[Event, ...]]:
    """Clear all that prevents a restart, because an operator has asked for it."""
    name, at = resumed.daemon, resumed.at
    if name not in node.daemons:
        return node, ()
    before = node.watches.get(name, WatchdogState())
    watch, closed = close_circuit(before, name, at, Reason(ReasonCode.OPERATOR_RESUMED))
    events = (Event(at=at, event=EventName.DAEMON_RESUMED, daemon=name), *closed)
    gpus = {gpu for gpu in node.gpus if devices.uses_gpu(node, node.daemons[name], gpu)}
    if before.quarantine is not None:
        gpus.add(before.quarantine.gpu)
        events += (Event(at=at, event=EventName.DAEMON_RELEASED, daemon=name, xid=before.quarantine.xid),)
    watch = replace(watch.settled(), resumed_at=at, quarantine=None, state_lost_at=None, restarts=(), failures=0)
    node = xids.with_resets(node, gpus, at)
    return replace(node, watches={**node.watches, name: watch}), events


def end_interrupted(watch: WatchdogState, at: float) -> WatchdogState:
    """End the action that ran when the exporter ended. A restart may have helped all the same."""
    acting = watch.acting
    if acting is None or acting.done_at is not None:
        return watch
    problem = None if acting.kind is ActionKind.RESTART else Reason(ReasonCode.EXPORTER_RESTARTED)
    return replace(watch, acting=replace(acting, done_at=at, problem=problem))


def end_all_interrupted(node: Node, at: float) -> Node:
    """Return the stored node of an earlier run of the exporter, with its actions ended."""
    return replace(node, watches={name: end_interrupted(watch, at) for name, watch in node.watches.items()})


def verify(context: Context) -> Evaluated:
    """Return the state without its action, once its effect is known."""
    acting = context.watch.acting
    if acting is None:
        return context.watch, ()
    if acting.done_at is None:
        overdue = context.at - acting.began_at > RESULT_SECONDS
        return _end_action(context, acting, Reason(ReasonCode.NO_RESULT)) if overdue else (context.watch, ())
    waited, pod_seconds = context.at - acting.done_at, 0.0 if context.pod_uid is None else POD_SECONDS
    if acting.problem is not None or acting.kind is not ActionKind.RESTART:
        # The action may have ended its process, which was not observed yet, or systemd may still stop the unit.
        unfinished = waited < START_SECONDS or (context.unit is not None and context.unit.active == "deactivating")
        ends = unfinished and context.watch.restarts_process(context.daemon.runtime.process)
        return (context.watch, ()) if ends else _end_action(context, acting, acting.problem)
    # An end of the daemon that hung is no loss: the restart itself caused it.
    loss_at = context.daemon.lifecycle.last_loss_at
    if context.condition is Condition.DOWN and loss_at is not None and loss_at > acting.began_at:
        return _end_action(context, acting, Reason(ReasonCode.DAEMON_ENDED_AGAIN))
    # No daemon was observed since an earlier run of the exporter began the restart.
    missing = context.condition is Condition.DOWN and not context.daemon.lifecycle.ever_ran
    if missing and waited > START_SECONDS + pod_seconds:
        return _end_action(context, acting, Reason(ReasonCode.DAEMON_MISSING))
    seconds = context.thresholds.verify + pod_seconds
    problem = _restart_problem(context, acting, seconds)
    if problem is not None and waited <= seconds:
        return context.watch, ()
    return _end_action(context, acting, problem)


def _restart_problem(context: Context, acting: OngoingAction, seconds: float) -> Reason | None:
    """Return None if the daemon answers and its process is another one than before. It has so many seconds."""
    daemon, now = context.daemon, identity_of(context.daemon.runtime.process)
    # If the process before is not known, only times show which one answers.
    outdated = acting.before is None and (daemon.lifecycle.state_since or 0.0) < acting.began_at
    if not context.works or outdated:
        return Reason(ReasonCode.DAEMON_NOT_ANSWERING, seconds=seconds)
    if acting.before is not None and now is None:
        return Reason(ReasonCode.ANSWERING_PROCESS_UNKNOWN)
    if acting.before is None or now != acting.before:
        return None
    return Reason(ReasonCode.OLD_PROCESS_PRESENT, pid=acting.before.pid)


def _end_action(context: Context, acting: OngoingAction, problem: Reason | None) -> Evaluated:
    watch, name, at = context.watch, context.daemon.name, context.at
    result = ActionResult.SUCCEEDED if problem is None else ActionResult.FAILED
    watch = replace(count_action(watch, acting.kind, acting.reason, result), acting=None, problem=problem)
    if acting.kind in AGAINST_FAULTS and watch.escalation is not None:
        watch = replace(watch, escalation=replace(watch.escalation, at=acting.done_at or at))
    event = context.event(
        EventName.WATCHDOG_ACTED,
        action=acting.kind,
        reason=acting.reason,
        result=result,
        problem=problem,
        evidence=acting.evidence,
    )
    if problem is None or acting.kind is not ActionKind.RESTART:
        return watch, (event,)
    watch = replace(watch, failures=watch.failures + 1)
    if watch.failures < FAILURES_IN_A_ROW:
        return watch, (event,)
    failed = Reason(ReasonCode.RESTARTS_FAILED, count=watch.failures)
    watch, opened = open_circuit(watch, name, at, failed)
    return watch, (event, *opened)
