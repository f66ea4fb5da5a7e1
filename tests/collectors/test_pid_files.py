"""Tests of PidFile: a pid file counts only for a control daemon of the same pipe directory."""

import os
import tempfile
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from exporter.actions.runner import StepRunner, Tools
from exporter.actions.steps import Cancellation
from exporter.clock import SystemClock
from exporter.collectors.control_client import ControlClient
from exporter.collectors.daemon_processes import REPEAT_SECONDS, PidFile
from exporter.collectors.pipe_dir import PID_FILE, DaemonLocation, on_host
from exporter.collectors.proc import Proc
from exporter.collectors.workload_processes import WorkloadProcesses
from exporter.model.action import Action, ActionKind, ActionReason, RunCommand
from exporter.model.identity import WorkloadProcess, WorkloadRole
from exporter.model.node import Node
from exporter.model.observation import DaemonProcess
from exporter.model.reason import Reason, ReasonCode
from tests.clocks import HandClock
from tests.eventually import PATIENCE_SECONDS
from tests.standin.mps import MpsStandIn
from tests.tools import not_here

CLOCK = SystemClock()


def location_of(mps: MpsStandIn) -> DaemonLocation:
    return on_host("node", mps.pipe_directory, mps.log_directory)


def found_pid(mps: MpsStandIn) -> int | None:
    (found,) = PidFile(Proc(Path("/proc"), CLOCK), CLOCK).changed(location_of(mps))
    return found.pid


def test_finds_the_daemon_that_the_pid_file_names(mps: MpsStandIn) -> None:
    mps.start()

    assert found_pid(mps) == mps.pid


def test_ignores_a_pid_file_that_names_the_daemon_of_another_directory(mps: MpsStandIn, tmp_path: Path) -> None:
    """Every user can write the file (measured, R580), and both daemons can have the same user."""
    with MpsStandIn(tmp_path / "other") as other:
        other.start()
        mps.start()
        mps.kill()
        (mps.pipe_directory / PID_FILE).write_text(f"{other.pid}\n")

        assert found_pid(mps) is None


def test_reports_a_running_daemon_again_after_the_repeat_interval(mps: MpsStandIn) -> None:
    """The first report may have been lost."""
    mps.start()
    clock = HandClock()
    file, location = PidFile(Proc(Path("/proc"), CLOCK), clock), location_of(mps)
    file.changed(location)
    assert file.changed(location) == ()
    clock.time += REPEAT_SECONDS
    (again,) = file.changed(location)
    assert (again.pid, again.at, file.repeats) == (mps.pid, clock.time, True)
    assert file.changed(location) == ()
    mps.kill()
    file.changed(location)
    assert not file.repeats


class FoundProcesses(WorkloadProcesses):
    """The processes of a job, as a search finds them."""

    found: tuple[WorkloadProcess, ...] = ()

    def of(self, daemon: DaemonProcess) -> tuple[WorkloadProcess, ...]:
        return () if daemon.pid is None else self.found

    def job_source(self, cgroup: str | None, pid: int | None = None) -> str | None:
        return None if cgroup is None else "slurmstepd: [4711.batch]"


def test_reports_the_processes_of_a_daemons_job_and_the_earlier_ones(mps: MpsStandIn) -> None:
    """An ended one shows how the job ends. Of an expected daemon, none matters."""
    mps.start()
    clock, proc = HandClock(), Proc(Path("/proc"), CLOCK)
    workloads = FoundProcesses(proc, clock)
    file, location = PidFile(proc, clock, workloads=workloads), location_of(mps)
    script, another = (WorkloadProcess(pid=pid, start_ticks=1, role=WorkloadRole.TASK) for pid in (31, 32))
    workloads.found = (script,)
    (first,) = file.changed(location)
    workloads.found = (another,)
    clock.time += REPEAT_SECONDS
    (second,) = file.changed(location)
    expected = replace(location_of(mps), expected=True)
    (of_expected,) = PidFile(proc, clock, workloads=workloads).changed(expected)

    assert {each.job_source for each in (first, second, of_expected)} == {"slurmstepd: [4711.batch]"}
    assert (first.peers, second.peers, of_expected.peers) == ((script,), (another, script), ())
    assert first.user == psutil.Process().username()
    assert first.cgroup == Path("/proc/self/cgroup").read_text()
    mps.kill()
    assert [each.peers for each in file.changed(location)] == [()]


