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


def headroom(present: Node) -> Headroom:
    return gpu_sharing(present)[GPU].headroom


def test_equal_clients_fit_by_their_memory() -> None:
    size = ALL_MIB // 10
    assert headroom(shared({A: size, B: size, C: size})).by_bound[Bound.MEMORY] == 7


def test_the_next_client_is_assumed_to_be_large() -> None:
    """A lack of memory is an error, and the median would promise too much for half of the clients."""
    free = ALL_MIB - 21_000
    assert headroom(shared({A: 1_000, B: 20_000})).by_bound[Bound.MEMORY] == free // 20_000


def test_one_very_large_client_of_many_does_not_count() -> None:
    """The 90th percentile counts."""
    many = dict.fromkeys(range(CLIENT, CLIENT + 19), 1000)
    free = ALL_MIB - 69_000
    assert headroom(shared({**many, CLIENT + 19: 50_000})).by_bound[Bound.MEMORY] == free // 1_000


def test_memory_without_a_process_is_not_free() -> None:
    present = shared({A: 10_000})
    gpu = present.gpus[GPU]
    fuller = replace(gpu, reading=replace(gpu.reading, memory_used_bytes=GPU_BYTES - 15_000 * MIB))
    assert headroom(replace(present, gpus={GPU: fuller})).by_bound[Bound.MEMORY] == 1


def test_uses_the_mean_use_of_clients_if_known() -> None:
    present = split(shared({A: 100, B: 100}), {A: flight(0.3), B: flight(0.1)})
    assert headroom(present).by_bound[Bound.SM] == 3


def test_needs_no_attribution_if_only_clients_use_the_gpu() -> None:
    """The mean is computed from the use of the whole GPU."""
    assert headroom(shared({A: 100, B: 100}, sm_utilization=0.4, gpm_seconds=10.0)).by_bound[Bound.SM] == 3


def test_unattributed_use_counts_as_use_of_the_clients() -> None:
    """Otherwise less knowledge would result in more headroom."""
    present = split(shared({A: 100, B: 100}), {A: flight(0.1)}, unattributed=0.3)
    assert headroom(present).by_bound[Bound.SM] == 3


def test_use_of_bypassing_processes_does_not_count() -> None:
    present = split(shared({A: 100, B: 100}, beside=[801]), {A: flight(0.1), B: flight(0.1), 801: flight(0.2)})
    assert headroom(present).by_bound[Bound.SM] == 6


def test_use_of_exited_processes_is_free() -> None:
    present = split(shared({A: 100, B: 100}), {A: flight(0.1), B: flight(0.1), C: flight(0.6)})
    assert (gpu_sharing(present)[GPU].departed_sm, headroom(present).by_bound[Bound.SM]) == (pytest.approx(0.6), 8)


def test_a_client_that_nvml_has_not_listed_yet_counts() -> None:
    present = split(reduced(*at_work(A, B), gpu_reading({A: 100}, at=AT)).node, {A: flight(0.1), B: flight(0.1)})
    assert gpu_sharing(present)[GPU].departed_sm == 0


def test_headroom_is_unknown_if_the_use_of_others_is() -> None:
    assert Bound.SM not in headroom(shared({A: 100}, beside=[801], sm_utilization=0.4)).by_bound


@pytest.mark.parametrize("busy", [None, 0.0, 5e-324, float("nan")])
def test_headroom_by_sm_time_is_unknown_without_use(busy: float | None) -> None:
    """Idle clients do not show how much a client uses."""
    assert Bound.SM not in headroom(shared({A: 100, B: 100}, sm_utilization=busy)).by_bound


def test_an_old_attribution_does_not_count() -> None:
    present = split(shared({A: 100}), {A: flight(0.3)})
    assert Bound.SM in headroom(present).by_bound
    assert Bound.SM not in headroom(replace(present, at=present.at + 61)).by_bound


def test_slots_are_the_documented_limit_minus_the_clients() -> None:
    assert headroom(shared({A: 100, B: 100})).by_bound[Bound.SLOTS] == 46


def test_clients_on_other_gpus_use_slots_too() -> None:
    present = reduced(*at_work(A, B, C), gpu_reading({A: 100})).node
    assert headroom(present).by_bound[Bound.SLOTS] == 45


