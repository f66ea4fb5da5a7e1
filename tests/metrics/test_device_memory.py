"""Families of the memory limits of cgroups."""

from dataclasses import replace

import pytest

from exporter.model.device_memory import CgroupLimit, DeviceMemory, DeviceMemoryReading
from exporter.model.node import Node
from exporter.state.device_memory import DEVICE_MEMORY, cgroups_wanted
from tests.builders import (
    AT,
    GPU,
    GPU_BYTES,
    HANGS,
    OTHER_GPU,
    SENSORS,
    SERVER_BYTES,
    at_work,
    daemon_process,
    gpu_reading,
    limited,
    look,
    looks,
    process,
    reduced,
)
from tests.metrics.test_families import families, samples, value

ADDRESS = "0000:00:06"
GIB = 1 << 30
LIMIT, USED = "cuda_mps_client_cgroup_memory_limit_bytes", "cuda_mps_client_cgroup_memory_used_bytes"
COUNTS = "cuda_mps_client_memory_limit_bytes"
WORKLOAD_LIMIT = "cuda_mps_workload_cgroup_memory_limit_bytes"
FIT = "cuda_mps_gpu_clients_fit"


def memory_of(cgroup: str, limit: int | None = None, used: int | None = None) -> DeviceMemory:
    """Return the memory of a cgroup that has this limit itself, or no limit."""
    own = () if limit is None else (CgroupLimit(cgroup=cgroup, limit=limit, used=used),)
    return DeviceMemory(limits=own, used=used)


def sharing(*cgroups: str, **memory: int) -> Node:
    """Clients in these cgroups, each of which has this memory."""
    pids = {600 + number: path for number, path in enumerate(cgroups)}
    reading = DeviceMemoryReading(at=AT, cgroups={path: {ADDRESS: memory_of(path, **memory)} for path in cgroups})
    return reduced(
        *at_work(*pids),
        daemon_process(),
        *(process(pid, cgroup=f"0::{path}\n") for pid, path in pids.items()),
        reading,
        gpu_reading(dict.fromkeys(pids, 1024), **SENSORS),
        *looks(),
    ).node


def test_shows_the_limit_of_the_cgroup_for_each_client() -> None:
    node = sharing("/pod", "/pod", limit=8 * GIB, used=3 * GIB)
    assert cgroups_wanted(node) == {"/pod"}
    assert [each.value for each in samples(node, LIMIT, gpu=GPU)] == [8 * GIB] * 2
    assert [each.value for each in samples(node, USED, gpu=GPU)] == [3 * GIB] * 2
    assert value(node, WORKLOAD_LIMIT, gpu=GPU) == 8 * GIB


def test_a_workload_in_several_cgroups_has_no_limit() -> None:
    assert not samples(sharing("/one", "/two", limit=GIB), WORKLOAD_LIMIT)


def test_unknown_cgroups_have_no_series() -> None:
    node = sharing("/pod", limit=GIB)
    present = replace(node, device_memory=None)
    assert not {LIMIT, USED, WORKLOAD_LIMIT} & families(present).keys()


def test_a_failed_collection_ends_the_series() -> None:
    failed = reduced(look(DEVICE_MEMORY, problem=HANGS), start=sharing("/pod", limit=GIB)).node
    assert LIMIT not in families(failed)


def test_without_a_limit_only_the_use_is_there() -> None:
    node = sharing("/pod", used=GIB)
    assert value(node, USED, gpu=GPU) == GIB
    assert LIMIT not in families(node)


def fits(*cgroups: str, **limits: int) -> float:
    """Return how many clients fit beside three of 1 GiB each. `limits` are those of the cgroups, by name."""
    pids = (600, 601, 602)

    def memory(path: str) -> DeviceMemory:
        found, at = [], ""
        for name in path.split("/")[1:]:
            at = f"{at}/{name}"
            used = sum(f"{other}/".startswith(f"{at}/") for other in cgroups) * GIB
            found += [CgroupLimit(cgroup=at, limit=limits[name], used=used)] if name in limits else []
        return DeviceMemory(limits=tuple(found))

    node = reduced(
        DeviceMemoryReading(at=AT, cgroups={path: {ADDRESS: memory(path)} for path in cgroups}),
        *(process(pid, cgroup=f"0::{path}\n") for pid, path in zip(pids, cgroups, strict=True)),
        gpu_reading(dict.fromkeys(pids, 1024), gpu=GPU, **SENSORS),
        start=limited(),
    ).node
    return value(node, FIT, gpu=GPU, bound="memory")


