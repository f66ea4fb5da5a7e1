"""PIDs of a daemon in another PID namespace are translated, or become negative."""

from dataclasses import fields, replace
from itertools import product
from typing import get_args, get_type_hints

import pytest

from exporter.metrics.catalogue import NodeCollector
from exporter.model.daemon import DaemonState
from exporter.model.event import EventName
from exporter.model.node import Node
from exporter.model.observation import ControlReply, LogLine, Observation
from exporter.parse import log_message
from exporter.parse.control_reply import translate_command
from exporter.parse.log_line import PID_FIELDS, LogEntry, numbers_in_line, pids_in_line, translate_entry
from exporter.state import log_lines, poll_schedule
from exporter.view import View
from tests.builders import (
    AT,
    CLIENT,
    DAEMON,
    FAULT_BLOCK,
    GPU,
    OTHER_GPU,
    SERVER,
    Reduced,
    active,
    at_work,
    clients,
    control_log,
    daemon_process,
    exited,
    gpu_reading,
    look,
    no_daemon,
    node,
    process,
    reduced,
    server_log,
    servers,
    status,
)
from tests.incidents.test_fault_kernels import kernel, kernels_read, of_client
from tests.status import status_table

INNER = {7: 70_007, 20: 70_020, 31: 70_031}
NO_PIDS = {"uid", "context", "limit", "priority", "status", "value", "device", "protocol"}
"""Fields with numbers that are not PIDs."""


def entry(message: log_message.Message, pid: int = 7) -> LogEntry:
    return LogEntry("Control", pid, message)


def foreign_entry(*seen: Observation) -> list[Observation]:
    """The same from a daemon in another PID namespace."""
    return [replace(each, pids=INNER) if isinstance(each, LogLine | ControlReply) else each for each in seen]


def line(text: str, role: str = "Server", pid: int = 20) -> LogLine:
    file = "control.log" if role == "Control" else "server.log"
    return LogLine(
        at=AT, daemon=DAEMON, file=file, line=f"[2026-11-20 15:08:45.147 {role} {pid:5d}] {text}", pids=INNER
    )


# -- log lines ---------------------------------------------------------------------------------------------------------


def test_does_not_translate_other_numbers() -> None:
    assert translate_entry(entry(log_message.ClientNotAccepted(31, 7)), INNER).message == log_message.ClientNotAccepted(
        70_031, 7
    )
    assert translate_entry(entry(log_message.ClientLimitReached(20)), INNER).message == log_message.ClientLimitReached(
        20
    )
    assert translate_entry(
        entry(log_message.ServerContextDestroyed(7)), INNER
    ).message == log_message.ServerContextDestroyed(7)
    assert translate_entry(entry(log_message.BareNumber(7)), INNER).message == log_message.BareNumber(7)


def test_pid_0_remains_0(subtests: pytest.Subtests) -> None:
    for pid, pids in product([0, -1_333_654_781], [None, INNER, {}]):
        with subtests.test(pid=pid, pids=pids):
            assert translate_entry(entry(log_message.ClientActive(pid)), pids).message == log_message.ClientActive(0)


def message_classes(base: type[log_message.Message]) -> list[type[log_message.Message]]:
    return [each for kind in base.__subclasses__() for each in (kind, *message_classes(kind))]


def test_every_number_of_a_message_is_known_to_be_a_pid_or_not() -> None:
    """A new message must show by field names which of its numbers are PIDs."""
    unknown = {
        (kind.__name__, part.name)
        for kind in message_classes(log_message.Message)
        for part in fields(kind)
        if int in (get_type_hints(kind)[part.name], *get_args(get_type_hints(kind)[part.name]))
        and part.name not in {*PID_FIELDS, *NO_PIDS}
    }
    assert unknown == set()


# -- PIDs that the collector translates --------------------------------------------------------------------------------


