"""Rules of evidence: observations of MPS that prove something, and those that do not."""

from dataclasses import replace

import pytest

from exporter.model.daemon import DaemonState
from exporter.model.event import EventName
from exporter.model.node import Node
from exporter.model.observation import DaemonProcess, GpuEvent, GpuReading, Observation
from exporter.report.node_status import document_of
from tests.builders import (
    AT,
    CLIENT,
    CONTROL,
    FAULT_BLOCK,
    GPU,
    OTHER_GPU,
    SERVER,
    active,
    at_work,
    clients,
    connecting,
    control_log,
    daemon_process,
    exited,
    failure,
    gpu_reading,
    look,
    no_daemon,
    node,
    process,
    reduced,
    refusal,
    reply,
    server_log,
    servers,
    silence,
    status,
)

XID = GpuEvent(at=AT, type=8, xid=31, gpu=GPU)
"""Return an Xid from NVML."""

UP = reduced(*at_work(CLIENT)).node
"""A daemon with one server and one client, since AT."""


def names(*seen: Observation, start: Node = UP) -> list[EventName]:
    """Return the names of the events, without those of incidents."""
    return reduced(*seen, start=start).names(EventName.FAULT, EventName.FAULT_CHANGED, EventName.FAULT_RECOVERED)


class TestClients:
    """A client is connected if the log calls it ACTIVE or the daemon lists it."""

    def test_connected_is_not_yet_connected(self) -> None:
        """The log has this line for refused clients too, and NVML lists them a second later."""
        assert names(*server_log(connecting(601)), gpu_reading([CLIENT, 601], at=AT + 1)) == []

    def test_active_is(self) -> None:
        assert names(*server_log(active(601))) == [EventName.CLIENT_CONNECTED]

    def test_every_further_context_is_the_same_client(self) -> None:
        """A client on two devices has two."""
        assert names(*server_log(active(601, 1), active(601, 2)), clients(CLIENT, 601, at=AT + 1)) == [
            EventName.CLIENT_CONNECTED
        ]

    def test_one_empty_list_disconnects_no_client(self) -> None:
        """A daemon that quits can answer with an empty list. A second one, a second later, counts."""
        assert names(clients(at=AT + 2)) == []
        assert names(clients(at=AT + 2), clients(at=AT + 2.5)) == []
        assert names(clients(at=AT + 2), clients(at=AT + 4)) == [EventName.CLIENT_DISCONNECTED]

    def test_a_list_without_the_client_disconnects_it_at_once(self) -> None:
        """A list that is not empty is complete."""
        assert names(clients(601, at=AT + 2)) == [EventName.CLIENT_CONNECTED, EventName.CLIENT_DISCONNECTED]

    def test_a_list_older_than_the_log_does_not_bring_back_a_client(self) -> None:
        """The query was sent before the exit and answered after it."""
        left = reduced(*server_log(f"Client process {CLIENT} disconnected", at=AT + 5), start=UP).node
        assert names(replace(clients(CLIENT, at=AT + 5.1), seconds=0.5), start=left) == []

    def test_an_older_list_does_not_disconnect_a_new_client(self) -> None:
        """The list may be from before the connection."""
        start = reduced(*server_log(active(601), at=AT + 5), start=UP).node
        assert names(clients(CLIENT, at=AT + 5.1), start=start) == []

    @pytest.mark.parametrize(("ticks", "expected"), [(CLIENT * 100, [EventName.CLIENT_DISCONNECTED]), (7, [])])
    def test_an_exit_counts_for_the_process_that_was_known(self, ticks: int, expected: list[EventName]) -> None:
        assert names(process(CLIENT), exited(CLIENT, ticks=ticks)) == expected

    def test_a_pid_with_a_new_start_time_is_another_process(self) -> None:
        """The earlier process has exited, also if this was not observed."""
        assert names(process(CLIENT), process(CLIENT, ticks=7)) == [EventName.CLIENT_DISCONNECTED]

    def test_a_client_that_returns_is_counted_again(self) -> None:
        """A process can disconnect and connect again."""
        seen = (clients(at=AT + 5), clients(at=AT + 7), *server_log(active(CLIENT), at=AT + 8))
        after = reduced(*server_log(f"Client process {CLIENT} disconnected", at=AT + 4.9), *seen, start=UP)
        assert after.names() == [EventName.CLIENT_DISCONNECTED, EventName.CLIENT_CONNECTED]
        assert after.daemon.totals.connected == 2

    def test_a_client_that_reconnects_before_any_list_is_the_same(self) -> None:
        """Only the log has the disconnect."""
        after = reduced(*server_log(f"Client process {CLIENT} disconnected", active(CLIENT), at=AT + 5), start=UP)
        assert (after.names(), after.daemon.log.claims) == ([], {})


