"""On which GPUs a client's contexts are, as the log tells; where it does not tell for certain, nothing is known."""

import pytest

from exporter.model.observation import LogLine
from exporter.state.clients import MAX_CONTEXTS
from tests.builders import (
    CLIENT,
    GPU,
    OTHER_GPU,
    RECORDINGS,
    Recorded,
    active,
    at_work,
    connecting,
    reduced,
    scenario,
    server_log,
)

OTHER = CLIENT + 1
WORKER = f"Creating worker thread for client {{PID: {CLIENT}, Context ID: 1}}"


def on(gpu: str = GPU) -> str:
    """The context that is being made is on this GPU."""
    return f"Device NVIDIA H200 (uuid {gpu}) is associated"


def gpus(*texts: str, pid: int = CLIENT) -> set[str]:
    """Where a client is after the server wrote this."""
    return set(reduced(*at_work(), *server_log(*texts)).daemon.clients[pid].gpus)


def test_it_is_told_between_the_connection_of_a_context_and_its_activity() -> None:
    assert gpus(connecting(), WORKER, on(), active()) == {GPU}


def test_a_client_may_have_one_on_each_gpu() -> None:
    assert gpus(connecting(), on(), active(), connecting(CLIENT, 2), on(OTHER_GPU), active(CLIENT, 2)) == {
        GPU,
        OTHER_GPU,
    }


def test_each_client_has_its_own() -> None:
    lines = (connecting(), on(), active(), connecting(OTHER), on(OTHER_GPU), active(OTHER))
    assert (gpus(*lines), gpus(*lines, pid=OTHER)) == ({GPU}, {OTHER_GPU})


@pytest.mark.parametrize(
    "lines",
    [
        (connecting(), active()),
        (connecting(), on(), connecting(OTHER), active()),
        (connecting(), connecting(OTHER), on(), active()),
        (connecting(), on(), connecting(OTHER, 0), active()),
        (connecting(), on(OTHER_GPU), on(), active()),
        (connecting(), on(OTHER_GPU), on(), on(), active()),
        (connecting(CLIENT, 2), on(), active()),
        (connecting(CLIENT, 0), on(), active()),
        (connecting(OTHER), on(OTHER_GPU), active(OTHER), active()),
        (connecting(OTHER), on(OTHER_GPU), active(OTHER), on(), active()),
        (on(), connecting(), active()),
    ],
    ids=[
        "the line was lost",
        "another connects",
        "another connects before it",
        "a process connects",
        "two are told",
        "three are told",
        "another context's",
        "no context's",
        "the one before it",
        "its connection was lost",
        "a line too early",
    ],
)
def test_where_lines_are_lost_or_mixed_it_is_not_known(lines: tuple[str, ...]) -> None:
    assert gpus(*lines) == set()


def test_the_same_line_twice_says_the_same() -> None:
    assert gpus(connecting(), connecting(), on(), on(), active(), active()) == {GPU}


def test_no_more_are_remembered_than_a_client_can_have() -> None:
    uuids = (f"GPU-1efa3f60-b0ba-115c-7d58-{number:012}" for number in range(2 * MAX_CONTEXTS))
    lines = (
        line
        for number, gpu in enumerate(uuids, 1)
        for line in (connecting(CLIENT, number), on(gpu), active(CLIENT, number))
    )
    assert len(gpus(*lines)) == MAX_CONTEXTS


@pytest.mark.parametrize("recorded", RECORDINGS, ids=repr)
def test_in_a_recording_nobody_is_on_a_gpu_that_they_did_not_ask_for(recorded: Recorded) -> None:
    """Their order in the log is the daemon's; each asked for some, by ordinal."""
    seen = [each for each in recorded.observations if isinstance(each, LogLine)]
    asked = {int(pid): client["gpus"].split(",") for pid, client in recorded.truth["clients"].items()}
    for pid, leaving in reduced(*seen).daemon.connections.disconnects.items():
        assert len(leaving.gpus) <= len(asked[pid])


def test_of_four_clients_on_two_gpus_each_is_told_with_its_own() -> None:
    """One on the first, one on the second, two on both (measured)."""
    seen = [each for each in scenario("two_gpus_fault_on_both").observations if isinstance(each, LogLine)]
    until = next(number for number, each in enumerate(seen) if "fatal GPU error" in each.line)
    clients = reduced(*seen[:until]).daemon.clients
    first, second = (clients[pid].gpus for pid in (964, 965))
    assert len(first) == len(second) == 1
    assert clients[966].gpus == clients[1067].gpus == first | second