def test_finds_the_pids_of_a_line() -> None:
    assert pids_in_line(line("Client {PID: 31, Context ID: 1} connected").line) == (20, 31)
    assert pids_in_line(line("NEW CLIENT 31 from user 1000: Server already exists", "Control", 7).line) == (7, 31)
    assert pids_in_line(line("Status of client {PID: -5, Context ID: 1} is ACTIVE").line) == (20,)
    assert pids_in_line("no line of a log 31") == ()


def test_every_number_of_a_line_except_its_time_may_be_a_pid() -> None:
    assert numbers_in_line(line("peculiar 31 of 4").line) == (20, 31, 4)
    assert numbers_in_line("31") == (31,)


def test_translates_the_pids_of_a_command(subtests: pytest.Subtests) -> None:
    for command, spoken in [
        ("get_server_list", "get_server_list"),
        ("get_server_status 70020", "get_server_status 20"),
        ("get_client_list -44", "get_client_list 44"),
        ("get_server_status 99", "get_server_status 0"),
        ("terminate_client 70020 70031", "terminate_client 20 31"),
        ("get_device_pinned_mem_limit 70020 0", "get_device_pinned_mem_limit 20 0"),
        ("get_default_device_pinned_mem_limit 0", "get_default_device_pinned_mem_limit 0"),
        ("set_active_thread_percentage 70020 40", "set_active_thread_percentage 20 40"),
        ("set_device_pinned_mem_limit 70020 0 2G", "set_device_pinned_mem_limit 20 0 2G"),
    ]:
        with subtests.test(command=command, spoken=spoken):
            inner = {70_020: 20, 70_031: 31, -44: 44}

            assert translate_command(command, inner.get) == spoken


# -- the reducer -------------------------------------------------------------------------------------------------------


def test_the_node_has_pids_of_this_namespace() -> None:
    result = reduced(
        *foreign_entry(
            servers(20),
            status("ACTIVE", server=70_020, at=AT + 1),
            clients(31, server=70_020, at=AT + 2),
        )
    )

    assert set(result.daemon.servers) == {70_020}
    assert {pid: client.server for pid, client in result.daemon.clients.items()} == {70_031: 70_020}


def test_logs_and_lists_identify_the_same_clients() -> None:
    result = reduced(
        line("Starting new server 20 for user 0", "Control", 20),
        line("NEW SERVER 20: Ready", "Control", 7),
        line("Status of client {PID: 31, Context ID: 1} is ACTIVE"),
        *foreign_entry(clients(31, server=70_020, at=AT + 2)),
    )

    assert set(result.daemon.clients) == {70_031}
    assert len(result.of(EventName.CLIENT_CONNECTED)) == 1


def test_counts_a_client_with_an_unknown_pid() -> None:
    result = reduced(
        line("Starting new server 20 for user 0", "Control", 20),
        line("NEW SERVER 20: Ready", "Control", 7),
        line("Status of client {PID: 99, Context ID: 1} is ACTIVE"),
    )
    assert set(result.daemon.clients) == {-99}

    result = reduced(line("Client process 99 disconnected"), start=result.node)
    assert result.daemon.clients == {}
    assert result.daemon.totals.disconnected["exit"] == 1


def with_a_client() -> Reduced:
    """Return a daemon of another namespace, whose server has one client."""
    return reduced(
        line("Starting new server 20 for user 0", "Control", 20),
        line("NEW SERVER 20: Ready", "Control", 7),
        line("Status of client {PID: 31, Context ID: 1} is ACTIVE"),
    )


def test_translates_the_affected_clients_of_a_fault() -> None:
    """A bare number is a PID in the list of clients, but not in the list of devices."""
    start = with_a_client()
    result = reduced(
        line("Client {PID: 31, Context: 1} encountered a fatal GPU error."),
        line("Server is handling a fatal GPU error."),
        line("Client {PID: 31, Context ID: 1} on device 7 to be torn down"),
        line("The following devices will be reset:"),
        line("7"),
        line("The following client process have a sticky error set:"),
        line("31"),
        line("99"),
        start=start.node,
    )
    block = result.daemon.servers[70_020].fault_block
    assert block is not None
    assert (block.named, block.torn_down, block.sticky_error) == (70_031, {70_031}, (70_031, -99))
    assert block.devices == result.daemon.servers[70_020].devices_to_reset == {7}


