"""Sharing of a GPU: limits, use, committed limits, idle clients and contention."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from itertools import permutations, product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.doctor.facts import Check, ProcessFacts
from exporter.doctor.gpus import memory_limit_without_effect, visible_devices_wrong
from exporter.model.contention import Slowdown
from exporter.model.node import Node
from exporter.model.observation import GpuReading, Observation
from exporter.model.server import Client
from exporter.model.settings import (
    ACTIVE_THREAD_PERCENTAGE,
    PER_CONTEXT_PARTITIONING,
    PINNED_MEMORY_LIMIT,
    VISIBLE_DEVICES,
    Limits,
)
from exporter.model.sharing import SharingStatus
from exporter.model.usage import Account, Method, Share, SharedAccount
from exporter.parse.mps_variables import sms_of
from exporter.reducer import reduce_all
from exporter.report.document import GpuProcess, SlowdownStatus
from exporter.report.document_parts import ProcessStatus, Severity
from exporter.report.node_status import document_of
from exporter.state.limits import memory_limits_by_gpu
from exporter.usage.accounting import LONGEST_GAP_SECONDS
from exporter.usage.attribution import processes_to_watch
from exporter.usage.capacity import Bound, ClientUsage, GpuSharing, gpu_sharing, headroom
from tests.builders import (
    AT,
    CLIENT,
    DAEMON,
    GPU,
    GPU_BYTES,
    MIB,
    OTHER_GPU,
    SERVER,
    SERVER_BYTES,
    USER_ALICE,
    USER_BOB,
    active,
    at_work,
    clients,
    contended,
    control_log,
    daemon_process,
    exited,
    failure,
    flight,
    full,
    gpu_reading,
    limited,
    looks,
    process,
    reduced,
    reply,
    server_log,
    servers,
    split,
    three_clients,
)
from tests.doctor.healthy import healthy
from tests.status import status_json, status_table

TRAIN, VLLM, EVAL, BYPASSING = 600, 601, 602, 801
POD = "6f9a2c1e-1b5d-4c57-9b0e-3d0f5a7c2b11"


def of(present: Node, gpu: str = GPU) -> GpuSharing:
    return gpu_sharing(present)[gpu]


def test_shows_limits_of_the_server_and_use_of_the_client() -> None:
    """The second GPU is device 1 of a client, and 0 of the daemon. The first has no limit."""
    train, vllm = of(split(limited(), {TRAIN: flight(0.2)})).clients
    assert (train.active_thread_ratio, train.memory_limit_bytes, train.memory_used_bytes) == (0.5, None, 1540 << 20)
    assert (train.share, vllm.share) == (flight(0.2), None)
    assert of(limited(), OTHER_GPU).clients[0].memory_limit_bytes == 2 << 30


def test_the_clients_together_have_all_methods() -> None:
    shares = {TRAIN: flight(0.2, 0.03), VLLM: Share(method=Method.MEASURED, sm=0.1, error=0.04)}
    found = of(split(three_clients(), shares))
    assert found.methods == (Method.MEASURED, Method.FLIGHT)


def test_bypassing_processes_are_listed_separately() -> None:
    found = of(split(three_clients(), {EVAL: flight(0.2), BYPASSING: flight(0.5)}, gpu=OTHER_GPU), OTHER_GPU)
    assert found.bypassing == {BYPASSING: flight(0.5)}


def test_the_sum_of_limits_can_exceed_the_gpu() -> None:
    present = limited()
    daemon = present.daemons[DAEMON]
    (server,) = daemon.servers.values()
    servers = {server.pid: replace(server, limits=Limits(active_thread_percentage=80.0, pinned_memory={1: GPU_BYTES}))}
    found = of(replace(present, daemons={DAEMON: replace(daemon, servers=servers)}), OTHER_GPU)
    assert (found.threads_at_most, found.memory_at_most) == (1.6, 2.0)


def test_bandwidth_is_full_if_several_processes_use_most_of_it(subtests: pytest.Subtests) -> None:
    three, shares = three_clients(), {TRAIN: flight(0.5)}
    daemon = three.daemons[DAEMON]
    one = replace(three, daemons={DAEMON: replace(daemon, clients={CLIENT: daemon.clients[CLIENT]})})
    busy = replace(three.gpus[GPU], reading=replace(three.gpus[GPU].reading, dram_bandwidth=0.9))
    for case, present, is_full in [
        ("bandwidth is left", contended(three, TRAIN, VLLM, dram=0.79), False),
        ("bandwidth is unknown", contended(three, TRAIN, VLLM, dram=None), False),
        ("a single client", split(one, shares, dram=0.9), False),
        ("several clients", contended(three, TRAIN, VLLM), True),
        ("launches are not counted", split(three, shares, dram=0.9), True),
        ("no attribution", replace(three, gpus={**three.gpus, GPU: busy}), True),
    ]:
        with subtests.test(case=case):
            assert of(present).bandwidth_is_full == is_full


def test_a_client_beside_a_heavy_one_is_slowed() -> None:
    train, vllm = of(contended(three_clients(), TRAIN, VLLM)).clients
    assert (train.is_slowed, vllm.is_slowed) == (True, False)


def test_slowdowns_end_with_the_readings_and_a_minute_after_the_last_window() -> None:
    present = contended(three_clients(), TRAIN, VLLM)
    assert present.work is not None
    for seconds, read, known in ((59, 59, True), (60, 60, False), (59, 48, False)):
        work = replace(present.work, at=present.at + read)
        later = replace(present, at=present.at + seconds, work=work)
        assert (of(later).clients[0].slowdown is not None, of(later).sharing_gain_ratio is not None) == (known, known)


def test_a_memory_limit_of_a_pod_is_for_the_only_gpu_that_it_has() -> None:
    """GKE sets `0=SIZE`, whatever the number of the GPU is for the daemon."""
    pod = f"0::/kubepods/burstable/pod{POD}/{'1f' * 32}\n"
    variables = {ACTIVE_THREAD_PERCENTAGE: "25", PINNED_MEMORY_LIMIT: "0=1024M"}
    reading = process(VLLM, cgroup=pod, environment=variables)
    _, vllm = of(reduced(reading, start=limited()).node).clients
    assert (vllm.active_thread_ratio, vllm.memory_limit_bytes, vllm.memory_limit_known) == (0.25, 1 << 30, True)


def test_a_container_with_some_of_several_gpus_has_its_own_ordinals(subtests: pytest.Subtests) -> None:
    for cgroup, (device, known) in product(
        [f"/system.slice/docker-{'1f' * 32}.scope", f"/kubepods/pod{POD}", "/system.slice/slurmstepd.scope/job_7"],
        [("0", False), ("1", False), (GPU, True)],
    ):
        with subtests.test(cgroup=cgroup, device=device, known=known):
            limits = {PINNED_MEMORY_LIMIT: f"{device}=1024M" if known else f"{device}=1024M,2=1024M"}
            reading = process(VLLM, cgroup=f"0::{cgroup}\n", environment=limits)
            _, vllm = of(reduced(reading, start=limited()).node).clients
            assert (vllm.memory_limit_known, vllm.memory_limit_bytes) == (known, 1 << 30 if known else None)


def test_finds_clients_with_more_memory_than_their_limit() -> None:
    """The limit was set after they had allocated it. A context does not count."""
    within, over = (
        of(reduced(process(VLLM, environment={PINNED_MEMORY_LIMIT: f"{GPU}={limit}M"}), start=limited()).node)
        for limit in (2000, 1900)
    )
    assert (within.over_limit, over.over_limit) == ((), (VLLM,))


def environment(present: Node, variables: Mapping[str, str] | None) -> ClientUsage:
    """Return the first client on the second GPU with these variables. Its server allows 50 % and 2 GiB."""
    return of(reduced(process(TRAIN, environment=variables), start=present).node, OTHER_GPU).clients[0]


def test_a_client_may_use_the_smaller_of_its_servers_and_its_own_threading(subtests: pytest.Subtests) -> None:
    for variables, threads in [
        ({}, 0.5),
        ({ACTIVE_THREAD_PERCENTAGE: "25"}, 0.25),
        ({ACTIVE_THREAD_PERCENTAGE: "80"}, 0.5),
        ({ACTIVE_THREAD_PERCENTAGE: "0"}, None),
        ({ACTIVE_THREAD_PERCENTAGE: "nan"}, None),
        ({ACTIVE_THREAD_PERCENTAGE: "a lot"}, None),
        ({ACTIVE_THREAD_PERCENTAGE: "25", PER_CONTEXT_PARTITIONING: "0"}, 0.25),
        ({ACTIVE_THREAD_PERCENTAGE: "25", PER_CONTEXT_PARTITIONING: "1"}, None),
        (None, None),
    ]:
        with subtests.test(variables=variables, threads=threads):
            assert environment(limited(), variables).active_thread_ratio == threads


def test_the_memory_limit_is_the_smaller_of_server_and_client(subtests: pytest.Subtests) -> None:
    for variables, known, limit in [
        ({VISIBLE_DEVICES: "0,1"}, True, 2 << 30),
        ({}, False, None),
        ({PINNED_MEMORY_LIMIT: "1=1G"}, True, 1 << 30),
        ({PINNED_MEMORY_LIMIT: " 0 = 1G, 1=512M,"}, True, 512 << 20),
        ({PINNED_MEMORY_LIMIT: f"{OTHER_GPU}=512M"}, True, 512 << 20),
        ({PINNED_MEMORY_LIMIT: "1=20G"}, True, 2 << 30),
        ({PINNED_MEMORY_LIMIT: "0=1G"}, True, 2 << 30),
        ({PINNED_MEMORY_LIMIT: "1=a lot"}, False, None),
        ({PINNED_MEMORY_LIMIT: "1=1G" + "," * 4000}, False, None),
        ({PINNED_MEMORY_LIMIT: "0=1G", VISIBLE_DEVICES: "1,0"}, True, 1 << 30),
        ({PINNED_MEMORY_LIMIT: "1=1G,2=1G"}, False, None),
        ({PINNED_MEMORY_LIMIT: "1=1G,GPU-1f8b2f04-0000-0000-0000-000000000000=1G"}, False, None),
        ({VISIBLE_DEVICES: "1,0"}, True, None),
        (None, False, None),
    ]:
        with subtests.test(variables=variables, known=known, limit=limit):
            found = environment(limited(), variables)
            assert (found.memory_limit_known, found.memory_limit_bytes) == (known, limit)


def test_a_memory_limit_is_unknown_if_the_ordinals_are() -> None:
    present = limited()
    daemon = replace(
        present.daemons[DAEMON], runtime=replace(present.daemons[DAEMON].runtime, devices={}, visible_devices=None)
    )
    present = replace(present, daemons={DAEMON: daemon})
    assert not environment(present, {}).memory_limit_known
    assert not environment(present, {PINNED_MEMORY_LIMIT: "0=1G"}).memory_limit_known


# Headroom: how many more clients fit by memory, SM time and client slots.


A, B, C = range(CLIENT, CLIENT + 3)


def test_memory_that_the_system_uses_too_limits_no_number_of_clients() -> None:
    present = split(limited(), {})
    gpu = present.gpus[GPU]
    read = replace(gpu.reading, unified_memory=True)
    unified = replace(present, gpus={**present.gpus, GPU: replace(gpu, reading=read)})

    before, after = of(present).headroom.by_resource, of(unified).headroom

    assert {*before} - {*after.by_resource} == {Bound.MEMORY}
    assert after.clients is None


ALL_MIB = (GPU_BYTES - SERVER_BYTES) // MIB


def shared(held: Mapping[int, int], *more: Observation, beside: Sequence[int] = (), **read: object) -> Node:
    """Return a node whose clients hold this many MiB. `read` has other values of the GPU's reading."""
    readings = (gpu_reading(held, beside=beside, at=at, **read) for at in (AT, AT + 2))
    known = (*server_log("Active Threads Percentage set to 100.0"), *(process(pid) for pid in held))
    return reduced(*at_work(*held), *known, *more, *readings).node


