"""Nvml reads what the driver says, through the real nvidia-ml-py, and outlives what the driver does."""

import json
import os
import select
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.eventually import PATIENCE_SECONDS
from tests.standin.nvml import (
    DRIVER_NOT_LOADED,
    GPU_IS_LOST,
    NOT_SUPPORTED,
    UNKNOWN,
    CompilerMissingError,
    Device,
    NvmlStandIn,
    Process,
    fails,
    hangs,
)
from tests.tools import not_here

SERVER, CLIENT, BYPASSING = 513, 5700, 5701
GPU = Device(
    memory_used_bytes=2_000_000_000,
    energy_millijoules=123_456,
    gpu_percent=99,
    memory_percent=12,
    processes=(
        Process(SERVER, used_bytes=69_206_016, in_mps_list=False, sm_percent=60),
        Process(CLIENT, used_bytes=1_077_936_128),
        Process(BYPASSING, used_bytes=1_080_033_280, in_mps_list=False, sm_percent=39),
    ),
)
OTHER = Device(index=1, uuid="GPU-055a5b27-613d-8c97-6fb4-99d75c28b520", bus_id="0000:00:07.0")

LOOKER = """
    import dataclasses, json, sys
    from exporter.clock import SystemClock
    from exporter.sources.nvml import Nvml
    nvml = Nvml(SystemClock())
    for _ in sys.stdin:
        reading = nvml.look()
        seen = [dataclasses.asdict(each) for each in reading.observations]
        print(json.dumps({"problem": reading.problem, "gpus": seen}), flush=True)
"""

Reading = dict[str, Any]


class Looker:
    """A process of its own, in which the source looks when it is told to: a library is loaded once in a process."""

    def __init__(self, environment: dict[str, str]) -> None:
        pipe = subprocess.PIPE
        program = [sys.executable, "-c", textwrap.dedent(LOOKER)]
        self._process = subprocess.Popen(program, env=os.environ | environment, stdin=pipe, stdout=pipe, text=True)

    def ask(self) -> None:
        """Tell it to look."""
        assert self._process.stdin is not None
        self._process.stdin.write("look\n")
        self._process.stdin.flush()

    def has_answered(self, within: float) -> bool:
        """Whether it has seen something by now."""
        assert self._process.stdout is not None
        return bool(select.select([self._process.stdout], [], [], within)[0])

    def answer(self) -> Reading:
        """What it has seen."""
        assert self._process.stdout is not None
        assert self.has_answered(PATIENCE_SECONDS), "the look has not come back"
        answer: Reading = json.loads(self._process.stdout.readline())
        return answer

    def look(self) -> Reading:
        """One look."""
        self.ask()
        return self.answer()

    def close(self) -> None:
        """End it, though it may hang."""
        self._process.kill()
        with self._process:
            pass


Look = Callable[..., Looker]


@pytest.fixture
def looker() -> Iterator[Look]:
    """Starts the process for a driver."""
    started: list[Looker] = []

    def start(standin: NvmlStandIn | None = None, **environment: str) -> Looker:
        started.append(Looker(environment if standin is None else standin.environment() | environment))
        return started[-1]

    yield start
    for each in started:
        each.close()


def test_a_gpu_is_told_as_it_is(nvml: NvmlStandIn, looker: Look) -> None:
    nvml.write([GPU])

    reading = looker(nvml).look()

    assert reading["problem"] is None
    (gpu,) = reading["gpus"]
    samples = gpu.pop("process_utilization")
    assert gpu.pop("at") > 0
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
        "memory_percent": 12,
        "memory_used_bytes": 2_000_000_000,
        "memory_total_bytes": GPU.memory_total_bytes,
        "energy_millijoules": 123_456,
    }
    assert {(sample["pid"], sample["sm_percent"]) for sample in samples} == {(SERVER, 60), (BYPASSING, 39)}


def test_lists_follow_the_driver(nvml: NvmlStandIn, looker: Look) -> None:
    nvml.write([GPU])
    one = looker(nvml)
    one.look()
    nvml.write([Device(), OTHER])

    assert [(gpu["gpu"], gpu["mps_processes"]) for gpu in one.look()["gpus"]] == [(GPU.uuid, []), (OTHER.uuid, [])]


def test_no_utilisation_sample_is_told_twice(nvml: NvmlStandIn, looker: Look) -> None:
    nvml.write([GPU])
    one = looker(nvml)
    told = [
        (sample["pid"], sample["timestamp_us"])
        for _ in range(5)
        for sample in one.look()["gpus"][0]["process_utilization"]
    ]

    assert told
    assert len(told) == len(set(told))


def test_no_sample_is_no_failure(nvml: NvmlStandIn, looker: Look) -> None:
    nvml.write([Device()])

    reading = looker(nvml).look()

    assert (reading["problem"], reading["gpus"][0]["process_utilization"]) == (None, [])


