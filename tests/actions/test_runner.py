"""The runner takes the actions of each daemon in a thread, and reports the end of each action."""

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty
from typing import Any

import psutil
import pytest

from exporter.actions import runner
from exporter.actions.evidence import Evidence
from exporter.actions.runner import ActionRunner, Tools
from exporter.actions.steps import send_command
from exporter.collectors.child import User
from exporter.collectors.control_client import ControlClient
from exporter.collectors.pipe_dir import DaemonLocation
from exporter.collectors.thread import Inbox
from exporter.model.action import (
    ActionKind,
    ActionStep,
    EndProcess,
    GiveCommand,
    RestartUnit,
    Role,
    RunCommand,
    SaveEvidence,
)
from exporter.model.node import Node
from exporter.model.observation import ActionDone, ControlReply, Observation
from exporter.model.reason import Reason, ReasonCode
from tests.actions.action_setup import NAME, PROC, REAL, action, identity, location_of, node_of
from tests.actions.scripts import Script
from tests.eventually import PATIENCE_SECONDS, until
from tests.exporter_process import control_processes
from tests.standin.mps import MpsStandIn, is_alive

CLIENT = 5_000_000
OTHER = "other"
UNIT = "nvidia-cuda-mps.service"


@dataclass(slots=True)
class Worker:
    """Hands, and what they put into the inbox."""

    mps: MpsStandIn
    hands: ActionRunner
    inbox: Inbox
    systemctl: Script
    seen: list[Observation] = field(default_factory=list)

    def do(self, *steps: ActionStep, daemon: str = NAME) -> None:
        self.hands.do(action(*steps, daemon=daemon, uid=os.geteuid()), node_of(self.mps, daemon))

    def done(self, *steps: ActionStep) -> ActionDone:
        self.do(*steps)
        return self.next_done()

    def next_done(self) -> ActionDone:
        while True:
            try:
                (seen,) = self.inbox.get(timeout=PATIENCE_SECONDS)
            except Empty:
                raise AssertionError("nothing is reported") from None
            self.seen.append(seen)
            if isinstance(seen, ActionDone):
                return seen


def client_of(mps: MpsStandIn) -> Callable[[DaemonLocation, float, User], ControlClient]:
    def make(location: DaemonLocation, deadline: float, user: User) -> ControlClient:
        return ControlClient(
            location,
            executable="nvidia-cuda-mps-control",
            deadline=deadline,
            clock=REAL,
            path=mps.environment()["PATH"],
            user=user,
        )

    return make


@pytest.fixture
def worker(mps: MpsStandIn, tmp_path: Path, nothing_left_behind: None) -> Iterator[Worker]:
    systemctl = Script(tmp_path / "systemctl")
    tools = Tools(
        clock=REAL,
        proc=PROC,
        client=client_of(mps),
        path=mps.environment()["PATH"],
        evidence=Evidence(tmp_path / "evidence", proc=Path("/proc"), kmsg=None, clock=REAL),
        systemctl=str(systemctl.path),
    )
    inbox = Inbox()
    hands = ActionRunner(tools, inbox=inbox, location=lambda name, _: location_of(mps, name))
    yield Worker(mps, hands, inbox, systemctl)
    hands.close(PATIENCE_SECONDS)


def starting(mps: MpsStandIn) -> RunCommand:
    return RunCommand(arguments=("nvidia-cuda-mps-control", "-d"), environment=mps.environment())


# -- what is done ----------------------------------------------------------------------------------------------------


def test_restarts_a_killed_daemon_with_its_limits(mps: MpsStandIn, worker: Worker) -> None:
    mps.start()
    mps.connect_and_wait(CLIENT)
    mps.kill()

    limit = "set_default_device_pinned_mem_limit 0 2G"
    done = worker.done(SaveEvidence(), starting(mps), GiveCommand(command=limit))

    assert (done.daemon, done.kind, done.reason, done.problem) == (NAME, ActionKind.RESTART, "down", None)
    assert done.evidence is not None
    assert "Starting new server" in Path(done.evidence, "control.log").read_text()
    (given, _) = worker.seen
    assert isinstance(given, ControlReply)
    assert (given.daemon, given.command, given.exit_code) == (NAME, limit, 0)
    assert mps.ask("get_default_device_pinned_mem_limit 0").stdout == "2G\n"