def test_translates_disconnected_clients() -> None:
    start = with_a_client()
    result = reduced(
        line("MPS server requesting client {PID: 31, Context ID: 1} to exit"),
        line("Client {PID: 31, Context ID: 1} exiting. Number of active client contexts is 1."),
        line("Client {PID: 99, Context ID: 1} exiting. Worker is in reset. Number of active client contexts is 0."),
        start=start.node,
    )
    leavings = result.daemon.connections.disconnects
    assert {pid: each.server for pid, each in leavings.items()} == {70_031: 70_020, -99: 70_020}
    assert leavings[70_031].terminated
    assert result.of(EventName.CLIENT_FAULT_CONTAINED) == []


def test_translates_a_missing_server() -> None:
    result = reduced(*foreign_entry(servers(20), status("Server 20 not found", server=70_020, at=AT + 1)))

    assert result.daemon.servers == {}


# Clients whose PIDs the daemon hides, because they are in another PID namespace. NVML identifies them.


NOBODY, ONE, OTHER = 0, 9001, 9002


def daemon_in_a_pod(*shown: int) -> Reduced:
    """The daemon lists its clients as 0. Then NVML shows them."""
    return reduced(*at_work(NOBODY), gpu_reading(shown, at=AT + 5))


def known(present: Node) -> set[int]:
    return set(present.daemons[DAEMON].clients)


def counted(present: Node) -> list[float]:
    families = NodeCollector(View(present)).collect()
    return [each.value for family in families if family.name == "cuda_mps_server_clients" for each in family.samples]


def test_processes_that_nvml_shows_are_clients_of_the_only_server() -> None:
    result = daemon_in_a_pod(ONE, OTHER)

    assert {pid: client.server for pid, client in result.node.daemons[DAEMON].clients.items()} == {
        ONE: SERVER,
        OTHER: SERVER,
    }
    assert [event.pid for event in result.of(EventName.CLIENT_CONNECTED)] == [ONE, OTHER]
    assert not result.node.gpus[GPU].bypassing_processes


def test_the_log_reports_hidden_pids_before_a_list() -> None:
    result = reduced(*at_work(), *server_log(active(NOBODY), at=AT + 1), gpu_reading((ONE,), at=AT + 5))

    assert known(result.node) == {ONE}


def test_a_list_with_hidden_pids_disconnects_no_client() -> None:
    result = reduced(*(clients(NOBODY, at=AT + later) for later in (10, 20)), start=daemon_in_a_pod(ONE, OTHER).node)

    assert known(result.node) == {ONE, OTHER}


def test_a_client_that_no_gpu_shows_has_disconnected() -> None:
    second = gpu_reading((ONE, OTHER), gpu=OTHER_GPU, index=1, at=AT + 5)
    result = reduced(second, gpu_reading((), at=AT + 20), start=daemon_in_a_pod(ONE, OTHER).node)
    assert known(result.node) == {ONE, OTHER}

    result = reduced(gpu_reading((OTHER,), gpu=OTHER_GPU, index=1, at=AT + 30), start=result.node)
    assert known(result.node) == {OTHER}


def test_a_late_reading_does_not_reconnect_an_exited_client() -> None:
    result = reduced(exited(ONE, at=AT + 6), gpu_reading((ONE,), at=AT + 6.1), start=daemon_in_a_pod(ONE).node)

    assert known(result.node) == set()
    assert len(result.of(EventName.CLIENT_DISCONNECTED)) == 1


def test_an_empty_list_disconnects_all_clients() -> None:
    result = reduced(*(clients(at=AT + later) for later in (10, 20)), start=daemon_in_a_pod(ONE, OTHER).node)

    assert known(result.node) == set()