TENANT = 65534


@pytest.fixture
def foreign(mps: MpsStandIn) -> DaemonLocation:
    """The location of an expected daemon. The directory and the sockets there belong to another user."""
    if os.geteuid() != 0:
        not_here("only root can give a directory to another user")
    mps.start()
    for path in (mps.pipe_directory, *mps.pipe_directory.iterdir()):
        os.chown(path, TENANT, TENANT)
    return replace(location_of(mps), expected=True)


def client_of(location: DaemonLocation) -> ControlClient:
    client = ControlClient(
        location,
        executable="nvidia-cuda-mps-control",
        deadline=PATIENCE_SECONDS,
        clock=CLOCK,
        path=MpsStandIn(location.pipe.path).environment()["PATH"],
    )
    client.request(("get_server_list",))
    return client


def test_reports_the_user_who_has_an_expected_daemons_directory(foreign: DaemonLocation) -> None:
    (found,) = PidFile(Proc(Path("/proc"), CLOCK), CLOCK).changed(foreign)

    assert found == DaemonProcess(at=found.at, daemon="node", pid=None, foreign_owner=TENANT)


def test_does_not_query_another_users_daemon_instead_of_the_expected_one(
    foreign: DaemonLocation, mps: MpsStandIn
) -> None:
    before = mps.control_log
    client = client_of(foreign)

    assert client.collect().observations == ()
    reply = client.send("shutdown_server 1")
    assert (reply.exit_code, f"UID {TENANT}" in reply.stderr) == (127, True)
    assert mps.control_log == before


def test_queries_the_daemon_of_the_configured_user(foreign: DaemonLocation) -> None:
    (reply,) = client_of(replace(foreign, owner=TENANT)).collect().observations

    assert getattr(reply, "exit_code", None) is not None


def start_problem(location: DaemonLocation, uid: int | None) -> Reason | None:
    tools = Tools(clock=CLOCK, proc=Proc(Path("/proc"), CLOCK), client=lambda *_: client_of(location), path=os.defpath)
    step = RunCommand(arguments=("true",), uid=uid)
    action = Action(daemon="node", kind=ActionKind.RESTART, reason=ActionReason.DOWN, steps=(step,))
    return StepRunner(
        action, Node(), location, tools=tools, cancellation=Cancellation(CLOCK), report=lambda _: None
    ).run()


def test_starts_nothing_in_another_users_directory_or_as_an_unconfigured_user(
    foreign: DaemonLocation, tmp_path: Path
) -> None:
    assert start_problem(foreign, 0) == Reason(ReasonCode.DIRECTORY_OF_OTHER_USER, path=str(foreign.pipe), uid=TENANT)
    missing = replace(on_host("node", tmp_path / "missing", tmp_path), expected=True)
    refused = Reason(ReasonCode.USER_NOT_CONFIGURED, uid=TENANT)
    assert (start_problem(missing, TENANT), start_problem(missing, 0)) == (refused, None)
    assert start_problem(replace(foreign, owner=TENANT), 0) is None


@pytest.mark.parametrize(("mode", "by_all"), [(0o755, True), (0o711, True), (0o750, False), (0o700, False)])
def test_reports_the_only_user_who_can_certainly_enter_the_pipe_directory(mode: int, by_all: bool) -> None:
    """It is not known which users a group or an access list admits."""
    with tempfile.TemporaryDirectory() as above, MpsStandIn(Path(above)) as mps:
        Path(above).chmod(0o755)
        mps.start()
        mps.pipe_directory.chmod(mode)
        (found,) = PidFile(Proc(Path("/proc"), CLOCK), CLOCK).changed(location_of(mps))
        assert found.pid == mps.pid
        assert found.entered_by == (None if by_all else os.geteuid())
