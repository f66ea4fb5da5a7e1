"""Commands are given as the daemon's user, and a no is heard as one."""

import os
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.actions.steps import Cancellation, command_deadline, command_problem, send_command
from exporter.collectors.child import OWN_USER, User, user
from exporter.collectors.control import ControlClient
from exporter.model.observation import ControlReply
from exporter.model.reason import Reason, ReasonCode
from tests.actions.action_setup import REAL, location_of
from tests.actions.scripts import Script
from tests.builders import refusal, reply, silence
from tests.standin.mps import BIN, MpsStandIn
from tests.tools import not_here

CLIENT = 5_000_000
NOBODY = 65534
ANYBODYS_PATH = f"{BIN}:{os.defpath}"
"""Without the folder of this Python, which may be one user's own."""

pytestmark = pytest.mark.usefixtures("nothing_left_behind")


def client_of(mps: MpsStandIn, who: User = OWN_USER, *, executable: str = "nvidia-cuda-mps-control") -> ControlClient:
    path = mps.environment()["PATH"] if who is OWN_USER else ANYBODYS_PATH
    return ControlClient(location_of(mps), executable=executable, deadline=20.0, clock=REAL, path=path, user=who)


def told(mps: MpsStandIn, command: str, who: User = OWN_USER, *, starting: bool = False) -> str | None:
    """The problem of a command."""
    client = client_of(mps, who)
    return command_problem(
        send_command(client, command, clock=REAL, cancellation=Cancellation(REAL), starting=starting)
    )


@pytest.fixture
def shared(everybodys: Path) -> Iterator[MpsStandIn]:
    """A daemon of ours that other users can reach."""
    if shutil.which("python3", path=os.defpath) is None or not os.stat(BIN).st_mode & 0o005:
        not_here("there is no Python that another user could run the stand-in with")
    with MpsStandIn(everybodys) as standin:
        standin.start()
        yield standin


def test_what_is_obeyed_is_no_problem(mps: MpsStandIn) -> None:
    mps.start()

    assert told(mps, "set_default_active_thread_percentage 40") is None
    assert mps.ask("get_default_active_thread_percentage").stdout == "40.0\n"


def test_a_command_about_a_server_that_has_gone_is_one(mps: MpsStandIn) -> None:
    mps.start()

    assert told(mps, "shutdown_server 1 -f") == Reason(
        ReasonCode.COMMAND_WITHOUT_SERVER, command="shutdown_server 1 -f"
    )


def test_another_user_is_not_obeyed_and_is_told_who_would_be(shared: MpsStandIn) -> None:
    nobody = user(NOBODY)

    assert told(shared, "get_default_active_thread_percentage", nobody) is None
    for command in ("set_default_active_thread_percentage 40", "terminate_client 1 2", "quit"):
        assert told(shared, command, nobody) == Reason(ReasonCode.COMMAND_NOT_PERMITTED, command=command)
    assert shared.ask("get_default_active_thread_percentage").stdout == "100.0\n"


def test_the_program_runs_as_the_user_who_asks(everybodys: Path) -> None:
    script = Script(everybodys / "control")
    client = client_of(MpsStandIn(everybodys), user(NOBODY), executable=str(script.path))

    assert client.send("get_server_list").exit_code == 0
    assert script.told[3:5] == [str(NOBODY)] * 2


def test_a_daemon_that_was_just_started_is_waited_for(mps: MpsStandIn) -> None:
    assert told(mps, "get_server_list") == Reason(ReasonCode.COMMAND_WITHOUT_DAEMON, command="get_server_list")

    starting = threading.Timer(0.2, mps.start)
    starting.start()
    assert told(mps, "set_default_active_thread_percentage 40", starting=True) is None
    starting.join()


def test_but_not_where_everything_is_broken_off(mps: MpsStandIn) -> None:
    cancellation = Cancellation(REAL)
    cancellation.cancel()

    given = send_command(client_of(mps), "get_server_list", clock=REAL, cancellation=cancellation, starting=True)

    assert command_problem(given) == Reason(ReasonCode.COMMAND_WITHOUT_DAEMON, command="get_server_list")


def test_what_waits_for_an_answer_can_be_broken_off(mps: MpsStandIn) -> None:
    mps.start()
    mps.stop_signal()
    client, cancellation = client_of(mps), Cancellation(REAL)
    threading.Timer(0.2, cancellation.cancel).start()

    with cancellation.calling(client.close):
        reply = client.send("get_server_list")

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
def test_whatever_kept_it_from_being_obeyed_is_told(heard: ControlReply, problem: str) -> None:
    assert command_problem(heard) == problem


@pytest.mark.parametrize(
    ("command", "seconds"),
    [("set_default_client_priority 1", 5), ("shutdown_server 7", 10), ("shutdown_server 7 -f", 20), ("", 5)],
)
def test_what_asks_a_server_may_take_longer(command: str, seconds: float) -> None:
    assert command_deadline(command) == seconds
