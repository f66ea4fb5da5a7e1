"""Whether a daemon is to be restarted now, and how."""

from collections.abc import Iterator, Mapping

from exporter.core import process_states, silence
from exporter.core.watchdog import budget, drift, memory, owner, remembered_limits
from exporter.core.watchdog.matter import Matter
from exporter.core.watchdog.orders import Mandate
from exporter.core.watchdog.resolve import Deed, Resolve, Wait
from exporter.model.action import (
    ActionKind,
    ActionReason,
    ActionStep,
    EndProcess,
    GiveCommand,
    RestartUnit,
    Role,
    RunCommand,
    SaveEvidence,
)
from exporter.model.daemon import Daemon, DaemonState
from exporter.model.identity import identity_of
from exporter.model.reason import Reason, ReasonCode
from exporter.model.settings import Mode
from exporter.model.variables import ACTIVE_THREAD_PERCENTAGE, LOG_DIRECTORY, PIPE_DIRECTORY, VISIBLE_DEVICES
from exporter.model.watch import Watch, WatchState


def crashed(matter: Matter, since: float) -> Resolve:
    """It died at this time."""
    obstacle = _obstacle(matter) or _systemds(matter, since)
    return obstacle or _restart(matter, ActionReason.CRASHED, since)


def hung(matter: Matter, since: float) -> Resolve:
    """It has been known to hang since then; that may pass.

    A quit in its log changes nothing: every user can write that line. A daemon that quits answers connections until its
    end (measured, R580), and systemd knows of its own stops (`_irreplaceable`).
    """
    after = matter.rules.hung_after
    if matter.at - since < after or matter.daemon.state is not DaemonState.UNRESPONSIVE:
        return Wait(reason=Reason(ReasonCode.HANG_TOO_RECENT, seconds=after))
    if _is_let_go_on(matter):
        return Wait(reason=Reason(ReasonCode.PROCESS_CONTINUED))
    if not silence.is_established(matter.node, matter.daemon, matter.at):
        return Wait(reason=Reason(ReasonCode.HANG_UNCONFIRMED))
    return replaced(matter, ActionReason.HUNG, since)


def _is_let_go_on(matter: Matter) -> bool:
    """Whether its process came to stand otherwise since it was last asked: that it hangs is old news then."""
    state, asked_at = process_states.of_daemon(matter.node, matter.daemon), matter.daemon.commands.unanswered_at
    if state is None or asked_at is None or process_states.is_suspended(state):
        return False
    return state.at > asked_at


def replaced(matter: Matter, reason: ActionReason, since: float) -> Resolve:
    """It is there, and has to go first."""
    return _obstacle(matter) or _irreplaceable(matter) or _restart(matter, reason, since)


def _obstacle(matter: Matter) -> Wait | None:
    """What keeps it from being restarted whatever was the matter."""
    mandate, daemon = matter.mandate, matter.daemon
    if daemon.runtime.foreign_owner is not None:
        return Wait(reason=Reason(ReasonCode.FOREIGN_DIRECTORY, uid=daemon.runtime.foreign_owner))
    if mandate.unit is None and not mandate.command:
        return Wait(reason=Reason(ReasonCode.NO_RESTART_METHOD))
    if mandate.unit is None and daemon.runtime.in_foreign_namespace:
        return Wait(reason=Reason(ReasonCode.DAEMON_IN_CONTAINER))
    if matter.watch.opened_at is not None:
        return _open(Reason(ReasonCode.CIRCUIT_OPEN))
    return None


def _systemds(matter: Matter, since: float) -> Wait | None:
    return None if matter.mandate.unit is None else owner.left_to_systemd(matter, since)


