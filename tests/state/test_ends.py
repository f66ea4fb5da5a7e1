"""Why a client ended, and who requested that: the label of the counter, and the event."""

from collections.abc import Iterable

import pytest

from exporter.model.event import Event, EventName
from exporter.model.observation import KernelRecord, Observation
from exporter.model.reason import Reason, ReasonCode
from exporter.report.findings import findings
from exporter.report.reasons import reason_text
from tests.builders import (
    AT,
    CLIENT,
    CONTROL,
    SERVER,
    Reduced,
    at_work,
    clients,
    control_log,
    daemon_process,
    exited,
    holder,
    partitioned,
    process,
    reduced,
    refusal,
    server_log,
    servers,
)

OTHER = CLIENT + 1
LOSSES = {"server_gone", "daemon_gone"}
REQUEST = (
    f"MPS server requesting client {{PID: {CLIENT}, Context ID: 1}} to exit",
    "Client termination succeeded.",
    f"Client {{PID: {CLIENT}, Context ID: 1}} exiting. Number of active client contexts is 1.",
)
BY_COMMAND = Reason(ReasonCode.ENDED_BY_COMMAND)


def requested(*, at: float = AT + 4) -> Iterable[Observation]:
    """The server ends a client, which then gets error 810."""
    return server_log(*REQUEST, at=at)


def commanded(command: str = f"terminate_client {SERVER} {CLIENT}", *, at: float = AT + 4) -> Iterable[Observation]:
    return control_log("NEW UI", f"Cmd:{command}", "UI closed", at=at)


def at_server(*seen: Observation) -> Reduced:
    return reduced(*at_work(CLIENT, OTHER), *(process(pid) for pid in (CLIENT, OTHER)), *seen)


def left(after: Reduced) -> tuple[Event, dict[str, int]]:
    """Return the event of the only client that disconnected, and the counter of that daemon without zeros."""
    (event,) = after.of(EventName.CLIENT_DISCONNECTED)
    counts = {str(reason): count for reason, count in after.daemon.totals.disconnected.items() if count}
    assert counts == {event.reason: 1}
    return event, counts


class TestTerminated:
    """An operator ran `terminate_client`."""

    @pytest.mark.parametrize("ends", [clients(OTHER, at=AT + 5), exited(at=AT + 5)])
    def test_it_is_an_ordinary_end_by_a_command(self, ends: Observation) -> None:
        """The list of the daemon lacks the client, or its process exits after the error."""
        for seen in ((*commanded(), *requested()), (*requested(), *commanded())):
            after = at_server(*seen, ends)
            event, counts = left(after)
            assert (event.pid, event.reason, event.indications) == (CLIENT, "terminated", (BY_COMMAND,))
            assert not LOSSES & counts.keys()
            assert not after.of(EventName.CLIENT_FAULT_CONTAINED)
            assert not after.of(EventName.FAULT)
            assert findings(after.node, after.node.at) == findings(at_server().node, AT)

    def test_without_its_command_in_the_log_the_sender_is_unknown(self) -> None:
        event, _ = left(at_server(*requested(), clients(OTHER, at=AT + 5)))
        assert (event.reason, event.indications) == ("terminated", None)

    def test_a_session_that_was_open_at_the_command_is_its_sender(self) -> None:
        """It is still open, and the daemon refuses others. A process that started later did not send it."""
        command = control_log("NEW UI", f"Cmd:terminate_client {SERVER} {CLIENT}", at=AT + 4)
        held = (refusal(at=AT + 4.5), refusal(at=AT + 6))
        event, _ = left(at_server(*command, *held, holder(at=AT + 6.1), *requested(at=AT + 7), exited(at=AT + 8)))
        assert event.indications == (Reason(ReasonCode.ENDED_BY_COMMAND, pid=4000, user="root"),)
        assert reason_text(event.indications[0]) == "a control command ended it, sent by process 4000 of user root"
        assert reason_text(BY_COMMAND) == "a control command ended it"

    @pytest.mark.parametrize("seen_at", [AT + 3, AT + 6.1])
    def test_a_process_of_another_session_is_not_the_sender(self, seen_at: float) -> None:
        """It was seen before the command, or after the end of the session that sent it."""
        held = (refusal(at=AT + 2.5), holder(at=AT + 3)) if seen_at < AT + 4 else ()
        later = () if held else (refusal(at=AT + 4.5), refusal(at=AT + 6), holder(at=seen_at))
        seen = (*held, *commanded(), *later, *requested(at=AT + 7), exited(at=AT + 8))
        assert left(at_server(*seen))[0].indications == (BY_COMMAND,)

    def test_a_client_that_ends_long_after_the_request_ended_itself(self) -> None:
        event, _ = left(at_server(*commanded(), *requested(), clients(OTHER, at=AT + 15)))
        assert (event.reason, event.indications) == ("exit", None)

    def test_another_client_ends_itself(self) -> None:
        event, _ = left(at_server(*commanded(), *requested(), clients(CLIENT, at=AT + 5)))
        assert (event.pid, event.reason) == (OTHER, "exit")