def room(present: Node) -> Mapping[Bound, int]:
    return gpu_sharing(present)[GPU].headroom.by_resource


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
        ("one large client of three", shared({A: 1_000, B: 1_000, C: 20_000}), (ALL_MIB - 22_000) // 20_000),
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
    assert [gpu_sharing(node)[GPU].departed_sm_ratio for node in (departed, unlisted)] == [pytest.approx(0.6), 0]


def with_daemon(present: Node, **changes: object) -> Node:
    return replace(present, daemons={DAEMON: replace(present.daemons[DAEMON], **changes)})  # type: ignore[arg-type]


def test_clients_take_slots_of_their_gpus_only() -> None:
    """A client on an unknown GPU may have a slot on each."""
    on = gpu_reading({A: 100, B: 100}), gpu_reading({B: 100, C: 100, C + 1: 100}, gpu=OTHER_GPU, index=1)
    present = reduced(*at_work(A, B, C, C + 1, C + 2), *on).node
    slots = {uuid: each.headroom.by_resource[Bound.SLOTS] for uuid, each in gpu_sharing(present).items()}
    assert slots == {GPU: 48 - 3, OTHER_GPU: 48 - 4}


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
    for by_resource, fits, binding in [
        ({Bound.MEMORY: 277, Bound.SLOTS: 44, Bound.SM: 3}, 3, Bound.SM),
        ({}, None, None),
        ({Bound.MEMORY: 277}, None, None),
        ({Bound.SLOTS: 44}, None, None),
        ({Bound.MEMORY: 277, Bound.SM: 3}, None, None),
        ({Bound.MEMORY: 0}, 0, Bound.MEMORY),
        ({Bound.SLOTS: 0, Bound.SM: 2}, 0, Bound.SLOTS),
    ]:
        with subtests.test(by_resource=by_resource):
            found = headroom(by_resource)
            assert (found.clients, found.resource) == (fits, binding)


def test_the_smallest_bound_of_a_node_counts() -> None:
    """A full server has no room."""
    two = split(shared({A: 1000, B: 1000}), {A: flight(0.3), B: flight(0.1)})
    for present, expected in ((full(), (0, Bound.SLOTS)), (two, (3, Bound.SM))):
        found = gpu_sharing(present)[GPU].headroom
        assert (found.clients, found.resource) == expected


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


# Memory use by account, in byte-milliseconds.


BYPASSING = 801
BYTES = 100 * MIB


def reading(at: float, mib: int = 100, *, pid: int = CLIENT, gpu: str = GPU) -> GpuReading:
    """Return a reading of a client's memory at this time."""
    return gpu_reading({pid: mib}, server=None, at=AT + at, gpu=gpu)


def alices(at: float = 0.0, *, pid: int = CLIENT) -> tuple[Observation, ...]:
    return (*server_log(active(pid), at=AT + at), process(pid, at=AT + at))


def held(*seen: Observation, start: Node | None = None) -> dict[Account, float]:
    """Return byte-seconds by account, on a node with a server."""
    return held_by(reduced(*at_work(), *seen, start=start).node)


def held_by(node: Node) -> dict[Account, float]:
    sums: dict[Account, float] = {}
    for usage in node.usage_totals.gpus.values():
        for account, amount in usage.memory_byte_ms.items():
            sums[account] = sums.get(account, 0) + amount / 1000
    return sums


def test_the_end_of_a_recording_counts_memory_until_a_last_disconnect() -> None:
    """Only the log reports the disconnect, in the last line."""
    start = reduced(*at_work(), *alices(), reading(0)).node
    *_, (node, _) = reduce_all(start, server_log(f"Client process {CLIENT} disconnected", at=AT + 4))
    assert held_by(node)[USER_ALICE] == 4 * BYTES


def test_memory_counts_while_a_client_holds_it(subtests: pytest.Subtests) -> None:
    gone = gpu_reading((), server=None, at=AT + 10)
    connects, known = alices()
    leaves = (clients(at=AT + 3), clients(at=AT + 4))
    assert known == process()
    for case, seen, expected in [
        ("until the next reading", (*alices(), reading(0), reading(10, 300), reading(15)), 10 + 5 * 3),
        ("until the exit", (*alices(), reading(0), exited(at=AT + 4), gone), 4),
        ("until the end of the connection", (*alices(), reading(0), *leaves, exited(at=AT + 8)), 4),
        ("listed again after its end", (*alices(), reading(0), exited(at=AT + 4), reading(10)), 10),
        ("from the reading", (*alices(), gpu_reading((), server=None, at=AT + 5), reading(10)), 5),
        ("on both GPUs", (*alices(), reading(0), reading(0, 300, gpu=OTHER_GPU), exited(at=AT + 2)), 2 + 2 * 3),
        ("of a workload that is known later", (connects, reading(0), process(at=AT + 0.5), reading(10)), 10),
    ]:
        with subtests.test(case=case):
            assert held(*seen) == {USER_ALICE: expected * BYTES}


def test_memory_of_a_new_client_counts_from_its_connection() -> None:
    assert held(reading(0, pid=CLIENT + 1), *alices(4), reading(10)).get(USER_ALICE) == 6 * BYTES


def test_a_reading_counts_once(subtests: pytest.Subtests) -> None:
    """Also if it comes again, late, or after a gap. Then it is unknown what was held in between."""
    gap, back = LONGEST_GAP_SECONDS + 1, -2 * LONGEST_GAP_SECONDS
    failed = GpuReading(at=AT + 5, gpu=GPU, problem=failure("lost"))
    for case, seen, seconds in [
        ("doubled", (reading(10), reading(10), reading(15)), 15),
        ("late", (reading(10), reading(7), reading(15)), 15),
        ("changed", (reading(10), reading(10, 900), reading(15)), 15),
        ("failed", (failed, reading(10)), 10),
        ("after a long gap", (reading(gap), reading(gap + 5)), 5),
        ("after the clock was set back", (reading(back), reading(back + 5)), 5),
        # An exit can be observed after a reading with a later time.
        ("late exit", (reading(10), exited(at=AT + 9), gpu_reading((), server=None, at=AT + 12)), 10),
    ]:
        with subtests.test(case=case):
            assert held(*alices(), reading(0), *seen) == {USER_ALICE: seconds * BYTES}


def test_memory_of_other_processes_counts_from_the_reading() -> None:
    bypassing = (gpu_reading((), beside={BYPASSING: 100}, server=None, at=AT + at) for at in (0, 10))
    assert held(process(BYPASSING, user="bob"), *bypassing) == {USER_BOB: 10 * BYTES}


def test_memory_of_a_server_has_a_shared_account() -> None:
    """Also after it has exited."""
    first, second = (gpu_reading((), at=AT + at) for at in (0, 10))
    server = process(SERVER, user="root")
    assert held(server, first, second) == {SharedAccount.SERVER: 10 * SERVER_BYTES}
    assert held(server, first, exited(SERVER, at=AT + 3)) == {SharedAccount.SERVER: 3 * SERVER_BYTES}


def test_memory_of_an_unknown_workload_is_unattributed() -> None:
    connects, _ = alices()
    assert held(connects, reading(0), reading(10)) == {SharedAccount.UNATTRIBUTED: 10 * BYTES}


def test_a_reused_pid_has_another_account() -> None:
    """Memory of the earlier process counts until its exit was observed."""
    another = process(ticks=7, at=AT + 4, user="bob")
    assert held(*alices(), reading(0), another, *server_log(active(), at=AT + 5), reading(10)) == {
        USER_ALICE: 4 * BYTES,
        USER_BOB: 5 * BYTES,
    }


# What a client may use of each GPU: SMs of its percentage, and memory limits by its own device numbers.


GIB = 1 << 30
UUIDS = tuple(f"GPU-{number}f8b2f04-0000-0000-0000-000000000000" for number in range(4))
CONTAINER = f"0::/system.slice/docker-{'1f' * 32}.scope\n"
JOB = "0::/system.slice/slurmstepd.scope/job_7\n"
Environment = Mapping[str, str] | None


def node_of(
    environments: Sequence[Environment],
    *,
    gpus: int = 2,
    on: Sequence[int] | None = None,
    defaults: Sequence[int] = (),
    percentage: float = 100.0,
    sms: int | None = 132,
    cgroup: str | None = None,
    driver: str = "580.159.04",
    names: Sequence[str] = ("NVIDIA H200",) * 4,
    indices: Sequence[int] = range(4),
    buses: Sequence[int | None] = range(4),
) -> Node:
    """Return a node whose clients have contexts `on` these GPUs, and limits in GiB by device. 0: no limit.

    NVML lists the GPUs by these `indices`, and on these PCI `buses`. The daemon's own CUDA_VISIBLE_DEVICES names its
    GPUs in the opposite order.
    """
    pids = range(CLIENT, CLIENT + len(environments))
    log = [f"Active Threads Percentage set to {percentage}"]
    log += [
        f"Device pinned memory limit for device {device} set to {size * GIB:#x} bytes"
        for device, size in enumerate(defaults)
        if size
    ]
    reversed_list = "".join(
        f"{ordinal},00:0{ordinal}.0,{uuid},NVIDIA H200\n" for ordinal, uuid in enumerate(reversed(UUIDS[:gpus]))
    )
    known = [process(pid, environment=each, cgroup=cgroup) for pid, each in zip(pids, environments, strict=True)]
    readings = [
        gpu_reading(
            pids if on is None or number in on else (),
            gpu=uuid,
            index=indices[number],
            at=at,
            sms=sms,
            driver_version=driver,
            name=names[number],
            pci_bus_id=None if buses[number] is None else f"00000000:{buses[number]:02X}:00.0",
        )
        for at in (AT, AT + 2)
        for number, uuid in enumerate(UUIDS[:gpus])
    ]
    devices = reply("device_query --csv", reversed_list)
    return reduced(*at_work(*pids), daemon_process(), *server_log(*log), *known, devices, *readings).node


def client_on(gpu: int, environment: Environment, **changes: Any) -> ClientUsage:
    """Return a client on one GPU."""
    present = node_of([environment], **({"on": (gpu,)} | changes))
    (client,) = gpu_sharing(present)[UUIDS[gpu]].clients
    return client


def clients_on(order: Sequence[int], environment: Environment, **changes: Any) -> list[ClientUsage]:
    """Return a client on several GPUs, in this order."""
    sharing = gpu_sharing(node_of([environment], on=order, **changes))
    return [sharing[UUIDS[gpu]].clients[0] for gpu in order]


# SMs of an active thread percentage.


def test_a_percentage_is_an_even_number_of_sms_and_at_least_8(subtests: pytest.Subtests) -> None:
    """Measured on an H200."""
    for percentage, sms in [(1, 8), (2, 8), (5, 8), (10, 12), (25, 32), (33, 42), (50, 66), (99, 130), (0.1, 8)]:
        with subtests.test(percentage=percentage):
            assert sms_of(percentage, 132) == sms


@pytest.mark.parametrize("sms", [16, 26, 32, 46, 60, 78, 108, 114, 132, 142, 148])
def test_each_percentage_of_each_gpu_is_close_to_its_fraction(sms: int) -> None:
    given = [sms_of(percentage, sms) for percentage in range(1, 100)]
    assert given == sorted(given, key=lambda number: number or 0)
    for percentage, number in enumerate(given, start=1):
        assert number is not None
        assert number % 2 == 0
        assert number == 8 or 100 * number <= percentage * sms < 100 * (number + 2)
    assert sms_of(100, sms) is None


def test_no_client_gets_more_sms_than_there_are() -> None:
    assert sms_of(50, 4) == 4


@pytest.mark.parametrize(("own", "of_server"), [({ACTIVE_THREAD_PERCENTAGE: "1"}, 100.0), ({}, 1.0)])
def test_20_clients_of_1_percent_may_use_160_sms(own: Mapping[str, str], of_server: float) -> None:
    sharing = gpu_sharing(node_of([own] * 20, percentage=of_server, on=(0,)))[UUIDS[0]]
    assert sharing.threads_committed_ratio == pytest.approx(160 / 132)
    assert {each.active_thread_ratio for each in sharing.clients} == {8 / 132}


def test_a_percentage_remains_one_if_the_number_of_sms_is_unknown() -> None:
    client = client_on(0, {ACTIVE_THREAD_PERCENTAGE: "1"}, sms=None)
    assert (client.active_thread_ratio, client.active_thread_certain) == (0.01, True)


def test_a_client_without_a_percentage_may_have_set_one_itself(subtests: pytest.Subtests) -> None:
    for environment, percentage, threads, certain in [
        ({}, 100.0, 1.0, False),
        ({}, 50.0, 0.5, False),
        ({ACTIVE_THREAD_PERCENTAGE: "20"}, 50.0, 26 / 132, True),
        ({ACTIVE_THREAD_PERCENTAGE: "100"}, 50.0, 0.5, True),
        # It can have no fewer SMs.
        ({}, 5.0, 8 / 132, True),
        (None, 50.0, None, None),
    ]:
        with subtests.test(environment=environment, percentage=percentage):
            present = node_of([environment], percentage=percentage, on=(0,))
            sharing = gpu_sharing(present)[UUIDS[0]]
            (client,) = sharing.clients
            assert (client.active_thread_ratio, client.active_thread_certain) == (threads, certain)
            assert sharing.threads_at_most == threads
            assert sharing.threads_committed_ratio == (threads if certain else None)


SET = f"set_active_thread_percentage {SERVER} 50"
LATER = CLIENT + 1


def threads_after(*seen: Observation, before: float = 100.0) -> tuple[dict[int, float | None], GpuSharing]:
    """Return the threads of a client that was there before, and of a later one if it connects; and of both."""
    held = gpu_reading({CLIENT: 100, LATER: 100}, at=AT + 9, sms=132)
    known = (process(pid, environment={}) for pid in (CLIENT, LATER))
    start = node_of([{}], percentage=before, gpus=1)
    (uuid,) = start.gpus
    present = reduced(*seen, *known, replace(held, gpu=uuid), start=start).node
    found = gpu_sharing(present)[uuid]
    watched, ratios = (
        processes_to_watch(present)[0],
        {each.client.pid: each.active_thread_ratio for each in found.clients},
    )
    assert {pid: (sms_of(percentage, 132) or 132) / 132 for pid, percentage in watched.items()} == ratios
    return ratios, found


def asked(percentage: float, at: float, server: int = SERVER) -> Observation:
    return reply(f"get_active_thread_percentage {server}", f"{percentage}\n", at=at)


def test_a_limit_of_a_running_server_is_for_clients_that_connect_later(subtests: pytest.Subtests) -> None:
    """Measured: the pace of a client that was connected did not change, and later ones had the limit."""
    command = control_log(f"Cmd:{SET}", "UI closed", at=AT + 3)
    connected = server_log(active(LATER), at=AT + 5)
    other = servers(SERVER, SERVER + 1, at=AT + 1), *(asked(each, AT + 2, SERVER + 1) for each in (100.0, 50.0))
    for name, seen, before, expected in [
        ("the log", (*command, asked(50.0, AT + 4), *connected), 100.0, {CLIENT: 1.0, LATER: 0.5}),
        ("raised", (*command, asked(50.0, AT + 4), *connected), 25.0, {CLIENT: 32 / 132, LATER: 0.5}),
        ("our command", (reply(SET, "50.0\n", at=AT + 3), *connected), 100.0, {CLIENT: 1.0, LATER: 0.5}),
        ("only its reply", (asked(50.0, AT + 4), *connected), 100.0, {CLIENT: 1.0, LATER: 0.5}),
        ("in between", (*command, *connected, asked(50.0, AT + 6)), 100.0, {CLIENT: 1.0, LATER: 1.0}),
        ("seen late", (*connected, asked(50.0, AT + 6)), 25.0, {CLIENT: 0.5, LATER: 0.5}),
        ("twice", (*command, asked(50.0, AT + 4), asked(20.0, AT + 5)), 100.0, {CLIENT: 1.0}),
        ("of another server", other, 25.0, {CLIENT: 32 / 132}),
        ("refused", (*command, asked(100.0, AT + 4), *connected), 100.0, {CLIENT: 1.0, LATER: 1.0}),
    ]:
        with subtests.test(name):
            ratios, found = threads_after(*seen, before=before)
            assert ratios == expected
            assert found.threads_at_most == sum(expected.values())


def test_a_memory_limit_of_a_running_server_is_for_clients_that_connect_later() -> None:
    """The command is for new clients (NVIDIA's guide)."""
    command = control_log(f"Cmd:set_device_pinned_mem_limit {SERVER} 0 1G", "UI closed", at=AT + 3)
    limit = reply(f"get_device_pinned_mem_limit {SERVER} 0", "1G\n", at=AT + 4)
    _, found = threads_after(*command, limit, *server_log(active(LATER), at=AT + 5))
    assert [(each.memory_limit_known, each.memory_limit_bytes) for each in found.clients] == [(True, None), (True, GIB)]
    lower = reply(f"get_device_pinned_mem_limit {SERVER} 0", "512M\n", at=AT + 3)
    _, found = threads_after(lower, limit, *server_log(active(LATER), at=AT + 5))
    assert [each.memory_limit_bytes for each in found.clients] == [GIB, GIB], "the first one may have either"


# Memory limits.


def test_default_limits_are_by_the_numbers_of_the_client(subtests: pytest.Subtests) -> None:
    for gpus in (2, 4):
        for length in range(1, gpus + 1):
            for order in permutations(range(gpus), length):
                visible = ",".join(map(str, order))
                with subtests.test(gpus=gpus, visible=visible):
                    found = clients_on(order, {VISIBLE_DEVICES: visible}, gpus=gpus, defaults=(6, 3, 4, 5))
                    assert [each.memory_limit_bytes for each in found] == [6 * GIB, 3 * GIB, 4 * GIB, 5 * GIB][:length]
                    assert {(each.memory_limit_known, each.memory_limit_certain) for each in found} == {(True, False)}


def test_own_limits_are_by_the_numbers_of_the_client(subtests: pytest.Subtests) -> None:
    for gpus in (2, 4):
        for order in permutations(range(gpus)):
            for visible in (",".join(map(str, order)), ",".join(UUIDS[gpu] for gpu in order)):
                for number in range(gpus):
                    own = {VISIBLE_DEVICES: visible, PINNED_MEMORY_LIMIT: f"{number}=2G"}
                    with subtests.test(gpus=gpus, visible=visible, own=number):
                        found = clients_on(order, own, gpus=gpus)
                        assert [each.memory_limit_bytes for each in found] == [
                            2 * GIB if each == number else None for each in range(gpus)
                        ]
                        assert all(each.memory_limit_known and each.memory_limit_certain is not False for each in found)


def test_a_client_without_the_variable_counts_all_gpus_in_the_order_of_the_node() -> None:
    own = {PINNED_MEMORY_LIMIT: "1=2G"}
    found = [client_on(gpu, own, on=(0, 1), defaults=(6, 3)).memory_limit_bytes for gpu in (0, 1)]
    assert found == [6 * GIB, 2 * GIB]
    present = node_of([{}], defaults=(6, 3))
    assert dict(memory_limits_by_gpu(present, present.daemons[DAEMON], {0: 6, 1: 3})) == {UUIDS[0]: 6, UUIDS[1]: 3}


def test_the_numbers_of_gpus_follow_the_pci_bus(subtests: pytest.Subtests) -> None:
    """NVML's index may be in another order (nvml.h). The client's device 0 is GPU 2, and its device 1 is GPU 0."""
    visible, nothing = {VISIBLE_DEVICES: "2,0"}, (None, None, None)
    different = {"indices": (1, 2, 0), "buses": (0x9D, 0x1B, 0xDB)}
    cases: list[tuple[str, dict[str, Any], Sequence[str], Sequence[int | None]]] = [
        ("NVML's order", {}, UUIDS[:3], (3, None, 6)),
        ("NVML counts from the end", {"indices": (2, 1, 0)}, UUIDS[:3], (3, None, 6)),
        ("the bus counts from the end", {"buses": (0x1B, 0x9, 0x0)}, UUIDS[2::-1], (6, None, 3)),
        ("NVML and the bus differ", different, (UUIDS[1], UUIDS[0], UUIDS[2]), (None, 3, 6)),
        ("an unknown bus", {"buses": (0, None, 2)}, (), nothing),
        ("two GPUs at one place", {"buses": (0, 1, 1)}, (), nothing),
    ]
    for case, changes, order, limits in cases:
        with subtests.test(case=case):
            present = node_of([visible], gpus=3, on=(0,), **changes)
            given = dict(memory_limits_by_gpu(present, present.daemons[DAEMON], {0: 6, 1: 3, 2: 1}))
            assert given == dict(zip(order, (6, 3, 1), strict=False))
            own = [client_on(gpu, visible, gpus=3, defaults=(6, 3, 1), **changes) for gpu in range(3)]
            assert [each.memory_limit_bytes for each in own] == [limit and limit * GIB for limit in limits]


def test_the_numbers_of_gpus_are_unknown_while_one_of_them_is_lost() -> None:
    """CUDA does not count it. NVML may leave it out, or only fail to read it."""
    present = node_of([{VISIBLE_DEVICES: "0"}], defaults=(6, 3), indices=(1, 0))
    lost = reduced(gpu_reading(gpu=UUIDS[1], at=AT + 11), *looks(at=AT + 11), start=present).node
    for each, expected in [(present, {UUIDS[0]: 6, UUIDS[1]: 3}), (lost, {})]:
        assert dict(memory_limits_by_gpu(each, each.daemons[DAEMON], {0: 6, 1: 3})) == expected


def test_a_client_has_no_limit_if_its_own_names_only_devices_that_it_does_not_see(subtests: pytest.Subtests) -> None:
    """Then its daemon's limit does not apply either (measured)."""
    for own, defaults, expected in [
        ("1=2G", (), (True, None)),
        ("1=2G", (6, 3), (True, None)),
        ("1=2G,7=1G", (6, 3), (True, None)),
        ("0=2G", (6, 3), (True, 2 * GIB)),
        ("0=2G,1=2G", (), (False, None)),
        ("0=2G,1=2G", (6, 3), (False, None)),
        (f"{UUIDS[0]}=2G", (), (True, None)),
        (f"{UUIDS[0]}=2G", (6, 3), (True, None)),
        (f"{UUIDS[1]}=2G", (6, 3), (True, 2 * GIB)),
    ]:
        for driver in ("580.159.04", "615.71"):
            with subtests.test(own=own, defaults=defaults, driver=driver):
                variables = {VISIBLE_DEVICES: "1", PINNED_MEMORY_LIMIT: own}
                client = client_on(1, variables, defaults=defaults, driver=driver)
                assert (client.memory_limit_known, client.memory_limit_bytes) == expected


def test_the_limit_is_unknown_if_the_numbers_of_the_client_are(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, Environment, dict[str, Any]]] = [
        ("unreadable", None, {}),
        ("a container", {}, {"cgroup": CONTAINER}),
        ("a container with its own limit", {PINNED_MEMORY_LIMIT: "0=1G"}, {"cgroup": CONTAINER}),
        ("a job", {VISIBLE_DEVICES: "0"}, {"cgroup": JOB}),
        ("the process has changed the variable", {VISIBLE_DEVICES: "0"}, {}),
        ("different GPUs", {}, {"on": (0, 1), "names": ("NVIDIA H200", "NVIDIA L4")}),
    ]
    for case, environment, changes in cases:
        with subtests.test(case=case):
            client = client_on(1, environment, defaults=(6, 3), **changes)
            assert (client.memory_limit_known, client.memory_limit_bytes) == (False, None)


