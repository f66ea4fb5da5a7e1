"""Readings of MIG instances from a stand-in for NVML, which follows nvml.h. No GPU with MIG was at hand."""

import time
from dataclasses import replace
from typing import Any

import pytest

from exporter.collectors.nvml.gpu import MIN_SAMPLE_SECONDS
from tests.collectors.nvml_program import Start
from tests.standin.nvml import (
    INSUFFICIENT_SIZE,
    NO_PERMISSION,
    NOT_SUPPORTED,
    Device,
    Instance,
    NvmlStandIn,
    Process,
    fails,
)

CLIENT, SERVER = 5700, 513


def instance(number: int, profile: str = "1g.18gb", compute: int = 0, **values: Any) -> Instance:
    uuid = f"MIG-055a5b27-613d-8c97-6fb4-{number:06d}{compute:06d}"
    return Instance(uuid=uuid, profile=profile, gpu_instance=number, compute_instance=compute, **values)


LAYOUTS = {
    "one 7g": (instance(0, "7g.141gb"),),
    "3g and 4g": (instance(1, "3g.71gb"), instance(2, "4g.71gb")),
    "seven 1g": tuple(instance(number) for number in range(7, 14)),
    "mixed": (instance(9, "1g.18gb+me"), instance(5, "2g.35gb"), instance(1, "3g.71gb")),
    "compute instances": (instance(3, "1c.2g.35gb", 0), instance(3, "1c.2g.35gb", 1), instance(4, "1g.18gb")),
}


def gpu(*instances: Instance, **readings: float) -> Device:
    return Device(readings={"mig": 1, "power": 100_000, **readings}, instances=instances)


def read(nvml: NvmlStandIn, nvml_program: Start, device: Device) -> list[dict[str, Any]]:
    nvml.write([device])
    found = nvml_program(nvml).collect()
    assert found["problem"] is None
    observations: list[dict[str, Any]] = found["observations"]
    return observations


@pytest.mark.parametrize("layout", LAYOUTS)
def test_reads_each_instance_of_a_layout(nvml: NvmlStandIn, nvml_program: Start, layout: str) -> None:
    parent, *found = read(nvml, nvml_program, gpu(*LAYOUTS[layout]))

    assert parent["mig_mode"] is True
    assert list(parent["instances"]) == [each["gpu"] for each in found] == [each.uuid for each in LAYOUTS[layout]]
    assert [each["mig"]["profile"] for each in found] == [each.profile for each in LAYOUTS[layout]]
    assert all(each["mig"]["parent"] == parent["gpu"] and each["mig"]["sms"] == 16 for each in found)
    # The board's values are not repeated, and the memory of a GPU instance is there once.
    assert all(each["power_milliwatts"] is None and each["mig_mode"] is False for each in found)
    with_memory = [each["mig"]["gpu_instance"] for each in found if each["memory_total_bytes"] is not None]
    assert sorted(with_memory) == sorted({each.gpu_instance for each in LAYOUTS[layout]})


def test_reads_the_processes_of_each_instance(nvml: NvmlStandIn, nvml_program: Start) -> None:
    first = instance(1, processes=(Process(CLIENT), Process(SERVER, in_mps_list=False)))
    _, with_clients, without = read(nvml, nvml_program, gpu(first, instance(2)))

    assert [each["pid"] for each in with_clients["mps_processes"]] == [CLIENT]
    assert [each["pid"] for each in with_clients["compute_processes"]] == [CLIENT, SERVER]
    assert list(without["compute_processes"]) == list(without["mps_processes"]) == []


def test_gpm_is_that_of_the_gpu_instance_unless_it_is_shared(nvml: NvmlStandIn, nvml_program: Start) -> None:
    layout = LAYOUTS["compute instances"]
    measured = (*layout[:2], replace(layout[2], readings={"sm_utilization": 62.5, "dram_bandwidth": 12.5}))
    nvml.write([gpu(*measured, sm_utilization=1.0)])
    program = nvml_program(nvml)
    program.collect()
    time.sleep(2 * MIN_SAMPLE_SECONDS)
    _, *found = program.collect()["observations"]

    assert [each["sm_utilization"] for each in found] == [None, None, 0.625]
    assert [each["gpm_supported"] for each in found] == [False, False, True]


@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION, INSUFFICIENT_SIZE])
@pytest.mark.parametrize(
    ("function", "field"),
    [
        ("nvmlDeviceGetMemoryInfo", "memory_total_bytes"),
        ("nvmlDeviceGetComputeRunningProcesses", "compute_processes"),
        ("nvmlDeviceGetMPSComputeRunningProcesses", "mps_processes"),
    ],
)
def test_a_value_with_an_error_is_unknown(
    nvml: NvmlStandIn, nvml_program: Start, function: str, field: str, code: int
) -> None:
    layout = LAYOUTS["3g and 4g"]
    nvml.write([gpu(*layout)], [fails(function, code, 100)])
    found = nvml_program(nvml).collect()
    _, first, second = found["observations"]

    assert found["problem"] is None
    assert first[field] is None
    assert second[field] is not None


@pytest.mark.parametrize(
    "function", ["nvmlDeviceGetMigDeviceHandleByIndex", "nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetGpuInstanceId"]
)
def test_without_instances_the_gpu_is_still_read(nvml: NvmlStandIn, nvml_program: Start, function: str) -> None:
    nvml.write([gpu(*LAYOUTS["seven 1g"])], [fails(function, NOT_SUPPORTED)])
    [parent] = nvml_program(nvml).collect()["observations"]

    assert (parent["mig_mode"], list(parent["instances"])) == (True, [])


def test_instances_that_change_while_the_exporter_runs(nvml: NvmlStandIn, nvml_program: Start) -> None:
    program = nvml_program(nvml)
    for layout in ("seven 1g", "one 7g", "mixed", "one 7g"):
        nvml.write([gpu(*LAYOUTS[layout], sm_utilization=1.0)])
        parent, *found = program.collect()["observations"]
        assert [each["gpu"] for each in found] == list(parent["instances"]) == [each.uuid for each in LAYOUTS[layout]]
    nvml.write([Device(readings={"mig": 0})])
    [parent] = program.collect()["observations"]
    assert parent["instances"] is None
