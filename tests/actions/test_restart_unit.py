"""restart_unit restarts a unit through systemd, within its deadline, and reports why that failed."""

import os
import threading
from pathlib import Path

import pytest

from exporter.actions.steps import Cancellation, restart_unit
from exporter.model.action import RestartUnit
from exporter.model.reason import Reason, ReasonCode
from exporter.parse.printable import printable
from tests.actions.action_setup import REAL
from tests.actions.scripts import Script

UNIT = "nvidia-cuda-mps.service"
NOT_GRANTED = Reason(ReasonCode.UNIT_NOT_PERMITTED, unit=UNIT)
TOO_OFTEN = f"""Job for {UNIT} failed because start of the service was attempted too often.
See "systemctl status {UNIT}" and "journalctl -xeu {UNIT}" for details.
To force a start use "systemctl reset-failed {UNIT}" followed by "systemctl start {UNIT}" again."""
EXITED = f"""Job for {UNIT} failed because the control process exited with error code.
See "systemctl status {UNIT}" and "journalctl -xeu {UNIT}" for details."""
NO_SYSTEMD = """System has not been booted with systemd as init system (PID 1). Can't operate.
Failed to connect to bus: Host is down"""


@pytest.fixture
def systemctl(tmp_path: Path) -> Script:
    return Script(tmp_path / "systemctl")


def restart(
    systemctl: Script, unit: str = UNIT, *, seconds: float = 30.0, cancellation: Cancellation | None = None
) -> str | None:
    return restart_unit(
        RestartUnit(unit=unit),
        systemctl=str(systemctl.path),
        path=os.defpath,
        cancellation=cancellation or Cancellation(REAL),
        seconds=seconds,
    )


def test_restarts_a_unit_without_a_password_prompt(systemctl: Script) -> None:
    assert restart(systemctl) is None
    assert systemctl.reported[0] == f"--no-ask-password restart -- {UNIT}"
    assert systemctl.environment == {"PATH": os.defpath, "LC_ALL": "C"}


def test_starts_a_unit_without_a_restart(systemctl: Script) -> None:
    step = RestartUnit(unit=UNIT, only_start=True)
    assert restart_unit(step, systemctl=str(systemctl.path), path=os.defpath, cancellation=Cancellation(REAL)) is None
    assert systemctl.reported[0] == f"--no-ask-password start -- {UNIT}"


@pytest.mark.parametrize(
    "unit", ["nvidia-cuda-mps@GPU-1.service", "a\\x2db.service", "x:y_z.service", f"{'a' * 247}.service"]
)
def test_accepts_each_valid_service_name(systemctl: Script, unit: str) -> None:
    assert restart(systemctl, unit) is None
    assert systemctl.reported[0].endswith(f" -- {unit}")


@pytest.mark.parametrize(
    "unit",
    ["", "--force", "-H.service", "a.socket", "a b.service", "*.service", "a.service\n", "a/b.service", "ä.service"],
)
def test_runs_no_systemctl_for_an_invalid_service_name(systemctl: Script, unit: str) -> None:
    assert restart(systemctl, unit) == Reason(ReasonCode.UNIT_NAME_INVALID, unit=printable(unit))
    assert not systemctl.was_started


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        (f"Failed to restart {UNIT}: Interactive authentication required.", NOT_GRANTED),
        (f"Failed to restart {UNIT}: Access denied", NOT_GRANTED),
        (
            f"Failed to restart {UNIT}: Unit {UNIT} not found.",
            Reason(ReasonCode.UNIT_NOT_FOUND, unit=UNIT),
        ),
        (
            f"Failed to restart {UNIT}: Unit {UNIT} is masked.",
            Reason(ReasonCode.UNIT_MASKED, unit=UNIT),
        ),
        (
            TOO_OFTEN,
            Reason(ReasonCode.UNIT_STARTED_TOO_OFTEN, unit=UNIT),
        ),
        (EXITED, Reason(ReasonCode.UNIT_DID_NOT_START, unit=UNIT)),
        (NO_SYSTEMD, Reason(ReasonCode.UNIT_WITHOUT_SYSTEMD, unit=UNIT)),
        ("what\na mess", Reason(ReasonCode.UNIT_NOT_RESTARTED, unit=UNIT, exit_code=1, text="a mess")),
        ("", Reason(ReasonCode.UNIT_NOT_RESTARTED, unit=UNIT, exit_code=1)),
    ],
)
def test_reports_why_systemctl_failed(systemctl: Script, output: str, problem: Reason) -> None:
    systemctl.does(f"cat >&2 <<'output'\n{output}\noutput\nexit 1")
    assert restart(systemctl) == problem


def test_reports_a_restart_that_takes_too_long(systemctl: Script) -> None:
    systemctl.does("exec sleep 600")
    assert restart(systemctl, seconds=0.3) == (Reason(ReasonCode.UNIT_TIMED_OUT, unit=UNIT, seconds=0.3))


@pytest.mark.usefixtures("nothing_left_behind")
def test_stops_waiting_for_systemctl_after_cancellation(systemctl: Script) -> None:
    """Systemd goes on with it all the same."""
    cancellation = Cancellation(REAL)
    systemctl.does("exec sleep 600")
    threading.Timer(0.1, cancellation.cancel).start()

    assert restart(systemctl, seconds=600, cancellation=cancellation) is not None


def test_reports_a_host_without_systemctl(systemctl: Script) -> None:
    systemctl.path.unlink()
    assert restart(systemctl) == Reason(
        ReasonCode.PROGRAM_NOT_STARTED, command=str(systemctl.path), text="No such file or directory"
    )