def test_numbers_show_no_limit_on_different_gpus(subtests: pytest.Subtests) -> None:
    """By default, CUDA counts the fastest GPU first, so its numbers may be in another order than NVML's indices."""
    names, by_uuid = ("NVIDIA L4", "NVIDIA H200"), {PINNED_MEMORY_LIMIT: f"{UUIDS[0]}=2G,{UUIDS[1]}=1G"}
    unknown, both = (False, None), (0, 1)
    cases: list[tuple[str, Mapping[str, str], Sequence[int], Sequence[int], Sequence[tuple[bool, int | None]]]] = [
        ("defaults", {VISIBLE_DEVICES: "0"}, (0,), (6, 3), [unknown]),
        ("defaults, the other GPU", {VISIBLE_DEVICES: "0"}, (1,), (6, 3), [unknown]),
        ("defaults on both", {VISIBLE_DEVICES: "0,1"}, both, (6, 3), [unknown, unknown]),
        ("equal defaults", {VISIBLE_DEVICES: "0"}, (1,), (4, 4), [(True, 4)]),
        ("its own", {VISIBLE_DEVICES: "1,0", PINNED_MEMORY_LIMIT: "0=2G,1=1G"}, both, (), [unknown, unknown]),
        ("its own on one", {VISIBLE_DEVICES: "0,1", PINNED_MEMORY_LIMIT: "1=1G"}, (1,), (), [unknown]),
        ("its own by UUID", by_uuid, both, (), [(True, 2), (True, 1)]),
        ("its own, equal", {PINNED_MEMORY_LIMIT: "0=2G,1=2G"}, both, (), [(True, 2), (True, 2)]),
    ]
    for case, own, on, defaults, expected in cases:
        with subtests.test(case=case):
            found = clients_on(on, own, defaults=defaults, names=names)
            shown = [(each.memory_limit_known, each.memory_limit_bytes) for each in found]
            assert shown == [(known, limit and limit * GIB) for known, limit in expected]
    present = node_of([{}], defaults=(6, 3), names=names)
    unnamed = {uuid: replace(gpu, reading=replace(gpu.reading, name=None)) for uuid, gpu in present.gpus.items()}
    for each in (present, replace(present, gpus=unnamed)):
        assert list(memory_limits_by_gpu(each, each.daemons[DAEMON], {0: 6, 1: 3})) == []


