"""What the demo's GPUs do is what its processes launch."""

from collections.abc import Sequence

import pytest

from exporter.demo.gpus import GPUS, SimulatedProbes
from exporter.demo.workloads import SMS, TRAINERS, SimulatedProcess
from exporter.model.observation import Observation
from exporter.model.work import GpuUse, WorkReading
from tests.builders import AT

FIRST, SECOND, IDLE, *_ = GPUS
THERE = [
    SimulatedProcess(40_001 + number, TRAINERS[0], gpus, 1, AT)
    for number, gpus in enumerate(((FIRST,), (SECOND,), (FIRST, SECOND)))
]


def area(seen: Sequence[Observation]) -> int:
    return sum(each.area for reading in seen if isinstance(reading, WorkReading) for each in reading.processes)


def test_second_by_second_whoever_is_on_one_gpu_or_on_two() -> None:
    doors = SimulatedProbes()
    before, after = (tuple(doors.readings(at, GPUS, THERE)) for at in (AT, AT + 1))
    busy = {each.gpu: each.sm_utilization for each in after if isinstance(each, GpuUse)}
    assert sum(busy.values()) * SMS * 1e9 == pytest.approx(area(after) - area(before))
    assert busy[FIRST] > 0
    assert busy[IDLE] == 0


def test_who_has_left_is_seen_no_more() -> None:
    doors = SimulatedProbes()
    tuple(doors.readings(AT, GPUS, THERE))
    last, *_ = doors.readings(AT + 1, GPUS, THERE[:1])
    assert isinstance(last, WorkReading)
    assert (last.watched, [each.pid for each in last.processes]) == ((40_001,), [40_001])
