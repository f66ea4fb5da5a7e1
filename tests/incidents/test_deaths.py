"""The death of a daemon or a server is a record with the clients that ended, as a fault is."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from exporter.history import History
from exporter.incidents.incidents import DAEMON_LOST_SECONDS, MAX_ENDED, REMEMBERED_SECONDS
from exporter.model.incident import Incident, IncidentEnd, IncidentKind
from exporter.model.node import Node
from exporter.model.observation import Observation
from exporter.model.values import replace
from exporter.report.incident_status import incident_status
from exporter.report.incident_text import brief, details
from exporter.report.node_status import document_of
from exporter.report.text import text_of
from exporter.state.known_daemons import with_daemon
from exporter.state.lifecycle import STARTING_SECONDS
from exporter.state.servers import queue
from tests.builders import (
    AT,
    CONTROL,
    DAEMON,
    GPU,
    SERVER,
    active,
    at_work,
    clients,
    daemon_process,
    exited,
    incident,
    look,
    no_daemon,
    reduced,
    reply,
    server_log,
    servers,
)
from tests.incidents.fault_sequences import renamed
from tests.incidents.test_incidents import UP, A, B, C, block, leaves, reset
from tests.watchdog.test_verification_and_units import hung
from tests.watchdog.watched_daemon import NEXT, dies, returns

DEATH = AT + 5
OVER: Mapping[str, Any] = {"ending": IncidentEnd.SERVER_GONE, "settled": True, "end_reported": True}
OTHER_SERVER = SERVER + 1
TWO_SERVERS = reduced(
    servers(SERVER, OTHER_SERVER, at=AT + 3), clients(650, server=OTHER_SERVER, at=AT + 3), start=UP
).node
AWAY = (exited(CONTROL, at=DEATH), no_daemon(at=DEATH), look("log", at=DEATH + 10))


def deaths(node: Node) -> list[Incident]:
    return [each for each in node.incidents.values() if not each.is_fault]


def one(node: Node) -> Incident:
    (death,) = deaths(node)
    return death


def back(at: float) -> tuple[Observation, ...]:
    return (daemon_process(NEXT, at=at), servers(at=at + 0.1))


def unexpected(node: Node) -> Node:
    daemon = node.daemons[DAEMON]
    return with_daemon(node, replace(daemon, declared=replace(daemon.declared, expected=False)))


def test_the_clients_of_a_daemon_that_died_are_named_until_an_hour_after_its_return() -> None:
    down = reduced(*AWAY, start=UP).node
    death = one(down)
    assert (death.kind, death.server, death.open, death.started_at) == (IncidentKind.DAEMON_DIED, 0, True, DEATH)
    assert [death.details_of(pid).user for pid in death.affected] == ["alice"] * 3
    assert death.gpus == (GPU,)

    up = reduced(*back(DEATH + 30), start=down).node
    over = one(up)
    assert (over.ending, over.ended_at, over.seconds) == (IncidentEnd.RECOVERED, DEATH + 30.1, pytest.approx(30.1))
    text = text_of(details(incident_status(over, DEATH + 60)))
    assert f"death of daemon {DAEMON}: up again after 30 s" in text
    assert "3 clients ended" in text
    assert f"PID {A} (train.py of alice)" in text
    assert "Suspect" not in text

    for after, names in ((0.0, True), (1.0, False)):
        late = reduced(look("log", at=DEATH + 30.1 + REMEMBERED_SECONDS + after), start=up).node
        assert bool(deaths(late)) is names


@pytest.mark.parametrize(
    ("before", "kinds"),
    [(4.0, [IncidentKind.DAEMON_DIED]), (6.0, [IncidentKind.SERVER_DIED, IncidentKind.DAEMON_DIED])],
)
def test_a_server_that_died_long_before_its_daemon_is_a_death_of_its_own(
    before: float, kinds: list[IncidentKind]
) -> None:
    gone = (exited(SERVER, at=DEATH - before), servers(at=DEATH - before), servers(at=DEATH - before + 2))
    assert [each.kind for each in deaths(reduced(*gone, *AWAY, start=UP).node)] == kinds


def test_the_status_of_a_node_that_is_well_again_names_them() -> None:
    node = reduced(*AWAY, *back(DEATH + 12), look("log", at=DEATH + 600), start=UP).node
    document = document_of(node)
    assert not document.findings
    assert "1 death in the last hour" in document.summary
    (listed,) = document.incidents
    assert (listed.server, listed.is_fault, listed.affected_count) == (None, False, 3)
    assert "3 clients ended: PID 600 (train.py of alice)" in brief(listed)
    history = History()
    history.add(node, ())
    assert [each.id for each in history.incidents] == [listed.id]


def test_a_daemon_that_dies_again_before_it_answers_has_one_record() -> None:
    again = (daemon_process(NEXT, at=DEATH + 12), exited(NEXT, at=DEATH + 13), look("log", at=DEATH + 30))
    assert len(one(reduced(*AWAY, *again, start=UP).node).affected) == 3


def test_a_stopped_daemon_is_no_death() -> None:
    stopped = (reply("quit", at=DEATH), exited(CONTROL, at=DEATH), no_daemon(at=DEATH), look("log", at=DEATH + 10))
    assert not deaths(reduced(*stopped, start=UP).node)


def test_an_operator_who_stops_a_dead_daemon_ends_its_record() -> None:
    quit_later = (*back(DEATH + 12)[:1], reply("quit", at=DEATH + 13), exited(NEXT, at=DEATH + 13))
    node = reduced(*AWAY, *quit_later, look("log", at=DEATH + 30), start=UP).node
    assert (one(node).ending, one(node).ended_at) == (IncidentEnd.DAEMON_GONE, DEATH + 13)


def test_nobody_misses_an_idle_daemon_that_was_not_expected() -> None:
    idle = unexpected(reduced(*leaves(A, B, C, at=AT + 1), clients(at=AT + 2), start=UP).node)
    assert not deaths(reduced(*AWAY, start=idle).node)
    assert one(reduced(*AWAY, start=unexpected(UP)).node).ending is IncidentEnd.DAEMON_GONE


def test_what_is_not_known_is_not_counted_as_nobody() -> None:
    unlisted = reduced(daemon_process()).node
    death = one(reduced(*AWAY, start=unlisted).node)
    assert (death.affected, death.affected_confirmed) == ((), False)
    assert "as far as is known" in brief(incident_status(death, DEATH + 1))


def test_a_server_that_dies_has_a_record_unless_a_fault_names_its_clients() -> None:
    death = one(reduced(exited(SERVER, at=DEATH), start=UP).node)
    assert (death.kind, death.server, death.affected) == (IncidentKind.SERVER_DIED, SERVER, (A, B, C))
    assert (death.ending, death.end_reported) == (IncidentEnd.SERVER_GONE, True)

    unlisted = reduced(daemon_process(), *server_log(active(A)), exited(SERVER, at=DEATH)).node
    assert (one(unlisted).affected, one(unlisted).affected_confirmed) == ((A,), False)

    faulted = reduced(*block(A, B, C), exited(SERVER, at=DEATH + 3), look("log", at=DEATH + 30), start=UP).node
    assert not deaths(faulted)
    assert not deaths(reduced(*block(A, B, C), *leaves(A, B, C, at=AT + 6), *reset(AT + 6), start=UP).node)


@pytest.mark.parametrize(
    ("seen", "ended"),
    [
        ((exited(SERVER, at=DEATH - 0.1), *AWAY), (A, B, C)),
        (
            (
                *(servers(SERVER, OTHER_SERVER, at=AT + 1), clients(650, server=OTHER_SERVER, at=AT + 2)),
                *(exited(SERVER, at=DEATH - 0.2), exited(OTHER_SERVER, at=DEATH - 0.1), *AWAY),
            ),
            (A, B, C, 650),
        ),
        (
            (*AWAY, daemon_process(NEXT, at=DEATH + 12), exited(NEXT, at=DEATH + 13), look("log", at=DEATH + 30)),
            (A, B, C),
        ),
        ((*AWAY, *back(DEATH + 12), exited(NEXT, at=DEATH + 400), no_daemon(at=DEATH + 400)), ()),
    ],
)
def test_the_problem_of_a_daemon_names_those_of_the_record(seen: Sequence[Observation], ended: Sequence[int]) -> None:
    """The servers ended first, the daemon dies again before it answers, or it dies idle after an earlier death."""
    node = reduced(*seen, look("log", at=DEATH + 410), start=UP).node
    (found,) = document_of(node).findings
    assert found.affected == (f"{len(ended)} clients ended" if ended else "no client ended")
    assert [int(each.split()[1]) for each in found.affected_names] == list(ended)


def test_a_server_that_dies_with_its_daemon_is_one_death() -> None:
    node = reduced(exited(SERVER, at=DEATH - 0.1), *AWAY, start=UP).node
    death = one(node)
    assert (death.kind, death.server, death.affected) == (IncidentKind.DAEMON_DIED, 0, (A, B, C))


@pytest.mark.parametrize(
    "ends",
    [
        (exited(SERVER, at=DEATH - 0.2), exited(OTHER_SERVER, at=DEATH - 0.1), exited(CONTROL, at=DEATH)),
        (exited(SERVER, at=DEATH - 0.1), exited(CONTROL, at=DEATH), exited(OTHER_SERVER, at=DEATH + 0.1)),
        (exited(CONTROL, at=DEATH), exited(SERVER, at=DEATH + 0.1), exited(OTHER_SERVER, at=DEATH + 0.2)),
        (exited(SERVER, at=DEATH + 0.1), exited(OTHER_SERVER, at=DEATH - 0.1), exited(CONTROL, at=DEATH)),
    ],
)
def test_servers_that_die_with_their_daemon_are_one_death(ends: Sequence[Observation]) -> None:
    node, history = TWO_SERVERS, History()
    for observation in (*ends, *AWAY[1:]):
        node = reduced(observation, start=node).node
        history.add(node, ())
    assert (one(node).kind, one(node).affected) == (IncidentKind.DAEMON_DIED, (A, B, C, 650))
    assert history.incidents == (one(node),)


def dead_servers() -> Sequence[Incident]:
    return deaths(reduced(exited(SERVER, at=DEATH - 0.2), exited(OTHER_SERVER, at=DEATH - 0.1), start=TWO_SERVERS).node)


def test_servers_that_died_before_a_restart_of_the_exporter_are_one_death_with_their_daemon() -> None:
    incidents = {each.id: each for each in dead_servers()}
    history = History(incidents.values())
    restarted = reduced(*AWAY, start=replace(UP, incidents=incidents)).node
    history.add(restarted, ())
    assert history.incidents == (one(restarted),)
    assert one(restarted).affected == (A, B, C, 650)


def test_servers_that_die_while_their_daemon_runs_are_a_death_each() -> None:
    assert [(each.server, each.affected) for each in dead_servers()] == [(SERVER, (A, B, C)), (OTHER_SERVER, (650,))]


def test_a_daemon_that_runs_but_cannot_be_queried_is_neither_down_nor_up_again() -> None:
    down = reduced(*AWAY, start=UP).node
    started = reduced(daemon_process(NEXT, at=DEATH + 20), start=down).node
    assert one(started).open
    over = one(
        reduced(look("log", at=DEATH + 20 + 2 * STARTING_SECONDS), look("log", at=DEATH + 200), start=started).node
    )
    assert over.ending is IncidentEnd.DAEMON_GONE


def test_a_daemon_that_is_renamed_when_its_death_is_decided_has_a_record() -> None:
    ended = reduced(*AWAY[:2], start=UP).node
    name, *_ = renamed("main")
    present = reduced(replace(name, at=DEATH + 60), start=ended).node
    assert (one(present).affected, set(present.daemons)) == ((A, B, C), {"main"})


def test_who_only_waited_for_a_server_has_not_ended() -> None:
    waiting = with_daemon(UP, queue(UP.daemons[DAEMON], 650, 1001))
    assert one(reduced(*AWAY, start=waiting).node).affected == (A, B, C)


def test_a_restart_by_the_watchdog_names_the_clients_that_it_ended() -> None:
    post = hung()
    post.observe(*dies(post.at + 0.1))
    post.finish_action()
    post.observe(*returns(post.at + 1))
    death = one(post.node)
    assert (death.kind, death.ending) == (IncidentKind.RESTARTED, IncidentEnd.RECOVERED)
    assert death.affected


def test_a_record_of_a_daemon_that_was_removed_ends() -> None:
    down = reduced(*AWAY, start=UP).node
    restarted = Node(incidents=down.incidents)
    other, late_at = daemon_process(daemon="/other", at=DEATH + 20), DEATH + 21 + DAEMON_LOST_SECONDS
    early = reduced(other, start=restarted)
    late = reduced(other, daemon_process(daemon="/other", at=late_at), start=restarted)
    assert one(early.node).open
    assert one(late.node).ending is IncidentEnd.DAEMON_GONE


def test_other_daemons_and_kinds_do_not_displace_the_death_of_a_daemon() -> None:
    """Any user can start daemons in any number, and end them, and the servers of his own processes in all daemons."""
    node = UP
    for number in range(MAX_ENDED + 1):
        at, name, (control, server, client) = (
            AT + 5 + number,
            f"/mallory/{number}",
            range(9000 + 3 * number, 9003 + 3 * number),
        )
        node = reduced(
            daemon_process(control, at=at, daemon=name),
            *at_work(client, server=server, at=at, daemon=name),
            exited(control, at=at + 0.1),
            no_daemon(at=at + 0.2, daemon=name),
            start=node,
        ).node
    assert len([each for each in deaths(node) if not each.open]) == MAX_ENDED

    at = AT + 10 + MAX_ENDED
    node = reduced(exited(CONTROL, at=at), no_daemon(at=at), look("log", at=at + 10), *back(at + 11), start=node).node
    (died,) = (each.id for each in deaths(node) if each.daemon == DAEMON)
    servers_of_mallory = [
        incident(f"s{number}", at=at + 12 + number, ended_at=at + 12 + number, kind=IncidentKind.SERVER_DIED, **OVER)
        for number in range(3 * MAX_ENDED + 10)
    ]
    node = replace(node, incidents={**node.incidents, **{each.id: each for each in servers_of_mallory}})
    history = History()
    node = reduced(look("log", at=at + 300), start=node).node
    history.add(node, ())
    assert died in node.incidents
    history.add(replace(node, incidents={each.id: each for each in servers_of_mallory}), ())
    assert died in {each.id for each in history.incidents}