def test_a_full_server_has_no_slots() -> None:
    found = headroom(full())
    assert (found.fits, found.binding) == (0, Bound.SLOTS)


def test_clients_beyond_the_limit_of_a_server_take_no_slots_of_another_server() -> None:
    present = shared(dict.fromkeys(range(A, A + 4), 100))
    daemon = present.daemons[DAEMON]
    servers = {**daemon.servers, SERVER + 1: replace(daemon.servers[SERVER], pid=SERVER + 1)}
    clients = {**daemon.clients, A: replace(daemon.clients[A], server=SERVER + 1)}
    daemon = replace(daemon, servers=servers, clients=clients, declared=replace(daemon.declared, clients_limit=2))
    assert headroom(replace(present, daemons={DAEMON: daemon})).by_bound[Bound.SLOTS] == 1


def test_slots_are_unknown_with_hidden_clients() -> None:
    present = shared({A: 100})
    daemon = present.daemons[DAEMON]
    nameless = {SERVER: replace(daemon.servers[SERVER], has_hidden_pids=True)}
    present = replace(present, daemons={DAEMON: replace(daemon, servers=nameless)})
    assert Bound.SLOTS not in headroom(present).by_bound


def test_the_smallest_bound_counts() -> None:
    found = headroom(split(shared({A: 1000, B: 1000}), {A: flight(0.3), B: flight(0.1)}))
    assert (found.fits, found.binding) == (3, Bound.SM)


@pytest.mark.parametrize("by", [{}, {Bound.MEMORY: 277}, {Bound.SLOTS: 44}, {Bound.MEMORY: 277, Bound.SM: 3}])
def test_headroom_is_unknown_without_memory_and_slots(by: dict[Bound, int]) -> None:
    found = Headroom(by_bound=by)
    assert (found.fits, found.binding) == (None, None)


@pytest.mark.parametrize("by", [{Bound.MEMORY: 0}, {Bound.SLOTS: 0, Bound.SM: 2}])
def test_no_client_fits_if_memory_or_slots_are_exhausted(by: dict[Bound, int]) -> None:
    assert Headroom(by_bound=by).fits == 0


def test_headroom_by_memory_is_unknown_without_the_limits_of_each_client() -> None:
    assert Bound.MEMORY not in headroom(shared({A: 100, B: 100}, process(B, environment=None))).by_bound
    unasked = reduced(*at_work(A), process(A), gpu_reading({A: 100}, at=AT)).node
    assert Bound.MEMORY not in headroom(unasked).by_bound


def test_a_client_may_use_all_of_its_memory_limit() -> None:
    """Four clients with a limit of 20 GiB: three more of 20 GiB fit, not 277 of 516 MiB."""
    own = {PINNED_MEMORY_LIMIT: "0=20G"}
    held = dict.fromkeys(range(CLIENT, CLIENT + 4), 516)
    present = shared(held, *(process(pid, environment=own) for pid in held))
    assert headroom(present).by_bound[Bound.MEMORY] == 3


def test_a_client_that_holds_more_than_its_limit_counts_with_what_it_holds() -> None:
    """Contexts are not part of the limit."""
    present = shared({A: 1_000}, process(A, environment={PINNED_MEMORY_LIMIT: "0=100M"}))
    assert headroom(present).by_bound[Bound.MEMORY] == (ALL_MIB - 1_000) // 1_000


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
    found = headroom(present).by_bound
    assert found[Bound.MEMORY] * sorted(held)[len(held) // 2] <= ALL_MIB - sum(held)
    busy = sum(used[: len(held)])
    if Bound.SM in found:
        assert busy + found[Bound.SM] * busy / len(held) <= 1 + 1e-5


def test_a_configured_client_limit_counts() -> None:
    present = shared({A: 100}, reply("-v", "CUDA MPS Control binary version: 13010\n"))
    assert headroom(present).by_bound[Bound.SLOTS] == 59
    configured = replace(present.daemons[DAEMON], declared=replace(present.daemons[DAEMON].declared, clients_limit=12))
    assert headroom(replace(present, daemons={DAEMON: configured})).by_bound[Bound.SLOTS] == 11