def _irreplaceable(matter: Matter) -> Wait | None:
    """Nobody is ended whom nothing is known to bring back, or of whom it is not known who that is."""
    if matter.mandate.unit is None:
        known = identity_of(matter.daemon.runtime.process) is not None
        return None if known else Wait(reason=Reason(ReasonCode.PROCESS_UNKNOWN))
    if matter.unit is None:
        return Wait(reason=Reason(ReasonCode.UNIT_STATE_UNKNOWN, unit=matter.mandate.unit))
    unusable = owner.unusable_because(matter.unit)
    if unusable is None and matter.unit.active == "deactivating":
        # A restart would take the place of that stop, and so undo what somebody wants.
        unusable = Reason(ReasonCode.UNIT_STOPPING, unit=matter.unit.unit)
    return None if unusable is None else Wait(reason=unusable)


def _restart(matter: Matter, reason: ActionReason, since: float) -> Resolve:
    """Now, or when the time has come, or not at all any more."""
    rules, watch = matter.rules, matter.watch
    times = budget.spent(watch, rules, matter.at)
    answers = f"{reason} {since:.3f}"
    need = f"{answers} {times}"
    deed = Deed(kind=ActionKind.RESTART, reason=reason, steps=_steps(matter), answers=answers)
    if matter.mode is Mode.OBSERVE:
        return deed
    if times >= rules.restarts:
        return _open(Reason(ReasonCode.RESTARTS_DID_NOT_HELP, count=times, seconds=rules.window))
    until = watch.not_before if watch.need == need else None
    if until is None:
        until = matter.at + budget.backoff(times, rules, matter.chance)
    if matter.at < until:
        waits = Reason(ReasonCode.BACKOFF, count=times, seconds=rules.window)
        return Wait(reason=waits, state=WatchState.BACKOFF, need=need, until=until)
    return deed


def _open(reason: Reason) -> Wait:
    return Wait(reason=reason, state=WatchState.CIRCUIT_OPEN)


def _steps(matter: Matter) -> tuple[ActionStep, ...]:
    """Evidence first; then whoever is left of it goes, and last it comes.

    A unit's own daemon goes by the unit's restart: killed by us, systemd may have started another by then, which that
    restart would end (tried: 252).
    """
    daemon, unit = identity_of(matter.daemon.runtime.process), matter.mandate.unit
    if unit is not None and daemon is not None and matter.daemon.runtime.unit == unit:
        return SaveEvidence(), RestartUnit(unit=unit), *_limits(matter)
    itself = () if daemon is None else (EndProcess(identity=daemon, role=Role.DAEMON),)
    servers = (EndProcess(identity=each, role=Role.SERVER) for each in memory.leftovers(matter))
    start = _command(matter) if unit is None else RestartUnit(unit=unit, only_start=_has_ended(matter))
    return (SaveEvidence(), *itself, *servers, start, *_limits(matter))


def _has_ended(matter: Matter) -> bool:
    """Whether the unit is no more than its daemon; one that systemd takes to run would not be started."""
    unit = matter.unit
    return matter.daemon.gone and unit is not None and unit.active in ("failed", "inactive")


def _limits(matter: Matter) -> Iterator[GiveCommand]:
    """Given as soon as it answers: a client that waits has a server before what is read of it comes round to us.

    Where that does not do, the daemon is back all the same, and its limits are seen to afterwards.
    """
    wanted = remembered_limits.wanted(matter.mandate.limits, matter.watch)
    for command in drift.commands_for_defaults(matter.daemon, wanted):
        yield GiveCommand(command=command, vital=False)


def _command(matter: Matter) -> RunCommand:
    process, owner = matter.watch.process, matter.daemon.declared.owner
    uid = owner if owner is not None or process is None else process.uid
    environment = start_environment(matter.daemon, matter.watch, matter.mandate)
    return RunCommand(arguments=matter.mandate.command, environment=environment, uid=uid)


def start_environment(daemon: Daemon, watch: Watch, mandate: Mandate) -> Mapping[str, str]:
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
        **_threads(remembered_limits.wanted(mandate.limits, watch).active_thread_percentage),
    }


def _threads(percentage: float | None) -> Mapping[str, str]:
    return {} if percentage is None else {ACTIVE_THREAD_PERCENTAGE: f"{percentage:g}"}
