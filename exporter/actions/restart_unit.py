"""Has systemd restart a unit.

The exporter is not root for this: a polkit rule grants its user this verb for the units that it names.
"""

from exporter.actions.patience import Patience
from exporter.actions.program import Ended, run
from exporter.model.action import RestartUnit
from exporter.parse.printable import printable
from exporter.parse.systemd import is_service_name

DEADLINE_SECONDS = 75.0
"""A daemon that hangs is given its TimeoutStopSec= by systemd before it is killed."""

POLKIT_RULE = "50-cuda-mps-exporter.rules"

_REFUSED = ("Access denied", "Interactive authentication required", "Permission denied", "not authorized")
_TOO_OFTEN = ("attempted too often", "start-limit-hit", "repeated too quickly")
_NO_SYSTEMD = ("not been booted with systemd", "Failed to connect to bus", "Failed to connect to system")


def restart_unit(
    step: RestartUnit, *, systemctl: str, path: str, patience: Patience, seconds: float = DEADLINE_SECONDS
) -> str | None:
    """Restart it, and wait until systemd has; the problem, where it has not. `path` is where programs are found."""
    if not is_service_name(step.unit):
        return f"{printable(step.unit)!r} is no name of a service"
    verb = "start" if step.only_start else "restart"
    arguments = (systemctl, "--no-ask-password", verb, "--", step.unit)
    try:
        ended = run(arguments, environment={"PATH": path, "LC_ALL": "C"}, seconds=seconds, patience=patience)
    except OSError as error:
        return f"{systemctl} cannot be started: {error.strerror}"
    if ended.exit_code == 0:
        return None
    if ended.exit_code is None:
        return f"systemd did not restart {step.unit} within {seconds:g} s: see systemctl status {step.unit}"
    return _problem(step.unit, ended)


def _problem(unit: str, ended: Ended) -> str:
    """What systemctl's word means for who must act."""
    said = ended.said
    if any(words in said for words in _REFUSED):
        return f"systemd may not restart {unit} for the exporter: its polkit rule ({POLKIT_RULE}) must name this unit"
    if "not found" in said:
        return f"systemd knows no {unit}: correct the daemon's unit in the configuration"
    if "masked" in said:
        return f"{unit} is masked: systemctl unmask {unit}, if it is to run"
    if any(words in said for words in _TOO_OFTEN):
        return f"{unit} was started too often (its StartLimitBurst=): when it can start, systemctl reset-failed {unit}"
    if any(words in said for words in _NO_SYSTEMD):
        return f"systemd does not run, or cannot be reached: configure a command in place of {unit}"
    if "Job for " in said:
        return f"{unit} did not start: see journalctl -u {unit}"
    return f"systemctl could not restart {unit}: {ended.last_words}"
