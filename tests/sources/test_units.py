"""Units tells of the daemons that enabled units start, and where they will be."""

from pathlib import Path

import pytest

from exporter.clock import Clock, SystemClock
from exporter.collectors.thread import Reading
from exporter.collectors.units import Systemctl, Units
from exporter.model.observation import DaemonFound
from exporter.model.problem import Problem, ProblemCode, command_failed, timed_out
from exporter.model.settings import DEFAULT_LOG_DIRECTORY, DEFAULT_PIPE_DIRECTORY
from tests.parse.test_systemd import shown

pytestmark = pytest.mark.usefixtures("nothing_left_behind")

FOREGROUND = "/usr/bin/nvidia-cuda-mps-control -f"


class FakeSystemctl:
    """A `systemctl` that says what a test wants."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "systemctl"
        self._directory = directory

    def says(self, shown: str = "", *, then: str = "exit 0") -> None:
        """Show this, then do that."""
        (self._directory / "shown").write_text(shown)
        self.path.write_text(
            f'#!/bin/sh\ncd {self._directory}\necho "$@" >asked\nenv >environment\ncat shown\n{then}\n'
        )
        self.path.chmod(0o755)

    def asked_for(self, unit: str) -> bool:
        """Whether it was last asked for this unit."""
        asked = self._directory / "asked"
        return asked.exists() and unit in asked.read_text().split()

    def collect(self, deadline: float = 30.0) -> Reading:
        """What Units makes of it."""
        return Units(self.systemctl(SystemClock(), deadline), SystemClock()).collect()

    def systemctl(self, clock: Clock, deadline: float = 30.0) -> Systemctl:
        """Return what runs this program."""
        return Systemctl(clock, executable=str(self.path), deadline=deadline)

    def found(self, *units: str) -> dict[str, tuple[str, str | None]]:
        """The log directory and unit of each daemon that is found, by its pipe directory."""
        self.says("\n".join(units))
        reading = self.collect()
        assert reading.problem is None
        found = [each for each in reading.observations if isinstance(each, DaemonFound)]
        assert all(each.expected and each.daemon == each.pipe_directory for each in found)
        return {each.pipe_directory: (each.log_directory, each.unit) for each in found}


@pytest.fixture
def systemctl(tmp_path: Path) -> FakeSystemctl:
    return FakeSystemctl(tmp_path)


def test_an_enabled_unit_that_starts_a_daemon_is_found(systemctl: FakeSystemctl) -> None:
    found = systemctl.found(
        shown("/usr/sbin/cron -f", name="cron.service"),
        shown(FOREGROUND),
        shown("/usr/bin/nvidia-cuda-mps-control -d", name="other.service", state="disabled"),
    )
    assert found == {DEFAULT_PIPE_DIRECTORY: (DEFAULT_LOG_DIRECTORY, "nvidia-mps.service")}


def test_a_unit_that_is_disabled_or_removed_is_told_of_once_as_expected_no_more(systemctl: FakeSystemctl) -> None:
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


def test_units_that_do_not_run_are_asked_for_too_and_nobody_for_a_password(systemctl: FakeSystemctl) -> None:
    systemctl.found()
    asked = (systemctl.path.parent / "asked").read_text().split()
    assert {"show", "--all", "--no-pager", "--no-ask-password", "*.service"} <= set(asked)


def test_its_directories_are_those_of_its_environment(systemctl: FakeSystemctl) -> None:
    more = 'Environment=CUDA_MPS_PIPE_DIRECTORY=/run/mps/ "CUDA_MPS_LOG_DIRECTORY=/var/log/m p s"\n'
    assert systemctl.found(shown(FOREGROUND, more=more)) == {"/run/mps": ("/var/log/m p s", "nvidia-mps.service")}


def test_a_file_outweighs_the_unit_and_the_command_outweighs_both(systemctl: FakeSystemctl, tmp_path: Path) -> None:
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
def test_a_daemon_whose_place_only_a_shell_could_tell_is_not_told_of(systemctl: FakeSystemctl, directory: str) -> None:
    """A daemon that is expected where it never comes would be an outage for ever."""
    assert systemctl.found(shown(FOREGROUND, more=f"Environment=CUDA_MPS_PIPE_DIRECTORY={directory}\n")) == {}


@pytest.mark.parametrize(
    "said",
    [
        "System has not been booted with systemd as init system (PID 1). Can't operate.",
        "Failed to connect to bus: No such file or directory",
        "Failed to connect to bus: Host is down",
    ],
)
def test_where_systemd_does_not_run_nothing_is_expected(systemctl: FakeSystemctl, said: str) -> None:
    systemctl.says(then=f'echo "{said}" >&2; exit 1')
    assert systemctl.collect() == Reading()


def test_where_systemctl_is_missing_too() -> None:
    assert Units(Systemctl(SystemClock(), executable="/nowhere/systemctl"), SystemClock()).collect() == Reading()


def test_what_else_goes_wrong_is_a_problem(systemctl: FakeSystemctl) -> None:
    systemctl.says(then="echo 'Failed to list units: Access denied' >&2; exit 1")
    assert systemctl.collect().problem == command_failed(str(systemctl.path), 1, "Failed to list units: Access denied")
    systemctl.path.chmod(0o644)
    assert systemctl.collect().problem == Problem(
        code=ProblemCode.COMMAND_NOT_STARTED, subject=str(systemctl.path), detail="Permission denied"
    )


def test_one_that_hangs_is_given_up(systemctl: FakeSystemctl) -> None:
    systemctl.says(shown(FOREGROUND), then="exec sleep 600")
    assert systemctl.collect(deadline=0.5) == Reading(problem=timed_out(str(systemctl.path), 0.5))


def test_it_gets_nothing_of_our_environment(systemctl: FakeSystemctl, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_the_gpus_that_it_leaves_the_daemon_are_told(
    systemctl: FakeSystemctl, command: str, more: str, visible: str | None
) -> None:
    systemctl.says(shown(command, more=more))
    (found,) = systemctl.collect().observations
    assert isinstance(found, DaemonFound)
    assert found.visible_devices == visible
