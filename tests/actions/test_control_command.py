"""Commands are sent as the daemon's user, and refusals are recognized."""

import os
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.actions import steps
from exporter.actions.steps import Cancellation, command_deadline, command_problem, send_command
from exporter.collectors.child import OWN_USER, User, user
from exporter.collectors.control_client import ControlClient
from exporter.model.observation import ControlReply
from exporter.model.reason import Reason, ReasonCode
from tests.actions.action_setup import REAL, location_of
from tests.builders import refusal, reply, silence
from tests.eventually import PATIENCE_SECONDS
from tests.exporter_process import control_processes
from tests.standin.mps import BIN, MpsStandIn, wait_until
from tests.tools import not_here

OTHER_USER = 65534

pytestmark = pytest.mark.usefixtures("nothing_left_behind")


def client_of(mps: MpsStandIn, who: User = OWN_USER, *, executable: str = "nvidia-cuda-mps-control") -> ControlClient:
    # Without the folder of this Python, and of the checkout, which may be one user's own.
    path = mps.environment()["PATH"] if who is OWN_USER else f"{mps.pipe_directory.parent / BIN.name}:{os.defpath}"
    return ControlClient(location_of(mps), executable=executable, deadline=20.0, clock=REAL, path=path, user=who)


def reported(mps: MpsStandIn, command: str, who: User = OWN_USER, *, starting: bool = False) -> str | None:
    client = client_of(mps, who)
    return command_problem(
        send_command(client, command, clock=REAL, cancellation=Cancellation(REAL), starting=starting)
    )


@pytest.fixture
def shared(everybodys: Path) -> Iterator[MpsStandIn]:
    if shutil.which("python3", path=os.defpath) is None:
        not_here("there is no Python that another user could run the stand-in with")
    for part in (BIN, BIN.parent / "mps_daemon"):
        copy = everybodys / part.name
        shutil.copytree(part, copy)
        for path in (copy, *copy.rglob("*")):
            path.chmod(0o755)
    with MpsStandIn(everybodys) as standin:
        standin.start()
        yield standin


def test_reports_no_problem_for_an_obeyed_command(mps: MpsStandIn) -> None:
    mps.start()

    assert reported(mps, "set_default_active_thread_percentage 40") is None
    assert mps.ask("get_default_active_thread_percentage").stdout == "40.0\n"


def test_reports_a_command_for_a_server_that_has_exited(mps: MpsStandIn) -> None:
    mps.start()

    assert reported(mps, "shutdown_server 1 -f") == Reason(
        ReasonCode.COMMAND_WITHOUT_SERVER, command="shutdown_server 1 -f"
    )


def test_reports_that_the_daemon_refuses_commands_of_another_user(shared: MpsStandIn) -> None:
    nobody = user(OTHER_USER)

    assert reported(shared, "get_default_active_thread_percentage", nobody) is None
    for command in ("set_default_active_thread_percentage 40", "terminate_client 1 2", "quit"):
        assert reported(shared, command, nobody) == Reason(ReasonCode.COMMAND_NOT_PERMITTED, command=command)
    assert shared.ask("get_default_active_thread_percentage").stdout == "100.0\n"


def test_waits_for_a_daemon_that_was_just_started(mps: MpsStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "APPEARS_SECONDS", PATIENCE_SECONDS)
    assert reported(mps, "get_server_list") == Reason(ReasonCode.COMMAND_WITHOUT_DAEMON, command="get_server_list")

    starting = threading.Timer(0.2, mps.start)
    starting.start()
    assert reported(mps, "set_default_active_thread_percentage 40", starting=True) is None
    starting.join()


def test_does_not_wait_for_a_daemon_after_cancellation(mps: MpsStandIn) -> None:
    cancellation = Cancellation(REAL)
    cancellation.cancel()

    given = send_command(client_of(mps), "get_server_list", clock=REAL, cancellation=cancellation, starting=True)

    assert command_problem(given) == Reason(ReasonCode.COMMAND_WITHOUT_DAEMON, command="get_server_list")


def test_cancels_a_wait_for_a_reply(mps: MpsStandIn) -> None:
    mps.start()
    mps.stop_signal()
    client, cancellation = client_of(mps), Cancellation(REAL)

    def cancel_once_started() -> None:
        wait_until(lambda: control_processes(mps))
        cancellation.cancel()

    ending = threading.Thread(target=cancel_once_started)
    ending.start()
    with cancellation.calling(client.close):
        reply = client.send("get_server_list")
    ending.join()

    assert reply.exit_code == -signal.SIGKILL


@pytest.mark.parametrize(
    ("heard", "problem"),
    [
        (silence(), Reason(ReasonCode.COMMAND_TIMED_OUT, seconds=5.0, command="get_server_list")),
        (refusal(), Reason(ReasonCode.COMMAND_BLOCKED_BY_SESSION, command="get_server_list")),
        (
            reply("get_server_list", exit_code=127, stderr="x: not found"),
            Reason(ReasonCode.COMMAND_NOT_SENT, command="get_server_list", exit_code=127, text="x: not found"),
        ),
    ],
)
def test_reports_why_a_command_was_not_obeyed(heard: ControlReply, problem: str) -> None:
    assert command_problem(heard) == problem


@pytest.mark.parametrize(
    ("command", "seconds"),
    [("set_default_client_priority 1", 5), ("shutdown_server 7", 10), ("shutdown_server 7 -f", 20), ("", 5)],
)
def test_a_command_that_queries_a_server_has_a_longer_deadline(command: str, seconds: float) -> None:
    assert command_deadline(command) == seconds
