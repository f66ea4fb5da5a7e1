"""Tests of Units: the daemons that enabled units start."""

from pathlib import Path

import pytest

from exporter.clock import Clock, SystemClock
from exporter.collectors.systemd import Systemctl, Units
from exporter.collectors.thread import Reading
from exporter.model.observation import DaemonFound
from exporter.model.reason import Reason, ReasonCode, command_failed, timed_out
from exporter.model.settings import DEFAULT_LOG_DIRECTORY, DEFAULT_PIPE_DIRECTORY
from tests.parse.test_systemd import shown

pytestmark = pytest.mark.usefixtures("nothing_left_behind")

FOREGROUND = "/usr/bin/nvidia-cuda-mps-control -f"


class FakeSystemctl:
    """A `systemctl` with the output that a test sets."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "systemctl"
        self._directory = directory

    def says(self, shown: str = "", *, then: str = "exit 0") -> None:
        (self._directory / "shown").write_text(shown)
        self.path.write_text(
            f'#!/bin/sh\ncd {self._directory}\necho "$@" >arguments\nenv >environment\ncat shown\n{then}\n'
        )
        self.path.chmod(0o755)

    def requested(self, unit: str) -> bool:
        arguments = self._directory / "arguments"
        return arguments.exists() and unit in arguments.read_text().split()

    def collect(self, deadline: float = 30.0) -> Reading:
        return Units(self.systemctl(SystemClock(), deadline), SystemClock()).collect()

    def systemctl(self, clock: Clock, deadline: float = 30.0) -> Systemctl:
        return Systemctl(clock, executable=str(self.path), deadline=deadline)

    def found(self, *units: str) -> dict[str, tuple[str, str | None]]:
        self.says("\n".join(units))
        reading = self.collect()
        assert reading.problem is None
        found = [each for each in reading.observations if isinstance(each, DaemonFound)]
        assert all(each.expected and each.daemon == each.pipe_directory for each in found)
        return {each.pipe_directory: (each.log_directory, each.unit) for each in found}


@pytest.fixture
def systemctl(tmp_path: Path) -> FakeSystemctl:
    return FakeSystemctl(tmp_path)


def test_finds_enabled_units_that_start_a_daemon(systemctl: FakeSystemctl) -> None:
    found = systemctl.found(
        shown("/usr/sbin/cron -f", name="cron.service"),
        shown(FOREGROUND),
        shown("/usr/bin/nvidia-cuda-mps-control -d", name="other.service", state="disabled"),
    )
    assert found == {DEFAULT_PIPE_DIRECTORY: (DEFAULT_LOG_DIRECTORY, "nvidia-mps.service")}


def test_reports_a_disabled_unit_once_as_no_longer_expected(systemctl: FakeSystemctl) -> None:
    units = Units(systemctl.systemctl(SystemClock()), SystemClock())

    def collect() -> list[tuple[bool | None, str | None]]:
        seen = units.collect().observations
        return [(each.expected, each.unit) for each in seen if isinstance(each, DaemonFound)]

    systemctl.says(shown(FOREGROUND))
    assert collect() == [(True, "nvidia-mps.service")]
    systemctl.says(then="echo 'Access denied' >&2; exit 1")
    assert collect() == []
    systemctl.says(shown(FOREGROUND, state="disabled"))
    assert collect() == [(False, "nvidia-mps.service")]
    assert collect() == []


def test_requests_inactive_units_too_and_no_password(systemctl: FakeSystemctl) -> None:
    systemctl.found()
    arguments = (systemctl.path.parent / "arguments").read_text().split()
    assert {"show", "--all", "--no-pager", "--no-ask-password", "*.service"} <= set(arguments)


def test_reads_directories_from_the_environment(systemctl: FakeSystemctl) -> None:
    more = 'Environment=CUDA_MPS_PIPE_DIRECTORY=/run/mps/ "CUDA_MPS_LOG_DIRECTORY=/var/log/m p s"\n'
    assert systemctl.found(shown(FOREGROUND, more=more)) == {"/run/mps": ("/var/log/m p s", "nvidia-mps.service")}


def test_a_file_overrides_the_unit_and_the_command_overrides_both(systemctl: FakeSystemctl, tmp_path: Path) -> None:
    (tmp_path / "first").write_text("CUDA_MPS_PIPE_DIRECTORY=/first\nCUDA_MPS_LOG_DIRECTORY=/first/log\n")
    (tmp_path / "second").write_text("CUDA_MPS_PIPE_DIRECTORY='/second'\n")
    more = "Environment=CUDA_MPS_PIPE_DIRECTORY=/unit CUDA_MPS_LOG_DIRECTORY=/unit/log\n" + "".join(
        f"EnvironmentFiles={tmp_path / name} (ignore_errors=yes)\n" for name in ("first", "absent", "second")
    )
    assert systemctl.found(
        shown(FOREGROUND, more=more),
        shown(f"/usr/bin/env CUDA_MPS_PIPE_DIRECTORY=/command {FOREGROUND}", name="b.service", more=more),
    ) == {"/second": ("/first/log", "nvidia-mps.service"), "/command": ("/first/log", "b.service")}


@pytest.mark.parametrize("directory", ["relative", "$HOME/mps", "`id`", "/tmp/mps_$CUDA_VISIBLE_DEVICES"])
def test_ignores_a_directory_that_only_a_shell_could_evaluate(systemctl: FakeSystemctl, directory: str) -> None:
    """A daemon that is expected in a wrong directory would be a permanent outage."""
    assert systemctl.found(shown(FOREGROUND, more=f"Environment=CUDA_MPS_PIPE_DIRECTORY={directory}\n")) == {}


@pytest.mark.parametrize(
    "error",
    [
        "System has not been booted with systemd as init system (PID 1). Can't operate.",
        "Failed to connect to bus: No such file or directory",
        "Failed to connect to bus: Host is down",
    ],
)
def test_expects_nothing_without_systemd(systemctl: FakeSystemctl, error: str) -> None:
    systemctl.says(then=f'echo "{error}" >&2; exit 1')
    assert systemctl.collect() == Reading()


def test_expects_nothing_without_systemctl() -> None:
    assert Units(Systemctl(SystemClock(), executable="/nowhere/systemctl"), SystemClock()).collect() == Reading()


def test_reports_other_failures(systemctl: FakeSystemctl) -> None:
    systemctl.says(then="echo 'Failed to list units: Access denied' >&2; exit 1")
    assert systemctl.collect().problem == command_failed(str(systemctl.path), 1, "Failed to list units: Access denied")
    systemctl.path.chmod(0o644)
    assert systemctl.collect().problem == Reason(
        ReasonCode.COMMAND_NOT_STARTED, subject=str(systemctl.path), detail="Permission denied"
    )


def test_reports_a_timeout_of_systemctl(systemctl: FakeSystemctl) -> None:
    systemctl.says(shown(FOREGROUND), then="exec sleep 600")
    assert systemctl.collect(deadline=0.5) == Reading(problem=timed_out(str(systemctl.path), 0.5))


def test_does_not_pass_the_environment_to_systemctl(systemctl: FakeSystemctl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/systemd/notify")
    systemctl.found()
    environment = (systemctl.path.parent / "environment").read_text()
    assert "NOTIFY_SOCKET" not in environment


@pytest.mark.parametrize(
    ("command", "more", "visible"),
    [
        (FOREGROUND, "", None),
        (FOREGROUND, "Environment=CUDA_VISIBLE_DEVICES=GPU-7,1\n", "GPU-7,1"),
        (f"/usr/bin/env CUDA_VISIBLE_DEVICES=2 {FOREGROUND}", "Environment=CUDA_VISIBLE_DEVICES=1\n", "2"),
    ],
)
def test_reports_the_visible_devices_of_a_unit(
    systemctl: FakeSystemctl, command: str, more: str, visible: str | None
) -> None:
    systemctl.says(shown(command, more=more))
    (found,) = systemctl.collect().observations
    assert isinstance(found, DaemonFound)
    assert found.visible_devices == visible
