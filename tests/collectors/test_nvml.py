"""GPU readings from NVML through the real nvidia-ml-py, also from old and failing drivers."""

import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml
import pytest

from exporter.collectors import nvml as nvml_package
from exporter.collectors.nvml.driver import Driver, DriverError
from exporter.collectors.nvml.gpu import MIN_SAMPLE_SECONDS
from exporter.model.reason import Reason, ReasonCode
from tests.collectors.nvml_program import NvmlProgram, Start, built
from tests.standin.nvml import GPU_IS_LOST, NO_PERMISSION, NOT_SUPPORTED, UNKNOWN, Device, NvmlStandIn, Process, fails

SERVER, CLIENT, BYPASSING = 513, 5700, 5701
GPU = Device(
    memory_used_bytes=2_000_000_000,
    energy_millijoules=123_456,
    gpu_percent=99,
    compute_mode=3,
    readings={
        "power": 312_500,
        "persistence": 1,
        "mig": 0,
        "sm_utilization": 62.5,
        "dram_bandwidth": 12.5,
    },
    processes=(
        Process(SERVER, used_bytes=69_206_016, in_mps_list=False, sm_percent=60),
        Process(CLIENT, used_bytes=1_077_936_128),
        Process(BYPASSING, used_bytes=1_080_033_280, in_mps_list=False, sm_percent=39),
    ),
)
OTHER = Device(index=1, uuid="GPU-055a5b27-613d-8c97-6fb4-99d75c28b520", bus_id="0000:00:07.0")


def test_reads_all_values_of_a_gpu(nvml: NvmlStandIn, nvml_program: Start) -> None:
    nvml.write([GPU])

    reading = nvml_program(nvml).collect()

    assert reading["problem"] is None
    (gpu,) = reading["observations"]
    samples = gpu.pop("process_utilization")
    assert gpu.pop("at") > 0
    assert gpu.pop("failed") == {}
    assert gpu == {
        "gpu": GPU.uuid,
        "problem": None,
        "index": 0,
        "name": "NVIDIA H200",
        "compute_processes": [
            {"pid": SERVER, "used_bytes": 69_206_016},
            {"pid": CLIENT, "used_bytes": 1_077_936_128},
            {"pid": BYPASSING, "used_bytes": 1_080_033_280},
        ],
        "mps_processes": [{"pid": CLIENT, "used_bytes": 1_077_936_128}],
        "gpu_percent": 99,
        "memory_used_bytes": 2_000_000_000,
        "memory_total_bytes": GPU.memory_total_bytes,
        "unified_memory": False,
        "energy_millijoules": 123_456,
        "pci_bus_id": "00000000:00:06.0",
        "driver_version": "580.159.04",
        "cuda_version": "13.0",
        "compute_capability": "9.0",
        "compute_mode": "exclusive_process",
        "mig_mode": False,
        "persistence_mode": True,
        "power_milliwatts": 312_500,
        "sm_utilization": None,
        "dram_bandwidth": None,
        "gpm_seconds": None,
        "gpm_supported": True,
        "sms": None,
        "mig": None,
        "instances": None,
    }
    assert {(sample["pid"], sample["sm_percent"]) for sample in samples} == {(SERVER, 60), (BYPASSING, 39)}


def test_reports_a_gpu_with_the_uuid_of_another(nvml: NvmlStandIn, nvml_program: Start) -> None:
    nvml.write([GPU, replace(OTHER, uuid=GPU.uuid)])
    program = nvml_program(nvml)
    for _ in range(2):
        first, second = program.collect()["observations"]
        assert (first["gpu"], first["problem"], first["memory_used_bytes"]) == (GPU.uuid, None, GPU.memory_used_bytes)
        assert (second["gpu"], second["index"]) == (f"{GPU.uuid}#1", 1)
        assert "duplicate_uuid" in str(second["problem"])


def test_reads_new_gpus_and_process_lists(nvml: NvmlStandIn, program: NvmlProgram) -> None:
    program.collect()
    nvml.write([Device(), OTHER])

    assert [(gpu["gpu"], gpu["mps_processes"]) for gpu in program.collect()["observations"]] == [
        (GPU.uuid, []),
        (OTHER.uuid, []),
    ]


