"""Daemons, servers, clients."""

import pytest

from exporter.core.watchdog.orders import Orders
from exporter.model.daemon import DaemonState
from exporter.model.node import Node
from exporter.model.watch import WatchState
from exporter.page.daemons import daemons
from exporter.page.gpus import gpus
from exporter.page.headline import headline
from exporter.page.sight import Sight
from exporter.page.watchdog import watchdog
from exporter.telling.level import Level
from tests.builders import (
    AT,
    DAEMON,
    circuit_open,
    daemon_dead,
    drifted,
    faulted,
    idle,
    limited,
    quarantined,
    silence,
    suspended,
    told,
    watched,
)
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
    assert card.matters == (
        "crashed for 10 s",
        "Indications: process 441 has exited; nvidia-cuda-mps-control finds no daemon",
    )
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


@pytest.mark.parametrize(
    ("present", "level", "word", "matter"),
    [
        (idle(), Level.WELL, "up", ""),
        (quarantined(), Level.GRAVE, "quarantined", "quarantined for 0 ms: Xid 79 (GPU fell off the bus): GPU 0"),
        (
            watched(idle(), state=WatchState.CIRCUIT_OPEN, opened_at=AT),
            Level.GRAVE,
            "circuit open",
            "answers, but would",
        ),
        (suspended(), Level.GRAVE, "not well", "a server was stopped by a signal"),
        (faulted(), Level.GRAVE, "server in FAULT", "has been in FAULT"),
        (drifted(), Level.CARE, "limits drifted", "1 limit not in force"),
        (circuit_open(), Level.GRAVE, "absent", "circuit open"),
    ],
    ids=["well", "quarantined", "circuit open", "suspended", "fault", "drifted", "dead, circuit open"],
)
def test_a_card_is_as_the_headline_has_it(present: Node, level: Level, word: str, matter: str) -> None:
    seen = Sight(node=present, at=present.at, orders=Orders())
    (card,) = daemons(seen)

    assert (card.level, card.state) == (level, word)
    assert matter in " ".join(card.matters)
    assert "well" not in card.matters
    assert level.rank <= headline(seen).level.rank


def test_the_gpu_of_a_quarantine_is_not_well_either() -> None:
    present = quarantined()
    card, *_ = gpus(Sight(node=present, at=present.at))

    assert (card.level, card.sharing) == (Level.GRAVE, "quarantined")


def test_an_idle_watchdog_of_a_daemon_that_is_not_well_is_no_good_sign() -> None:
    levels = [watchdog(Sight(node=each, at=each.at, orders=Orders())).rows[0].level for each in (idle(), daemon_dead())]

    assert levels == [Level.WELL, Level.UNKNOWN]