class TestEvicted:
    """With protocol 3, the server ends clients of itself when memory is short."""

    def end(self, *seen: Observation) -> Event:
        start = partitioned()
        (server,) = start.daemons.values()
        assert CLIENT in server.clients
        (event,) = reduced(*seen, exited(at=AT + 6), start=start).of(EventName.CLIENT_DISCONNECTED)
        return event

    def test_later_commands_in_the_log_show_that_none_requested_it(self) -> None:
        event = self.end(*requested(), *commanded("server list", at=AT + 5))
        assert (event.reason, event.indications) == ("evicted", None)

    def test_a_command_that_ends_clients_is_no_eviction(self) -> None:
        event = self.end(*requested(), *commanded(f"client terminate {CLIENT}"), *commanded("server list", at=AT + 5))
        assert (event.reason, event.indications) == ("terminated", (BY_COMMAND,))

    def test_a_refused_command_ended_no_client(self) -> None:
        refused = control_log(
            f"Cmd:client terminate {CLIENT}", "Not enough privilege to execute terminate command", at=AT + 4
        )
        assert self.end(*refused, *requested(), *commanded("server list", at=AT + 5)).reason == "evicted"

    def test_a_refused_command_of_another_user_hides_no_other_command(self) -> None:
        refused = control_log("Cmd:quit", "Not enough privilege to execute quit command", "UI closed", at=AT + 4.5)
        event = self.end(*commanded(f"client terminate {CLIENT}"), *refused, *requested())
        assert (event.reason, event.indications) == ("terminated", (BY_COMMAND,))
        assert self.end(*commanded(f"client terminate {CLIENT}"), *requested(), *refused).reason == "terminated"

    def test_without_later_commands_in_the_log_it_is_unknown(self) -> None:
        event = self.end(*commanded("server list", at=AT + 3), *requested())
        assert (event.reason, event.indications) == ("terminated", None)

    def test_protocol_2_evicts_no_client(self) -> None:
        event, _ = left(at_server(*requested(), *commanded("get_server_list", at=AT + 5), exited(at=AT + 6)))
        assert event.reason == "terminated"


def test_an_out_of_memory_kill_is_the_cause_of_an_end() -> None:
    killed = f"6,1,1,-;Memory cgroup out of memory: Killed process {CLIENT} (train) total-vm:1kB"
    forged = killed.replace("6,", "12,", 1)
    for record, reason in ((killed, "out_of_memory"), (forged, "exit")):
        event, _ = left(at_server(KernelRecord(at=AT + 4, record=record), exited(at=AT + 4.1)))
        assert event.reason == reason


class TestServer:
    """The end of a server ends its clients."""

    def reasons(self, *lines: str) -> set[object]:
        gone = (*control_log(*lines, at=AT + 4), exited(SERVER, at=AT + 5), servers(at=AT + 5))
        after = reduced(*at_work(CLIENT, OTHER), process(SERVER, uid=0, user="root"), *gone)
        assert len(after.of(EventName.CLIENT_DISCONNECTED)) == 2
        return {event.reason for event in after.of(EventName.CLIENT_DISCONNECTED)}

    def test_a_forced_shutdown_is_no_loss(self) -> None:
        """As of `shutdown_server -f` or `quit -t`."""
        waits = (f"Try shutting down server {SERVER}, backoff is enabled",)
        assert self.reasons(*waits, f"Force shutting down server {SERVER}") == {"shut_down"}

    def test_a_server_that_dies_while_a_shutdown_waits_for_its_clients_is_a_loss(self) -> None:
        """The daemon reports each time that it leaves the server alone."""
        waits = (
            f"Try shutting down server {SERVER}, backoff is enabled",
            f"Server {SERVER} has 2 active worker threads. Server will not shutdown.",
        )
        assert self.reasons(*waits) == {"server_gone"}
        assert self.reasons() == {"server_gone"}


def test_a_daemon_that_dies_is_a_loss_although_a_client_was_terminated() -> None:
    ends = (*commanded(), *requested(), clients(OTHER, at=AT + 5), exited(CONTROL, at=AT + 6))
    after = at_server(daemon_process(), *ends)
    counts = after.daemon.totals.disconnected
    assert {reason: count for reason, count in counts.items() if count} == {"terminated": 1, "daemon_gone": 1}
