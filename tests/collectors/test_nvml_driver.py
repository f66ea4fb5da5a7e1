"""Driver."""

from pathlib import Path

import pynvml
import pytest

from exporter.collectors.nvml.driver import Driver, DriverError
from exporter.model.reason import ReasonCode
from tests.collectors.nvml_program import NvmlProgram, Start, assert_closed, built
from tests.eventually import PATIENCE_SECONDS, eventually
from tests.standin.mps import wait_until
from tests.standin.nvml import (
    DRIVER,
    DRIVER_NOT_LOADED,
    LIBRARY_NAME,
    UNKNOWN,
    Device,
    NvmlStandIn,
    fails,
    hangs,
    slow,
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


def test_opens_a_reloaded_driver_again(nvml: NvmlStandIn, program: NvmlProgram) -> None:
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
    """Without Xid events, the next reading closes it; with them, the end or the beginning of a wait."""
    file = tmp_path / ".driver-ctr-ready"
    nvml.write([GPU])
    program = nvml_program(nvml, READY_FILE=str(file))
    assert program.collect()["problem"] is None, "another node has no such file"

    file.touch()
    assert program.collect()["problem"] is None
    waiting = program.ask("collect_xids")
    file.unlink()
    program.answer(waiting)
    # On a busy machine, that wait has ended before the file was removed.
    program.call("collect_xids")
    assert_closed(program)
    reading = program.collect()
    assert (reading["observations"], reading["problem"]) == ([], f"driver_withdrawn: {file}")

    file.touch()
    assert [gpu["gpu"] for gpu in program.collect()["observations"]] == [GPU.uuid]


def test_finds_a_library_that_is_installed_later(nvml: NvmlStandIn, nvml_program: Start, tmp_path: Path) -> None:
    nvml.write([GPU])
    library = tmp_path / "lib" / LIBRARY_NAME
    library.parent.mkdir()
    program = nvml_program(nvml, LD_LIBRARY_PATH=str(library.parent))

    for content, reason in (("", "file too short"), ("no library" * 99, "invalid ELF header")):
        library.write_text(content)
        reading = program.collect()
        assert reading["observations"] == []
        assert reading["problem"] == f"library_unusable: {library}: {reason}"
    library.unlink()
    library.symlink_to(built(tmp_path / "other", without=["nvmlInitWithFlags"]).library)
    assert program.collect()["problem"] == f"library_unusable: {library}: undefined symbol: nvmlInitWithFlags"

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


def test_a_driver_is_replaced_only_if_it_worked_before(nvml_program: Start, tmp_path: Path) -> None:
    """After the operator's upgrade, the container has the old library, which may be gone, too."""
    file, installed = tmp_path / ".driver-ctr-ready", tmp_path / "lib" / LIBRARY_NAME
    standin = built(tmp_path, version=DRIVER)
    installed.parent.mkdir()
    installed.symlink_to(standin.library)
    standin.write([GPU])

    def start() -> NvmlProgram:
        return nvml_program(standin, LD_LIBRARY_PATH=str(installed.parent), READY_FILE=str(file))

    file.touch()
    mismatch, missing = start(), start()
    for program in (mismatch, missing):
        assert program.collect()["problem"] is None
    file.unlink()
    for program in (mismatch, missing):
        assert program.collect()["problem"] == f"driver_withdrawn: {file}"
    standin.install_driver(NEXT_DRIVER)
    assert not mismatch.call("is_replaced")

    file.touch()
    assert mismatch.collect()["problem"].startswith("driver_mismatch: ")
    later = start()
    assert later.collect()["problem"].startswith("driver_mismatch: ")
    installed.unlink()
    installed.write_text("no library")
    assert missing.collect()["problem"].startswith("library_unusable: ")
    assert later.collect()["problem"].startswith("library_unusable: ")

    assert [each.call("is_replaced") for each in (mismatch, missing, later)] == [True, True, False]


@pytest.mark.parametrize(
    ("first", "now", "replaced"),
    [
        (DRIVER, DRIVER, False),
        (DRIVER, NEXT_DRIVER, True),
        (DRIVER, None, False),
        (None, DRIVER, True),
        (None, None, False),
        (None, b"\xff", False),
        (b"\xff", DRIVER, False),
    ],
)
def test_a_process_that_began_with_unusable_libraries_ends_if_another_module_is_loaded(
    first: str | bytes | None,
    now: str | bytes | None,
    replaced: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A container that is created while the driver is being upgraded keeps the old libraries. None: not loaded."""
    module = tmp_path / "version"

    def load(version: str | bytes | None) -> None:
        module.unlink(missing_ok=True)
        if version is not None:
            module.write_bytes(version if isinstance(version, bytes) else version.encode())

    def init() -> None:
        raise pynvml.NVMLError(error)

    monkeypatch.setattr(pynvml, "nvmlInit", init)
    for error in (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, DRIVER_NOT_LOADED):
        load(first)
        driver = Driver(tmp_path / "no-file", module)
        for version, expected in ((first, False), (now, replaced and error != DRIVER_NOT_LOADED)):
            load(version)
            with pytest.raises(DriverError), driver.opened():
                pass
            assert driver.replaced is expected


@pytest.mark.parametrize("module", [True, False])
def test_a_process_that_began_with_unusable_libraries_ends_when_the_drivers_container_is_ready(
    module: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The container loads the module before others can see the new libraries."""

    def init() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)

    monkeypatch.setattr(pynvml, "nvmlInit", init)
    if module:
        (tmp_path / "version").write_text(NEXT_DRIVER)
    driver = Driver(tmp_path / "ready", tmp_path / "version")
    for expected in (False, module):
        with pytest.raises(DriverError), driver.opened():
            pass
        assert driver.replaced is expected
        (tmp_path / "ready").touch()


def test_a_library_that_cannot_be_loaded_without_free_descriptors_is_not_replaced(program: NvmlProgram) -> None:
    assert program.collect()["problem"] is None
    program.call("pause", PATIENCE_SECONDS)
    program.call("limit_descriptors", 3)
    program.call("resume")

    problem = program.collect()["problem"]
    assert problem.startswith("driver_error: ")
    assert problem.endswith("Too many open files")
    assert program.call("is_replaced") is False
    program.call("limit_descriptors", 256)
    assert program.collect()["problem"] is None


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("libnvidia-ml.so.1: cannot open shared object file: No such file or directory", ReasonCode.LIBRARY_MISSING),
        ("libtirpc.so.3: cannot open shared object file: No such file or directory", ReasonCode.LIBRARY_UNUSABLE),
        ("/lib/libnvidia-ml.so.1: file too short", ReasonCode.LIBRARY_UNUSABLE),
        ("/lib/libnvidia-ml.so.1: invalid ELF header", ReasonCode.LIBRARY_UNUSABLE),
        ("libnvidia-ml.so.1: wrong ELF class: ELFCLASS32", ReasonCode.LIBRARY_UNUSABLE),
        ("libnvidia-ml.so.1: cannot open shared object file: Too many open files", ReasonCode.DRIVER_ERROR),
        ("libnvidia-ml.so.1: cannot open shared object file: Too many open files in system", ReasonCode.DRIVER_ERROR),
        ("libnvidia-ml.so.1: cannot open shared object file: Permission denied", ReasonCode.DRIVER_ERROR),
        ("libnvidia-ml.so.1: cannot read file data: Input/output error", ReasonCode.DRIVER_ERROR),
        ("cannot create shared object descriptor: Cannot allocate memory", ReasonCode.DRIVER_ERROR),
        ("libnvidia-ml.so.1: failed to map segment from shared object", ReasonCode.DRIVER_ERROR),
    ],
)
@pytest.mark.parametrize("worked", [True, False])
def test_a_driver_is_replaced_only_if_its_library_is_missing_or_damaged(
    message: str, code: ReasonCode, worked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it did not work before, another module is loaded now."""

    def init() -> None:
        error = pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
        error.__context__ = OSError(message)
        raise error

    module = tmp_path / "version"
    module.write_text(DRIVER)
    driver = Driver(tmp_path / "no-file", module)
    if worked:
        monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
        with driver.opened():
            pass
        assert driver.pause(PATIENCE_SECONDS)
        driver.resume()
    else:
        module.write_text(NEXT_DRIVER)
    monkeypatch.setattr(pynvml, "nvmlInit", init)
    with pytest.raises(DriverError) as error, driver.opened():
        pass
    assert driver.replaced is (code is not ReasonCode.DRIVER_ERROR)
    assert error.value.problem.code is code
    assert code is ReasonCode.LIBRARY_MISSING or error.value.problem.parameters["detail"] == message


def test_an_unloaded_driver_is_not_replaced(nvml: NvmlStandIn, program: NvmlProgram) -> None:
    program.collect()
    nvml.write([GPU], [fails("*", DRIVER_NOT_LOADED)])

    assert program.collect()["problem"] == NOT_LOADED
    assert program.call("is_replaced") is False


def hanging(nvml: NvmlStandIn, start: Start, function: str, *gpus: Device) -> tuple[NvmlProgram, int]:
    """Return a program that collects, and does not answer because this function hangs, and the number of its call."""
    nvml.write(gpus, [hangs(function)])
    program = start(nvml)
    collect = program.ask("collect")
    wait_until(nvml.a_call_hangs)
    assert not program.has_answered(collect, within=0)
    return program, collect


def test_a_hanging_call_ends_when_the_driver_continues(nvml: NvmlStandIn, nvml_program: Start) -> None:
    program, collect = hanging(nvml, nvml_program, "nvmlDeviceGetMemoryInfo", GPU)

    nvml.write([GPU])
    assert program.answer(collect)["problem"] is None


def test_reports_a_driver_that_hangs_in_open_without_waiting(nvml: NvmlStandIn, nvml_program: Start) -> None:
    program, first = hanging(nvml, nvml_program, "nvmlInit", GPU)

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


# -- Pause -----------------------------------------------------------------------------------------------------------


OTHER = Device(index=1, uuid="GPU-055a5b27-613d-8c97-6fb4-99d75c28b520", bus_id="0000:00:07.0")
SOON = 0.5


def assert_reads(program: NvmlProgram) -> None:
    assert program.collect()["problem"] is None


def test_a_pause_closes_everything(program: NvmlProgram) -> None:
    program.collect()
    program.call("collect_xids")
    assert program.descriptors() > 1

    assert program.call("pause", PATIENCE_SECONDS) is True
    assert_closed(program)


@pytest.mark.parametrize("collect", ["collect", "collect_xids"])
def test_a_collection_during_a_pause_opens_nothing(program: NvmlProgram, collect: str) -> None:
    program.collect()
    program.call("pause", PATIENCE_SECONDS)

    assert program.call(collect) == {"problem": "paused", "observations": []}
    assert program.call("driver_version") is None
    assert_closed(program)


def test_a_pause_before_the_first_collection_is_effective(nvml: NvmlStandIn, nvml_program: Start) -> None:
    program = nvml_program(nvml)

    assert program.call("pause", PATIENCE_SECONDS) is True
    assert program.collect()["problem"] == "paused"


def test_the_first_collection_after_a_pause_reads_the_gpus(program: NvmlProgram) -> None:
    program.collect()
    program.call("pause", PATIENCE_SECONDS)
    program.call("resume")

    assert [gpu["gpu"] for gpu in program.collect()["observations"]] == [GPU.uuid]


def test_a_pause_does_not_wait_for_a_hanging_call(nvml: NvmlStandIn, nvml_program: Start) -> None:
    """The driver is closed after the hanging call, unless the pause has ended by then."""
    program, collect = hanging(nvml, nvml_program, "nvmlDeviceGetMemoryInfo", GPU, OTHER)

    assert program.call("pause", SOON) is False
    nvml.write([GPU, OTHER])
    assert program.answer(collect) == {"problem": "paused", "observations": []}
    eventually(lambda: assert_closed(program))
    assert program.call("pause", PATIENCE_SECONDS) is True


def test_a_pause_does_not_wait_for_a_driver_that_hangs_in_open(nvml: NvmlStandIn, nvml_program: Start) -> None:
    program, collect = hanging(nvml, nvml_program, "nvmlInit", GPU)

    assert program.call("pause", SOON) is False
    nvml.write([GPU])
    assert program.answer(collect)["problem"] == "paused"
    eventually(lambda: assert_closed(program))


def test_a_pause_does_not_wait_for_a_driver_that_hangs_in_close(nvml: NvmlStandIn, program: NvmlProgram) -> None:
    program.collect()
    nvml.write([GPU], [hangs("nvmlShutdown")])

    assert program.call("pause", SOON) is False
    program.call("resume")
    assert program.collect()["problem"] == "driver_hangs"
    nvml.write([GPU])
    eventually(lambda: assert_reads(program))


def test_a_pause_closes_a_driver_that_fails_in_close(nvml: NvmlStandIn, program: NvmlProgram) -> None:
    program.collect()
    program.call("collect_xids")
    nvml.write([GPU], [fails("*", UNKNOWN)])

    assert program.call("pause", PATIENCE_SECONDS) is True
    assert_closed(program)


def test_many_quick_pauses_and_resumes_leave_a_working_driver(nvml: NvmlStandIn, nvml_program: Start) -> None:
    nvml.write([GPU], [slow("nvmlDeviceGetMemoryInfo", 30)])
    program = nvml_program(nvml)
    for _ in range(8):
        # As in the service, each collector runs in one thread at a time. Otherwise each thread creates an event set.
        requests = [program.ask(*call) for call in (("collect",), ("collect_xids",), ("pause", 0.0), ("resume",))]
        for each in requests:
            program.answer(each)

    program.call("resume")
    assert program.collect()["problem"] is None
    assert program.call("pause", PATIENCE_SECONDS) is True
    assert_closed(program)


def test_a_closed_driver_is_not_opened_again(program: NvmlProgram) -> None:
    program.collect()
    program.call("close")

    assert program.collect()["observations"] == []
    assert_closed(program)


def test_a_pause_does_not_unload_the_library_from_another_user(program: NvmlProgram) -> None:
    program.collect()
    program.call("other_collect")

    assert program.call("pause", PATIENCE_SECONDS) is True
    assert program.call("mapped") is True
    assert program.call("other_collect")["problem"] is None
