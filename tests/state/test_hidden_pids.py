"""Clients whose PIDs the daemon hides, because they are in another PID namespace. NVML identifies them."""

from dataclasses import replace

from exporter.metrics.catalogue import NodeCollector
from exporter.model.event import EventName
from exporter.model.node import Node
from exporter.report.status_text import status_table
from exporter.view import View
from tests.builders import (
    AT,
    CLIENT,
    DAEMON,
    GPU,
    OTHER_GPU,
    SERVER,
    Reduced,
    active,
    at_work,
    clients,
    control_log,
    exited,
    gpu_reading,
    node,
    reduced,
    server_log,
    servers,
)

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
    story = daemon_in_a_pod(ONE, OTHER)

    assert {pid: client.server for pid, client in story.node.daemons[DAEMON].clients.items()} == {
        ONE: SERVER,
        OTHER: SERVER,
    }
    assert [event.pid for event in story.of(EventName.CLIENT_CONNECTED)] == [ONE, OTHER]
    assert not story.node.gpus[GPU].bypassing_processes


def test_the_log_reports_hidden_pids_before_a_list() -> None:
    story = reduced(*at_work(), *server_log(active(NOBODY), at=AT + 1), gpu_reading((ONE,), at=AT + 5))

    assert known(story.node) == {ONE}


def test_a_list_with_hidden_pids_disconnects_no_client() -> None:
    story = reduced(*(clients(NOBODY, at=AT + later) for later in (10, 20)), start=daemon_in_a_pod(ONE, OTHER).node)

    assert known(story.node) == {ONE, OTHER}


def test_a_client_that_no_gpu_shows_has_disconnected() -> None:
    second = gpu_reading((ONE, OTHER), gpu=OTHER_GPU, index=1, at=AT + 5)
    story = reduced(second, gpu_reading((), at=AT + 20), start=daemon_in_a_pod(ONE, OTHER).node)
    assert known(story.node) == {ONE, OTHER}

    story = reduced(gpu_reading((OTHER,), gpu=OTHER_GPU, index=1, at=AT + 30), start=story.node)
    assert known(story.node) == {OTHER}


def test_a_late_reading_does_not_reconnect_an_exited_client() -> None:
    story = reduced(exited(ONE, at=AT + 6), gpu_reading((ONE,), at=AT + 6.1), start=daemon_in_a_pod(ONE).node)

    assert known(story.node) == set()
    assert len(story.of(EventName.CLIENT_DISCONNECTED)) == 1


def test_an_empty_list_disconnects_all_clients() -> None:
    story = reduced(*(clients(at=AT + later) for later in (10, 20)), start=daemon_in_a_pod(ONE, OTHER).node)

    assert known(story.node) == set()


def test_a_client_with_a_visible_pid_is_not_affected() -> None:
    story = reduced(*at_work(CLIENT, NOBODY), gpu_reading((CLIENT, ONE), at=AT + 5), gpu_reading((ONE,), at=AT + 15))

    assert known(story.node) == {CLIENT, ONE}


def test_without_hidden_pids_nvml_alone_connects_no_client() -> None:
    story = reduced(*at_work(CLIENT), gpu_reading((CLIENT, ONE), at=AT + 5))

    assert known(story.node) == {CLIENT}


def test_hidden_pids_of_two_servers_identify_no_client() -> None:
    other = "/tmp/other"
    start = reduced(*at_work(NOBODY), *at_work(NOBODY, server=SERVER + 1, daemon=other), start=node(DAEMON, other)).node
    story = reduced(gpu_reading((ONE,), at=AT + 5), start=start)

    assert known(story.node) == set() == set(story.node.daemons[other].clients)


def test_an_unknown_number_of_clients_is_not_reported_as_zero() -> None:
    assert counted(reduced(*at_work(NOBODY)).node) == []
    assert counted(daemon_in_a_pod(ONE, OTHER).node) == [2]
    assert counted(reduced(*at_work()).node) == [0]


def test_clients_from_before_the_namespace_was_known_are_removed() -> None:
    before = reduced(*at_work(CLIENT)).node
    story = reduced(replace(servers(7, at=AT + 1), pids={7: SERVER + 1}), start=before)

    assert set(story.node.daemons[DAEMON].servers) == {SERVER + 1}
    assert known(story.node) == set()
    assert not story.of(EventName.SERVER_CRASH_LOOP)


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