class TestRefusals:
    """Refused clients and the reason."""

    def test_the_limits_line_is_about_the_client_that_reached_the_server_last(self) -> None:
        """It has no PID in it."""
        full = "Failed to accept new client. Maximum number of clients (48) reached."
        present = reduced(clients(*range(700, 730), at=AT + 1), start=UP).node
        after = reduced(*server_log(connecting(601), active(601), connecting(602), full), start=present)
        (refused,) = after.of(EventName.CLIENT_REFUSED)
        assert (refused.pid, refused.reason) == (602, "limit")
        assert after.daemon.servers[SERVER].clients_limit == 48

    def test_a_server_with_few_clients_does_not_refuse_one_because_it_is_full(self) -> None:
        """Any user can write that line."""
        full = "Failed to accept new client. Maximum number of clients (48) reached."
        after = reduced(*server_log(connecting(602), full), start=UP)
        assert after.of(EventName.CLIENT_REFUSED) == []
        assert after.daemon.totals.log_contradictions["client_refused"] == 1

    def test_a_refusal_that_is_read_after_the_exits_of_the_clients_is_one(self) -> None:
        """All processes of a job exit if one of them is refused. That is known before the log is read."""
        full = server_log("Failed to accept new client. Maximum number of clients (48) reached.", at=AT + 1.2)
        seen = (clients(*range(700, 730), at=AT + 1), *(process(pid, at=AT + 1) for pid in range(700, 730)))
        exits = (exited(pid, at=AT + 1.1, ticks=process(pid).start_ticks) for pid in range(700, 730))
        after = reduced(*seen, *exits, *full, start=UP)
        assert [each.reason for each in after.of(EventName.CLIENT_REFUSED)] == ["limit"]
        assert after.daemon.totals.log_contradictions["client_refused"] == 0

    def test_two_lines_about_one_refusal_are_one(self) -> None:
        """In FAULT, the server logs it twice, once with the status."""
        lines = (
            "Server teardown in progress. Refusing to accept new client {PID: 601, Context ID: 0}",
            "Failed to accept client {PID: 601, Context ID: 0} with status 807",
        )
        (refused,) = reduced(*server_log(*lines), start=UP).of(EventName.CLIENT_REFUSED)
        assert (refused.pid, refused.reason) == (601, "fault")

    @pytest.mark.parametrize(("code", "reason"), [(807, "fault"), (999, "other")])
    def test_the_status_alone_gives_the_reason(self, code: int, reason: str) -> None:
        """If the log is followed from the middle."""
        line = f"Failed to accept client {{PID: 601, Context ID: 0}} with status {code}"
        after = reduced(*server_log(line), start=UP)
        (refused,) = after.of(EventName.CLIENT_REFUSED)
        assert refused.reason == reason
        refusals = [each for each in document_of(after.node).findings if each.code == "clients_refused"]
        assert bool(refusals) is (reason == "other"), "a fault is a problem of its own"


