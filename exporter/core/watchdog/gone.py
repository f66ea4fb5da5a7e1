"""The diagnosis of a daemon that does not run: it crashed, was stopped, or was never seen."""

from collections.abc import Iterator

from exporter.core import units
from exporter.core.watchdog.matter import Matter
from exporter.model.daemon import Daemon, DaemonState
from exporter.model.diagnosis import Condition, Diagnosis
from exporter.model.reason import Reason, ReasonCode
from exporter.model.witnesses import UnitState

_NOT_FOUND = Reason(ReasonCode.NO_DAEMON_FOUND)
_LEFT_BEHIND = Reason(ReasonCode.PID_FILE_LEFT)
_OF_THE_PID_FILE = (_NOT_FOUND, _LEFT_BEHIND)

_ENOUGH = 2
"""This many independent indications establish a crash."""


def what_became_of(matter: Matter) -> Diagnosis:
    """Return the diagnosis of a daemon that is gone."""
    daemon, since = matter.daemon, matter.daemon.lifecycle.state_since or matter.at
    stopped = _stopped(matter)
    if stopped is not None:
        return Diagnosis(condition=Condition.STOPPED, since=matter.watch.stopped_at or since, indications=(stopped,))
    if not _ever_lived(matter):
        never_ran = Reason(ReasonCode.NEVER_RAN)
        return Diagnosis(condition=Condition.NEVER_SEEN, since=since, indications=(never_ran,))
    indications = tuple(_indications(matter))
    # NVIDIA's program reads the pid file, which any user may write (measured, R580): both are one indication.
    independent = len(indications) - all(each in indications for each in _OF_THE_PID_FILE)
    sure = daemon.lifecycle.gone_at is None and _no_quit(matter) and independent >= _ENOUGH
    return Diagnosis(condition=Condition.CRASHED if sure else Condition.UNKNOWN, since=since, indications=indications)


def _stopped(matter: Matter) -> Reason | None:
    """Return what indicates that an operator stopped the daemon; None if nothing does."""
    daemon, unit = matter.daemon, _of_its_end(matter)
    if unit is not None and units.stays_away(unit):
        ended = unit.result == "success"
        return Reason(ReasonCode.UNIT_ENDED if ended else ReasonCode.UNIT_STOP_TIMED_OUT, unit=unit.unit)
    if daemon.state is DaemonState.STOPPED:
        return Reason(ReasonCode.QUIT_RECEIVED)
    # After a quit the pid file goes, after SIGKILL it stays (measured, R580); the log, where it was read, knows better.
    if (
        daemon.lifecycle.pid_file_left is False
        and daemon.lifecycle.gone_at is None
        and not _log_tells(matter)
        and _ever_lived(matter)
    ):
        return Reason(ReasonCode.NO_PID_FILE_LEFT)
    if matter.watch.stopped_at is not None:
        return Reason(ReasonCode.NOT_STARTED_SINCE_STOP)
    return None


def _ever_lived(matter: Matter) -> bool:
    watch = matter.watch
    return matter.daemon.lifecycle.seen or watch.process is not None or watch.well_since is not None


def _indications(matter: Matter) -> Iterator[Reason]:
    daemon, process = matter.daemon, matter.watch.process
    if daemon.lifecycle.seen and process is not None:
        yield Reason(ReasonCode.PROCESS_GONE, pid=process.pid)
    if daemon.lifecycle.not_found_at is not None and daemon.lifecycle.not_found_at >= (
        daemon.lifecycle.state_since or 0.0
    ):
        yield _NOT_FOUND
    if _log_tells(matter):
        yield Reason(ReasonCode.LOG_ENDS_WITHOUT_QUIT)
    if daemon.commands.listening is False:
        yield Reason(ReasonCode.NO_LISTENER)
    if daemon.lifecycle.pid_file_left:
        yield _LEFT_BEHIND
    unit = _of_its_end(matter)
    if unit is not None and unit.active == "failed":
        yield Reason(ReasonCode.UNIT_FAILED, unit=unit.unit, text=unit.result)
    if unit is not None and unit.sub == "auto-restart":
        yield Reason(ReasonCode.UNIT_RESTARTING, unit=unit.unit)


def _log_tells(matter: Matter) -> bool:
    """Whether the end was seen while its log was followed, which would have told of a quit."""
    return matter.daemon.log_followed and _lost(matter.daemon)


def _no_quit(matter: Matter) -> bool:
    """Whether that end was no quit: of one that nobody saw, as while the exporter was not there, traces must tell."""
    unit = _of_its_end(matter)
    failed = unit is not None and unit.active == "failed"
    return _lost(matter.daemon) or bool(matter.daemon.lifecycle.pid_file_left) or failed


def _lost(daemon: Daemon) -> bool:
    """Whether its end was seen, and no quit."""
    return daemon.lifecycle.last_loss_at is not None and daemon.lifecycle.last_loss_at >= (
        daemon.lifecycle.state_since or 0.0
    )


def _of_its_end(matter: Matter) -> UnitState | None:
    """What systemd told of its unit since."""
    unit = matter.unit
    told = unit is not None and unit.problem is None and unit.at >= (matter.daemon.lifecycle.state_since or 0.0)
    return unit if told and matter.ran_in_unit else None
