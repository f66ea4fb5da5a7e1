"""restart_unit asks systemd, waits no longer than it may, and says who must do what where systemd will not."""

import os
import threading
from pathlib import Path

import pytest

from exporter.actions.patience import Patience
from exporter.actions.restart_unit import restart_unit
from exporter.model.action import RestartUnit
from tests.actions.places import REAL
from tests.actions.scripts import Script

UNIT = "nvidia-cuda-mps.service"
NOT_GRANTED = (
    f"systemd may not restart {UNIT} for the exporter: its polkit rule (50-cuda-mps-exporter.rules) must name this unit"
)
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
    systemctl: Script, unit: str = UNIT, *, seconds: float = 30.0, patience: Patience | None = None
) -> str | None:
    return restart_unit(
        RestartUnit(unit=unit),
        systemctl=str(systemctl.path),
        path=os.defpath,
        patience=patience or Patience(REAL),
        seconds=seconds,
    )


def test_it_is_restarted_and_nobody_is_asked_for_a_password(systemctl: Script) -> None:
    assert restart(systemctl) is None
    assert systemctl.told[0] == f"--no-ask-password restart -- {UNIT}"
    assert systemctl.environment == {"PATH": os.defpath, "LC_ALL": "C"}


def test_one_that_is_only_to_be_started_is_not_ended_first(systemctl: Script) -> None:
    step = RestartUnit(unit=UNIT, only_start=True)
    assert restart_unit(step, systemctl=str(systemctl.path), path=os.defpath, patience=Patience(REAL)) is None
    assert systemctl.told[0] == f"--no-ask-password start -- {UNIT}"


@pytest.mark.parametrize(
    "unit", ["nvidia-cuda-mps@GPU-1.service", "a\\x2db.service", "x:y_z.service", f"{'a' * 247}.service"]
)
def test_every_name_that_a_service_can_have_will_do(systemctl: Script, unit: str) -> None:
    assert restart(systemctl, unit) is None
    assert systemctl.told[0].endswith(f" -- {unit}")


@pytest.mark.parametrize(
    "unit",
    ["", "--force", "-H.service", "a.socket", "a b.service", "*.service", "a.service\n", "a/b.service", "ä.service"],
)
def test_what_is_no_name_of_a_service_is_not_even_tried(systemctl: Script, unit: str) -> None:
    assert "is no name of a service" in (restart(systemctl, unit) or "")
    assert not systemctl.was_started


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (f"Failed to restart {UNIT}: Interactive authentication required.", NOT_GRANTED),
        (f"Failed to restart {UNIT}: Access denied", NOT_GRANTED),
        (
            f"Failed to restart {UNIT}: Unit {UNIT} not found.",
            f"systemd knows no {UNIT}: correct the daemon's unit in the configuration",
        ),
        (
            f"Failed to restart {UNIT}: Unit {UNIT} is masked.",
            f"{UNIT} is masked: systemctl unmask {UNIT}, if it is to run",
        ),
        (
            TOO_OFTEN,
            f"{UNIT} was started too often (its StartLimitBurst=): when it can start, systemctl reset-failed {UNIT}",
        ),
        (EXITED, f"{UNIT} did not start: see journalctl -u {UNIT}"),
        (NO_SYSTEMD, f"systemd does not run, or cannot be reached: configure a command in place of {UNIT}"),
        ("what\na mess", f"systemctl could not restart {UNIT}: a mess"),
        ("", f"systemctl could not restart {UNIT}: exit code 1"),
    ],
)
def test_who_must_act_is_told_how(systemctl: Script, said: str, problem: str) -> None:
    systemctl.does(f"cat >&2 <<'said'\n{said}\nsaid\nexit 1")
    assert restart(systemctl) == problem


def test_one_that_takes_too_long_is_given_up(systemctl: Script) -> None:
    systemctl.does("exec sleep 600")
    assert restart(systemctl, seconds=0.3) == (
        f"systemd did not restart {UNIT} within 0.3 s: see systemctl status {UNIT}"
    )


@pytest.mark.usefixtures("nothing_left_behind")
def test_where_everything_is_broken_off_it_is_not_waited_for(systemctl: Script) -> None:
    """Systemd goes on with it all the same."""
    patience = Patience(REAL)
    systemctl.does("exec sleep 600")
    threading.Timer(0.1, patience.end).start()

    assert restart(systemctl, seconds=600, patience=patience) is not None


def test_a_host_without_it_is_told_so(systemctl: Script) -> None:
    systemctl.path.unlink()
    assert restart(systemctl) == f"{systemctl.path} cannot be started: No such file or directory"