def test_waits_only_once_for_a_daemon_that_does_not_start(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many limits it was to have."""
    waits: list[bool] = []

    def given(client: ControlClient, command: str, *, starting: bool, **reported: Any) -> ControlReply:
        waits.append(starting)
        return send_command(client, command, starting=False, **reported)

    monkeypatch.setattr(runner, "send_command", given)
    limits = ("set_default_device_pinned_mem_limit 0 2G", "set_default_active_thread_percentage 40")

    done = worker.done(RunCommand(arguments=("true",)), *(GiveCommand(command=each, vital=False) for each in limits))

    assert (waits, done.problem) == ([True], None)


def test_ends_a_remaining_server_before_the_start(mps: MpsStandIn, worker: Worker) -> None:
    mps.start()
    mps.connect_and_wait(CLIENT)
    left = psutil.Process(mps.server_pid)
    left.suspend()
    mps.kill()

    leftover = EndProcess(identity=identity(left.pid), role=Role.SERVER)
    assert worker.done(leftover, starting(mps)).problem is None
    assert not is_alive(left.pid)
    assert mps.is_running()


def test_ends_an_action_at_the_first_failed_step(mps: MpsStandIn, worker: Worker) -> None:
    mps.start()

    done = worker.done(GiveCommand(command="bogus"), RestartUnit(unit=UNIT))

    assert done.problem == Reason(ReasonCode.COMMAND_UNKNOWN, command="bogus")
    assert not worker.systemctl.was_started


def test_acts_without_evidence_if_it_cannot_be_saved(worker: Worker, tmp_path: Path) -> None:
    (tmp_path / "evidence").write_text("")

    done = worker.done(SaveEvidence(), RestartUnit(unit=UNIT))

    assert (done.problem, done.evidence) == (None, None)
    assert worker.systemctl.was_started


def test_reports_a_refusal_before_the_end_of_the_action(mps: MpsStandIn, worker: Worker) -> None:
    mps.start()
    worker.done(GiveCommand(command="terminate_client 1 2"))

    reply, done = worker.seen
    assert isinstance(reply, ControlReply)
    assert reply.stdout.endswith("1\n")
    assert isinstance(done, ActionDone)
    assert done.problem is not None


# -- apart from each other -------------------------------------------------------------------------------------------


def test_a_hung_action_delays_no_other_daemon(worker: Worker) -> None:
    worker.systemctl.does('case "$*" in *slow*) exec sleep 600;; esac')
    worker.do(RestartUnit(unit="slow.service"))
    worker.do(RestartUnit(unit=UNIT), daemon=OTHER)

    done = worker.next_done()

    assert (done.daemon, done.problem) == (OTHER, None)


def test_runs_one_action_for_a_daemon_at_a_time(worker: Worker) -> None:
    worker.systemctl.does("exec sleep 600")
    worker.do(RestartUnit(unit=UNIT))

    done = worker.done(RestartUnit(unit=UNIT))

    assert (done.daemon, done.problem) == (NAME, Reason(ReasonCode.ACTION_UNDER_WAY))


def test_starts_an_action_right_after_another(worker: Worker) -> None:
    for _ in range(20):
        assert worker.done(RestartUnit(unit=UNIT)).problem is None


def test_limits_the_actions_that_run_at_the_same_time(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "MAX_ACTIONS", 1)
    worker.systemctl.does("exec sleep 600")
    worker.do(RestartUnit(unit=UNIT))
    worker.do(RestartUnit(unit=UNIT), daemon=OTHER)

    done = worker.next_done()

    assert (done.daemon, done.problem) == (OTHER, Reason(ReasonCode.TOO_MANY_ACTIONS, count=1))


# -- whatever happens ------------------------------------------------------------------------------------------------


def test_reports_an_unexpected_error_as_the_result(mps: MpsStandIn, tmp_path: Path) -> None:
    def broken(*_: object) -> ControlClient:
        raise ZeroDivisionError("oh")

    inbox = Inbox()
    tools = Tools(clock=REAL, proc=PROC, client=broken, path=os.defpath)
    hands = ActionRunner(tools, inbox=inbox, location=lambda name, _: location_of(mps, name))
    for _ in range(2):
        hands.do(action(GiveCommand(command="get_server_list")), node_of(mps))
        (done,) = inbox.get(timeout=PATIENCE_SECONDS)
        assert isinstance(done, ActionDone)
        assert done.problem == Reason(ReasonCode.UNEXPECTED_ERROR, text="ZeroDivisionError: oh")


def test_reports_a_daemon_without_a_location(mps: MpsStandIn, tmp_path: Path) -> None:
    def nowhere(name: str, node: Node) -> DaemonLocation:
        return location_of(mps, node.daemons[name].name)

    inbox = Inbox()
    tools = Tools(clock=REAL, proc=PROC, client=client_of(mps), path=os.defpath)
    ActionRunner(tools, inbox=inbox, location=nowhere).do(action(SaveEvidence()), Node())

    (done,) = inbox.get(timeout=PATIENCE_SECONDS)
    assert isinstance(done, ActionDone)
    assert done.problem == Reason(ReasonCode.UNEXPECTED_ERROR, text="KeyError: 'node'")


# -- the end ---------------------------------------------------------------------------------------------------------


def test_interrupts_a_hung_step_and_leaves_no_process(worker: Worker) -> None:
    worker.systemctl.does("exec sleep 600")
    worker.do(RestartUnit(unit=UNIT), GiveCommand(command="get_server_list"))
    until(lambda: worker.systemctl.was_started)

    worker.hands.close(PATIENCE_SECONDS)

    assert worker.next_done().problem is not None
    assert not any(isinstance(each, ControlReply) for each in worker.seen)


@pytest.mark.parametrize("vital", [True, False])
def test_interrupts_a_hung_command_and_reports_no_reply(mps: MpsStandIn, worker: Worker, vital: bool) -> None:
    mps.start()
    os.kill(mps.pid, signal.SIGSTOP)
    worker.do(GiveCommand(command="terminate_client 1 2", vital=vital))
    until(lambda: control_processes(mps))

    worker.hands.close(PATIENCE_SECONDS)

    assert worker.next_done().problem == Reason(ReasonCode.EXPORTER_STOPPING)
    assert len(worker.seen) == 1


def test_does_not_interrupt_the_start_of_a_daemon(
    mps: MpsStandIn, worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("exporter.actions.steps.GRACE_SECONDS", PATIENCE_SECONDS)
    slowly = Script(tmp_path / "slowly")
    slowly.does("sleep 0.3; exec nvidia-cuda-mps-control -d")
    worker.do(RunCommand(arguments=(str(slowly.path),), environment=mps.environment()))
    until(lambda: slowly.was_started)

    worker.hands.close(PATIENCE_SECONDS)

    assert worker.next_done().problem is None
    assert mps.is_running()
