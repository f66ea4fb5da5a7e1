"""Disconnects: time by the log, and reason. They are evidence for the root cause of a fault."""

from dataclasses import replace

import pytest

from exporter.model.event import EventName
from exporter.model.observation import LogLine, Observation
from exporter.model.server import Disconnect
from tests.builders import (
    AT,
    CLIENT,
    GPU,
    OTHER_GPU,
    SERVER,
    Reduced,
    active,
    at_work,
    clients,
    connecting,
    exited,
    look,
    process,
    reduced,
    scenario,
    server_log,
    status,
)

# The tests state these values, so that they notice a change of the program's constants.
MAX_REMEMBERED = 256
REMEMBERED_SECONDS = 10.0
MAX_CONTEXTS = 64
TERMINATION_SECONDS = 10.0

OTHER = CLIENT + 1
UNKNOWN = 4711

ASSERTED = "exiting. Worker is in reset."
LEFT = "exiting."


def ends(context: int = 1, *, pid: int = CLIENT, how: str = LEFT, at: float = AT + 5) -> tuple[Observation, ...]:
    """A context ends (R580)."""
    text = f"Client {{PID: {pid}, Context ID: {context}}} {how} Number of active client contexts is 2."
    return server_log(text, at=at)


def disconnects(pid: int = CLIENT, *, at: float = AT + 5.015) -> tuple[Observation, ...]:
    """A client process disconnects."""
    return server_log(f"Client process {pid} disconnected", at=at)


def begins(context: int = 1, *, gpu: str | None = GPU, at: float = AT + 1) -> tuple[Observation, ...]:
    device = () if gpu is None else (f"Device NVIDIA H200 (uuid {gpu}) is associated",)
    return server_log(connecting(CLIENT, context), *device, active(CLIENT, context), at=at)


def terminated(pid: int = CLIENT, *, at: float = AT + 4.99) -> tuple[Observation, ...]:
    """An operator terminates a client."""
    return server_log(f"MPS server requesting client {{PID: {pid}, Context ID: 1}} to exit", at=at)


def at_server(*seen: Observation) -> Reduced:
    """Reduce observations of a server with two clients. The first has a context on a GPU."""
    return reduced(*at_work(OTHER), *begins(), *seen)


def find_disconnect(*seen: Observation, pid: int = CLIENT) -> Disconnect | None:
    return at_server(*seen).daemon.connections.disconnects.get(pid)


def left(*seen: Observation, pid: int = CLIENT) -> Disconnect:
    found = find_disconnect(*seen, pid=pid)
    assert found is not None
    return found


