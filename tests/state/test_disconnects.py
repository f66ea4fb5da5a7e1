"""Who has left, and how, by the log's own time: it is what a fault's culprit may be told by."""

from dataclasses import replace

import pytest

from exporter.model.event import EventName
from exporter.model.observation import Observation
from exporter.model.server import Disconnect
from exporter.state.disconnects import MAX_REMEMBERED, REMEMBERED_SECONDS, TERMINATION_SECONDS
from tests.builders import (
    AT,
    CLIENT,
    GPU,
    OTHER_GPU,
    SERVER,
    Reduced,
    active,
    at_work,
    connecting,
    exited,
    look,
    reduced,
    server_log,
    status,
)

OTHER = CLIENT + 1
UNKNOWN = 4711

ASSERTED = "exiting. Worker is in reset."
LEFT = "exiting."


def ends(context: int = 1, *, pid: int = CLIENT, how: str = LEFT, at: float = AT + 5) -> tuple[Observation, ...]:
    """A context ends (R580)."""
    text = f"Client {{PID: {pid}, Context ID: {context}}} {how} Number of active client contexts is 2."
    return server_log(text, at=at)


def disconnects(pid: int = CLIENT, *, at: float = AT + 5.015) -> tuple[Observation, ...]:
    """The process has left."""
    return server_log(f"Client process {pid} disconnected", at=at)


def begins(
    context: int = 1, *, pid: int = CLIENT, gpu: str | None = GPU, at: float = AT + 1
) -> tuple[Observation, ...]:
    """A context is made."""
    device = () if gpu is None else (f"Device NVIDIA H200 (uuid {gpu}) is associated",)
    return server_log(connecting(pid, context), *device, active(pid, context), at=at)


def terminated(pid: int = CLIENT, *, at: float = AT + 4.99) -> tuple[Observation, ...]:
    """An operator has the server end a client."""
    return server_log(f"MPS server requesting client {{PID: {pid}, Context ID: 1}} to exit", at=at)


def story(*seen: Observation) -> Reduced:
    """A server with two clients; the first one has a context on a GPU."""
    return reduced(*at_work(OTHER), *begins(), *seen)


def leaving(*seen: Observation, pid: int = CLIENT) -> Disconnect | None:
    return story(*seen).daemon.connections.disconnects.get(pid)


def left(*seen: Observation, pid: int = CLIENT) -> Disconnect:
    found = leaving(*seen, pid=pid)
    assert found is not None
    return found


class TestLeft:
    """A client leaves with the last of its contexts."""

    def test_it_is_known_when_and_where_it_was(self) -> None:
        """The stamp is the log's own time."""
        assert left(*ends()) == Disconnect(
            pid=CLIENT,
            server=SERVER,
            at=AT + 5,
            stamp="2026-11-20 15:08:50.147",
            gpus=frozenset({GPU}),
            contexts=frozenset({1}),
        )

    def test_two_lines_that_end_one_context_put_both_in_doubt(self) -> None:
        """A server writes such a line once."""
        assert left(*ends(how=ASSERTED), *ends(at=AT + 5.1)).logged_twice
        assert not left(*begins(2), *ends(how=ASSERTED), *ends(2, at=AT + 5.1)).logged_twice

    def test_it_stays_connected_until_its_process_has_left(self) -> None:
        """Between the two, a fault may strike: that is how a client leaves whose kernel was cut off."""
        between = story(*ends())
        assert CLIENT in between.daemon.clients
        assert between.daemon.clients[CLIENT].contexts == set()
        after = reduced(*disconnects(), start=between.node)
        assert CLIENT not in after.daemon.clients
        assert after.daemon.connections.disconnects[CLIENT].stamp == "2026-11-20 15:08:50.147"

    def test_not_before_its_last_context_has_ended(self) -> None:
        """It may have one on each GPU."""
        two = begins(2, gpu=OTHER_GPU)
        assert leaving(*two, *ends(2)) is None
        assert left(*two, *ends(2), *ends(1, at=AT + 5.1)).at == AT + 5.1
        assert left(*two, *ends(2), *ends(1)).gpus == {GPU, OTHER_GPU}

    def test_one_that_only_a_list_told_of_leaves_with_the_first_that_ends(self) -> None:
        """How many contexts it has is not known; a later one's end is a later leaving."""
        first = left(*ends(2, pid=OTHER), pid=OTHER)
        assert first.at == AT + 5
        both = left(*ends(2, pid=OTHER), *ends(1, pid=OTHER, at=AT + 5.2), pid=OTHER)
        assert (both.at, both.stamp) == (AT + 5.2, "2026-11-20 15:08:50.347")

    def test_so_does_one_that_nothing_told_of(self) -> None:
        """The exporter may just have begun."""
        assert left(*ends(pid=UNKNOWN), pid=UNKNOWN).server == SERVER

    def test_its_process_may_be_seen_to_go_before_the_log_is_read(self) -> None:
        """The two are looked at by different eyes."""
        known = story().node
        gone = reduced(exited(at=AT + 4.9), *ends(), *disconnects(), start=known).daemon
        assert CLIENT not in gone.clients
        assert gone.connections.disconnects[CLIENT].gpus == {GPU}

    def test_the_log_may_tell_of_its_process_before_its_last_context(self) -> None:
        """It was written so, once in all recordings."""
        found = left(*disconnects(at=AT + 5), *ends(at=AT + 5.001))
        assert found.stamp == "2026-11-20 15:08:50.148"

    def test_where_its_contexts_end_was_lost_it_left_with_its_process(self) -> None:
        """It has none any more."""
        found = left(*disconnects(at=AT + 5))
        assert found.stamp == "2026-11-20 15:08:50.147"

    def test_up_to_r565_its_process_leaves_with_its_last_context(self) -> None:
        """The log does not tell the two apart."""
        after = story(*server_log(f"Client {{{CLIENT}, 1}} exit", at=AT + 5))
        assert after.daemon.connections.disconnects[CLIENT].stamp == "2026-11-20 15:08:50.147"
        assert CLIENT not in after.daemon.clients

    def test_a_line_that_is_read_twice_says_the_same(self) -> None:
        """Also where both are."""
        assert leaving(*ends(), *ends(), *disconnects(), *disconnects()) == leaving(*ends(), *disconnects())

    def test_whoever_is_back_has_not_left(self) -> None:
        """A process may do away with its context, and make another."""
        back = story(*ends(), *begins(gpu=OTHER_GPU, at=AT + 6))
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
        ids=("nobody", "one that was refused", "no PID", "another server"),
    )
    def test_nobody_else_has(self, seen: tuple[Observation, ...]) -> None:
        """Only who was there."""
        assert story(*seen).daemon.connections.disconnects == {}

    def test_it_is_forgotten_soon(self) -> None:
        """What comes later has nothing to do with it."""
        seen = (*ends(), *disconnects())
        assert leaving(*seen, look("log", at=AT + 5 + REMEMBERED_SECONDS)) is not None
        after = story(*seen, look("log", at=AT + 5.1 + REMEMBERED_SECONDS)).daemon
        assert (after.connections.disconnects, after.connections.recently_disconnected) == ({}, {})

    def test_no_more_are_remembered_than_a_daemon_can_have(self) -> None:
        """Whatever it writes."""
        flood = (line for pid in range(1, MAX_REMEMBERED + 50) for line in ends(pid=pid))
        assert len(story(*flood).daemon.connections.disconnects) == MAX_REMEMBERED