def test_reports_each_utilization_sample_once(program: NvmlProgram) -> None:
    samples = [
        (sample["pid"], sample["timestamp_us"])
        for _ in range(5)
        for sample in program.collect()["observations"][0]["process_utilization"]
    ]

    assert samples
    assert len(samples) == len(set(samples))


def test_a_gpu_without_samples_is_not_a_failure(nvml: NvmlStandIn, nvml_program: Start) -> None:
    nvml.write([Device()])

    reading = nvml_program(nvml).collect()

    assert (reading["problem"], reading["observations"][0]["process_utilization"]) == (None, [])


def test_a_total_of_no_memory_is_unknown(nvml: NvmlStandIn, nvml_program: Start) -> None:
    """A GPU whose memory is that of the host has none of its own."""
    nvml.write([replace(GPU, memory_total_bytes=0)])

    (gpu,) = nvml_program(nvml).collect()["observations"]

    assert gpu["memory_total_bytes"] is None


def test_tells_memory_that_the_system_has_from_memory_that_cannot_be_read(
    nvml: NvmlStandIn, nvml_program: Start
) -> None:
    """GB10 has no memory of its own for NVML (driver 580). That of GH200 is also a NUMA node."""
    spark, hopper = replace(GPU, name="NVIDIA GB10"), replace(OTHER, readings={"numa_node": 0})
    program = nvml_program(nvml)

    def memory(code: int) -> list[tuple[int | None, bool | None]]:
        nvml.write([spark, hopper], [fails("nvmlDeviceGetMemoryInfo", code, 0)])
        reading = program.collect()
        assert reading["problem"] is None or code == UNKNOWN
        return [(gpu["memory_total_bytes"], gpu["unified_memory"]) for gpu in reading["observations"]]

    of_hopper = (OTHER.memory_total_bytes, True)
    assert memory(NOT_SUPPORTED) == [(None, True), of_hopper]
    assert memory(UNKNOWN) == memory(NO_PERMISSION) == [(None, None), of_hopper]


def test_does_not_use_another_package_in_place_of_nvidia_ml_py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "__path__", [], raising=False)
    driver = Driver()

    with pytest.raises(DriverError) as raised, driver.opened():
        pass

    assert raised.value.problem == Reason(ReasonCode.PACKAGE_CONFLICT, subject="pynvml")
    assert driver.pause(1.0)


def test_reads_the_other_gpus_if_one_is_lost(nvml: NvmlStandIn, nvml_program: Start) -> None:
    nvml.write([GPU, OTHER])
    program = nvml_program(nvml)
    program.collect()
    nvml.write([GPU, OTHER], [fails("*", GPU_IS_LOST, device=1)])

    reading = program.collect()

    assert [(gpu["gpu"], gpu["problem"], gpu["index"]) for gpu in reading["observations"]] == [
        (GPU.uuid, None, 0),
        (OTHER.uuid, "gpu_lost: GPU is lost", 1),
    ]
    assert reading["problem"] is None
    nvml.write([GPU, OTHER])
    assert program.collect()["problem"] is None


def test_reports_a_problem_for_a_gpu_that_was_lost_from_the_start(nvml: NvmlStandIn, nvml_program: Start) -> None:
    nvml.write([GPU, OTHER], [fails("*", GPU_IS_LOST, device=1)])

    reading = nvml_program(nvml).collect()

    assert [gpu["gpu"] for gpu in reading["observations"]] == [GPU.uuid]
    assert reading["problem"] == "gpu_lost: 1: GPU is lost"


def test_omits_a_value_that_the_user_may_not_read(nvml: NvmlStandIn, nvml_program: Start) -> None:
    nvml.write([GPU], [fails("nvmlDeviceGetComputeRunningProcesses", NO_PERMISSION)])

    reading = nvml_program(nvml).collect()

    assert (reading["problem"], reading["observations"][0]["compute_processes"]) == (None, None)


