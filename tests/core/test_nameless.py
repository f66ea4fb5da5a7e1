"""Clients whom their daemon cannot name, since they live where it does not see: NVML tells who they are."""

from dataclasses import replace

from exporter.metrics.catalogue import NodeCollector
from exporter.model.event import EventName
from exporter.model.node import Node
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
    exited,
    gpu_reading,
    node,
    reduced,
    server_log,
    servers,
)

NOBODY, ONE, OTHER = 0, 9001, 9002


def daemon_in_a_pod(*shown: int) -> Reduced:
    """It lists its clients as 0, however many they are; then NVML shows them."""
    return reduced(*at_work(NOBODY), gpu_reading(shown, at=AT + 5))


def known(present: Node) -> set[int]:
    return set(present.daemons[DAEMON].clients)


def counted(present: Node) -> list[float]:
    families = NodeCollector(View(present)).collect()
    return [each.value for family in families if family.name == "cuda_mps_server_clients" for each in family.samples]


def test_each_is_met_by_nvmls_word_as_a_client_of_the_one_server_there() -> None:
    story = daemon_in_a_pod(ONE, OTHER)

    assert {pid: client.server for pid, client in story.node.daemons[DAEMON].clients.items()} == {
        ONE: SERVER,
        OTHER: SERVER,
    }
    assert [event.pid for event in story.of(EventName.CLIENT_CONNECTED)] == [ONE, OTHER]
    assert not story.node.gpus[GPU].bypassing_processes


def test_the_log_tells_of_them_sooner_than_a_list() -> None:
    story = reduced(*at_work(), *server_log(active(NOBODY), at=AT + 1), gpu_reading((ONE,), at=AT + 5))

    assert known(story.node) == {ONE}


def test_a_list_that_does_not_name_them_parts_with_nobody() -> None:
    story = reduced(*(clients(NOBODY, at=AT + later) for later in (10, 20)), start=daemon_in_a_pod(ONE, OTHER).node)

    assert known(story.node) == {ONE, OTHER}


def test_who_is_gone_from_every_gpu_has_left() -> None:
    second = gpu_reading((ONE, OTHER), gpu=OTHER_GPU, index=1, at=AT + 5)
    story = reduced(second, gpu_reading((), at=AT + 20), start=daemon_in_a_pod(ONE, OTHER).node)
    assert known(story.node) == {ONE, OTHER}

    story = reduced(gpu_reading((OTHER,), gpu=OTHER_GPU, index=1, at=AT + 30), start=story.node)
    assert known(story.node) == {OTHER}


def test_who_has_exited_is_not_met_again_by_a_reading_that_was_under_way() -> None:
    story = reduced(exited(ONE, at=AT + 6), gpu_reading((ONE,), at=AT + 6.1), start=daemon_in_a_pod(ONE).node)

    assert known(story.node) == set()
    assert len(story.of(EventName.CLIENT_DISCONNECTED)) == 1


def test_when_the_list_is_empty_again_all_have_left() -> None:
    story = reduced(*(clients(at=AT + later) for later in (10, 20)), start=daemon_in_a_pod(ONE, OTHER).node)

    assert known(story.node) == set()


def test_who_has_a_name_keeps_it_and_leaves_by_it() -> None:
    story = reduced(*at_work(CLIENT, NOBODY), gpu_reading((CLIENT, ONE), at=AT + 5), gpu_reading((ONE,), at=AT + 15))

    assert known(story.node) == {CLIENT, ONE}


def test_without_such_clients_nvml_alone_makes_nobody_a_client() -> None:
    story = reduced(*at_work(CLIENT), gpu_reading((CLIENT, ONE), at=AT + 5))

    assert known(story.node) == {CLIENT}


def test_where_two_servers_have_such_clients_nobody_can_tell_whose_they_are() -> None:
    other = "/tmp/other"
    start = reduced(*at_work(NOBODY), *at_work(NOBODY, server=SERVER + 1, daemon=other), start=node(DAEMON, other)).node
    story = reduced(gpu_reading((ONE,), at=AT + 5), start=start)

    assert known(story.node) == set() == set(story.node.daemons[other].clients)


def test_a_number_that_nobody_knows_is_not_told_as_none() -> None:
    assert counted(reduced(*at_work(NOBODY)).node) == []
    assert counted(daemon_in_a_pod(ONE, OTHER).node) == [2]
    assert counted(reduced(*at_work()).node) == [0]


def test_whom_a_daemon_named_before_it_was_known_to_live_elsewhere_is_forgotten() -> None:
    before = reduced(*at_work(CLIENT)).node
    story = reduced(replace(servers(7, at=AT + 1), pids={7: SERVER + 1}), start=before)

    assert set(story.node.daemons[DAEMON].servers) == {SERVER + 1}
    assert known(story.node) == set()
    assert not story.of(EventName.SERVER_CRASH_LOOP)