def test_a_client_with_a_visible_pid_is_not_affected() -> None:
    result = reduced(*at_work(CLIENT, NOBODY), gpu_reading((CLIENT, ONE), at=AT + 5), gpu_reading((ONE,), at=AT + 15))

    assert known(result.node) == {CLIENT, ONE}


def test_without_hidden_pids_nvml_alone_connects_no_client() -> None:
    result = reduced(*at_work(CLIENT), gpu_reading((CLIENT, ONE), at=AT + 5))

    assert known(result.node) == {CLIENT}


def test_hidden_pids_of_two_servers_identify_no_client() -> None:
    other = "/tmp/other"
    start = reduced(*at_work(NOBODY), *at_work(NOBODY, server=SERVER + 1, daemon=other), start=node(DAEMON, other)).node
    result = reduced(gpu_reading((ONE,), at=AT + 5), start=start)

    assert known(result.node) == set() == set(result.node.daemons[other].clients)


def test_an_unknown_number_of_clients_is_not_reported_as_zero() -> None:
    assert counted(reduced(*at_work(NOBODY)).node) == []
    assert counted(daemon_in_a_pod(ONE, OTHER).node) == [2]
    assert counted(reduced(*at_work()).node) == [0]


def test_clients_from_before_the_namespace_was_known_are_removed() -> None:
    before = reduced(*at_work(CLIENT)).node
    result = reduced(replace(servers(7, at=AT + 1), pids={7: SERVER + 1}), start=before)

    assert set(result.node.daemons[DAEMON].servers) == {SERVER + 1}
    assert known(result.node) == set()
    assert not result.of(EventName.SERVER_CRASH_LOOP)


def test_counts_hidden_waiting_clients_of_each_user() -> None:
    """A daemon in another PID namespace logs PID 0 for all of them."""

    def pushed(uid: int) -> str:
        return f"NEW CLIENT 0 from user {uid}: Server is not ready, push client to pending list"

    stays = f"Server {SERVER} has 1 active worker threads. Server will not shutdown."
    start = reduced(*at_work(CLIENT)).node
    three = reduced(*control_log(pushed(1000), pushed(1000), pushed(1000), stays, at=AT + 1), start=start)
    assert len(three.daemon.connections.waiting) == 3
    assert [event.pid for event in three.events] == [0, 0, 0]

    other = control_log("NEW CLIENT 0 from user 0: Server already exists", at=AT + 2)
    assert len(reduced(*other, start=three.node).daemon.connections.waiting) == 3
    own = control_log("NEW CLIENT 0 from user 1000: Server already exists", at=AT + 2)
    assert len(reduced(*own, start=three.node).daemon.connections.waiting) == 2
    text = status_table(three.node)
    assert sum("waiting" in line and "UID 1000" in line for line in text.splitlines()) == 3


# An unprivileged user's daemon cannot claim processes of other users.


VICTIM, ATTACKER = 900, 1000
ROOTS = process(VICTIM, uid=0, user="root")
FAKE = replace(daemon_process(), uid=ATTACKER)
OWN = (process(SERVER, uid=ATTACKER, user="mallory"), process(CLIENT, uid=ATTACKER, user="mallory"))
CLAIMS: tuple[Observation, ...] = (FAKE, *at_work(CLIENT, VICTIM), *OWN)


def everywhere(result: Reduced) -> set[int]:
    """Return all PIDs that the daemon has anything to do with."""
    daemon = result.daemon
    hit = {pid for server in daemon.servers.values() for pid in log_lines.named_clients(server)}
    here = {*daemon.servers, *daemon.clients, *daemon.connections.queued}
    return (
        here
        | hit
        | {
            *daemon.connections.disconnected_at,
            *daemon.connections.server_exited_at,
            *daemon.connections.disconnects,
            *daemon.connections.recently_disconnected,
        }
    )