@pytest.mark.parametrize(
    ("symbols", "key"),
    [
        ("nvmlDeviceGetMPSComputeRunningProcesses_v3", "mps_processes"),
        ("nvmlDeviceGetComputeRunningProcesses_v3", "compute_processes"),
        ("nvmlDeviceGetProcessUtilization", "process_utilization"),
        ("nvmlDeviceGetTotalEnergyConsumption", "energy_millijoules"),
        ("nvmlDeviceGetMigMode", "mig_mode"),
        ("nvmlGpmQueryDeviceSupport", "sm_utilization"),
    ],
)
def test_omits_a_value_of_a_function_that_an_older_driver_lacks(
    tmp_path: Path, nvml_program: Start, symbols: str, key: str
) -> None:
    older = built(tmp_path, without=symbols.split())
    older.write([GPU])

    reading = nvml_program(older).collect()

    assert reading["problem"] is None
    assert reading["observations"][0][key] is None
    assert reading["observations"][0]["memory_used_bytes"] == GPU.memory_used_bytes


def test_reports_the_error_of_a_gpu_with_that_gpu(nvml: NvmlStandIn, nvml_program: Start) -> None:
    nvml.write([GPU, OTHER], [fails("nvmlDeviceGetComputeRunningProcesses", UNKNOWN, device=0)])
    program = nvml_program(nvml)

    reading = program.collect()

    assert [(gpu["gpu"], gpu["problem"]) for gpu in reading["observations"]] == [(GPU.uuid, None), (OTHER.uuid, None)]
    assert reading["problem"] == f"driver_error: {GPU.uuid} processes: Unknown Error"
    assert [gpu["compute_processes"] is None for gpu in reading["observations"]] == [True, False]


def test_reports_which_processes_began_or_ended_to_use_a_gpu(nvml: NvmlStandIn, nvml_program: Start) -> None:
    """Until they are read. A list that cannot be read shows no change, and none is read before the first collection."""
    nvml.write([GPU, OTHER])
    program = nvml_program(nvml)
    assert program.call("changed_processes") == {}
    program.collect()
    assert program.call("changed_processes") == {GPU.uuid: [], OTHER.uuid: []}

    nvml.write([replace(GPU, processes=GPU.processes[1:]), replace(OTHER, processes=(Process(5800), Process(5801)))])
    assert program.call("changed_processes") == {GPU.uuid: [SERVER], OTHER.uuid: [5800, 5801]}

    program.collect()
    assert program.call("changed_processes") == {GPU.uuid: [], OTHER.uuid: []}
    nvml.write([GPU, OTHER], [fails("nvmlDeviceGetComputeRunningProcesses", UNKNOWN, device=0)])
    assert program.call("changed_processes") == {OTHER.uuid: [5800, 5801]}


@pytest.mark.parametrize("function", ["nvmlDeviceGetPowerUsage", "nvmlGpmSampleGet"])
def test_reads_the_process_lists_if_a_sensor_fails(nvml: NvmlStandIn, nvml_program: Start, function: str) -> None:
    nvml.write([GPU], [fails(function, UNKNOWN)])

    (gpu,) = nvml_program(nvml).collect()["observations"]

    assert (gpu["problem"], [each["pid"] for each in gpu["mps_processes"]]) == (None, [CLIENT])


def test_reads_an_unknown_compute_mode_as_none(nvml: NvmlStandIn, nvml_program: Start) -> None:
    nvml.write([Device(compute_mode=9)])

    assert nvml_program(nvml).collect()["observations"][0]["compute_mode"] is None


def ratios(reading: dict[str, Any]) -> list[tuple[float | None, float | None]]:
    return [(gpu["sm_utilization"], gpu["dram_bandwidth"]) for gpu in reading["observations"]]


def collect_later(program: NvmlProgram) -> dict[str, Any]:
    time.sleep(MIN_SAMPLE_SECONDS * 1.5)
    return program.collect()


def test_reports_gpm_values_from_the_second_collection_on(nvml: NvmlStandIn, nvml_program: Start) -> None:
    nvml.write([GPU, OTHER])
    program = nvml_program(nvml)

    assert ratios(program.collect()) == [(None, None), (None, None)]
    assert ratios(collect_later(program)) == [(0.625, 0.125), (None, None)]


def test_reuses_the_samples(program: NvmlProgram) -> None:
    program.collect()
    descriptors = program.descriptors()

    for _ in range(3):
        collect_later(program)

    assert program.descriptors() == descriptors


