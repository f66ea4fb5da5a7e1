"""What clients may use against what they do, what was promised twice, who idles, and who is in whose way."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from exporter.model.node import Node
from exporter.model.settings import (
    ACTIVE_THREAD_PERCENTAGE,
    PER_CONTEXT_PARTITIONING,
    PINNED_MEMORY_LIMIT,
    VISIBLE_DEVICES,
)
from exporter.model.usage import Method, Share
from exporter.usage.capacity import ClientUsage, GpuSharing, gpu_sharing
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


def of(present: Node, gpu: str = GPU) -> GpuSharing:
    return gpu_sharing(present)[gpu]


def pids(some: object) -> list[int]:
    return [each.client.pid for each in some]  # type: ignore[attr-defined]


def test_each_client_is_told_of_on_each_of_its_gpus() -> None:
    found = gpu_sharing(three_clients())
    assert {gpu: pids(each.clients) for gpu, each in found.items()} == {
        GPU: [TRAIN, VLLM],
        OTHER_GPU: [TRAIN, EVAL],
    }


def test_the_limits_of_its_server_and_what_it_has() -> None:
    """Device 0 is the second GPU there; the first has no limit."""
    train, vllm = of(split(limited(), {TRAIN: flight(0.2)})).clients
    assert (train.threads, train.memory_limit, train.memory) == (0.5, None, 1540 << 20)
    assert (train.share, vllm.share) == (flight(0.2), None)
    assert of(limited(), OTHER_GPU).clients[0].memory_limit == 2 << 30


def test_what_is_not_known_is_not_there() -> None:
    train, _ = of(three_clients()).clients
    assert (train.threads, train.memory_limit, train.share) == (None, None, None)


def test_the_sum_has_the_errors_of_its_parts_and_names_its_methods() -> None:
    shares = {TRAIN: flight(0.2, 0.03), VLLM: Share(method=Method.MEASURED, sm=0.1, error=0.04)}
    found = of(split(three_clients(), shares))
    assert found.sm_used == pytest.approx(0.3)
    assert found.sm_error == pytest.approx(0.05)
    assert found.methods == [Method.MEASURED, Method.FLIGHT]


def test_who_runs_beside_mps_is_told_apart() -> None:
    found = of(split(three_clients(), {EVAL: flight(0.2), STRANGER: flight(0.5)}, gpu=OTHER_GPU), OTHER_GPU)
    assert found.bypassing == {STRANGER: flight(0.5)}
    assert found.sm_used == 0.2


def test_threads_and_memory_are_added_up() -> None:
    found = of(limited(), OTHER_GPU)
    assert found.threads_committed == 1.0
    assert found.memory_committed == (4 << 30) / GPU_BYTES


def test_where_a_client_has_no_limit_there_is_no_sum() -> None:
    """Nor where it is not known."""
    assert of(limited()).memory_committed is None
    assert of(three_clients()).threads_committed is None


def test_more_than_all_may_be_promised() -> None:
    present = limited()
    daemon = present.daemons[DAEMON]
    (server,) = daemon.servers.values()
    servers = {server.pid: replace(server, active_thread_percentage=80.0, pinned_memory_limits={0: GPU_BYTES})}
    found = of(replace(present, daemons={DAEMON: replace(daemon, servers=servers)}), OTHER_GPU)
    assert (found.threads_committed, found.memory_committed) == (1.6, 2.0)


def test_memory_held_and_sm_time_idle() -> None:
    assert pids(of(split(three_clients(), {TRAIN: flight(0.004, 0.001), VLLM: flight(0.3)})).idle) == [TRAIN]
    assert pids(of(split(three_clients(), {TRAIN: flight(0.004, 0.02)})).idle) == []


def test_a_client_that_uses_what_it_may() -> None:
    """An unlimited one is never held back by its limit."""
    assert pids(of(split(limited(), {TRAIN: flight(0.48), VLLM: flight(0.4)})).at_limit) == [TRAIN]
    assert pids(of(split(three_clients(), {TRAIN: flight(0.99)})).at_limit) == []


def test_equal_shares_say_nothing_of_one_client() -> None:
    shares = {pid: Share(method=Method.EQUAL, sm=0.0) for pid in (TRAIN, VLLM)}
    found = of(split(limited(), shares))
    assert (pids(found.idle), pids(found.at_limit)) == ([], [])


def test_there_is_enough() -> None:
    assert of(split(three_clients(), {TRAIN: flight(0.5)}, dram=0.79)).contention is None
    assert of(split(three_clients(), {TRAIN: flight(0.5)}, dram=None)).contention is None


def test_the_largest_user_is_named() -> None:
    found = of(split(three_clients(), {TRAIN: flight(0.5), VLLM: flight(0.1)}, dram=0.9)).contention
    assert found is not None
    assert (found.pid, found.share) == (TRAIN, flight(0.5))


@pytest.mark.parametrize(
    ("shares", "unattributed"),
    [
        ({}, 0.6),
        ({TRAIN: flight(0.30, 0.02), VLLM: flight(0.27, 0.02)}, 0.0),
        ({TRAIN: flight(0.3), VLLM: flight(0.1)}, 0.25),
        ({TRAIN: Share(method=Method.EQUAL, sm=0.3), VLLM: Share(method=Method.EQUAL, sm=0.1)}, 0.0),
    ],
    ids=["nothing is known", "within the errors", "nobody's may be somebody's", "a convention"],
)
def test_nobody_is_named_where_nobody_stands_out(shares: dict[int, Share], unattributed: float) -> None:
    found = of(split(three_clients(), shares, unattributed=unattributed, dram=0.9)).contention
    assert found is not None
    assert found.pid is None


def test_it_is_told_without_a_split_too() -> None:
    present = three_clients()
    gpu = present.gpus[GPU]
    read = replace(present, gpus={**present.gpus, GPU: replace(gpu, reading=replace(gpu.reading, dram_bandwidth=0.9))})
    found = of(read).contention
    assert found is not None
    assert (found.dram, found.pid) == (0.9, None)


def test_one_alone_starves_nobody() -> None:
    present = three_clients()
    daemon = present.daemons[DAEMON]
    alone = replace(daemon, clients={CLIENT: daemon.clients[CLIENT]})
    present = replace(present, daemons={DAEMON: alone})
    assert of(split(present, {TRAIN: flight(0.5)}, dram=0.9)).contention is None


def test_the_split_of_a_moment_long_past_is_nobodys_present() -> None:
    old = split(three_clients(), {TRAIN: flight(0.5)}, dram=0.9)
    assert of(replace(old, at=AT + 3600)).shares == []


def environment(present: Node, variables: Mapping[str, str] | None) -> ClientUsage:
    """The first client on the second GPU, started with these variables; its server allows 50 % and 2 GiB."""
    return of(reduced(process(TRAIN, environment=variables), start=present).node, OTHER_GPU).clients[0]


@pytest.mark.parametrize(
    ("variables", "threads"),
    [
        ({}, 0.5),
        ({ACTIVE_THREAD_PERCENTAGE: "25"}, 0.25),
        ({ACTIVE_THREAD_PERCENTAGE: "80"}, 0.5),
        ({ACTIVE_THREAD_PERCENTAGE: "0"}, None),
        ({ACTIVE_THREAD_PERCENTAGE: "nan"}, None),
        ({ACTIVE_THREAD_PERCENTAGE: "a lot"}, None),
        ({ACTIVE_THREAD_PERCENTAGE: "25", PER_CONTEXT_PARTITIONING: "0"}, 0.25),
        ({ACTIVE_THREAD_PERCENTAGE: "25", PER_CONTEXT_PARTITIONING: "1"}, None),
        (None, None),
    ],
)
def test_a_client_may_use_the_smaller_of_its_servers_and_its_own_threads(
    variables: Mapping[str, str] | None, threads: float | None
) -> None:
    assert environment(limited(), variables).threads == threads


@pytest.mark.parametrize(
    ("variables", "known", "limit"),
    [
        ({}, True, 2 << 30),
        ({PINNED_MEMORY_LIMIT: "0=1G"}, True, 1 << 30),
        ({PINNED_MEMORY_LIMIT: " 0 = 1G, 1=512M,"}, True, 1 << 30),
        ({PINNED_MEMORY_LIMIT: f"{OTHER_GPU}=512M"}, True, 512 << 20),
        ({PINNED_MEMORY_LIMIT: "0=20G"}, True, 2 << 30),
        ({PINNED_MEMORY_LIMIT: "1=1G"}, True, 2 << 30),
        ({PINNED_MEMORY_LIMIT: "0=a lot"}, False, None),
        ({PINNED_MEMORY_LIMIT: "0=1G" + "," * 4000}, False, None),
        ({PINNED_MEMORY_LIMIT: "0=1G", VISIBLE_DEVICES: "1,0"}, False, None),
        ({VISIBLE_DEVICES: "1,0"}, True, 2 << 30),
        (None, False, None),
    ],
)
def test_a_client_may_have_the_smaller_of_its_servers_and_its_own_memory(
    variables: Mapping[str, str] | None, known: bool, limit: int | None
) -> None:
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


def test_nothing_is_committed_if_the_limits_of_one_client_are_unknown() -> None:
    found = of(reduced(process(TRAIN, environment=None), start=limited()).node, OTHER_GPU)
    assert (found.threads_committed, found.memory_committed) == (None, None)