@pytest.mark.parametrize("seen", [(*CLAIMS, ROOTS), (ROOTS, *CLAIMS)], ids=("learned after", "known before"))
def test_another_users_process_is_no_client_and_has_no_account(seen: tuple[Observation, ...]) -> None:
    """In either order of the claim and the process reading."""
    result = reduced(*seen, start=reduced(gpu_reading(beside=[VICTIM])).node)
    assert everywhere(result) == {SERVER, CLIENT}
    assert {workload.name for workload in result.node.accounts} == {"mallory"}
    assert len(result.of(EventName.CLIENT_CONNECTED)) - len(result.of(EventName.CLIENT_DISCONNECTED)) == 1


def test_removes_other_users_clients_once_the_daemons_user_is_known() -> None:
    assert everywhere(reduced(*CLAIMS[1:], ROOTS, FAKE)) == {SERVER, CLIENT}


def test_another_users_process_runs_outside_mps_and_bypasses_no_daemon() -> None:
    readings = (gpu_reading([CLIENT], beside=[VICTIM], at=AT + second) for second in (1, 3))
    gpu = reduced(*CLAIMS, ROOTS, *readings).node.gpus[GPU]
    assert (gpu.outside, gpu.bypassing) == ((VICTIM,), ())


def test_another_users_process_is_no_disconnected_client() -> None:
    """Its user is read, because NVML would show it for any time."""
    left = server_log(f"Client process {VICTIM} disconnected", at=AT + 1)
    readings = (gpu_reading([CLIENT], beside=[VICTIM], at=AT + second) for second in (2, 3, 5))
    before = reduced(*CLAIMS, *left, next(readings), look(at=AT + 2))
    assert VICTIM in poll_schedule.processes_wanted(before.node)
    assert reduced(ROOTS, *readings, start=before.node).node.gpus[GPU].outside == (VICTIM,)


def test_another_users_process_is_no_server_and_no_queued_client() -> None:
    waits = control_log(f"NEW CLIENT {VICTIM} from user 0: Server is not ready, push client to pending list", at=AT + 1)
    assert VICTIM in everywhere(reduced(*CLAIMS, *waits))
    assert everywhere(reduced(*CLAIMS, *waits, ROOTS)) == {SERVER, CLIENT}
    assert everywhere(reduced(*CLAIMS, servers(SERVER, VICTIM, at=AT + 1), ROOTS)) == {SERVER, CLIENT}


EXITS = f"Client {{PID: {VICTIM}, Context ID: 1}} exiting. Number of active client contexts is 2."
TORN_DOWN = f"Client {{PID: {VICTIM}, Context ID: 1}} on device 0 to be torn down"
NAMED = f"Client {{PID: {VICTIM}, Context: 1}} encountered a fatal GPU error."


def test_faults_do_not_affect_other_users_processes(subtests: pytest.Subtests) -> None:
    """The named processes are read, and removed once their user is known."""
    for claims in [
        (EXITS,),
        (NAMED,),
        (NAMED, FAULT_BLOCK[0]),
        (FAULT_BLOCK[0], TORN_DOWN),
        (*FAULT_BLOCK, str(VICTIM)),
    ]:
        with subtests.test(claims=claims):
            own = reduced(FAKE, *at_work(CLIENT), *OWN)
            before = reduced(*server_log(*claims, at=AT + 1), start=own.node)
            assert VICTIM in everywhere(before)
            assert VICTIM in poll_schedule.processes_wanted(before.node)
            assert VICTIM not in everywhere(reduced(ROOTS, start=before.node))
            assert VICTIM not in everywhere(reduced(ROOTS, *server_log(*claims, at=AT + 1), start=own.node))
            assert CLIENT in everywhere(reduced(ROOTS, start=before.node))