def test_equal_limits_of_all_devices_are_known_in_a_container() -> None:
    client = client_on(1, {}, cgroup=CONTAINER, defaults=(4, 4))
    assert (client.memory_limit_known, client.memory_limit_bytes) == (True, 4 * GIB)


def test_a_container_that_names_its_gpus_by_uuid_has_known_numbers() -> None:
    client = client_on(1, {VISIBLE_DEVICES: UUIDS[1]}, cgroup=CONTAINER, defaults=(6, 3))
    assert client.memory_limit_bytes == 6 * GIB


def test_a_client_that_may_have_hidden_gpus_or_changed_their_order_has_the_largest_limit_at_most(
    subtests: pytest.Subtests,
) -> None:
    """With CUDA_VISIBLE_DEVICES=1,0 set inside the process, GPU 1 is its device 0 (measured)."""
    for on, defaults, expected in [
        ((1,), (6, 3), [(True, 6)]),
        ((1,), (0, 3), [(False, None)]),
        ((0,), (6, 3), [(True, 6)]),
        ((0,), (6, 0), [(True, 6)]),
        ((0, 1), (6, 3), [(True, 6), (True, 6)]),
        ((0, 1), (3, 6), [(True, 6), (True, 6)]),
        ((0, 1), (6, 0), [(False, None), (False, None)]),
        ((0, 1), (4, 4), [(True, 4), (True, 4)]),
        ((0, 1), (), [(True, None), (True, None)]),
    ]:
        with subtests.test(on=on, defaults=defaults):
            found = clients_on(on, {}, defaults=defaults)
            expected_bytes = [(known, limit and limit * GIB) for known, limit in expected]
            assert [(each.memory_limit_known, each.memory_limit_bytes) for each in found] == expected_bytes
            assert not any(each.memory_limit_certain for each in found)


