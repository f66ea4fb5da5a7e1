"""Families of GPUs."""

from dataclasses import replace

from exporter.metrics.gpus import MAX_BYPASSING
from exporter.model.node import Node
from exporter.model.observation import GpuReading
from tests.builders import (
    AT,
    CLIENT,
    DAEMON,
    GPU,
    OTHER_GPU,
    SENSORS,
    at_work,
    failure,
    gpu_reading,
    look,
    node,
    process,
    reduced,
)
from tests.metrics.test_families import by, families, samples, value

ALL = gpu_reading([CLIENT], **SENSORS)
FAILED = GpuReading(at=AT, gpu=GPU, problem=failure("GPU is lost"))
SENSOR_FAMILIES = {
    "cuda_mps_gpu_compute_mode",
    "cuda_mps_gpu_power_watts",
    "cuda_mps_gpu_energy_joules_total",
    "cuda_mps_gpu_sm_utilization_ratio",
    "cuda_mps_gpu_dram_bandwidth_ratio",
}


def seen(*readings: GpuReading) -> Node:
    """Return a node with a daemon, a client and these readings of NVML."""
    return reduced(*at_work(CLIENT), *readings, start=node()).node


def test_sensors_have_base_units() -> None:
    present = seen(ALL)
    assert value(present, "cuda_mps_gpu_power_watts", gpu=GPU) == 312.5
    assert value(present, "cuda_mps_gpu_energy_joules_total", gpu=GPU) == 1234.5
    assert value(present, "cuda_mps_gpu_sm_utilization_ratio", gpu=GPU) == 0.625
    assert value(present, "cuda_mps_gpu_dram_bandwidth_ratio", gpu=GPU) == 0.125


def test_exactly_one_mode_is_1() -> None:
    modes = by(seen(replace(ALL, compute_mode="exclusive_process")), "cuda_mps_gpu_compute_mode", "mode", gpu=GPU)
    assert modes == {"default": 0, "exclusive_thread": 0, "prohibited": 0, "exclusive_process": 1}
    shared = by(seen(ALL), "cuda_mps_gpu_sharing_mode", "mode", gpu=GPU)
    assert shared == {"idle": 0, "exclusive": 0, "time_slicing": 0, "mps": 1, "mig": 0, "mixed": 0}


def test_a_value_that_is_not_reported_or_of_a_failed_or_removed_gpu_has_no_series() -> None:
    bare = GpuReading(at=AT, gpu=GPU)
    assert families(seen(ALL)).keys() >= SENSOR_FAMILIES
    for present in (seen(bare, bare), seen(ALL, FAILED), reduced(look(at=AT + 60), start=seen(ALL)).node):
        assert SENSOR_FAMILIES & families(present).keys() == set()


def test_a_counter_continues_after_a_reading_without_it() -> None:
    silent = replace(ALL, energy_millijoules=None)
    assert samples(seen(ALL, silent), "cuda_mps_gpu_energy_joules_total") == []
    assert value(seen(ALL, silent, replace(ALL, energy_millijoules=500)), "cuda_mps_gpu_energy_joules_total") == 1235


def test_the_driver_has_one_series_also_after_an_upgrade() -> None:
    other = replace(ALL, gpu=OTHER_GPU, index=1)
    (sample,) = samples(seen(ALL, other), "cuda_mps_driver_info")
    assert sample.labels == {"driver": "580.159.04", "cuda": "13.0"}
    newer = replace(other, at=AT + 1, driver_version="590.44.01")
    assert set(by(seen(ALL, newer), "cuda_mps_driver_info", "driver")) == {"590.44.01"}


def test_gpu_info_has_the_bus_id_also_of_a_failed_gpu() -> None:
    for present in (seen(ALL), seen(ALL, FAILED)):
        (sample,) = samples(present, "cuda_mps_gpu_info")
        assert sample.labels == {"gpu": GPU, "index": "0", "name": "NVIDIA H200", "pci_bus_id": "00000000:00:06.0"}
    assert value(seen(ALL, FAILED), "cuda_mps_gpu_up") == 0


def test_under_mig_bypassing_processes_are_unknown() -> None:
    divided = seen(gpu_reading(server=None, **{**SENSORS, "mig_mode": True}))
    assert samples(divided, "cuda_mps_bypassing_processes") == []
    assert by(divided, "cuda_mps_gpu_sharing_mode", "mode")["mig"] == 1


def test_names_at_most_128_processes_that_bypass_mps() -> None:
    """The first that were seen have their series; hostile commands are made printable."""
    pids = range(900, 1100)
    known = [process(pid, user="eve", command="a\x1b[31m\nb") for pid in (900, 901)]
    readings = [gpu_reading([CLIENT], beside=[900], at=AT + 1)]
    readings += [gpu_reading([CLIENT], beside=pids, at=AT + second) for second in (11, 21)]
    present = reduced(*at_work(CLIENT), *known, *readings, start=node()).node
    found = samples(present, "cuda_mps_bypassing_process_info")
    assert value(present, "cuda_mps_bypassing_processes", gpu=GPU, daemon=DAEMON) == 200
    assert len(found) == MAX_BYPASSING == 128
    (first,) = [each.labels for each in found if each.labels["pid"] == "900"]
    assert (first["user"], first["gpu"], first["workload_kind"]) == ("eve", GPU, "user")
    assert first["command"].isprintable()
