"""A daemon that is no more: whether it crashed, was stopped, or never was."""

from collections.abc import Iterator

from exporter.core import units
from exporter.core.watchdog.matter import Matter
from exporter.model.daemon import Daemon, DaemonState
from exporter.model.diagnosis import Condition, Diagnosis
from exporter.model.witnesses import UnitState

_NOT_FOUND = "nvidia-cuda-mps-control finds no daemon"
_LEFT_BEHIND = "its pid file was left behind"
_OF_THE_PID_FILE = (_NOT_FOUND, _LEFT_BEHIND)

_ENOUGH = 2
"""So many witnesses make a crash."""


def what_became_of(matter: Matter) -> Diagnosis:
    """The word for its end, and who says so."""
    daemon, since = matter.daemon, matter.daemon.state_since or matter.at
    stopped = _stopped(matter)
    if stopped is not None:
        return Diagnosis(condition=Condition.STOPPED, since=matter.watch.stopped_at or since, witnesses=(stopped,))
    if not _ever_lived(matter):
        no_trace = "there is no trace that it ever ran"
        return Diagnosis(condition=Condition.NEVER_SEEN, since=since, witnesses=(no_trace,))
    witnesses = tuple(_witnesses(matter))
    # NVIDIA's program goes by the pid file, and everybody may write into that (measured, R580): both are one witness.
    independent = len(witnesses) - all(each in witnesses for each in _OF_THE_PID_FILE)
    sure = daemon.gone_at is None and _no_quit(matter) and independent >= _ENOUGH
    return Diagnosis(condition=Condition.CRASHED if sure else Condition.UNKNOWN, since=since, witnesses=witnesses)


def _stopped(matter: Matter) -> str | None:
    """Who says that an operator stopped it; None: nobody does."""
    daemon, unit = matter.daemon, _of_its_end(matter)
    if unit is not None and units.stays_away(unit):
        at_once = unit.result == "success"
        return (
            f"{unit.unit} {'is inactive, and ended in success' if at_once else 'was stopped, and did not end in time'}"
        )
    if daemon.state is DaemonState.STOPPED:
        return "it was told to go"
    # After a quit the pid file goes, after SIGKILL it stays (measured, R580); the log, where it was read, knows better.
    if daemon.left_behind is False and daemon.gone_at is None and not _log_tells(matter) and _ever_lived(matter):
        return "it left no pid file behind, as after a quit"
    if matter.watch.stopped_at is not None:
        return "it was stopped, and has not been started since"
    return None


def _ever_lived(matter: Matter) -> bool:
    watch = matter.watch
    return matter.daemon.seen or watch.process is not None or watch.well_since is not None


def _witnesses(matter: Matter) -> Iterator[str]:
    daemon, process = matter.daemon, matter.watch.process
    if daemon.seen and process is not None:
        yield f"process {process.pid} is gone"
    if daemon.not_found_at is not None and daemon.not_found_at >= (daemon.state_since or 0.0):
        yield _NOT_FOUND
    if _log_tells(matter):
        yield "its log ends without a quit"
    if daemon.listening is False:
        yield "nobody listens on its socket"
    if daemon.left_behind:
        yield _LEFT_BEHIND
    unit = _of_its_end(matter)
    if unit is not None and unit.active == "failed":
        yield f"{unit.unit} has failed ({unit.result})"
    if unit is not None and unit.sub == "auto-restart":
        yield f"{unit.unit} is to be restarted by systemd"


def _log_tells(matter: Matter) -> bool:
    """Whether the end was seen while its log was followed, which would have told of a quit."""
    return matter.daemon.log_followed and _lost(matter.daemon)


def _no_quit(matter: Matter) -> bool:
    """Whether that end was no quit: of one that nobody saw, as while the exporter was not there, traces must tell."""
    unit = _of_its_end(matter)
    failed = unit is not None and unit.active == "failed"
    return _lost(matter.daemon) or bool(matter.daemon.left_behind) or failed


def _lost(daemon: Daemon) -> bool:
    """Whether its end was seen, and no quit."""
    return daemon.last_loss_at is not None and daemon.last_loss_at >= (daemon.state_since or 0.0)


def _of_its_end(matter: Matter) -> UnitState | None:
    """What systemd told of its unit since."""
    unit = matter.unit
    told = unit is not None and unit.problem is None and unit.at >= (matter.daemon.state_since or 0.0)
    return unit if told and matter.ran_in_unit else None
