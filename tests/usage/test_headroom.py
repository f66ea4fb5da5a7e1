"""Headroom: how many more clients fit by memory, SM time and client slots."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.model.node import Node
from exporter.model.observation import Observation
from exporter.model.settings import PINNED_MEMORY_LIMIT
from exporter.usage.capacity import Bound, Headroom, gpu_sharing
from tests.builders import (
    AT,
    CLIENT,
    DAEMON,
    GPU,
    GPU_BYTES,
    MIB,
    SERVER,
    SERVER_BYTES,
    at_work,
    flight,
    full,
    gpu_reading,
    process,
    reduced,
    reply,
    server_log,
    split,
)

A, B, C = range(CLIENT, CLIENT + 3)
ALL_MIB = (GPU_BYTES - SERVER_BYTES) // MIB


def shared(held: Mapping[int, int], *more: Observation, beside: Sequence[int] = (), **read: object) -> Node:
    """Return a node whose clients hold this many MiB. `read` has other values of the GPU's reading."""
    readings = (gpu_reading(held, beside=beside, at=at, **read) for at in (AT, AT + 2))
    known = (*server_log("Active Threads Percentage set to 100.0"), *(process(pid) for pid in held))
    return reduced(*at_work(*held), *known, *more, *readings).node


def room(present: Node) -> Mapping[Bound, int]:
    return gpu_sharing(present)[GPU].headroom.by_bound