def test_a_lost_gpu_leaves_the_others(nvml: NvmlStandIn, looker: Look) -> None:
    nvml.write([GPU, OTHER])
    one = looker(nvml)
    one.look()
    nvml.write([GPU, OTHER], [fails("*", GPU_IS_LOST, device=1)])

    reading = one.look()

    assert [(gpu["gpu"], gpu["problem"], gpu["index"]) for gpu in reading["gpus"]] == [
        (GPU.uuid, None, 0),
        (OTHER.uuid, "GPU is lost", 1),
    ]
    assert reading["problem"] == f"{OTHER.uuid}: GPU is lost"
    nvml.write([GPU, OTHER])
    assert one.look()["problem"] is None


def test_a_gpu_that_was_never_seen_alive_is_told_as_a_problem(nvml: NvmlStandIn, looker: Look) -> None:
    nvml.write([GPU, OTHER], [fails("*", GPU_IS_LOST, device=1)])

    reading = looker(nvml).look()

    assert [gpu["gpu"] for gpu in reading["gpus"]] == [GPU.uuid]
    assert "GPU is lost" in str(reading["problem"])


@pytest.mark.parametrize(
    ("function", "key"),
    [
        ("nvmlDeviceGetUtilizationRates", "gpu_percent"),
        ("nvmlDeviceGetTotalEnergyConsumption", "energy_millijoules"),
        ("nvmlDeviceGetComputeRunningProcesses", "compute_processes"),
        ("nvmlDeviceGetMPSComputeRunningProcesses", "mps_processes"),
        ("nvmlDeviceGetProcessUtilization", "process_utilization"),
        ("nvmlDeviceGetMemoryInfo", "memory_used_bytes"),
        ("nvmlDeviceGetName", "name"),
    ],
)
def test_what_a_gpu_cannot_tell_is_left_out_and_the_rest_stands(
    nvml: NvmlStandIn, looker: Look, function: str, key: str
) -> None:
    nvml.write([GPU], [fails(function, NOT_SUPPORTED)])

    reading = looker(nvml).look()

    assert reading["problem"] is None
    assert [(gpu["gpu"], gpu["problem"], gpu[key]) for gpu in reading["gpus"]] == [(GPU.uuid, None, None)]


@pytest.mark.parametrize(
    ("symbol", "key"),
    [
        ("nvmlDeviceGetMPSComputeRunningProcesses_v3", "mps_processes"),
        ("nvmlDeviceGetComputeRunningProcesses_v3", "compute_processes"),
        ("nvmlDeviceGetProcessUtilization", "process_utilization"),
        ("nvmlDeviceGetTotalEnergyConsumption", "energy_millijoules"),
    ],
)
def test_what_an_older_driver_lacks_is_left_out_and_the_rest_stands(
    tmp_path: Path, looker: Look, symbol: str, key: str
) -> None:
    older = NvmlStandIn(tmp_path, without=[symbol])
    try:
        older.build()
    except CompilerMissingError as problem:
        not_here(str(problem))
    older.write([GPU])

    reading = looker(older).look()

    assert reading["problem"] is None
    assert reading["gpus"][0][key] is None
    assert reading["gpus"][0]["memory_used_bytes"] == GPU.memory_used_bytes


def test_a_gpus_own_error_is_told_with_the_gpu(nvml: NvmlStandIn, looker: Look) -> None:
    nvml.write([GPU, OTHER], [fails("nvmlDeviceGetComputeRunningProcesses", UNKNOWN, device=0)])
    one = looker(nvml)

    reading = one.look()

    assert [(gpu["gpu"], gpu["problem"]) for gpu in reading["gpus"]] == [
        (GPU.uuid, "Unknown Error"),
        (OTHER.uuid, None),
    ]


def test_a_driver_that_is_loaded_later_is_found(nvml: NvmlStandIn, looker: Look) -> None:
    nvml.write([GPU], [fails("nvmlInit", DRIVER_NOT_LOADED)])
    one = looker(nvml)

    reading = one.look()
    assert (reading["gpus"], "Driver Not Loaded" in reading["problem"]) == ([], True)

    nvml.write([GPU])
    assert [gpu["gpu"] for gpu in one.look()["gpus"]] == [GPU.uuid]


def test_a_driver_that_was_reloaded_is_opened_anew(nvml: NvmlStandIn, looker: Look) -> None:
    nvml.write([GPU])
    one = looker(nvml)
    one.look()
    nvml.write([GPU], [fails("*", DRIVER_NOT_LOADED)])
    assert one.look()["problem"] is not None

    nvml.write([GPU])
    reading = one.look()
    assert (reading["problem"], [gpu["gpu"] for gpu in reading["gpus"]]) == (None, [GPU.uuid])


def test_without_a_library_the_problem_says_what_to_look_at(looker: Look, tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_text("no library")

    reading = looker(LD_LIBRARY_PATH=str(tmp_path)).look()

    assert reading["gpus"] == []
    assert "NVML: " in reading["problem"]
    assert "nvidia-smi" in reading["problem"]


def test_a_call_that_hangs_ends_when_the_driver_lets_it(nvml: NvmlStandIn, looker: Look) -> None:
    nvml.write([GPU], [hangs("nvmlDeviceGetMemoryInfo")])
    one = looker(nvml)
    one.ask()
    assert not one.has_answered(within=0.5)

    nvml.write([GPU])
    assert one.answer()["problem"] is None