class TestWaiting:
    """Queued clients are normal. A client that waits for another user is an event."""

    QUEUED = "NEW CLIENT 601 from user 1000: Server is not ready, push client to pending list"
    STAYS = f"Server {SERVER} has 2 active worker threads. Server will not shutdown."

    def test_a_wait_for_the_start_of_a_server_does_not_count(self) -> None:
        """Nor does a wait for the exit of another user's idle server."""
        assert EventName.CLIENT_WAITING not in names(
            *control_log(self.QUEUED, "Starting new server 700 for user 1000", "NEW SERVER 700: Ready")
        )

    def test_a_wait_is_one_event_while_the_other_server_stays(self) -> None:
        after = reduced(*control_log(self.QUEUED, self.STAYS, self.STAYS, self.STAYS), start=UP)
        assert after.names() == [EventName.CLIENT_WAITING]
        assert after.daemon.connections.waiting.keys() == {601}

    @pytest.mark.parametrize(
        "process",
        [
            replace(daemon_process(), options=("-multiuser-server",)),
            replace(daemon_process(), protocol=3),
        ],
        ids=("one server for all users", "protocol 3"),
    )
    def test_no_client_waits_for_another_user_where_users_are_served_together(self, process: DaemonProcess) -> None:
        """There the server stays after an operator's command to end it."""
        start = reduced(process, *at_work(CLIENT)).node
        after = reduced(*control_log(self.QUEUED, self.STAYS), start=start)
        assert EventName.CLIENT_WAITING not in after.names()
        assert not after.daemon.connections.waiting

    def test_the_server_for_all_users_admits_clients_of_each_user(self) -> None:
        start = reduced(replace(daemon_process(), options=("-M",))).node
        ready = control_log(self.QUEUED, "Starting new server 700 for user 0", "NEW SERVER 700: Ready")
        assert not reduced(*ready, start=start).daemon.connections.queued

    def test_a_server_of_one_user_admits_only_clients_of_that_user(self) -> None:
        other = self.QUEUED.replace("601 from user 1000", "602 from user 1001")
        ready = control_log(self.QUEUED, other, "Starting new server 700 for user 1000", "NEW SERVER 700: Ready")
        assert reduced(*ready, start=UP).daemon.connections.queued == {602: 1001}

    def test_it_ends(self, subtests: pytest.Subtests) -> None:
        """By the end of the client or of the other user's clients."""
        for ends in [
            control_log("Starting new server 700 for user 1000", "NEW SERVER 700: Ready"),
            control_log("NEW CLIENT 601 from user 1000: Server already exists"),
            server_log(connecting(601)),
            (exited(601),),
            (no_daemon(at=AT + 60),),
        ]:
            with subtests.test(ends=ends):
                after = reduced(*control_log(self.QUEUED, self.STAYS), *ends, start=UP)
                assert not after.daemon.connections.waiting
                assert not after.daemon.connections.queued


class TestFault:
    """FAULT needs a second source, because a server that exits is called so once."""

    def test_one_fault_reply_before_not_found_is_a_server_that_exits(self) -> None:
        """Measured when another user's server was started."""
        after = names(status("FAULT", at=AT + 5), status(f"Server {SERVER} not found", at=AT + 5.1))
        assert after == [EventName.CLIENT_DISCONNECTED, EventName.SERVER_EXITED]

    @pytest.mark.parametrize(
        "evidence",
        [server_log(*FAULT_BLOCK, at=AT + 6), (status("FAULT", at=AT + 6),), (clients(CLIENT, at=AT + 6),)],
        ids=("the log's block", "another FAULT", "clients still listed"),
    )
    def test_a_second_source_makes_it_a_fault(self, evidence: tuple[Observation, ...]) -> None:
        after = reduced(status("FAULT", at=AT + 5), *evidence, start=UP)
        assert [event.state for event in after.of(EventName.SERVER_STATE)] == ["fault"]

    def test_its_block_and_an_xid_are_enough(self) -> None:
        """A poll can miss all of it, because it takes 0.1 s."""
        seen = (*server_log(*FAULT_BLOCK, "Destroy server context on device 0"), XID, exited(at=AT + 0.1))
        after = reduced(*seen, start=UP)
        assert [event.state for event in after.of(EventName.SERVER_STATE)] == ["fault", "active"]

    def test_the_log_alone_shows_none(self) -> None:
        """Every user can write into it. An unconfirmed claim is counted and dropped."""
        after = reduced(*server_log(*FAULT_BLOCK), look("log", at=AT + 11), start=UP)
        assert after.names() == [EventName.LOG_CONTRADICTED]
        assert after.daemon.totals.log_contradictions["fault"] == 1
        assert (after.node.incidents, after.daemon.servers[SERVER].fault_block) == ({}, None)

    def test_it_lasts_until_the_contexts_on_all_its_devices_are_destroyed(self) -> None:
        """The last affected client may be on another GPU."""
        block = (*FAULT_BLOCK[:3], "1", *FAULT_BLOCK[3:])
        start = reduced(*server_log(*block), XID, *server_log("Destroy server context on device 0"), start=UP)
        assert [event.state for event in start.of(EventName.SERVER_STATE)] == ["fault"]
        after = reduced(
            *server_log("Destroy server context on device 1"), status("ACTIVE", at=AT + 1), start=start.node
        )
        assert [event.state for event in after.of(EventName.SERVER_STATE)] == ["active"]

    def test_an_answer_older_than_the_block_does_not_end_it(self) -> None:
        """The query was sent before the fault."""
        start = reduced(*server_log(*FAULT_BLOCK, at=AT + 5), replace(XID, at=AT + 5), start=UP).node
        assert names(replace(status("ACTIVE", at=AT + 5.1), seconds=0.3), start=start) == []
        assert names(status("ACTIVE", at=AT + 9), start=start) == [EventName.SERVER_STATE]


