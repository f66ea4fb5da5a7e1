"""Values of NVML that cannot be true become neither metrics nor usage, and harm no later value."""

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from exporter.model.gpu import Gpu
from exporter.model.launches import GpuUse
from exporter.model.node import Node
from exporter.model.observation import GpuProcess, GpuReading
from exporter.reducer import reduce
from exporter.state.gpus import ENERGY, LIMITS
from tests.builders import AT, GPU

WATTS = 700
TOTAL = 1 << 37


def joules_of(*energies: int | None) -> list[int]:
    """Return the counted millijoules after each of these readings, ten seconds apart."""
    node, counted = Node(), []
    for number, energy in enumerate(energies):
        node, _ = reduce(node, GpuReading(at=AT + 10 * number, gpu=GPU, energy_millijoules=energy))
        counter = node.gpus[GPU].energy
        counted.append(0 if counter is None else counter.total)
    return counted


def used(readings: int, start: int = 5 * 10**12) -> list[int]:
    """Return an energy counter at so many readings of a GPU that takes 700 W."""
    return [start + number * 10 * WATTS * 1000 for number in range(readings)]


def added(counted: list[int]) -> list[int]:
    return [after - before for before, after in pairwise(counted)]


STEP = 10 * WATTS * 1000


def test_one_impossible_energy_adds_nothing() -> None:
    wrong: list[str] = []
    for bad in (2**64 - 1, 2**63, 5 * 10**12 + 10**10, -1, 0, 1, 10**9):
        energies: list[int] = [*used(3), bad, *used(10)[4:]]
        counted = added(joules_of(*energies))
        if max(counted) > 2 * STEP + 10**9 or min(counted) < 0 or counted[-1] != STEP:
            wrong.append(f"{bad}: {counted}")
    assert wrong == []


def test_a_wrong_first_energy_does_not_disable_the_counter() -> None:
    for first in (0, 10**15, 2**64 - 1):
        assert added(joules_of(first, *used(5)))[-2:] == [STEP, STEP], first


def test_a_reloaded_driver_counts_from_zero() -> None:
    assert added(joules_of(*used(3), 1_000_000, 1_000_000 + STEP)) == [STEP, STEP, 1_000_000, STEP]


def test_counts_and_omits_each_impossible_value() -> None:
    bad: dict[str, Iterable[Any]] = {
        **{name: (most * 1.01 + 1, -1) for name, most in LIMITS.items() if name != ENERGY},
        "sm_utilization": (2.2e8, float("nan"), float("inf"), -0.1),
        "power_milliwatts": (4_300_000_000, -1),
        "memory_used_bytes": (TOTAL + 1, -1),
    }
    for name, values in bad.items():
        for value in values:
            fields = {"memory_total_bytes": TOTAL, "gpu_percent": 50, name: value}
            gpu = after(GpuReading(at=AT, gpu=GPU, **fields))
            assert getattr(gpu.reading, name) is None, (name, value)
            assert gpu.discarded == 1, (name, value)
            assert gpu.reading.problem is None
            others = {"memory_total_bytes", "gpu_percent"} - {name}
            assert all(getattr(gpu.reading, each) is not None for each in others), (name, value)


def test_keeps_the_largest_possible_values() -> None:
    fields: dict[str, Any] = {name: type(most)(most) for name, most in LIMITS.items()}
    gpu = after(GpuReading(at=AT, gpu=GPU, memory_used_bytes=int(LIMITS["memory_total_bytes"]), **fields))
    assert gpu.discarded == 0
    assert all(getattr(gpu.reading, name) == value for name, value in fields.items())


def test_a_process_with_more_memory_than_the_gpu_has_an_unknown_amount() -> None:
    processes = (GpuProcess(pid=1, used_bytes=TOTAL), GpuProcess(pid=2, used_bytes=2**64 - 1))
    gpu = after(GpuReading(at=AT, gpu=GPU, memory_total_bytes=TOTAL, mps_processes=processes))
    assert gpu.reading.mps_processes == (processes[0], GpuProcess(pid=2, used_bytes=None))


def test_an_impossible_use_is_no_window_of_attribution() -> None:
    node, _ = reduce(Node(), GpuReading(at=AT, gpu=GPU))
    for value in (2.2e8, float("nan"), -1.0):
        assert reduce(node, GpuUse(at=AT + 1, gpu=GPU, seconds=1.0, sm_utilization=value)) == (node, ())


def after(reading: GpuReading) -> Gpu:
    node, _ = reduce(Node(), reading)
    return node.gpus[GPU]
