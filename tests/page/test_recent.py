"""The points of the last ten minutes: what is unknown is a gap and never 0, and memory is bounded."""

import gc
import tracemalloc
from dataclasses import replace
from math import isnan
from typing import Any

import pytest

from exporter.history import Points
from exporter.model.node import Node
from exporter.model.reason import Reason, ReasonCode
from exporter.recent import values_of, with_points
from exporter.view import View
from tests.builders import AT, DAEMON, GPU, OTHER_GPU, contended, flight, slowed, split, three_clients
from tests.page.inputs import full

# The tests state these values, so that they notice a change of the program's constants.
SECONDS, POINTS, CLIENTS = 20.0, 30, 512
MIB = 1 << 20

SHARES = {600: flight(0.25), 601: flight(0.5)}
NODE = replace(split(split(three_clients(), SHARES), {600: flight(0.5)}, gpu=OTHER_GPU), at=AT + 2)
UNREADABLE = Reason(ReasonCode.UNSPECIFIED, text="no")


def id_of(node: Node, pid: int) -> str:
    return next(name for _, client, name in View(node).clients if client.pid == pid)


def at(seconds: float, node: Node = NODE) -> Node:
    """Return the node so many seconds later, with what is known of it then."""
    splits = {uuid: replace(each, at=each.at + seconds) for uuid, each in node.splits.items()}
    return replace(node, at=node.at + seconds, splits=splits)


def points(*nodes: Node) -> Points:
    found: Points = ()
    for node in nodes:
        found = with_points(found, View(node))
    return found


def values(found: Points, pid: int, until: float = AT + 2) -> list[list[float | None]]:
    """Return the last three points of a client as used SMs, memory in MiB, and slowdown; None: unknown."""
    every = values_of(found, id_of(NODE, pid), until)
    assert {len(each) for each in every} == {POINTS}
    sm, memory, slowdown = ([None if isnan(value) else value for value in each[-3:]] for each in every)
    return [sm, [None if value is None else value / MIB for value in memory], slowdown]


def now(node: Node, pid: int) -> list[float | None]:
    return [each[-1] for each in values(points(node), pid, node.at)]


def changed(gpu: str = GPU, **reading: Any) -> Node:
    known = NODE.gpus[gpu]
    return replace(NODE, gpus={**NODE.gpus, gpu: replace(known, reading=replace(known.reading, **reading))})


def test_a_point_has_the_sum_over_the_gpus_of_a_client() -> None:
    assert now(NODE, 600) == [0.75, 2240, None]
    assert now(NODE, 601) == [0.5, 2564, None]


def test_what_is_unknown_is_a_gap_and_never_zero() -> None:
    assert now(NODE, 602) == [None, 4612, None], "nothing is known of its SM time"
    without = replace(NODE, splits={GPU: NODE.splits[GPU]})
    assert now(without, 600) == [None, 2240, None], "the sum is unknown if a part is"
    assert now(replace(NODE, at=NODE.at + 600), 601) == [None, 2564, None]
    for failed in (changed(problem=UNREADABLE, mps_processes=None, compute_processes=None), replace(NODE, gpus={})):
        assert now(failed, 601)[1] is None


def test_the_slowdown_is_that_of_the_table() -> None:
    assert now(contended(three_clients(), 601, 600), 601)[2] == pytest.approx(4.9, abs=0.05)
    assert now(slowed(), 600)[2] == pytest.approx(4.9, abs=0.05), "on the other GPU it is not slowed down"
    bound = contended(three_clients(), 601, 600, is_bound=True)
    assert now(bound, 601)[2] == pytest.approx(4.9, abs=0.05)
    assert now(bound, 602)[2] is None


def test_a_gpu_has_the_fractions_that_are_used() -> None:
    found = points(changed(OTHER_GPU, problem=UNREADABLE, memory_used_bytes=None))
    sm, memory, _ = (each[-1] for each in values_of(found, GPU, NODE.at))
    assert (sm, 0 < memory < 1) == (0.75, True)
    assert all(isnan(each[-1]) for each in values_of(found, OTHER_GPU, NODE.at))


def test_one_point_is_taken_in_each_interval() -> None:
    first = points(NODE)
    assert with_points(first, View(at(SECONDS - 3))) is first
    assert with_points(first, View(at(SECONDS))) is not first
    assert points(replace(NODE, sources={})) == ()


def test_time_without_points_is_a_gap() -> None:
    found = points(NODE, at(2 * SECONDS))
    assert values(found, 601, AT + 2 * SECONDS)[0] == [0.5, None, 0.5]
    assert values(found, 601, AT + 3 * SECONDS)[0] == [0.5, None, 0.5], "the present interval has no point yet"
    assert values(found, 601, AT + 4 * SECONDS)[0] == [0.5, None, None]
    assert values(found, 601, AT + 9000)[0] == [None] * 3
    assert values(points(at(9000), NODE), 601)[0] == [None, None, 0.5], "the clock was set back"
    assert len(points(at(9000), NODE)) == 1


def test_another_process_with_the_same_pid_has_points_of_its_own() -> None:
    other = replace(NODE, processes={**NODE.processes, 601: replace(NODE.processes[601], start_ticks=77_777)})
    found = points(NODE, at(SECONDS, other))
    for node, known in ((NODE, [True, False]), (other, [False, True])):
        memory = values_of(found, id_of(node, 601), AT + SECONDS)[1][-2:]
        assert [not isnan(value) for value in memory] == known


def test_a_client_that_has_exited_stays_for_ten_minutes() -> None:
    daemon, found = NODE.daemons[DAEMON], points(NODE)
    others = {pid: each for pid, each in daemon.clients.items() if pid != 601}
    left = replace(NODE, daemons={DAEMON: replace(daemon, clients=others)})
    for back in range(1, POINTS):
        found = with_points(found, View(at(SECONDS * back, left)))
        assert not isnan(values_of(found, id_of(NODE, 601), NODE.at + SECONDS * back)[1][-1 - back])
    found = with_points(found, View(at(SECONDS * POINTS, left)))
    assert id_of(NODE, 601) not in {name for _, each in found for name in each}


def test_memory_is_bounded() -> None:
    largest = full().node
    nodes = [at(SECONDS * number, largest) for number in range(2 * POINTS)]
    points(*nodes)  # Caches of names, which have limits of their own, are full after it.
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    found = points(*nodes)
    del nodes
    gc.collect()
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert used < 1.5 * MIB
    assert {len(each) for _, each in found} == {8 * 48 + 8}
    assert len(points(full(gpus=8, clients=70).node)[0][1]) == CLIENTS + 8