def test_own_limits_are_uncertain_if_another_order_gives_others(subtests: pytest.Subtests) -> None:
    """They are those of the order with which the process was started, or unknown."""
    for on, own, defaults, expected in [
        ((0, 1), "0=2G", (), [(2, True, False), (None, False, None)]),
        ((0, 1), "0=2G,1=3G", (), [(2, True, False), (3, True, False)]),
        ((0, 1), "0=2G,1=2G", (), [(2, True, True), (2, True, True)]),
        ((0, 1), "0=2G", (6, 4), [(2, True, False), (4, True, False)]),
        ((0,), "0=2G", (), [(2, True, True)]),
        ((1,), "0=2G", (), [(None, False, None)]),
        ((1,), "1=3G", (), [(3, True, False)]),
        # If it has hidden the other GPU, its own limits name a device that it does not see.
        ((0,), "0=2G,1=2G", (), [(2, True, False)]),
    ]:
        with subtests.test(on=on, own=own, defaults=defaults):
            found = clients_on(on, {PINNED_MEMORY_LIMIT: own}, defaults=defaults)
            assert [
                (limit and limit // GIB, each.memory_limit_known, each.memory_limit_certain)
                for each in found
                for limit in (each.memory_limit_bytes,)
            ] == expected


def test_a_client_that_holds_more_than_its_own_limit_has_changed_the_order_of_its_gpus() -> None:
    variables = {PINNED_MEMORY_LIMIT: "0=2G"}
    for mebibytes, limit in [(2600, 2 * GIB), (3000, None)]:
        readings = (gpu_reading({CLIENT: mebibytes}, gpu=uuid, index=index) for index, uuid in enumerate(UUIDS[:2]))
        sharing = gpu_sharing(reduced(*readings, start=node_of([variables], on=(0, 1))).node)[UUIDS[0]]
        assert [each.memory_limit_bytes for each in sharing.clients] == [limit]
        assert not sharing.over_limit


def test_the_sum_of_memory_limits_is_unknown_if_a_process_may_have_set_a_smaller_one() -> None:
    own = {PINNED_MEMORY_LIMIT: "0=1G"}
    for environments, committed, at_most in [([own, own], 2 * GIB, 2 * GIB), ([own, {}], None, 4 * GIB)]:
        present = node_of(environments, on=(0,), gpus=1, defaults=(3,))
        sharing = gpu_sharing(present)[UUIDS[0]]
        total = sharing.memory_total_bytes or 0
        assert sharing.memory_committed_ratio == (committed and committed / total)
        assert sharing.memory_at_most == at_most / total


def test_no_limit_on_two_h200_was_other_than_shown(subtests: pytest.Subtests) -> None:
    """Measured by `lab/limits`, driver 580.159.04: number of a GPU, SMs that CUDA reports, and limit in GiB.

    In the phase `defaults`, the daemon has limits of 6 and 4 GiB and of 66 %, in `reversed` only those of memory.
    """
    trials = json.loads(Path(__file__).with_name("limits_of_two_h200.json").read_text(encoding="utf-8"))
    for trial in trials:
        with subtests.test(**{key: str(value) for key, value in trial.items()}):
            phase, measured = trial["phase"], trial["gpus"]
            found = clients_on(
                [gpu for gpu, _, _ in measured],
                trial["own"],
                defaults=() if phase == "none" else (6, 4),
                percentage=66.0 if phase == "defaults" else 100.0,
            )
            for client, (_, sms, limit) in zip(found, measured, strict=True):
                at_most_sms, at_most = client.usable_sms or 0, (client.memory_limit_bytes or sys.maxsize) / GIB
                is_uncertain = trial["inside"] and not client.active_thread_certain
                assert at_most_sms == sms or (is_uncertain and at_most_sms > sms)
                exact = at_most == (limit or sys.maxsize / GIB)
                assert exact or (VISIBLE_DEVICES not in trial["own"] and not client.memory_limit_certain)
                assert at_most >= (limit or sys.maxsize / GIB)


# What the status shows.


def test_the_status_shows_sms_and_upper_bounds() -> None:
    own = {ACTIVE_THREAD_PERCENTAGE: "10", PINNED_MEMORY_LIMIT: "0=1G"}
    present = node_of([own, {}], on=(0,), gpus=1, percentage=50.0, defaults=(3,))
    certain, bound = status_json(present)["gpus"][0]["processes"][:2]
    keys = ("usable_sms", "active_thread_certain", "memory_limit_bytes", "memory_limit_certain")
    assert [certain[key] for key in keys] == [12, True, GIB, True]
    assert [bound[key] for key in keys] == [66, False, 3 * GIB, False]
    sharing = status_json(present)["gpus"][0]["sharing"]
    assert (sharing["sms"], sharing["threads_committed_ratio"], sharing["memory_committed_ratio"]) == (132, None, None)
    assert sharing["reserved"] == ["at most 78 of its 132 SMs", "at most 3 % of its memory"]
    table = status_table(split(present, {CLIENT: flight(0.2), CLIENT + 1: flight(0.1)}, gpu=UUIDS[0]))
    assert "   12 SMs" in table
    assert " ≤ 66 SMs" in table


def test_the_status_has_each_value_of_a_client_and_a_gpu_of_which_all_is_known() -> None:
    """It takes them by their names. A name that no value has would be null."""
    present = node_of([{ACTIVE_THREAD_PERCENTAGE: "10", PINNED_MEMORY_LIMIT: "0=1G"}] * 2, on=(0,), gpus=1)
    gpu = document_of(contended(present, CLIENT, CLIENT + 1, gpu=UUIDS[0])).gpus[0]
    client, sharing = gpu.processes[0], gpu.sharing
    assert client.slowdown is not None
    assert sharing is not None
    parts = [client, client.slowdown, sharing, sharing.headroom]
    unknown = [[each.name for each in fields(part) if getattr(part, each.name) is None] for part in parts]
    assert unknown == [["pod", "held_by"], [], [], []]


def test_a_value_has_one_name_in_the_model_and_in_the_status() -> None:
    texts, of_process = {"text"}, {each.name for each in fields(ProcessStatus)} | {"role"}
    measured = {"sm_ratio", "sm_error_ratio", "method", "dram_bandwidth_ratio", "dram_bandwidth_error_ratio"}
    for part, kinds, others in [
        (SharingStatus, (GpuSharing,), set()),
        (SlowdownStatus, (Slowdown,), texts),
        (GpuProcess, (ClientUsage, Client), of_process | measured),
    ]:
        known = {each.name for kind in kinds for each in fields(kind)}
        assert {each.name for each in fields(part)} <= known | others


# What doctor reports.


def warnings(check: Check, gpu: int, environment: Mapping[str, str], **changes: Any) -> list[str]:
    """Return the details of the findings about a client on one of two GPUs."""
    present = node_of([environment], **({"on": (gpu,)} | changes))
    process_facts = ProcessFacts(at=0.0, pid=CLIENT, start_ticks=1, started=0.0, environment=environment)
    return [each.details for each in check.find(healthy(node=present, daemons=(), processes={CLIENT: process_facts}))]


def test_doctor_warns_of_limits_that_limit_nothing_and_of_no_others(subtests: pytest.Subtests) -> None:
    assert memory_limit_without_effect.definition.severity is Severity.WARNING
    cases: list[tuple[int, dict[str, str], dict[str, Any], bool]] = [
        (1, {VISIBLE_DEVICES: "1", PINNED_MEMORY_LIMIT: "0=2G"}, {}, False),
        (1, {VISIBLE_DEVICES: "1", PINNED_MEMORY_LIMIT: "1=2G"}, {}, True),
        (1, {VISIBLE_DEVICES: "1", PINNED_MEMORY_LIMIT: "1=2G"}, {"defaults": (6, 3)}, True),
        (1, {VISIBLE_DEVICES: "1", PINNED_MEMORY_LIMIT: "0=2G,1=2G"}, {"defaults": (6, 3)}, True),
        (1, {VISIBLE_DEVICES: "1", PINNED_MEMORY_LIMIT: f"{UUIDS[1]}=2G"}, {}, False),
        (1, {VISIBLE_DEVICES: "1", PINNED_MEMORY_LIMIT: f"{UUIDS[0]}=2G"}, {}, True),
        (1, {VISIBLE_DEVICES: UUIDS[1], PINNED_MEMORY_LIMIT: "1=2G"}, {}, True),
        (1, {PINNED_MEMORY_LIMIT: "1=2G"}, {}, False),
        (1, {PINNED_MEMORY_LIMIT: "2=2G"}, {}, True),
        (1, {PINNED_MEMORY_LIMIT: "1=2G"}, {"cgroup": CONTAINER}, False),
        (1, {VISIBLE_DEVICES: "0", PINNED_MEMORY_LIMIT: "1=2G"}, {"cgroup": JOB}, False),
        # It has changed the variable inside the process.
        (1, {VISIBLE_DEVICES: "0", PINNED_MEMORY_LIMIT: "1=2G"}, {}, False),
        (3, {VISIBLE_DEVICES: "3,2", PINNED_MEMORY_LIMIT: "0=2G,1=2G"}, {"gpus": 4, "on": (2, 3)}, False),
        (3, {VISIBLE_DEVICES: "3,2", PINNED_MEMORY_LIMIT: "2=2G"}, {"gpus": 4, "on": (2, 3)}, True),
    ]
    for gpu, environment, changes, warns in cases:
        with subtests.test(gpu=gpu, environment=environment, changes=changes):
            found = warnings(memory_limit_without_effect, gpu, environment, **changes)
            assert bool(found) is warns
            assert all("was started with" in each for each in found)


def test_doctor_does_not_contradict_a_client_that_has_a_context() -> None:
    """It may have set the variable inside the process."""
    assert warnings(visible_devices_wrong, 1, {VISIBLE_DEVICES: "7"}) == []
