"""Observations in any order: no exception, no decreasing counter, no inconsistent node."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.metrics.catalogue import NodeCollector
from exporter.model.event import Event, EventName
from exporter.model.node import Node
from exporter.model.observation import Observation
from exporter.model.settings import PollIntervals
from exporter.reducer import reduce
from exporter.state import poll_schedule
from exporter.state.servers import MOST_CLIENTS, MOST_EXITED, MOST_SERVERS
from exporter.view import View
from tests.builders import (
    AT,
    CONTROL,
    DAEMON,
    RECORDINGS,
    SERVER,
    Recorded,
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
from tests.state.invariants import assert_consistent, assert_counts_match_events, assert_only_grown, counters
from tests.state.strategies import DAEMONS, timelines, untimely

SLICE = 150
"""Number of observations of a recording that are shuffled together."""


def reduce_and_check(present: Node, seen: list[Observation], every: int = 1) -> Node:
    """Reduce the observations, and check the node after every few of them."""
    events: list[Event] = []
    before = counters(present)
    for number, each in enumerate(seen):
        present, added = reduce(present, each)
        events.extend(added)
        if number % every == 0:
            assert_consistent(present)
            after = counters(present)
            assert_only_grown(before, after)
            before = after
    assert_consistent(present)
    assert_counts_match_events(present, events)
    return present


@given(timelines)
@settings(max_examples=100)
def test_random_observations_keep_the_node_consistent(seen: list[Observation]) -> None:
    present = reduce_and_check(node(*DAEMONS), seen)
    list(NodeCollector(View(present)).collect())
    for name in present.daemons:
        poll_schedule.commands(present, name, PollIntervals())
    poll_schedule.nvml_due(present, PollIntervals())
    assert all(pid > 0 for pid in poll_schedule.processes_wanted(present))


@given(untimely)
@settings(max_examples=50)
def test_random_observations_with_a_clock_that_is_set_back(seen: list[Observation]) -> None:
    reduce_and_check(node(*DAEMONS), seen)


@given(st.sampled_from([each for each in RECORDINGS if each.name != "many_clients"]), st.data())
@settings(max_examples=30)
def test_shuffled_part_of_a_recording(recorded: Recorded, data: st.DataObject) -> None:
    seen = recorded.observations
    start = data.draw(st.integers(0, max(0, len(seen) - SLICE)))
    piece = list(seen[start : start + SLICE])
    data.draw(st.randoms(use_true_random=False)).shuffle(piece)
    reduce_and_check(node(), piece)


def test_shuffled_recording(subtests: pytest.Subtests) -> None:
    for recorded in [each for each in RECORDINGS[::6] if each.name != "many_clients"]:
        with subtests.test(recorded=recorded):
            seen = list(recorded.observations)
            random.Random(recorded.name).shuffle(seen)
            reduce_and_check(node(), seen, every=20)


# A daemon may belong to any user: what is stored for it is bounded, and its counters only grow.


MANY_PIDS = range(10_000, 10_000 + 2 * MOST_CLIENTS)


def test_number_of_listed_servers_is_limited() -> None:
    result = reduced(servers(*MANY_PIDS))

    assert len(result.daemon.servers) == MOST_SERVERS
    assert len(result.of(EventName.SERVER_STARTED)) == MOST_SERVERS


def test_number_of_logged_servers_is_limited() -> None:
    starts = control_log(*(f"Starting new server {pid} for user 0" for pid in MANY_PIDS))

    assert len(reduced(*starts).daemon.servers) == MOST_SERVERS


def test_number_of_listed_clients_is_limited() -> None:
    result = reduced(servers(SERVER), status("ACTIVE"), clients(*MANY_PIDS))

    assert len(result.daemon.clients) == result.daemon.totals.connected == MOST_CLIENTS


def test_a_new_client_replaces_one_that_disconnected() -> None:
    full = reduced(servers(SERVER), status("ACTIVE"), clients(*MANY_PIDS[:MOST_CLIENTS])).node
    later = reduced(clients(*MANY_PIDS[1 : MOST_CLIENTS + 1], at=AT + 10), start=full)
    again = reduced(clients(*MANY_PIDS[1 : MOST_CLIENTS + 1], at=AT + 20), start=later.node)

    assert set(again.daemon.clients) == set(MANY_PIDS[1 : MOST_CLIENTS + 1])


def test_number_of_stored_exited_servers_is_limited() -> None:
    lines = (
        line
        for pid in range(10_000, 10_000 + 2 * MOST_EXITED)
        for line in (f"Starting new server {pid} for user 0", f"Server {pid} exited with status 0")
    )
    result = reduced(*control_log(*lines))

    assert len(result.of(EventName.SERVER_EXITED)) == 2 * MOST_EXITED
    assert len(result.daemon.connections.server_exited_at) == MOST_EXITED
    assert 10_000 + 2 * MOST_EXITED - 1 in result.daemon.connections.server_exited_at


def test_number_of_connecting_clients_is_limited() -> None:
    lines = server_log(*(connecting(pid) for pid in MANY_PIDS))
    result = reduced(servers(SERVER), status("ACTIVE"), *lines)

    assert len(result.daemon.servers[SERVER].connecting) == MOST_CLIENTS


def test_a_flood_of_processes_displaces_only_its_own() -> None:
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