FREE = GPU_BYTES - SERVER_BYTES - 3 * GIB


def test_a_limit_of_a_cgroup_counts_once_for_all_its_clients() -> None:
    assert fits("/pod", "/pod", "/pod") == FREE // GIB
    assert fits("/pod", "/pod", "/pod", pod=30 * GIB) == (FREE - 27 * GIB) // (10 * GIB)


def test_limits_of_several_cgroups_add_up() -> None:
    assert fits("/a", "/b", "/c", a=30 * GIB, b=30 * GIB, c=30 * GIB) == (FREE - 87 * GIB) // (30 * GIB)


def test_a_limit_of_an_ancestor_counts_once_for_all_cgroups_below() -> None:
    assert fits("/pod/a", "/pod/b", "/pod/c", pod=30 * GIB) == (FREE - 27 * GIB) // (10 * GIB)


def test_limits_of_cgroups_add_up_to_that_of_their_ancestor_at_most() -> None:
    larger = fits("/pod/a", "/pod/b", "/pod/c", pod=200 * GIB, a=10 * GIB, b=10 * GIB, c=10 * GIB)
    assert larger == (FREE - 27 * GIB) // (10 * GIB)
    smaller = fits("/pod/a", "/pod/b", "/pod/c", pod=20 * GIB, a=10 * GIB, b=10 * GIB, c=10 * GIB)
    assert smaller == (FREE - 17 * GIB) // (20 * GIB // 3)


def test_each_client_has_its_part_of_the_limits_of_all_ancestors() -> None:
    assert fits("/pod/a", "/pod", "/pod", pod=30 * GIB, a=20 * GIB) == (FREE - 27 * GIB) // (10 * GIB)


def test_the_smallest_limit_counts() -> None:
    node = sharing_with_limits(limit=GIB)
    assert value(node, COUNTS, gpu=OTHER_GPU) == GIB
    assert value(sharing_with_limits(), COUNTS, gpu=OTHER_GPU) == 2 * GIB


def sharing_with_limits(**memory: int) -> Node:
    """A client with a pinned memory limit of 2 GiB, in a cgroup."""
    return reduced(
        DeviceMemoryReading(at=AT, cgroups={"/pod": {ADDRESS: memory_of("/pod", **memory)}}),
        process(600, cgroup="0::/pod\n"),
        gpu_reading({600: 1024}, gpu=OTHER_GPU, **SENSORS),
        start=limited(),
    ).node


def with_own_limit(*, earlier: bool = False, **capacity: int) -> Node:
    """Return a node after NVML was read, `earlier` than the cgroups or after them."""
    own = {ADDRESS: memory_of("/exporter", 8 * GIB)}
    seen = (DeviceMemoryReading(at=AT, own=own, capacity=capacity), gpu_reading(**SENSORS))
    return reduced(*(reversed(seen) if earlier else seen), *looks()).node


def test_a_soft_limit_of_the_exporter_also_changes_what_nvml_returns() -> None:
    own = {ADDRESS: DeviceMemory(soft_limit=GIB)}
    node = reduced(DeviceMemoryReading(at=AT, own=own), gpu_reading(**SENSORS), *looks()).node
    assert node.gpus[GPU].reading.memory_total_bytes is None


@pytest.mark.parametrize("earlier", [False, True])
def test_the_limit_of_the_exporter_is_not_shown_as_the_size_of_the_gpu(earlier: bool) -> None:
    reading = with_own_limit(earlier=earlier).gpus[GPU].reading
    assert (reading.memory_total_bytes, reading.memory_used_bytes) == (None, None)
    assert "cuda_mps_gpu_memory_total_bytes" not in families(with_own_limit(earlier=earlier))


def test_the_root_of_all_cgroups_has_the_size_of_the_gpu() -> None:
    assert with_own_limit(**{ADDRESS: 80 * GIB}).gpus[GPU].reading.memory_total_bytes == 80 * GIB