def test_frees_the_samples_of_a_failing_gpu(nvml: NvmlStandIn, program: NvmlProgram) -> None:
    program.collect()
    nvml.write([GPU], [fails("*", GPU_IS_LOST, device=0)])
    program.collect()
    assert program.descriptors() == 1, "only the driver's own descriptor may be open"

    nvml.write([GPU])
    assert ratios(program.collect()) == [(None, None)]
    assert ratios(collect_later(program)) == [(0.625, 0.125)]


def test_reads_an_invalid_ratio_as_none(nvml: NvmlStandIn, nvml_program: Start) -> None:
    nvml.write([replace(GPU, readings={"sm_utilization": float("nan"), "dram_bandwidth": -1})])
    program = nvml_program(nvml)
    program.collect()

    assert ratios(collect_later(program)) == [(None, None)]


def test_reads_the_properties_of_a_lost_gpu_again(nvml: NvmlStandIn, nvml_program: Start) -> None:
    nvml.write([GPU], [fails("nvmlDeviceGetUtilizationRates", GPU_IS_LOST)])
    program = nvml_program(nvml)
    program.collect()
    nvml.write([replace(GPU, name="another board")])

    assert program.collect()["observations"][0]["name"] == "another board"


CODES = (2, 3, 4, 6, 7, 10, 12, 13, 14, 17, 19, 20, 24, 25, 26, 27, 999)
"""NVML's errors (nvml.h) that say nothing of the GPU or the driver as a whole, and one that is unknown."""

ESSENTIAL = ("nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID")


def called_functions() -> list[str]:
    folder = Path(nvml_package.__file__).parent
    text = "".join((folder / name).read_text() for name in ("gpu.py", "collector.py"))
    names = set(re.findall(r'pynvml\.(nvml(?:Device|System)\w+)|"(nvmlDevice\w+)"', text))
    return sorted({(one or other).removesuffix("_v3").removesuffix("_v2") for one, other in names})


def test_a_failing_call_costs_only_its_own_value(nvml: NvmlStandIn, nvml_program: Start) -> None:
    """Each call fails with each code for the first of two GPUs. All other values of both remain."""
    nvml.write([GPU, OTHER])
    program = nvml_program(nvml)
    program.collect()
    usual = [present(gpu) for gpu in program.collect()["observations"]]
    wrong: list[str] = []
    for function in called_functions():
        for code in CODES:
            if function in ESSENTIAL:
                continue
            nvml.write(
                [GPU, OTHER], [fails(function, code, None if "System" in function or "Count" in function else 0)]
            )
            reading = program.collect()
            gpus = {gpu["gpu"]: present(gpu) for gpu in reading["observations"]}
            problems = [gpu["problem"] for gpu in reading["observations"] if gpu["problem"] is not None]
            if code == NOT_SUPPORTED and reading["problem"] is not None:
                problems.append(reading["problem"])
            if len(gpus) != 2 or problems or len(usual[0] - gpus[GPU.uuid]) > 3 or usual[1] - gpus[OTHER.uuid]:
                wrong.append(f"{function} {code}: {problems} {[usual[0] - gpus.get(GPU.uuid, set())]}")
    assert wrong == []
    nvml.write([GPU, OTHER])
    assert [present(gpu) for gpu in program.collect()["observations"]] == usual


def present(gpu: dict[str, Any]) -> set[str]:
    """Return the names of the values that a reading has. GPM and samples are not in each one."""
    rare = {"sm_utilization", "dram_bandwidth", "gpm_seconds", "process_utilization", "failed", "gpm_supported"}
    return {name for name, value in gpu.items() if value is not None and name not in rare}


def test_the_number_of_sms_follows_from_that_of_the_cores(nvml: NvmlStandIn, nvml_program: Start) -> None:
    nvml.write([replace(GPU, readings={"cores": 16896}), OTHER])

    assert [gpu.get("sms") for gpu in nvml_program(nvml).collect()["observations"]] == [132, None]


def test_a_name_that_is_not_utf8_disables_no_gpu(nvml: NvmlStandIn, nvml_program: Start) -> None:
    nvml.write([replace(GPU, name="NVIDIA H200 \udcff"), OTHER])

    reading = nvml_program(nvml).collect()

    assert [gpu["name"] for gpu in reading["observations"]] == ["NVIDIA H200 \ufffd", OTHER.name]
    assert reading["problem"] is None
