"""The utilization of the demo's GPUs agrees with the launches of its processes."""

from collections.abc import Sequence

import pytest

from exporter.demo.gpus import GPUS, SMS, TRAINERS, SimulatedProcess, let_work, probe_readings
from exporter.model.launches import WorkReading
from exporter.model.observation import Observation
from exporter.model.sharing import GpuUse
from tests.builders import AT

FIRST, SECOND, IDLE, *_ = GPUS
PROCESSES = [
    SimulatedProcess(40_001 + number, TRAINERS[0], gpus, 1, AT)
    for number, gpus in enumerate(((FIRST,), (SECOND,), (FIRST, SECOND)))
]


def area(seen: Sequence[Observation]) -> int:
    return sum(each.area for reading in seen if isinstance(reading, WorkReading) for each in reading.processes)


def test_utilization_of_each_gpu_agrees_with_the_work_of_its_processes() -> None:
    let_work(AT, PROCESSES)
    before, after = (tuple(probe_readings(at, GPUS, PROCESSES)) for at in (AT, AT + 1))
    busy = {each.gpu: each.sm_utilization for each in after if isinstance(each, GpuUse)}
    assert sum(busy.values()) * SMS * 1e9 == pytest.approx(area(after) - area(before))
    assert busy[FIRST] > 0
    assert busy[IDLE] == 0


def test_a_process_that_has_ended_is_absent() -> None:
    tuple(probe_readings(AT, GPUS, PROCESSES))
    last, *_ = probe_readings(AT + 1, GPUS, PROCESSES[:1])
    assert isinstance(last, WorkReading)
    assert (last.watched, [each.pid for each in last.processes]) == ((40_001,), [40_001])
