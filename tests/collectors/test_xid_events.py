"""Xids are told as NVML tells them, and waiting for them is in nobody's way."""

from tests.collectors.nvml_program import NvmlProgram, Reading, Start
from tests.eventually import PATIENCE_SECONDS, eventually
from tests.standin.nvml import DRIVER_NOT_LOADED, GPU_IS_LOST, NOT_SUPPORTED, UNKNOWN, Device, NvmlStandIn, fails

GPU = Device()
OTHER = Device(index=1, uuid="GPU-055a5b27-613d-8c97-6fb4-99d75c28b520", bus_id="0000:00:07.0")
MEMORY_FAULT, FALLEN_OFF_THE_BUS = 31, 79
XID = 8


def listening(program: NvmlProgram) -> NvmlProgram:
    """It has opened the driver, and waited for events once."""
    assert program.collect()["problem"] is None
    assert program.call("collect_xids") == {"problem": None, "seen": []}
    return program


def told(reading: Reading) -> list[tuple[int, int, str]]:
    """Type, number and GPU of what was seen."""
    return [(each["type"], each["xid"], each["gpu"]) for each in reading["seen"]]


def test_an_xid_is_told_with_its_gpu(nvml: NvmlStandIn, nvml_program: Start) -> None:
    nvml.write([GPU, OTHER])
    program = listening(nvml_program(nvml))
    nvml.raise_xid(1, MEMORY_FAULT)

    assert told(program.call("collect_xids")) == [(XID, MEMORY_FAULT, OTHER.uuid)]
    assert program.call("collect_xids") == {"problem": None, "seen": []}, "and but once"


def test_a_look_that_waits_ends_with_the_xid(nvml: NvmlStandIn, nvml_program: Start) -> None:
    nvml.write([GPU])
    program = listening(nvml_program(nvml))
    program.call("wait_for_xids", PATIENCE_SECONDS)
    collect = program.ask("collect_xids")
    nvml.raise_xid(0, MEMORY_FAULT)

    assert told(program.answer(collect)) == [(XID, MEMORY_FAULT, GPU.uuid)]


def test_none_is_lost_between_two_looks(nvml: NvmlStandIn, nvml_program: Start) -> None:
    nvml.write([GPU])
    program = listening(nvml_program(nvml))
    for number in (13, 31, 43):
        nvml.raise_xid(0, number)

    seen = [told(program.call("collect_xids")) for _ in range(3)]
    assert seen == [[(XID, number, GPU.uuid)] for number in (13, 31, 43)]


def test_the_gpu_is_known_though_it_is_lost_by_then(nvml: NvmlStandIn, nvml_program: Start) -> None:
    nvml.write([GPU])
    program = listening(nvml_program(nvml))
    nvml.write([GPU], [fails("nvmlDeviceGetUUID", GPU_IS_LOST)])
    nvml.raise_xid(0, FALLEN_OFF_THE_BUS)

    assert told(program.call("collect_xids")) == [(XID, FALLEN_OFF_THE_BUS, GPU.uuid)]


def test_only_what_a_gpu_supports_is_registered(nvml: NvmlStandIn, nvml_program: Start) -> None:
    nvml.write([GPU, Device(index=1, uuid=OTHER.uuid, readings={"events": 0})])
    program = listening(nvml_program(nvml))
    nvml.raise_xid(1, MEMORY_FAULT)
    nvml.raise_xid(0, MEMORY_FAULT)

    assert told(program.call("collect_xids")) == [(XID, MEMORY_FAULT, GPU.uuid)]


def test_where_no_gpu_tells_of_xids_that_is_a_problem_and_no_calm(nvml: NvmlStandIn, nvml_program: Start) -> None:
    nvml.write([Device(readings={"events": 0})])
    program = nvml_program(nvml)
    program.collect()
    before = program.descriptors()

    assert [program.call("collect_xids")["problem"] for _ in range(2)] == ["not_supported: Xid events"] * 2
    assert program.descriptors() == before


def test_a_gpu_that_cannot_be_registered_leaves_the_others(nvml: NvmlStandIn, nvml_program: Start) -> None:
    nvml.write([GPU, OTHER], [fails("nvmlDeviceRegisterEvents", GPU_IS_LOST, device=0)])
    program = listening(nvml_program(nvml))
    nvml.raise_xid(1, MEMORY_FAULT)

    assert told(program.call("collect_xids")) == [(XID, MEMORY_FAULT, OTHER.uuid)]


def test_a_driver_without_events_is_a_problem_that_leaves_the_lists(nvml: NvmlStandIn, nvml_program: Start) -> None:
    nvml.write([GPU], [fails("nvmlEventSetCreate", NOT_SUPPORTED)])
    program = nvml_program(nvml)
    program.collect()

    assert program.call("collect_xids") == {"problem": "driver_error: Not Supported", "seen": []}
    assert program.collect()["problem"] is None


def test_waiting_that_failed_is_begun_anew(nvml: NvmlStandIn, nvml_program: Start) -> None:
    nvml.write([GPU])
    program = listening(nvml_program(nvml))
    nvml.write([GPU], [fails("nvmlEventSetWait", UNKNOWN)])
    assert program.call("collect_xids")["problem"] == "driver_error: Unknown Error"

    nvml.write([GPU])
    assert program.call("collect_xids")["problem"] is None
    nvml.raise_xid(0, MEMORY_FAULT)
    assert told(program.call("collect_xids")) == [(XID, MEMORY_FAULT, GPU.uuid)]


def test_the_driver_is_opened_by_the_look_at_gpus_alone(nvml: NvmlStandIn, nvml_program: Start) -> None:
    nvml.write([GPU])
    program = nvml_program(nvml)

    assert program.call("collect_xids") == {"problem": "driver_not_open", "seen": []}
    assert program.descriptors() == 0


def test_after_the_driver_was_reloaded_xids_are_told_again(nvml: NvmlStandIn, nvml_program: Start) -> None:
    nvml.write([GPU])
    program = listening(nvml_program(nvml))
    nvml.write([GPU], [fails("*", DRIVER_NOT_LOADED)])
    assert program.call("collect_xids")["problem"] == "driver_not_loaded: Driver Not Loaded"
    assert program.descriptors() == 0

    nvml.write([GPU])
    listening(program)
    nvml.raise_xid(0, MEMORY_FAULT)
    assert told(program.call("collect_xids")) == [(XID, MEMORY_FAULT, GPU.uuid)]


def test_waiting_does_not_hold_up_a_pause(nvml: NvmlStandIn, nvml_program: Start) -> None:
    nvml.write([GPU])
    program = listening(nvml_program(nvml))
    waits = program.ask("collect_xids")

    assert program.call("pause", PATIENCE_SECONDS) is True
    assert program.answer(waits)["seen"] == []
    assert program.descriptors() == 0


def test_a_driver_that_is_lost_while_an_xid_is_awaited_is_closed_after_that(
    nvml: NvmlStandIn, nvml_program: Start
) -> None:
    nvml.write([GPU])
    program = listening(nvml_program(nvml))
    waits = program.ask("collect_xids")
    nvml.write([GPU], [fails("nvmlDeviceGetCount", DRIVER_NOT_LOADED)])
    assert "Driver Not Loaded" in program.collect()["problem"]
    program.answer(waits)
    eventually(lambda: assert_no_descriptor(program))

    nvml.write([GPU])
    listening(program)


def assert_no_descriptor(program: NvmlProgram) -> None:
    """It has let go of the driver."""
    assert program.descriptors() == 0
