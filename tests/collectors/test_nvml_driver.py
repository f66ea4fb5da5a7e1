"""Driver that is loaded, unloaded, upgraded or hangs: the next collection detects it."""

from pathlib import Path

from tests.collectors.nvml_program import Start, assert_closed, built
from tests.standin.mps import wait_until
from tests.standin.nvml import (
    DRIVER,
    DRIVER_NOT_LOADED,
    LIBRARY_NAME,
    Device,
    NvmlStandIn,
    fails,
    hangs,
)

GPU = Device(readings={"sm_utilization": 50})
NEXT_DRIVER = "590.44.01"


NOT_LOADED = "driver_not_loaded: Driver Not Loaded"


def test_finds_a_driver_that_is_loaded_later(nvml: NvmlStandIn, nvml_program: Start) -> None:
    nvml.write([GPU], [fails("nvmlInit", DRIVER_NOT_LOADED)])
    program = nvml_program(nvml)

    reading = program.collect()
    assert (reading["observations"], reading["problem"]) == ([], NOT_LOADED)
    assert_closed(program)

    nvml.write([GPU])
    assert [gpu["gpu"] for gpu in program.collect()["observations"]] == [GPU.uuid]


def test_opens_a_reloaded_driver_again(nvml: NvmlStandIn, nvml_program: Start) -> None:
    nvml.write([GPU])
    program = nvml_program(nvml)
    program.collect()
    nvml.write([GPU], [fails("*", DRIVER_NOT_LOADED)])
    assert program.collect()["problem"] is not None
    assert_closed(program)

    nvml.write([GPU])
    reading = program.collect()
    assert (reading["problem"], [gpu["gpu"] for gpu in reading["observations"]]) == (None, [GPU.uuid])


def test_closes_the_driver_before_the_gpu_operator_unloads_it(
    nvml: NvmlStandIn, nvml_program: Start, tmp_path: Path
) -> None:
    """Without Xid events, the next reading closes it; with them, the end of a wait."""
    file = tmp_path / ".driver-ctr-ready"
    nvml.write([GPU])
    program = nvml_program(nvml, READY_FILE=str(file))
    assert program.collect()["problem"] is None, "another node has no such file"

    file.touch()
    assert program.collect()["problem"] is None
    waiting = program.ask("collect_xids")
    file.unlink()
    program.answer(waiting)
    assert_closed(program)
    reading = program.collect()
    assert (reading["observations"], reading["problem"]) == ([], f"driver_withdrawn: {file}")

    file.touch()
    assert [gpu["gpu"] for gpu in program.collect()["observations"]] == [GPU.uuid]


def test_finds_a_library_that_is_installed_later(nvml: NvmlStandIn, nvml_program: Start, tmp_path: Path) -> None:
    nvml.write([GPU])
    library = tmp_path / "lib" / LIBRARY_NAME
    library.parent.mkdir()
    library.write_text("no library")
    program = nvml_program(nvml, LD_LIBRARY_PATH=str(library.parent))

    reading = program.collect()
    assert reading["observations"] == []
    assert reading["problem"].startswith("library_missing: ")

    library.unlink()
    library.symlink_to(nvml.library)
    assert program.collect()["problem"] is None


def test_uses_an_upgraded_driver_without_a_restart(nvml_program: Start, tmp_path: Path) -> None:
    """The mapped library stays the old one until it is closed, and the new driver refuses its calls."""
    before, after = (built(tmp_path, version=version) for version in (DRIVER, NEXT_DRIVER))
    installed = tmp_path / "lib" / LIBRARY_NAME
    installed.parent.mkdir()
    installed.symlink_to(before.library)
    before.write([GPU])
    program = nvml_program(before, LD_LIBRARY_PATH=str(installed.parent))
    assert program.collect()["observations"][0]["driver_version"] == DRIVER

    before.install_driver(NEXT_DRIVER)
    assert program.collect()["problem"].startswith("driver_mismatch: ")
    assert program.collect()["problem"].startswith("driver_mismatch: "), "the old library is still installed"
    assert_closed(program)
    installed.unlink()
    installed.symlink_to(after.library)

    reading = program.collect()
    assert (reading["problem"], reading["observations"][0]["driver_version"]) == (None, NEXT_DRIVER)


def test_a_hanging_call_ends_when_the_driver_continues(nvml: NvmlStandIn, nvml_program: Start) -> None:
    nvml.write([GPU], [hangs("nvmlDeviceGetMemoryInfo")])
    program = nvml_program(nvml)
    collect = program.ask("collect")
    wait_until(nvml.a_call_hangs)
    assert not program.has_answered(collect, within=0)

    nvml.write([GPU])
    assert program.answer(collect)["problem"] is None


def test_reports_a_driver_that_hangs_in_open_without_waiting(nvml: NvmlStandIn, nvml_program: Start) -> None:
    nvml.write([GPU], [hangs("nvmlInit")])
    program = nvml_program(nvml)
    first = program.ask("collect")
    wait_until(nvml.a_call_hangs)
    assert not program.has_answered(first, within=0)

    assert program.collect()["problem"] == "driver_hangs"
    assert program.call("collect_xids")["problem"] == "driver_hangs"
    nvml.write([GPU])
    assert program.answer(first)["problem"] is None


def test_does_not_close_a_lost_driver_during_a_hanging_call(nvml: NvmlStandIn, nvml_program: Start) -> None:
    hung = hangs("nvmlDeviceGetMemoryInfo")
    nvml.write([GPU], [hung])
    program = nvml_program(nvml)
    first = program.ask("collect")
    wait_until(nvml.a_call_hangs)
    assert not program.has_answered(first, within=0)
    nvml.write([GPU], [hung, fails("nvmlDeviceGetCount", DRIVER_NOT_LOADED)])

    assert program.collect()["problem"] == NOT_LOADED
    assert program.collect()["problem"] == "driver_hangs"
    nvml.write([GPU])
    assert program.answer(first)["problem"] is None
    assert program.collect()["problem"] is None


def test_reads_the_driver_version(nvml: NvmlStandIn, nvml_program: Start) -> None:
    assert nvml_program(nvml).call("driver_version") == DRIVER
