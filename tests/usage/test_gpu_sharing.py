"""Sharing of a GPU: limits, use, committed limits, idle clients and contention."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import product

import pytest

from exporter.model.node import Node
from exporter.model.settings import (
    ACTIVE_THREAD_PERCENTAGE,
    PER_CONTEXT_PARTITIONING,
    PINNED_MEMORY_LIMIT,
    VISIBLE_DEVICES,
)
from exporter.model.usage import Method, Share
from exporter.usage.capacity import BandwidthContention, ClientUsage, GpuSharing, gpu_sharing
from tests.builders import (
    AT,
    CLIENT,
    DAEMON,
    GPU,
    GPU_BYTES,
    OTHER_GPU,
    flight,
    limited,
    process,
    reduced,
    split,
    three_clients,
)

TRAIN, VLLM, EVAL, STRANGER = 600, 601, 602, 801
POD = "6f9a2c1e-1b5d-4c57-9b0e-3d0f5a7c2b11"


def of(present: Node, gpu: str = GPU) -> GpuSharing:
    return gpu_sharing(present)[gpu]


def pids(some: object) -> list[int]:
    return [each.client.pid for each in some]  # type: ignore[attr-defined]


def test_lists_each_client_on_each_of_its_gpus() -> None:
    found = gpu_sharing(three_clients())
    assert {gpu: pids(each.clients) for gpu, each in found.items()} == {
        GPU: [TRAIN, VLLM],
        OTHER_GPU: [TRAIN, EVAL],
    }


def test_shows_limits_of_the_server_and_use_of_the_client() -> None:
    """The daemon's device 0 is the second GPU. The first has no limit."""
    train, vllm = of(split(limited(), {TRAIN: flight(0.2)})).clients
    assert (train.threads, train.memory_limit, train.memory) == (0.5, None, 1540 << 20)
    assert (train.share, vllm.share) == (flight(0.2), None)
    assert of(limited(), OTHER_GPU).clients[0].memory_limit == 2 << 30


def test_unknown_values_are_absent() -> None:
    train, _ = of(three_clients()).clients
    assert (train.threads, train.memory_limit, train.share) == (None, None, None)


def test_the_sum_has_the_combined_error_and_all_methods() -> None:
    shares = {TRAIN: flight(0.2, 0.03), VLLM: Share(method=Method.MEASURED, sm=0.1, error=0.04)}
    found = of(split(three_clients(), shares))
    assert found.sm_used == pytest.approx(0.3)
    assert found.sm_error == pytest.approx(0.05)
    assert found.methods == [Method.MEASURED, Method.FLIGHT]


def test_bypassing_processes_are_listed_separately() -> None:
    found = of(split(three_clients(), {EVAL: flight(0.2), STRANGER: flight(0.5)}, gpu=OTHER_GPU), OTHER_GPU)
    assert found.bypassing == {STRANGER: flight(0.5)}
    assert found.sm_used == 0.2


def test_adds_up_thread_and_memory_limits() -> None:
    """The sum is absent if a client has no limit, or if its limit is unknown."""
    found = of(limited(), OTHER_GPU)
    assert (found.threads_committed, found.memory_committed) == (1.0, (4 << 30) / GPU_BYTES)
    assert of(limited()).memory_committed is None
    assert of(three_clients()).threads_committed is None
    unknown = of(reduced(process(TRAIN, environment=None), start=limited()).node, OTHER_GPU)
    assert (unknown.threads_committed, unknown.memory_committed) == (None, None)


def test_the_sum_of_limits_can_exceed_the_gpu() -> None:
    present = limited()
    daemon = present.daemons[DAEMON]
    (server,) = daemon.servers.values()
    servers = {server.pid: replace(server, active_thread_percentage=80.0, pinned_memory_limits={0: GPU_BYTES})}
    found = of(replace(present, daemons={DAEMON: replace(daemon, servers=servers)}), OTHER_GPU)
    assert (found.threads_committed, found.memory_committed) == (1.6, 2.0)