class TestDisconnect:
    """A client disconnects when its last context ends."""

    def test_disconnect_has_time_server_and_gpus(self) -> None:
        assert left(*ends()) == Disconnect(
            pid=CLIENT,
            server=SERVER,
            at=AT + 5,
            stamp="2026-11-20 15:08:50.147",
            gpus=frozenset({GPU}),
            contexts=frozenset({1}),
        )

    def test_two_end_lines_of_one_context_are_marked(self) -> None:
        assert left(*ends(how=ASSERTED), *ends(at=AT + 5.1)).logged_twice
        assert not left(*begins(2), *ends(how=ASSERTED), *ends(2, at=AT + 5.1)).logged_twice

    def test_client_stays_connected_until_its_process_disconnects(self) -> None:
        """A fault may occur between the two, if the client was killed during a kernel."""
        between = at_server(*ends())
        assert CLIENT in between.daemon.clients
        assert between.daemon.clients[CLIENT].contexts == set()
        after = reduced(*disconnects(), start=between.node)
        assert CLIENT not in after.daemon.clients
        assert after.daemon.connections.disconnects[CLIENT].stamp == "2026-11-20 15:08:50.147"

    def test_no_disconnect_before_the_last_context_ends(self) -> None:
        """A client may have a context on each GPU."""
        two = begins(2, gpu=OTHER_GPU)
        assert find_disconnect(*two, *ends(2)) is None
        assert left(*two, *ends(2), *ends(1, at=AT + 5.1)).at == AT + 5.1
        assert left(*two, *ends(2), *ends(1)).gpus == {GPU, OTHER_GPU}

    def test_client_known_only_from_a_list_disconnects_with_its_first_ended_context(self) -> None:
        """The number of its contexts is unknown. The end of a later context changes the time."""
        first = left(*ends(2, pid=OTHER), pid=OTHER)
        assert first.at == AT + 5
        both = left(*ends(2, pid=OTHER), *ends(1, pid=OTHER, at=AT + 5.2), pid=OTHER)
        assert (both.at, both.stamp) == (AT + 5.2, "2026-11-20 15:08:50.347")

    def test_unknown_client_disconnects_with_its_first_ended_context(self) -> None:
        """The exporter may have just started."""
        assert left(*ends(pid=UNKNOWN), pid=UNKNOWN).server == SERVER

    def test_process_exit_may_be_observed_before_the_log_is_read(self) -> None:
        known = at_server().node
        gone = reduced(exited(at=AT + 4.9), *ends(), *disconnects(), start=known).daemon
        assert CLIENT not in gone.clients
        assert gone.connections.disconnects[CLIENT].gpus == {GPU}

    def test_process_line_may_precede_the_line_of_the_last_context(self) -> None:
        """The recordings have this order once."""
        found = left(*disconnects(at=AT + 5), *ends(at=AT + 5.001))
        assert found.stamp == "2026-11-20 15:08:50.148"

    def test_process_line_is_used_if_the_context_line_was_lost(self) -> None:
        """The client has no more contexts."""
        found = left(*disconnects(at=AT + 5))
        assert found.stamp == "2026-11-20 15:08:50.147"

    def test_one_line_ends_context_and_process_up_to_r565(self) -> None:
        after = at_server(*server_log(f"Client {{{CLIENT}, 1}} exit", at=AT + 5))
        assert after.daemon.connections.disconnects[CLIENT].stamp == "2026-11-20 15:08:50.147"
        assert CLIENT not in after.daemon.clients

    def test_duplicate_lines_do_not_matter(self) -> None:
        """Both lines may be read twice."""
        assert find_disconnect(*ends(), *ends(), *disconnects(), *disconnects()) == find_disconnect(
            *ends(), *disconnects()
        )

    def test_reconnected_client_has_no_disconnect(self) -> None:
        """A process may destroy its context and create another."""
        back = at_server(*ends(), *begins(gpu=OTHER_GPU, at=AT + 6))
        assert back.daemon.connections.disconnects == {}
        assert back.daemon.clients[CLIENT].gpus == {OTHER_GPU}
        assert len(back.of(EventName.CLIENT_CONNECTED)) == 2

    @pytest.mark.parametrize(
        "seen",
        [
            (*disconnects(UNKNOWN),),
            (*server_log(connecting(UNKNOWN, 0)), *disconnects(UNKNOWN)),
            ends(pid=0),
            tuple(
                replace(line, line=line.line.replace(f" {SERVER}]", " 999]")) for line in ends() if "line" in dir(line)
            ),
        ],
        ids=("unknown client", "refused client", "no PID", "another server"),
    )
    def test_other_lines_are_no_disconnects(self, seen: tuple[Observation, ...]) -> None:
        """Only connected clients can disconnect."""
        assert at_server(*seen).daemon.connections.disconnects == {}

    def test_disconnects_are_removed_after_some_seconds(self) -> None:
        seen = (*ends(), *disconnects())
        assert find_disconnect(*seen, look("log", at=AT + 5 + REMEMBERED_SECONDS)) is not None
        after = at_server(*seen, look("log", at=AT + 5.1 + REMEMBERED_SECONDS)).daemon
        assert (after.connections.disconnects, after.connections.recently_disconnected) == ({}, {})

    def test_number_of_disconnects_is_limited(self) -> None:
        """The content of the log does not matter."""
        flood = (line for pid in range(1, MAX_REMEMBERED + 50) for line in ends(pid=pid))
        assert len(at_server(*flood).daemon.connections.disconnects) == MAX_REMEMBERED


class TestReason:
    """An operator terminated the client, or its worker was in reset."""

    def test_client_terminated_by_an_operator(self) -> None:
        """The server logs the request just before."""
        assert left(*terminated(), *ends()).terminated
        assert not left(*terminated(OTHER), *ends()).terminated
        assert not left(*ends()).terminated

    def test_old_termination_request_is_ignored(self) -> None:
        """The request may have failed."""
        assert not left(*terminated(at=AT + 4.9 - TERMINATION_SECONDS), *ends()).terminated

    def test_worker_in_reset(self) -> None:
        """Any of its contexts may have the line."""
        assert left(*ends(how=ASSERTED)).in_reset
        assert left(*begins(2), *ends(how=ASSERTED), *ends(2)).in_reset
        assert not left(*ends()).in_reset