class TestServers:
    """One empty list ends no server, and late lines bring none back."""

    def test_two_empty_lists_count(self) -> None:
        gone = [EventName.CLIENT_DISCONNECTED, EventName.SERVER_EXITED]
        assert names(servers(at=AT + 5)) == []
        assert names(servers(at=AT + 5), servers(at=AT + 7)) == gone
        assert names(servers(at=AT + 5), servers(SERVER, at=AT + 6), servers(at=AT + 7)) == []

    def test_a_server_that_is_missing_in_a_list_has_ended(self) -> None:
        """A list that is not empty is complete."""
        assert names(servers(700, at=AT + 5)) == [
            EventName.SERVER_STARTED,
            EventName.CLIENT_DISCONNECTED,
            EventName.SERVER_EXITED,
        ]

    def test_late_lines_of_an_ended_server_do_not_bring_it_back(self) -> None:
        """Its log may be read after the daemon's."""
        gone = reduced(
            *control_log(f"Server {SERVER} exited with status 0", at=AT + 4), servers(at=AT + 5), start=UP
        ).node
        late = server_log("Server has started", active(601), *FAULT_BLOCK, at=AT + 5.1)
        assert names(*late, start=gone) == []


class TestDaemon:
    """States of the daemon: ended, hung, held, busy."""

    def test_a_collision_proves_nothing(self) -> None:
        assert names(refusal(at=AT + 5), servers(SERVER, at=AT + 5.1)) == []

    def test_repeated_refusals_are_an_open_session(self) -> None:
        after = reduced(refusal(at=AT + 5), refusal(at=AT + 8), start=UP)
        assert after.names() == []
        assert after.daemon.state is DaemonState.HELD
        assert reduced(servers(SERVER, at=AT + 9), start=after.node).daemon.state is DaemonState.UP

    def test_one_unanswered_query_is_not_a_hang(self) -> None:
        assert names(silence(at=AT + 5)) == []
        assert names(silence(at=AT + 5), silence(at=AT + 5.5)) == []
        assert names(silence(at=AT + 5), silence(at=AT + 10)) == [EventName.DAEMON_UNRESPONSIVE]
        assert names(silence(at=AT + 5), silence(at=AT + 10), servers(SERVER, at=AT + 11)) == [
            EventName.DAEMON_UNRESPONSIVE,
            EventName.DAEMON_RESPONSIVE,
        ]

    @pytest.mark.parametrize(
        "words",
        [control_log("NEW UI", "Cmd:quit -t 3", at=AT + 5), (reply("quit", at=AT + 5),)],
        ids=("in the log", "in a reply"),
    )
    def test_a_daemon_that_received_quit_is_stopped_and_not_lost(self, words: tuple[Observation, ...]) -> None:
        """It must not alert."""
        after = reduced(*words, no_daemon(at=AT + 6), no_daemon(at=AT + 16), start=UP)
        assert EventName.DAEMON_STOPPED in after.names()
        assert EventName.DAEMON_LOST not in after.names()

    def test_a_quit_whose_session_closes_was_refused(self) -> None:
        """Any user can send it. For an ordinary user it is refused, and the session closes (R580)."""
        for ending in (("Not enough privilege to execute quit command", "UI closed"), ("UI closed",)):
            words = control_log("NEW UI", "Cmd:quit", *ending, at=AT + 5)
            after = names(*words, no_daemon(at=AT + 700), no_daemon(at=AT + 710))
            assert EventName.DAEMON_LOST in after
            assert EventName.DAEMON_STOPPED not in after

    def test_a_refused_quit_in_an_open_session_is_no_stop(self) -> None:
        """Also if an earlier `ps` hides the session."""
        for before in ((), ("Cmd:ps",)):
            denied = ("NEW UI", *before, "Cmd:quit", "Not enough privilege to execute quit command")
            after = names(*control_log(*denied, at=AT + 5), no_daemon(at=AT + 60), no_daemon(at=AT + 70))
            assert EventName.DAEMON_LOST in after

    def test_a_quit_does_not_count_for_the_next_daemon(self) -> None:
        """Only the process of the next daemon is known, because it logs elsewhere; then it dies."""
        stopped = reduced(
            *control_log("Cmd:quit", "Exit with status 0", at=AT + 5), no_daemon(at=AT + 6), start=UP
        ).node
        back = reduced(daemon_process(800, at=AT + 10), servers(at=AT + 11), start=stopped).node
        after = reduced(daemon_process(None, at=AT + 60), no_daemon(at=AT + 70), start=back)
        assert EventName.DAEMON_LOST in after.names()
        assert after.daemon.totals.losses["died"] == 1

    def test_a_restart_by_an_operator_is_no_loss_if_the_log_is_read_late(self) -> None:
        """`systemctl restart`: the new process runs before the old one's quit is read from the log."""
        words = ("Cmd:quit", "Exit with status 0", "Starting control daemon using socket /tmp/nvidia-mps/control")
        present = reduced(daemon_process(at=AT + 1), start=UP).node
        after = reduced(
            daemon_process(CONTROL + 1, at=AT + 5),
            *control_log(*words[:2], at=AT + 5.2),
            *control_log(words[2], pid=CONTROL + 1, at=AT + 5.2),
            servers(at=AT + 6),
            servers(at=AT + 20),
            start=present,
        )
        assert EventName.DAEMON_LOST not in after.names()
        assert after.names().count(EventName.DAEMON_STOPPED) == 1
        assert after.daemon.state is DaemonState.UP
        assert after.daemon.lifecycle.quit_at is None

    def test_late_lines_of_the_old_daemon_do_not_end_the_new_one(self) -> None:
        after = reduced(
            daemon_process(CONTROL + 1, at=AT + 1),
            servers(at=AT + 2),
            *control_log("Exit with status 0", at=AT + 3),
            servers(at=AT + 4),
            start=reduced(no_daemon(at=AT + 0.1), no_daemon(at=AT + 0.9)).node,
        )
        assert after.daemon.state is DaemonState.UP
        assert EventName.DAEMON_STOPPED not in after.names()

    def test_lines_that_are_read_after_its_end_count(self) -> None:
        """The log is read a moment later than the reply."""
        after = names(no_daemon(at=AT + 5), *control_log("Exit with status 0", at=AT + 5.2), no_daemon(at=AT + 15))
        assert after.count(EventName.DAEMON_STOPPED) == 1
        assert EventName.DAEMON_LOST not in after

    def test_without_a_quit_it_is_lost_at_its_end(self) -> None:
        """Reported a moment later, with the time of its end."""
        after = reduced(no_daemon(at=AT + 5), no_daemon(at=AT + 15), start=UP)
        (lost,) = after.of(EventName.DAEMON_LOST)
        assert (lost.at, lost.reason) == (AT + 5, "died")
        assert after.daemon.lifecycle.last_loss_at == AT + 5

    def test_a_death_with_an_immediate_restart_counts(self) -> None:
        """Systemd restarted it before any collection: another process answers."""
        start = reduced(daemon_process(), start=UP).node
        again = reduced(daemon_process(442, at=AT + 60), look("log", at=AT + 62), start=start)
        (lost,) = again.of(EventName.DAEMON_LOST)
        assert lost.reason == "replaced"
        assert again.daemon.totals.losses == {"died": 0, "replaced": 1}

    def test_the_exit_of_the_daemon_ends_its_servers_and_clients(self) -> None:
        """Measured: server and clients end with their daemon."""
        start = reduced(daemon_process(), start=UP).node
        gone = reduced(exited(441, at=AT + 5), look("log", at=AT + 6), look("log", at=AT + 7), start=start)
        assert gone.names() == [EventName.CLIENT_DISCONNECTED, EventName.SERVER_EXITED, EventName.DAEMON_LOST]
        assert gone.of(EventName.CLIENT_DISCONNECTED)[0].reason == "daemon_gone"

    def test_refusals_do_not_revive_an_ended_daemon(self) -> None:
        """A stale pid file can name another process."""
        start = reduced(daemon_process(), start=UP).node
        seen = (exited(441, at=AT + 5), look("log", at=AT + 7), *(refusal(at=AT + at) for at in (10, 20, 30)))
        assert reduced(*seen, start=start).daemon.state is DaemonState.DOWN
        assert reduced(*seen[2:], start=start).daemon.state is DaemonState.HELD

    def test_one_refusal_after_unanswered_commands_shows_no_open_session(self) -> None:
        seen = (refusal(at=AT + 1), silence(at=AT + 6), silence(at=AT + 13), refusal(at=AT + 20))
        assert reduced(*seen, start=UP).daemon.state is not DaemonState.HELD
        assert reduced(*seen, refusal(at=AT + 23), start=UP).daemon.state is DaemonState.HELD

    def test_an_absent_daemon_has_neither_servers_nor_clients(self) -> None:
        late = (
            *control_log("Starting new server 700 for user 0", "NEW SERVER 700: Ready", at=AT + 5.1),
            *server_log(active(701), at=AT + 5.1, server=700),
        )
        after = reduced(no_daemon(at=AT + 5), *late, no_daemon(at=AT + 15), start=UP)
        assert not after.daemon.servers
        assert not after.daemon.clients

    @pytest.mark.parametrize("seen", [no_daemon(), no_daemon(at=AT + 60)])
    def test_a_daemon_never_seen_is_not_lost(self, seen: Observation) -> None:
        """It never ran."""
        assert names(seen, no_daemon(at=AT + 90), start=node()) == []


