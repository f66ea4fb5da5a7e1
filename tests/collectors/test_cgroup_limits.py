"""Limits of cgroups from NVML, with and without the function of driver R615."""

from pathlib import Path
from typing import Any

import pytest

from tests.collectors.nvml_program import Start, built
from tests.standin.nvml import GPU_IS_LOST, INSUFFICIENT_SIZE, NOT_SUPPORTED, Device, NvmlStandIn, fails

FUNCTION = "nvmlDeviceGetMemoryLimits"
LIMITED = Device(readings={"memory_hard_limit": 8 << 30})
OTHER = Device(index=1, uuid="GPU-055a5b27-613d-8c97-6fb4-99d75c28b520", bus_id="0000:00:07.0")


def limits(nvml: NvmlStandIn, nvml_program: Start) -> Any:
    program = nvml_program(nvml)
    program.collect()
    return program.call("cgroup_limits", "/sys/fs/cgroup/pod")


def test_reads_the_limits_of_a_cgroup(nvml: NvmlStandIn, nvml_program: Start) -> None:
    nvml.write([LIMITED])
    found = limits(nvml, nvml_program)["0000:00:06"]
    assert found["limits"] == [{"cgroup": "/sys/fs/cgroup/pod", "limit": 8 << 30, "used": 1 << 20}]
    assert (found["soft_limit"], found["used"]) == (0, 1 << 20)


@pytest.mark.parametrize("code", [NOT_SUPPORTED, INSUFFICIENT_SIZE])
def test_a_gpu_that_fails_is_absent(nvml: NvmlStandIn, nvml_program: Start, code: int) -> None:
    failing = Device(readings={"memory_hard_limit": 1}, index=1, uuid=OTHER.uuid, bus_id=OTHER.bus_id)
    nvml.write([LIMITED, failing], [fails(FUNCTION, code, 1)])
    assert limits(nvml, nvml_program).keys() == {"0000:00:06"}


@pytest.mark.parametrize("without", [[], [f"{FUNCTION}_v1"]], ids=["R615", "older"])
def test_a_lost_gpu_does_not_close_the_driver(tmp_path: Path, nvml_program: Start, without: list[str]) -> None:
    nvml = built(tmp_path, without=without)
    nvml.write([LIMITED, OTHER])
    program = nvml_program(nvml)
    program.collect()
    nvml.write([LIMITED, OTHER], [fails("*", GPU_IS_LOST, device=1)])
    assert set(program.call("cgroup_limits", "/sys/fs/cgroup/pod") or ()) == (set() if without else {"0000:00:06"})
    assert program.call("mapped")


def test_an_older_driver_has_no_limits(tmp_path: Path, nvml_program: Start) -> None:
    older = built(tmp_path, without=[f"{FUNCTION}_v1"])
    older.write([LIMITED])
    assert not limits(older, nvml_program)
