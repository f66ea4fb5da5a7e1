"""A daemon may be anybody's: whatever it says, what is kept of it is bounded, and counters only grow."""

from exporter.model.event import EventName
from exporter.state import poll_schedule
from exporter.state.claims import MAX_OF_A_KIND
from exporter.state.clients import MOST_CLIENTS
from exporter.state.servers import MOST_EXITED, MOST_SERVERS
from tests.builders import (
    AT,
    CONTROL,
    DAEMON,
    SERVER,
    active,
    clients,
    connecting,
    control_log,
    daemon_process,
    node,
    reduced,
    server_log,
    servers,
    status,
)

LOOP_STARTS = range(10_000, 10_000 + 2 * MOST_CLIENTS)


def test_of_servers_without_end_few_are_kept_and_counted() -> None:
    story = reduced(servers(*LOOP_STARTS))

    assert len(story.daemon.servers) == MOST_SERVERS
    assert len(story.of(EventName.SERVER_STARTED)) == MOST_SERVERS


def test_of_servers_that_the_log_tells_of_few_are_kept_too() -> None:
    starts = control_log(*(f"Starting new server {pid} for user 0" for pid in LOOP_STARTS))

    assert len(reduced(*starts).daemon.servers) == MOST_SERVERS


def test_of_clients_without_end_those_that_are_kept_are_counted() -> None:
    story = reduced(servers(SERVER), status("ACTIVE"), clients(*LOOP_STARTS))

    assert len(story.daemon.clients) == story.daemon.totals.connected == MOST_CLIENTS


def test_of_clients_that_the_log_tells_of_few_are_kept_too() -> None:
    story = reduced(servers(SERVER), status("ACTIVE"), *server_log(*(active(pid) for pid in LOOP_STARTS)))

    assert len(story.daemon.clients) == story.daemon.totals.connected == MAX_OF_A_KIND


def test_where_one_has_left_there_is_room_for_another() -> None:
    full = reduced(servers(SERVER), status("ACTIVE"), clients(*LOOP_STARTS[:MOST_CLIENTS])).node
    later = reduced(clients(*LOOP_STARTS[1 : MOST_CLIENTS + 1], at=AT + 10), start=full)
    again = reduced(clients(*LOOP_STARTS[1 : MOST_CLIENTS + 1], at=AT + 20), start=later.node)

    assert set(again.daemon.clients) == set(LOOP_STARTS[1 : MOST_CLIENTS + 1])


def test_those_that_come_and_go_are_not_all_remembered() -> None:
    lines = (
        line
        for pid in range(10_000, 10_000 + 2 * MOST_EXITED)
        for line in (f"Starting new server {pid} for user 0", f"Server {pid} exited with status 0")
    )
    story = reduced(*control_log(*lines))

    assert len(story.of(EventName.SERVER_EXITED)) == 2 * MOST_EXITED
    assert len(story.daemon.connections.server_exited_at) == MOST_EXITED
    assert 10_000 + 2 * MOST_EXITED - 1 in story.daemon.connections.server_exited_at


def test_of_those_who_connect_and_never_do_few_are_remembered() -> None:
    said = server_log(*(connecting(pid) for pid in LOOP_STARTS))
    story = reduced(servers(SERVER), status("ACTIVE"), *said)

    assert len(story.daemon.servers[SERVER].connecting) == MOST_CLIENTS


def test_the_processes_that_are_watched_are_few_and_a_flood_puts_out_its_own() -> None:
    fakes = [f"/tmp/fake{n}" for n in range(6)]
    present = reduced(daemon_process(CONTROL), servers(SERVER), clients(600), start=node(DAEMON, *fakes)).node
    for number, fake in enumerate(fakes):
        first = 100_000 * (number + 1)
        seen = (servers(first, daemon=fake), clients(*range(first + 1, first + 1025), server=first, daemon=fake))
        present = reduced(*seen, start=present).node

    watched = poll_schedule.processes_wanted(present)

    assert len(watched) == poll_schedule.MOST_PROCESSES
    assert {CONTROL, SERVER, 600} <= watched
    assert {100_000 * number for number in range(1, 7)} <= watched
