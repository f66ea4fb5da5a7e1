"""Restarts of a unit by systemd.

The exporter is not root for this: a polkit rule grants its user this verb for the units that it names.
"""

from exporter.actions.patience import Patience
from exporter.actions.program import Ended, run
from exporter.model.action import RestartUnit
from exporter.model.reason import Reason, ReasonCode
from exporter.parse.printable import printable
from exporter.parse.systemd import is_service_name

DEADLINE_SECONDS = 75.0
"""A daemon that hangs is given its TimeoutStopSec= by systemd before it is killed."""

_PROBLEMS = (
    (
        ("Access denied", "Interactive authentication required", "Permission denied", "not authorized"),
        ReasonCode.UNIT_NOT_PERMITTED,
    ),
    (("not found",), ReasonCode.UNIT_NOT_FOUND),
    (("masked",), ReasonCode.UNIT_MASKED),
    (("attempted too often", "start-limit-hit", "repeated too quickly"), ReasonCode.UNIT_STARTED_TOO_OFTEN),
    (
        ("not been booted with systemd", "Failed to connect to bus", "Failed to connect to system"),
        ReasonCode.UNIT_WITHOUT_SYSTEMD,
    ),
    (("Job for ",), ReasonCode.UNIT_DID_NOT_START),
)
"""What systemctl says if it cannot restart a unit; the first that applies counts."""


def restart_unit(
    step: RestartUnit, *, systemctl: str, path: str, patience: Patience, seconds: float = DEADLINE_SECONDS
) -> Reason | None:
    """Restart the unit and wait until it runs. Return why it does not. `path` is the PATH of systemctl."""
    if not is_service_name(step.unit):
        return Reason(ReasonCode.UNIT_NAME_INVALID, unit=printable(step.unit))
    verb = "start" if step.only_start else "restart"
    arguments = (systemctl, "--no-ask-password", verb, "--", step.unit)
    try:
        ended = run(arguments, environment={"PATH": path, "LC_ALL": "C"}, seconds=seconds, patience=patience)
    except OSError as error:
        return Reason(ReasonCode.PROGRAM_NOT_STARTED, command=systemctl, text=error.strerror)
    if ended.exit_code == 0:
        return None
    if ended.exit_code is None:
        return Reason(ReasonCode.UNIT_TIMED_OUT, unit=step.unit, seconds=seconds)
    return _problem(step.unit, ended)


def _problem(unit: str, ended: Ended) -> Reason:
    """Return what the output of systemctl means."""
    for words, code in _PROBLEMS:
        if any(each in ended.said for each in words):
            return Reason(code, unit=unit)
    return Reason(ReasonCode.UNIT_NOT_RESTARTED, unit=unit, exit_code=ended.exit_code, text=ended.last_line)
