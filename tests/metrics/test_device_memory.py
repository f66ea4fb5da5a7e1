"""Families of the memory limits of cgroups."""

from dataclasses import replace

from exporter.model.device_memory import DeviceMemory, DeviceMemoryReading
from exporter.model.node import Node
from exporter.state.device_memory import DEVICE_MEMORY, cgroups_wanted
from tests.builders import (
    AT,
    GPU,
    GPU_BYTES,
    HANGS,
    SENSORS,
    at_work,
    daemon_process,
    gpu_reading,
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


def sharing(*cgroups: str, **memory: int) -> Node:
    """Clients in these cgroups, each of which has this memory."""
    pids = {600 + number: path for number, path in enumerate(cgroups)}
    reading = DeviceMemoryReading(at=AT, cgroups={path: {ADDRESS: DeviceMemory(**memory)} for path in cgroups})
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


def fits(node: Node) -> float:
    return value(node, FIT, gpu=GPU, bound="memory")


def test_a_limit_of_a_cgroup_reduces_the_headroom_once() -> None:
    free = fits(sharing("/pod", "/pod"))
    shared = fits(sharing("/pod", "/pod", limit=40 * GIB, used=2 * GIB))
    apart = fits(sharing("/one", "/two", limit=40 * GIB, used=GIB))
    assert free > shared > apart > 0
    assert shared == (GPU_BYTES - sharing_used() - 38 * GIB) // (20 * GIB)


def sharing_used() -> int:
    reading = sharing("/pod", "/pod").gpus[GPU].reading
    assert reading.memory_used_bytes is not None
    return reading.memory_used_bytes


def with_own_limit(**capacity: int) -> Node:
    own = {ADDRESS: DeviceMemory(limit=8 * GIB)}
    return reduced(DeviceMemoryReading(at=AT, own=own, capacity=capacity), gpu_reading(**SENSORS), *looks()).node


def test_the_limit_of_the_exporter_is_not_shown_as_the_size_of_the_gpu() -> None:
    reading = with_own_limit().gpus[GPU].reading
    assert (reading.memory_total_bytes, reading.memory_used_bytes) == (None, None)
    assert "cuda_mps_gpu_memory_total_bytes" not in families(with_own_limit())


def test_the_root_of_all_cgroups_has_the_size_of_the_gpu() -> None:
    assert with_own_limit(**{ADDRESS: 80 * GIB}).gpus[GPU].reading.memory_total_bytes == 80 * GIB