class TestBypassing:
    """A bypassing process is reported if it neither connects nor exits."""

    def test_needs_two_readings_a_second_apart(self) -> None:
        assert names(gpu_reading([CLIENT], beside=[801], at=AT + 5)) == []
        assert (
            names(gpu_reading([CLIENT], beside=[801], at=AT + 5), gpu_reading([CLIENT], beside=[801], at=AT + 5.3))
            == []
        )
        after = reduced(*(gpu_reading([CLIENT], beside=[801], at=AT + second) for second in (5, 7, 9)), start=UP)
        assert after.names() == [EventName.PROCESS_BYPASSING]
        assert after.node.gpus[GPU].bypassing == (801,)

    def test_without_a_log_it_could_be_an_unknown_server(self) -> None:
        """Only a list that is newer than the process decides."""
        quietly = reduced(servers(SERVER), clients(CLIENT)).node
        looks = [gpu_reading([CLIENT], beside=[801], at=AT + second) for second in (5, 7, 9)]
        assert names(*looks, start=quietly) == []
        assert names(*looks[:2], servers(SERVER, at=AT + 8), looks[2], start=quietly) == [EventName.PROCESS_BYPASSING]
        assert EventName.PROCESS_BYPASSING not in names(*looks[:2], servers(801, at=AT + 8), looks[2], start=quietly)

    def test_on_two_gpus_it_is_reported_once(self) -> None:
        seen = [
            gpu_reading(beside=[801], gpu=gpu, index=index, at=AT + second)
            for second in (5, 7)
            for index, gpu in enumerate((GPU, OTHER_GPU))
        ]
        assert names(*seen) == [EventName.PROCESS_BYPASSING]

    @pytest.mark.parametrize(
        "seen",
        [
            gpu_reading([CLIENT]),
            gpu_reading(beside=[CLIENT]),
            replace(gpu_reading(beside=[801]), mps_processes=None),
            GpuReading(at=AT, gpu=GPU, problem=failure("lost")),
        ],
        ids=("the server", "a known client", "no MPS list to compare with", "no reading"),
    )
    def test_no_other_process_is_bypassing(self, seen: GpuReading) -> None:
        assert names(*(replace(seen, at=AT + second) for second in (5, 10, 15))) == []

    def test_a_disconnected_client_that_nvml_still_lists_is_not_bypassing(self) -> None:
        """A client that was killed during a kernel stays in the list for a while."""
        left = server_log(f"Client process {CLIENT} disconnected", at=AT + 5)
        looks = (gpu_reading(beside=[CLIENT], at=AT + second) for second in (6, 10, 20, 30))
        assert names(*left, *looks) == [EventName.CLIENT_DISCONNECTED]

    def test_an_mps_server_of_another_daemon_is_not_bypassing(self) -> None:
        """Its process has the name of both MPS programs."""
        other = process(801, command="nvidia-cuda-mps")
        looks = [gpu_reading([CLIENT], beside=[801], at=AT + second) for second in (5, 7, 9)]
        assert names(looks[0], other, *looks[1:]) == []

    def test_until_the_servers_are_known_no_process_is_bypassing(self) -> None:
        start = reduced(*control_log("UI closed")).node
        assert names(*(gpu_reading(server=700, at=AT + second) for second in (5, 10, 15)), start=start) == []

    def test_a_process_that_starts_after_the_death_of_the_daemon_bypasses_mps(self) -> None:
        start = reduced(gpu_reading([CLIENT]), no_daemon(at=AT + 5), start=UP).node
        looks = (gpu_reading(beside=[801], server=None, at=AT + second) for second in (10, 20))
        assert EventName.PROCESS_BYPASSING in names(*looks, start=start)


