"""Sharing of a GPU: limits, use, committed limits, idle clients and contention."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.model.node import Node
from exporter.model.observation import GpuReading, Observation
from exporter.model.settings import (
    ACTIVE_THREAD_PERCENTAGE,
    PER_CONTEXT_PARTITIONING,
    PINNED_MEMORY_LIMIT,
    VISIBLE_DEVICES,
    Limits,
)
from exporter.model.usage import Account, Method, Share, SharedAccount
from exporter.reducer import reduce_all
from exporter.usage.accounting import LONGEST_GAP_SECONDS
from exporter.usage.capacity import Bound, ClientUsage, GpuSharing, Headroom, gpu_sharing
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
    exited,
    failure,
    flight,
    full,
    gpu_reading,
    limited,
    process,
    reduced,
    reply,
    server_log,
    split,
    three_clients,
)

TRAIN, VLLM, EVAL, BYPASSING = 600, 601, 602, 801
POD = "6f9a2c1e-1b5d-4c57-9b0e-3d0f5a7c2b11"


def of(present: Node, gpu: str = GPU) -> GpuSharing:
    return gpu_sharing(present)[gpu]


def pids(some: object) -> list[int]:
    return [each.client.pid for each in some]  # type: ignore[attr-defined]


def test_shows_limits_of_the_server_and_use_of_the_client() -> None:
    """The second GPU is device 1 of a client, and 0 of the daemon. The first has no limit."""
    train, vllm = of(split(limited(), {TRAIN: flight(0.2)})).clients
    assert (train.threads, train.memory_limit, train.memory) == (0.5, None, 1540 << 20)
    assert (train.share, vllm.share) == (flight(0.2), None)
    assert of(limited(), OTHER_GPU).clients[0].memory_limit == 2 << 30


def test_the_clients_together_have_all_methods() -> None:
    shares = {TRAIN: flight(0.2, 0.03), VLLM: Share(method=Method.MEASURED, sm=0.1, error=0.04)}
    found = of(split(three_clients(), shares))
    assert found.methods == [Method.MEASURED, Method.FLIGHT]


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
        assert (of(later).clients[0].slowdown is not None, of(later).gain is not None) == (known, known)


def test_a_memory_limit_of_a_pod_is_for_the_only_gpu_that_it_has() -> None:
    """GKE sets `0=SIZE`, whatever the number of the GPU is for the daemon."""
    pod = f"0::/kubepods/burstable/pod{POD}/{'1f' * 32}\n"
    variables = {ACTIVE_THREAD_PERCENTAGE: "25", PINNED_MEMORY_LIMIT: "0=1024M"}
    reading = process(VLLM, cgroup=pod, environment=variables)
    _, vllm = of(reduced(reading, start=limited()).node).clients
    assert (vllm.threads, vllm.memory_limit, vllm.memory_limit_known) == (0.25, 1 << 30, True)


def test_a_container_with_some_of_several_gpus_has_its_own_ordinals(subtests: pytest.Subtests) -> None:
    for cgroup, (device, known) in product(
        [f"/system.slice/docker-{'1f' * 32}.scope", f"/kubepods/pod{POD}", "/system.slice/slurmstepd.scope/job_7"],
        [("0", False), ("1", False), (GPU, True)],
    ):
        with subtests.test(cgroup=cgroup, device=device, known=known):
            limits = {PINNED_MEMORY_LIMIT: f"{device}=1024M" if known else f"{device}=1024M,2=1024M"}
            reading = process(VLLM, cgroup=f"0::{cgroup}\n", environment=limits)
            _, vllm = of(reduced(reading, start=limited()).node).clients
            assert (vllm.memory_limit_known, vllm.memory_limit) == (known, 1 << 30 if known else None)


def test_finds_clients_with_more_memory_than_their_limit() -> None:
    """The limit was set after they had allocated it. A context does not count."""
    within, over = (
        of(reduced(process(VLLM, environment={PINNED_MEMORY_LIMIT: f"{GPU}={limit}M"}), start=limited()).node)
        for limit in (2000, 1900)
    )
    assert (pids(within.over_limit), pids(over.over_limit)) == ([], [VLLM])


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
            assert environment(limited(), variables).threads == threads


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
            assert (found.memory_limit_known, found.memory_limit) == (known, limit)


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

    before, after = of(present).headroom.by_bound, of(unified).headroom

    assert {*before} - {*after.by_bound} == {Bound.MEMORY}
    assert after.fits is None


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