@pytest.mark.parametrize("known", [AT + 0.5, AT + 1.5], ids=("known before", "learned after"))
def test_other_users_are_not_suspects_of_its_faults(known: float) -> None:
    """The daemon names an affected client, or one that disconnected just before."""
    own = reduced(FAKE, *at_work(CLIENT), *OWN)
    users = (replace(ROOTS, at=known),)
    claims = (*server_log(EXITS, at=AT + 0.85), *server_log(NAMED, *FAULT_BLOCK, str(VICTIM), at=AT + 1))
    confirms = status("FAULT", at=AT + 1)
    kernels = kernels_read(*(of_client(pid, kernel(since=AT + 0.5)) for pid in (CLIENT, VICTIM)), at=AT + 1.1)
    seen = sorted((*claims, confirms, *users, kernels, look("log", at=AT + 4)), key=lambda each: each.at)
    before = reduced(*seen[:-1], start=own.node)
    result = reduced(seen[-1], start=before.node)
    (incident,) = result.node.incidents.values()
    assert (incident.affected, set(incident.client_details)) == ((CLIENT,), {CLIENT})
    assert {suspect.client.pid for suspect in incident.suspects} <= {CLIENT}
    assert (incident.clues.named, incident.clues.early_disconnects) == (None, ())
    for shown in (before.node, result.node):
        assert [each.pid for fault in shown.incidents.values() for each in fault.clues.kernels] == [CLIENT]
    faulted = {workload.name: account.faults_affected for workload, account in result.node.accounts.items()}
    assert faulted == {"mallory": 1}


def test_the_daemon_of_root_serves_all_users() -> None:
    assert everywhere(reduced(daemon_process(), *CLAIMS[1:], ROOTS)) == {SERVER, CLIENT, VICTIM}


def test_a_daemon_of_an_unknown_user_serves_all_users() -> None:
    assert everywhere(reduced(*CLAIMS[1:], ROOTS)) == {SERVER, CLIENT, VICTIM}


def test_a_daemon_in_a_container_serves_several_users() -> None:
    """It can only name processes of its PID namespace. A user namespace has several UIDs."""
    container = {SERVER: SERVER, 7: VICTIM}
    connects = (replace(line, pids=container) for line in server_log(active(7)))
    seen = (replace(each, pids=container) if hasattr(each, "pids") else each for each in (FAKE, *at_work()))
    assert VICTIM in reduced(*seen, *connects, process(VICTIM, uid=100_999)).node.daemons[DAEMON].clients


def test_a_process_with_the_pid_of_a_client_in_another_namespace_is_not_read() -> None:
    """NVML's PIDs may be those of the other namespace too."""
    reading = gpu_reading([CLIENT], beside=[VICTIM], at=AT + 1)
    lookup = daemon_process(None, at=AT - 1)
    seen = reduced(replace(lookup, hidden=True), *at_work(CLIENT), reading).node
    assert (poll_schedule.processes_wanted(seen), poll_schedule.states_wanted(seen)) == (set(), set())
    shown = reduced(lookup, *at_work(CLIENT), reading).node
    assert {SERVER, CLIENT, VICTIM} <= poll_schedule.processes_wanted(shown)


@pytest.mark.parametrize(
    ("hidden", "left", "state"),
    [
        (True, True, None),
        (True, False, DaemonState.DOWN),  # There is no daemon without its PID file.
        (False, True, DaemonState.DOWN),
    ],
)
def test_a_daemon_that_may_be_in_another_namespace_is_not_down(
    hidden: bool, left: bool, state: DaemonState | None
) -> None:
    lookup = replace(daemon_process(None, left=left), hidden=hidden)
    found = reduced(lookup, *(no_daemon(at=AT + second) for second in (1, 3, 60, 120)))
    assert found.daemon.state is state
    assert not found.daemon.totals.losses.get("died")


def test_a_daemon_that_was_seen_here_ended_here() -> None:
    ended = replace(daemon_process(None, at=AT + 2), hidden=True)
    reading = gpu_reading(beside=[VICTIM], server=None, at=AT + 4)
    found = reduced(daemon_process(), *at_work(CLIENT), ended, no_daemon(at=AT + 3), reading)
    assert found.daemon.state is DaemonState.DOWN
    assert VICTIM in poll_schedule.processes_wanted(found.node), "NVML's PIDs are those here"