class TestMemory:
    """Data of ended objects is removed, for any failure of sources."""

    ROUNDS = 300

    @pytest.mark.parametrize("source", ["nvml", "log"])
    def test_disconnected_clients_are_removed(self, source: str) -> None:
        """Also without NVML."""
        present = UP
        for pid in range(1000, 1000 + self.ROUNDS):
            at = AT + 10 * (pid - 999)
            present = reduced(
                process(pid, at=at),
                *server_log(active(pid), f"Client process {pid} disconnected", at=at),
                look(source, at=at + 1, problem=failure("blind") if source == "nvml" else None),
                start=present,
            ).node
        (daemon,) = present.daemons.values()
        assert len(daemon.connections.disconnected_at) < 10
        assert len(present.processes) < 10

    def test_ended_servers_are_removed(self) -> None:
        """A daemon with servers that cannot start starts several a second."""
        present = UP
        for pid in range(1000, 1000 + self.ROUNDS):
            at = AT + 60 * (pid - 999)
            present = reduced(
                servers(SERVER, pid, at=at),
                status("ACTIVE", server=pid, at=at),
                clients(server=pid, at=at),
                servers(SERVER, at=at + 5),
                look(at=at + 6),
                start=present,
            ).node
        (daemon,) = present.daemons.values()
        assert len(daemon.connections.server_exited_at) < 10
        assert len(daemon.commands.asked_at) < self.ROUNDS
        assert daemon.servers.keys() == {SERVER}