def test_finds_clients_that_hold_memory_and_are_idle() -> None:
    assert pids(of(split(three_clients(), {TRAIN: flight(0.004, 0.001), VLLM: flight(0.3)})).idle) == [TRAIN]
    assert pids(of(split(three_clients(), {TRAIN: flight(0.004, 0.02)})).idle) == []


def test_contention_for_bandwidth(subtests: pytest.Subtests) -> None:
    """A client is named only if it stands out."""
    three, most = three_clients(), {TRAIN: flight(0.5)}
    daemon = three.daemons[DAEMON]
    one = replace(three, daemons={DAEMON: replace(daemon, clients={CLIENT: daemon.clients[CLIENT]})})
    busy = replace(three.gpus[GPU], reading=replace(three.gpus[GPU].reading, dram_bandwidth=0.9))
    close = {TRAIN: flight(0.30, 0.02), VLLM: flight(0.27, 0.02)}
    unclear = {TRAIN: flight(0.3), VLLM: flight(0.1)}
    unnamed = BandwidthContention(dram=0.9)
    for case, present, contention in [
        ("bandwidth is left", split(three, most, dram=0.79), None),
        ("bandwidth is unknown", split(three, most, dram=None), None),
        ("a single client", split(one, most, dram=0.9), None),
        ("one uses most", split(three, {**most, VLLM: flight(0.1)}, dram=0.9), replace(unnamed, pid=TRAIN)),
        ("no shares", split(three, {}, unattributed=0.6, dram=0.9), unnamed),
        ("within the errors", split(three, close, dram=0.9), unnamed),
        ("large unattributed part", split(three, unclear, unattributed=0.25, dram=0.9), unnamed),
        ("no attribution", replace(three, gpus={**three.gpus, GPU: busy}), unnamed),
    ]:
        with subtests.test(case=case):
            assert of(present).contention == contention


def test_an_old_attribution_is_not_shown() -> None:
    old = split(three_clients(), {TRAIN: flight(0.5)}, dram=0.9)
    assert of(replace(old, at=AT + 3600)).shares == []


def test_a_memory_limit_of_a_pod_is_for_the_only_gpu_that_it_has() -> None:
    """GKE sets `0=SIZE`, whatever the ordinal of the GPU is for the daemon, whose device 1 this is."""
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


def test_limits_in_the_environment_of_clients_are_committed_instead_of_the_servers() -> None:
    """GKE and Amazon ECS limit clients only there. The server allows 50 %."""
    limits = {ACTIVE_THREAD_PERCENTAGE: "25", PINNED_MEMORY_LIMIT: f"{GPU}=20G"}
    found = of(reduced(*(process(pid, environment=limits) for pid in (TRAIN, VLLM)), start=limited()).node)
    assert found.threads_committed == 0.5
    assert found.memory_committed == 2 * (20 << 30) / GPU_BYTES


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
        ({}, True, 2 << 30),
        ({PINNED_MEMORY_LIMIT: "0=1G"}, True, 1 << 30),
        ({PINNED_MEMORY_LIMIT: " 0 = 1G, 1=512M,"}, True, 1 << 30),
        ({PINNED_MEMORY_LIMIT: f"{OTHER_GPU}=512M"}, True, 512 << 20),
        ({PINNED_MEMORY_LIMIT: "0=20G"}, True, 2 << 30),
        ({PINNED_MEMORY_LIMIT: "1=1G"}, True, 2 << 30),
        ({PINNED_MEMORY_LIMIT: "0=a lot"}, False, None),
        ({PINNED_MEMORY_LIMIT: "0=1G" + "," * 4000}, False, None),
        ({PINNED_MEMORY_LIMIT: "0=1G", VISIBLE_DEVICES: "1,0"}, False, None),
        ({PINNED_MEMORY_LIMIT: "0=1G,2=1G"}, False, None),
        ({PINNED_MEMORY_LIMIT: "0=1G,GPU-1f8b2f04-0000-0000-0000-000000000000=1G"}, False, None),
        ({VISIBLE_DEVICES: "1,0"}, True, 2 << 30),
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
