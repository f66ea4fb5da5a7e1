"""The GPUs of a client's contexts, from the log: unknown if its lines are ambiguous."""

import pytest

from exporter.model.observation import LogLine
from exporter.state.clients import MAX_CONTEXTS
from tests.builders import (
    CLIENT,
    GPU,
    OTHER_GPU,
    RECORDINGS,
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
    """Return the line that gives the GPU of a context."""
    return f"Device NVIDIA H200 (uuid {gpu}) is associated"


def gpus(*texts: str, pid: int = CLIENT) -> set[str]:
    """Return the GPUs of a client after the server wrote these lines."""
    return set(reduced(*at_work(), *server_log(*texts)).daemon.clients[pid].gpus)


def test_gpu_line_between_connected_and_active_gives_the_gpu() -> None:
    assert gpus(connecting(), WORKER, on(), active()) == {GPU}


def test_client_may_have_a_context_on_each_gpu() -> None:
    assert gpus(connecting(), on(), active(), connecting(CLIENT, 2), on(OTHER_GPU), active(CLIENT, 2)) == {
        GPU,
        OTHER_GPU,
    }


def test_each_client_has_its_own_gpu() -> None:
    lines = (connecting(), on(), active(), connecting(OTHER), on(OTHER_GPU), active(OTHER))
    assert (gpus(*lines), gpus(*lines, pid=OTHER)) == ({GPU}, {OTHER_GPU})


def test_gpu_is_unknown_if_lines_are_lost_or_mixed(subtests: pytest.Subtests) -> None:
    for lines in [
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
    ]:
        with subtests.test(lines=lines):
            assert gpus(*lines) == set()


def test_duplicate_lines_do_not_matter() -> None:
    assert gpus(connecting(), connecting(), on(), on(), active(), active()) == {GPU}


def test_number_of_contexts_is_limited() -> None:
    uuids = (f"GPU-1efa3f60-b0ba-115c-7d58-{number:012}" for number in range(2 * MAX_CONTEXTS))
    lines = (
        line
        for number, gpu in enumerate(uuids, 1)
        for line in (connecting(CLIENT, number), on(gpu), active(CLIENT, number))
    )
    assert len(gpus(*lines)) == MAX_CONTEXTS


def test_clients_of_a_recording_are_on_requested_gpus(subtests: pytest.Subtests) -> None:
    """Each client requested some GPUs by ordinal. The order in the log is the order of the daemon."""
    for recorded in RECORDINGS:
        with subtests.test(recorded=recorded):
            seen = [each for each in recorded.observations if isinstance(each, LogLine)]
            requested = {int(pid): client["gpus"].split(",") for pid, client in recorded.truth["clients"].items()}
            for pid, disconnect in reduced(*seen).daemon.connections.disconnects.items():
                assert len(disconnect.gpus) <= len(requested[pid])


def test_four_clients_on_two_gpus_have_their_own_gpus() -> None:
    """One client is on the first GPU, one on the second, and two on both (measured)."""
    seen = [each for each in scenario("two_gpus_fault_on_both").observations if isinstance(each, LogLine)]
    until = next(number for number, each in enumerate(seen) if "fatal GPU error" in each.line)
    clients = reduced(*seen[:until]).daemon.clients
    first, second = (clients[pid].gpus for pid in (964, 965))
    assert len(first) == len(second) == 1
    assert clients[966].gpus == clients[1067].gpus == first | second
