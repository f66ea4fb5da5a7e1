"""Xid events from NVML, and a wait for them that blocks neither readings nor a pause."""

from tests.collectors.nvml_program import NvmlProgram, Reading, Start
from tests.eventually import PATIENCE_SECONDS, eventually
from tests.standin.nvml import DRIVER_NOT_LOADED, GPU_IS_LOST, NOT_SUPPORTED, UNKNOWN, Device, NvmlStandIn, fails

GPU = Device()
OTHER = Device(index=1, uuid="GPU-055a5b27-613d-8c97-6fb4-99d75c28b520", bus_id="0000:00:07.0")
MEMORY_FAULT, FALLEN_OFF_THE_BUS = 31, 79
XID = 8


def listening(program: NvmlProgram) -> NvmlProgram:
    assert program.collect()["problem"] is None
    assert program.call("collect_xids") == {"problem": None, "observations": []}
    return program


def events(reading: Reading) -> list[tuple[int, int, str]]:
    return [(each["type"], each["xid"], each["gpu"]) for each in reading["observations"]]


def test_reports_an_xid_with_its_gpu(nvml: NvmlStandIn, nvml_program: Start) -> None:
    nvml.write([GPU, OTHER])
    program = listening(nvml_program(nvml))
    nvml.raise_xid(1, MEMORY_FAULT)

    found = program.call("collect_xids")
    assert events(found) == [(XID, MEMORY_FAULT, OTHER.uuid)]
    assert [(each["gpu_instance"], each["compute_instance"]) for each in found["observations"]] == [(None, None)]
    assert program.call("collect_xids") == {"problem": None, "observations": []}, "an event is reported once"


def test_an_xid_ends_the_wait(nvml: NvmlStandIn, program: NvmlProgram) -> None:
    listening(program)
    program.call("wait_for_xids", PATIENCE_SECONDS)
    collect = program.ask("collect_xids")
    nvml.raise_xid(0, MEMORY_FAULT)

    assert events(program.answer(collect)) == [(XID, MEMORY_FAULT, GPU.uuid)]


def test_loses_no_xid_between_two_collections(nvml: NvmlStandIn, program: NvmlProgram) -> None:
    listening(program)
    for number in (13, 31, 43):
        nvml.raise_xid(0, number)

    collected = [events(program.call("collect_xids")) for _ in range(3)]
    assert collected == [[(XID, number, GPU.uuid)] for number in (13, 31, 43)]


def test_identifies_a_gpu_that_is_lost_by_the_time_of_the_event(nvml: NvmlStandIn, program: NvmlProgram) -> None:
    listening(program)
    nvml.write([GPU], [fails("nvmlDeviceGetUUID", GPU_IS_LOST)])
    nvml.raise_xid(0, FALLEN_OFF_THE_BUS)

    assert events(program.call("collect_xids")) == [(XID, FALLEN_OFF_THE_BUS, GPU.uuid)]


def test_registers_only_supported_events(nvml: NvmlStandIn, nvml_program: Start) -> None:
    nvml.write([GPU, Device(index=1, uuid=OTHER.uuid, readings={"events": 0})])
    program = listening(nvml_program(nvml))
    nvml.raise_xid(1, MEMORY_FAULT)
    nvml.raise_xid(0, MEMORY_FAULT)

    assert events(program.call("collect_xids")) == [(XID, MEMORY_FAULT, GPU.uuid)]


def test_reports_a_problem_if_no_gpu_supports_xid_events(nvml: NvmlStandIn, nvml_program: Start) -> None:
    nvml.write([Device(readings={"events": 0})])
    program = nvml_program(nvml)
    program.collect()
    before = program.descriptors()

    assert [program.call("collect_xids")["problem"] for _ in range(2)] == ["not_supported: Xid events"] * 2
    assert program.descriptors() == before


def test_reads_xids_of_other_gpus_if_one_cannot_be_registered(nvml: NvmlStandIn, nvml_program: Start) -> None:
    nvml.write([GPU, OTHER], [fails("nvmlDeviceRegisterEvents", GPU_IS_LOST, device=0)])
    program = listening(nvml_program(nvml))
    nvml.raise_xid(1, MEMORY_FAULT)

    assert events(program.call("collect_xids")) == [(XID, MEMORY_FAULT, OTHER.uuid)]


def test_a_driver_without_events_is_a_problem_only_for_xids(nvml: NvmlStandIn, nvml_program: Start) -> None:
    nvml.write([GPU], [fails("nvmlEventSetCreate", NOT_SUPPORTED)])
    program = nvml_program(nvml)
    program.collect()

    assert program.call("collect_xids") == {"problem": "driver_error: Not Supported", "observations": []}
    assert program.collect()["problem"] is None


def test_waits_again_after_a_failed_wait(nvml: NvmlStandIn, program: NvmlProgram) -> None:
    listening(program)
    nvml.write([GPU], [fails("nvmlEventSetWait", UNKNOWN)])
    assert program.call("collect_xids")["problem"] == "driver_error: Unknown Error"

    nvml.write([GPU])
    assert program.call("collect_xids")["problem"] is None
    nvml.raise_xid(0, MEMORY_FAULT)
    assert events(program.call("collect_xids")) == [(XID, MEMORY_FAULT, GPU.uuid)]


def test_only_the_gpu_collector_opens_the_driver(program: NvmlProgram) -> None:
    assert program.call("collect_xids") == {"problem": "driver_not_open", "observations": []}
    assert program.descriptors() == 0


def test_reports_xids_again_after_a_driver_reload(nvml: NvmlStandIn, program: NvmlProgram) -> None:
    listening(program)
    nvml.write([GPU], [fails("*", DRIVER_NOT_LOADED)])
    assert program.call("collect_xids")["problem"] == "driver_not_loaded: Driver Not Loaded"
    assert program.descriptors() == 0

    nvml.write([GPU])
    listening(program)
    nvml.raise_xid(0, MEMORY_FAULT)
    assert events(program.call("collect_xids")) == [(XID, MEMORY_FAULT, GPU.uuid)]


def test_a_wait_for_xids_does_not_delay_a_pause(program: NvmlProgram) -> None:
    listening(program)
    waits = program.ask("collect_xids")

    assert program.call("pause", PATIENCE_SECONDS) is True
    assert program.answer(waits)["observations"] == []
    assert program.descriptors() == 0


def test_closes_a_lost_driver_after_the_wait_for_xids(nvml: NvmlStandIn, program: NvmlProgram) -> None:
    listening(program)
    waits = program.ask("collect_xids")
    nvml.write([GPU], [fails("nvmlDeviceGetCount", DRIVER_NOT_LOADED)])
    assert "Driver Not Loaded" in program.collect()["problem"]
    program.answer(waits)
    eventually(lambda: assert_no_descriptor(program))

    nvml.write([GPU])
    listening(program)


def assert_no_descriptor(program: NvmlProgram) -> None:
    assert program.descriptors() == 0