class TestContained:
    """A device-side assert affects only the asserting client (measured, R580)."""

    def contained(self, *seen: Observation) -> list[tuple[int | None, int | None]]:
        """Return server and PID of the reported contained faults."""
        return [(event.server, event.pid) for event in at_server(*seen).of(EventName.CLIENT_FAULT_CONTAINED)]

    def test_reports_the_client(self) -> None:
        assert self.contained(*ends(how=ASSERTED), *disconnects()) == [(SERVER, CLIENT)]
        assert at_server(*ends(how=ASSERTED), exited(at=AT + 5.02)).names()[-1] is EventName.CLIENT_FAULT_CONTAINED
        assert EventName.FAULT not in at_server(*ends(how=ASSERTED), look("log", at=AT + 9)).names()

    def test_reports_once_for_several_contexts(self) -> None:
        """The lines may also be read twice."""
        gone = exited(at=AT + 5.02)
        assert self.contained(*begins(2), *ends(how=ASSERTED), *ends(2, how=ASSERTED), gone) == [(SERVER, CLIENT)]
        assert self.contained(*ends(how=ASSERTED), *ends(how=ASSERTED), gone) == [(SERVER, CLIENT)]

    def test_does_not_report_a_client_that_is_still_connected(self) -> None:
        """A forged line does not end a client. It counts as a contradiction."""
        forged = at_server(*ends(how=ASSERTED), look("log", at=AT + 16))
        assert forged.of(EventName.CLIENT_FAULT_CONTAINED) == []
        assert forged.daemon.totals.log_contradictions["contained_fault"] == 1
        assert self.contained(*ends(pid=UNKNOWN, how=ASSERTED)) == []

    def test_reports_a_client_whose_exit_was_observed_before(self) -> None:
        """The log may be read later."""
        assert self.contained(exited(at=AT + 4.9), *ends(how=ASSERTED)) == [(SERVER, CLIENT)]

    BLOCK = (
        "Server is handling a fatal GPU error.",
        f"Client {{PID: {CLIENT}, Context ID: 1}} on device 0 to be torn down",
        "The following devices will be reset:",
        "0",
    )
    FAULT = (*server_log(*BLOCK, at=AT + 4), status("FAULT", at=AT + 4))

    def test_reset_during_a_fault_is_evidence_without_an_event(self) -> None:
        """A client whose kernel trapped disconnects like this (measured)."""
        assert self.contained(*self.FAULT, *ends(how=ASSERTED), exited(at=AT + 5.02)) == []
        assert left(*self.FAULT, *ends(how=ASSERTED)).in_reset

    def test_does_not_report_a_client_of_a_recovered_fault(self) -> None:
        """The log may show recovery before the victim's exit. A reused PID is another process."""
        over = (*self.FAULT, *server_log("Destroy server context on device 0", at=AT + 4.5))
        assert self.contained(*over, *ends(how=ASSERTED), exited(at=AT + 5.02)) == []
        again = (
            *disconnects(at=AT + 4.6),
            exited(at=AT + 4.6),
            *begins(at=AT + 4.7),
            *ends(how=ASSERTED),
            exited(at=AT + 5.02),
        )
        assert self.contained(*over, *again) == [(SERVER, CLIENT)]


# The GPUs of a client's contexts, from the log: unknown if its lines are ambiguous.


def on(gpu: str = GPU) -> str:
    """Return the line that gives the GPU of a context."""
    return f"Device NVIDIA H200 (uuid {gpu}) is associated"


def gpus(*texts: str, pid: int = CLIENT) -> set[str]:
    """Return the GPUs of a client after the server wrote these lines."""
    return set(reduced(*at_work(), *server_log(*texts)).daemon.clients[pid].gpus)


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


def test_four_clients_on_two_gpus_have_their_own_gpus() -> None:
    """One client is on the first GPU, one on the second, and two on both (measured)."""
    seen = [each for each in scenario("two_gpus_fault_on_both").observations if isinstance(each, LogLine)]
    until = next(number for number, each in enumerate(seen) if "fatal GPU error" in each.line)
    clients = reduced(*seen[:until]).daemon.clients
    first, second = (clients[pid].gpus for pid in (964, 965))
    assert len(first) == len(second) == 1
    assert clients[966].gpus == clients[1067].gpus == first | second


def test_a_list_that_was_asked_for_before_an_exit_does_not_connect_the_client_again() -> None:
    listed = replace(clients(CLIENT, at=AT + 10.1), seconds=0.2)
    ended = (*at_work(CLIENT), process(CLIENT), exited(at=AT + 10))
    assert reduced(*ended, listed).daemon.clients == {}
    assert set(reduced(*ended, replace(listed, seconds=0.05)).daemon.clients) == {CLIENT}