def test_memory_for_clients_like_the_present_ones(subtests: pytest.Subtests) -> None:
    size, many = ALL_MIB // 10, dict.fromkeys(range(CLIENT, CLIENT + 19), 1000)
    own, four = {PINNED_MEMORY_LIMIT: "0=20G"}, dict.fromkeys(range(CLIENT, CLIENT + 4), 516)
    limited = process(A, environment={PINNED_MEMORY_LIMIT: "0=100M"})
    one = shared({A: 10_000})
    fuller = replace(one.gpus[GPU].reading, memory_used_bytes=GPU_BYTES - 15_000 * MIB)
    for case, present, fit in [
        ("equal clients", shared({A: size, B: size, C: size}), 7),
        # A lack of memory is an error, and the median would promise too much for half of the clients.
        ("the next client is assumed to be large", shared({A: 1_000, B: 20_000}), (ALL_MIB - 21_000) // 20_000),
        # The 90th percentile counts.
        ("one very large client of many", shared({**many, CLIENT + 19: 50_000}), (ALL_MIB - 69_000) // 1_000),
        ("memory without a process", replace(one, gpus={GPU: replace(one.gpus[GPU], reading=fuller)}), 1),
        # Three more of 20 GiB fit, not 277 of 516 MiB.
        ("a client may use all of its limit", shared(four, *(process(pid, environment=own) for pid in four)), 3),
        # Contexts are not part of the limit.
        ("a client holds more than its limit", shared({A: 1_000}, limited), (ALL_MIB - 1_000) // 1_000),
        ("the limits of a client are unknown", shared({A: 100, B: 100}, process(B, environment=None)), None),
        ("the server's limits are unknown", reduced(*at_work(A), process(A), gpu_reading({A: 100}, at=AT)).node, None),
    ]:
        with subtests.test(case=case):
            assert room(present).get(Bound.MEMORY) == fit


def test_sm_time_for_clients_like_the_present_ones(subtests: pytest.Subtests) -> None:
    two, one = shared({A: 100, B: 100}), split(shared({A: 100}), {A: flight(0.3)})
    both = {A: flight(0.1), B: flight(0.1)}
    for case, present, fit in [
        ("the mean of the clients", split(two, {A: flight(0.3), B: flight(0.1)}), 3),
        # The mean is computed from the use of the whole GPU.
        ("no attribution is needed", shared({A: 100, B: 100}, sm_utilization=0.4, gpm_seconds=10.0), 3),
        # Otherwise less knowledge would result in more headroom.
        ("unattributed use is the clients'", split(two, {A: flight(0.1)}, unattributed=0.3), 3),
        ("a process bypasses", split(shared({A: 100, B: 100}, beside=[801]), {**both, 801: flight(0.2)}), 6),
        ("the use of exited processes is free", split(two, {**both, C: flight(0.6)}), 8),
        ("the use of others is unknown", shared({A: 100}, beside=[801], sm_utilization=0.4), None),
        ("an attribution that is current", one, 2),
        ("an attribution that is too old", replace(one, at=one.at + 61), None),
        # Idle clients do not show how much a client uses.
        *(
            (f"{busy} of the SMs are used", shared({A: 100, B: 100}, sm_utilization=busy), None)
            for busy in (None, 0.0, 5e-324, float("nan"))
        ),
    ]:
        with subtests.test(case=case):
            assert room(present).get(Bound.SM) == fit


def test_use_of_departed_processes() -> None:
    """A client that NVML has not listed yet has not departed."""
    both = {A: flight(0.1), B: flight(0.1)}
    departed = split(shared({A: 100, B: 100}), {**both, C: flight(0.6)})
    unlisted = split(reduced(*at_work(A, B), gpu_reading({A: 100}, at=AT)).node, both)
    assert [gpu_sharing(node)[GPU].departed_sm for node in (departed, unlisted)] == [pytest.approx(0.6), 0]


def with_daemon(present: Node, **changes: object) -> Node:
    return replace(present, daemons={DAEMON: replace(present.daemons[DAEMON], **changes)})  # type: ignore[arg-type]


def test_slots_that_are_left(subtests: pytest.Subtests) -> None:
    one, four = shared({A: 100}), shared(dict.fromkeys(range(A, A + 4), 100))
    newer = shared({A: 100}, reply("-v", "CUDA MPS Control binary version: 13010\n"))
    daemon = four.daemons[DAEMON]
    limits = replace(daemon.declared, clients_limit=2)
    servers = {**daemon.servers, SERVER + 1: replace(daemon.servers[SERVER], pid=SERVER + 1)}
    clients = {**daemon.clients, A: replace(daemon.clients[A], server=SERVER + 1)}
    hidden = {SERVER: replace(one.daemons[DAEMON].servers[SERVER], has_hidden_pids=True)}
    for case, present, fit in [
        ("the documented limit", shared({A: 100, B: 100}), 46),
        ("clients on other GPUs use slots too", reduced(*at_work(A, B, C), gpu_reading({A: 100})).node, 45),
        ("the limit of a later version", newer, 59),
        ("a configured limit", with_daemon(newer, declared=replace(daemon.declared, clients_limit=12)), 11),
        # Clients beyond the limit of a server take no slots of another server.
        ("two servers", with_daemon(four, servers=servers, clients=clients, declared=limits), 1),
        ("hidden clients", with_daemon(one, servers=hidden), None),
    ]:
        with subtests.test(case=case):
            assert room(present).get(Bound.SLOTS) == fit


def test_the_smallest_bound_counts(subtests: pytest.Subtests) -> None:
    """Without memory and slots it is unknown, unless one of them is exhausted."""
    for by_bound, fits, binding in [
        ({Bound.MEMORY: 277, Bound.SLOTS: 44, Bound.SM: 3}, 3, Bound.SM),
        ({}, None, None),
        ({Bound.MEMORY: 277}, None, None),
        ({Bound.SLOTS: 44}, None, None),
        ({Bound.MEMORY: 277, Bound.SM: 3}, None, None),
        ({Bound.MEMORY: 0}, 0, Bound.MEMORY),
        ({Bound.SLOTS: 0, Bound.SM: 2}, 0, Bound.SLOTS),
    ]:
        with subtests.test(by_bound=by_bound):
            headroom = Headroom(by_bound=by_bound)
            assert (headroom.fits, headroom.binding) == (fits, binding)


def test_the_smallest_bound_of_a_node_counts() -> None:
    """A full server has no room."""
    two = split(shared({A: 1000, B: 1000}), {A: flight(0.3), B: flight(0.1)})
    for present, expected in ((full(), (0, Bound.SLOTS)), (two, (3, Bound.SM))):
        headroom = gpu_sharing(present)[GPU].headroom
        assert (headroom.fits, headroom.binding) == expected


def test_a_gpu_without_clients_or_with_mig_has_no_headroom() -> None:
    assert gpu_sharing(reduced(*at_work(), gpu_reading()).node) == {}
    assert gpu_sharing(shared({A: 100}, mig_mode=True)) == {}


@given(
    held=st.lists(st.integers(1, 20_000), min_size=1, max_size=7),
    used=st.lists(st.floats(0, 0.14), min_size=7, max_size=7),
)
def test_the_reported_number_of_clients_fits(held: list[int], used: list[float]) -> None:
    """With this many more clients, neither SM time nor memory exceeds the GPU."""
    pids = range(CLIENT, CLIENT + len(held))
    shares = {pid: flight(sm) for pid, sm in zip(pids, used, strict=False)}
    present = split(shared(dict(zip(pids, held, strict=True))), shares)
    found = room(present)
    assert found[Bound.MEMORY] * sorted(held)[len(held) // 2] <= ALL_MIB - sum(held)
    busy = sum(used[: len(held)])
    if Bound.SM in found:
        assert busy + found[Bound.SM] * busy / len(held) <= 1 + 1e-5
