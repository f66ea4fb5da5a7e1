"""Daemons, servers, clients."""

from exporter.model.daemon import DaemonState
from exporter.page.daemons import daemons
from exporter.telling.level import Level
from tests.builders import AT, DAEMON, limited, silence, told
from tests.page.scenes import busy, dead, fault, sight


def test_each_has_its_servers_and_these_their_clients() -> None:
    (card,) = daemons(busy())
    (server,) = card.servers
    assert (card.level, card.state, card.facts[0]) == (Level.WELL, "up", "PID 441")
    assert (server.state, server.clients, server.share, server.user) == ("active", "3 of 48 clients", 6.2, "root")
    assert [(row.who.pid, row.memory, row.gpus) for row in server.rows] == [
        ("600", "2240 MiB", "0, 1"),
        ("601", "2564 MiB", "0"),
        ("602", "4612 MiB", "1"),
    ]
    assert (server.lettered, server.owned) == (True, False)


def test_the_limits_in_force_are_told_and_those_of_the_next_server() -> None:
    (card,) = daemons(sight(limited()))
    assert card.servers[0].limits == ("50 % of threads", "2048 MiB on GPU 1")
    assert card.facts[-2:] == ("next server: 25 % of threads", "next server: 3072 MiB on GPU 0")


def test_one_that_crashed_says_who_tells_so() -> None:
    (card,) = daemons(dead())
    assert (card.level, card.state) == (Level.GRAVE, "absent")
    assert card.matter == "crashed for 10 s: process 441 is gone; nvidia-cuda-mps-control finds no daemon"
    assert card.counts == ("lost 1 time",)


def test_of_one_that_does_not_answer_the_servers_are_not_called_active() -> None:
    hangs = told(silence(at=AT + 10), silence(at=AT + 20), start=busy().node).node
    assert hangs.daemons[DAEMON].state is DaemonState.UNRESPONSIVE
    (card,) = daemons(sight(hangs))
    assert card.level is Level.GRAVE
    assert {(server.level, server.state) for server in card.servers} == {(Level.UNKNOWN, "unknown; last active")}


def test_in_fault_it_says_so() -> None:
    (card,) = daemons(fault())
    assert [(server.level, server.state) for server in card.servers] == [(Level.GRAVE, "fault")]