class TestWhy:
    """An operator had it end, or its worker was in reset."""

    def test_an_operator_wanted_it(self) -> None:
        """The server says so just before."""
        assert left(*terminated(), *ends()).terminated
        assert not left(*terminated(OTHER), *ends()).terminated
        assert not left(*ends()).terminated

    def test_not_any_more_after_a_while(self) -> None:
        """A request may have failed."""
        assert not left(*terminated(at=AT + 4.9 - TERMINATION_SECONDS), *ends()).terminated

    def test_its_worker_was_in_reset(self) -> None:
        """In whichever of its contexts."""
        assert left(*ends(how=ASSERTED)).in_reset
        assert left(*begins(2), *ends(how=ASSERTED), *ends(2)).in_reset
        assert not left(*ends()).in_reset


class TestContained:
    """A device-side assert is the asserting client's own: it alone has the error (measured, R580)."""

    def contained(self, *seen: Observation) -> list[tuple[int | None, int | None]]:
        """Of whom it is told."""
        return [(event.server, event.pid) for event in story(*seen).of(EventName.CLIENT_FAULT_CONTAINED)]

    def test_it_is_told_of_whom(self) -> None:
        """At once; nothing else is."""
        assert self.contained(*ends(how=ASSERTED), *disconnects()) == [(SERVER, CLIENT)]
        assert story(*ends(how=ASSERTED), exited(at=AT + 5.02)).names()[-1] is EventName.CLIENT_FAULT_CONTAINED
        assert EventName.FAULT not in story(*ends(how=ASSERTED), look("log", at=AT + 9)).names()

    def test_once_however_many_contexts_it_had(self) -> None:
        """And however often it is read."""
        gone = exited(at=AT + 5.02)
        assert self.contained(*begins(2), *ends(how=ASSERTED), *ends(2, how=ASSERTED), gone) == [(SERVER, CLIENT)]
        assert self.contained(*ends(how=ASSERTED), *ends(how=ASSERTED), gone) == [(SERVER, CLIENT)]

    def test_not_of_a_client_that_is_still_there(self) -> None:
        """A line that is forged does not end a client; it is counted."""
        forged = story(*ends(how=ASSERTED), look("log", at=AT + 16))
        assert forged.of(EventName.CLIENT_FAULT_CONTAINED) == []
        assert forged.daemon.totals.log_contradictions["contained_fault"] == 1
        assert self.contained(*ends(pid=UNKNOWN, how=ASSERTED)) == []

    def test_also_where_its_process_was_seen_to_go_before(self) -> None:
        """The log is read a moment later."""
        assert self.contained(exited(at=AT + 4.9), *ends(how=ASSERTED)) == [(SERVER, CLIENT)]

    def test_an_ordinary_exit_is_none(self) -> None:
        """Most are."""
        assert self.contained(*ends(), *disconnects()) == []

    BLOCK = (
        "Server is handling a fatal GPU error.",
        f"Client {{PID: {CLIENT}, Context ID: 1}} on device 0 to be torn down",
        "The following devices will be reset:",
        "0",
    )
    FAULT = (*server_log(*BLOCK, at=AT + 4), status("FAULT", at=AT + 4))

    def test_in_a_fault_it_is_evidence_and_no_event(self) -> None:
        """So leaves who trapped (measured)."""
        assert self.contained(*self.FAULT, *ends(how=ASSERTED), exited(at=AT + 5.02)) == []
        assert left(*self.FAULT, *ends(how=ASSERTED)).in_reset

    def test_nor_of_one_whom_a_fault_has_hit_that_is_over(self) -> None:
        """Recovery may be told before its victim's exit; a newcomer of that PID is another process."""
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
