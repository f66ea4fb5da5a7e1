"""Replies of nvidia-cuda-mps-control. The exit code is 0 for refusals too."""

import pytest

from exporter.model.observation import ControlReply
from exporter.model.server import ServerState
from exporter.parse import control_reply
from exporter.parse.control_reply import CommandRefusal, QueryOutcome, parse_refusal


def test_distinguishes_the_outcomes_of_a_query(subtests: pytest.Subtests) -> None:
    for exit_code, stderr, verdict in [
        (0, "", QueryOutcome.ANSWERED),
        (None, "", QueryOutcome.TIMED_OUT),
        (1, "Cannot find MPS control daemon process\n", QueryOutcome.NO_DAEMON),
        (1, "Cannot send command to MPS control daemon process\n", QueryOutcome.REFUSED),
        (
            1,
            "CUDA_MPS_PIPE_DIRECTORY must be set to start or to communicate with MPS control daemon\n",
            QueryOutcome.UNUSABLE,
        ),
        (127, "nvidia-cuda-mps-control: No such file or directory", QueryOutcome.UNUSABLE),
        (-9, "", QueryOutcome.UNUSABLE),
    ]:
        with subtests.test(exit_code=exit_code, stderr=stderr, verdict=verdict):
            reply = ControlReply(at=0.0, daemon="node", command="get_server_list", exit_code=exit_code, stderr=stderr)
            assert control_reply.query_outcome(reply) is verdict


def test_returns_the_pids_of_a_list_or_none(subtests: pytest.Subtests) -> None:
    for stdout, pids in [
        ("", ()),
        ("\n", ()),
        ("513\n", (513,)),
        ("513\n6664\n", (513, 6664)),
        ("513\n513\n", (513,)),
        ("Server 513 not found\n", None),
        ('Unknown command "get_server_list"\n', None),
        ("0\n", (0,)),
        ("-5\n", None),
        ("99999999999999999999\n", None),
        ("513\nError: 7\n", None),
    ]:
        with subtests.test(stdout=stdout, pids=pids):
            assert control_reply.parse_pid_list(stdout) == pids


def test_reads_only_the_beginning_of_an_endless_list() -> None:
    endless = "".join(f"{pid}\n" for pid in range(1, 200_000))

    assert control_reply.parse_pid_list(endless) == tuple(range(1, control_reply.MAX_LISTED_PIDS + 1))


def test_returns_one_of_three_server_states(subtests: pytest.Subtests) -> None:
    for stdout, state in [
        ("ACTIVE\n", ServerState.ACTIVE),
        ("INITIALIZING\n", ServerState.INITIALIZING),
        ("FAULT\n", ServerState.FAULT),
        ("Active", ServerState.ACTIVE),
        ("", None),
        ("Server 513 not found\n", None),
        ("SOMETHING_NEW\n", None),
    ]:
        with subtests.test(stdout=stdout, state=state):
            assert control_reply.parse_server_state(stdout) is state


def test_returns_the_pid_of_a_missing_server(subtests: pytest.Subtests) -> None:
    for stdout, pid in [
        ("Server 1 not found\n", 1),
        ("Server 6472 not found!\n", 6472),
        ("Server 1 not found\nServer 1 not found\n\n", 1),
        ("Server not found\n", None),
        ("the Server 1 not found\n", None),
        ("ACTIVE\n", None),
        ("", None),
    ]:
        with subtests.test(stdout=stdout, pid=pid):
            assert control_reply.parse_missing_server(stdout) == pid


@pytest.mark.parametrize(
    ("stdout", "version"),
    [
        ("CUDA MPS Control binary version: 13000\n", "13000"),
        ("CUDA MPS Control binary version 12040", "12040"),
        ("", None),
        ("version: none", None),
    ],
)
def test_returns_the_version_number(stdout: str, version: str | None) -> None:
    assert control_reply.parse_version(stdout) == version


def test_returns_the_gpus_of_the_daemon_and_not_of_its_servers() -> None:
    """Measured on R580."""
    header, name = "Device Ordinal,PCI IDs,UUID,Name,Attributes\n", "NVIDIA H200,N/A\n"
    first, second = "GPU-d35d017b-5422-1fb0-4407-ceb46bb07fbd", "GPU-055a5b27-613d-8c97-6fb4-99d75c28b520"
    default = f"Default\n{header}0,0000:00.06.00,{first},{name}"
    assert control_reply.parse_devices(f"{default}\nServer 428\n{header}0,0000:00.06.00,{first},{name}") == {0: first}
    assert control_reply.parse_devices(f"{default}\nServer 428\n{header}1,0000:00.07.00,{second},{name}") == {0: first}


NOT_ALLOWED = (
    "Insufficient privileges for UID 65534. Control deamon settings can only be modified by the user who started it or "
    "by the root user."
)


@pytest.mark.parametrize(
    ("stdout", "why"),
    [
        (NOT_ALLOWED, CommandRefusal.NOT_ALLOWED),
        ("Not enough privilege to execute quit command", CommandRefusal.NOT_ALLOWED),
        ("Server 7 not found\n", CommandRefusal.NO_SUCH_SERVER),
        ('Unknown command "set_client_priority"', CommandRefusal.UNKNOWN_COMMAND),
    ],
)
def test_returns_why_a_command_was_refused(stdout: str, why: CommandRefusal) -> None:
    assert parse_refusal(stdout) is why


@pytest.mark.parametrize("stdout", ["50.0\n", ""])
def test_an_empty_reply_and_a_value_are_no_refusal(stdout: str) -> None:
    assert parse_refusal(stdout) is None
