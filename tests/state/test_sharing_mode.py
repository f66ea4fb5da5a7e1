"""The sharing mode of a GPU: it is known only if the process lists and the daemon are conclusive."""

from dataclasses import replace

import pytest

from exporter.model.gpu import SharingMode
from exporter.model.node import Node
from exporter.model.observation import GpuReading, Observation
from exporter.state.bypassing import sharing_mode
from tests.builders import AT, CLIENT, GPU, SERVER, Reduced, at_work, failure, gpu_reading, look, node, reduced, servers

BYPASSING, ANOTHER = 801, 802
NO_DAEMON = Node()


def mode(result: Reduced) -> SharingMode | None:
    return sharing_mode(result.node, result.node.gpus[GPU])


def twice(reading: GpuReading) -> tuple[GpuReading, ...]:
    """Return the reading, and the same 2 s later, which confirms it."""
    return reading, replace(reading, at=reading.at + 2)


DAEMON_AT_WORK = at_work(CLIENT)


def test_mode_with_a_daemon_whose_servers_are_known(subtests: pytest.Subtests) -> None:
    for reading, expected in [
        (gpu_reading(server=None), SharingMode.IDLE),
        (gpu_reading(), SharingMode.MPS),
        (gpu_reading([CLIENT]), SharingMode.MPS),
        (gpu_reading([CLIENT], beside=[BYPASSING]), SharingMode.MIXED),
        (gpu_reading(beside=[BYPASSING]), SharingMode.MIXED),
        (gpu_reading(beside=[BYPASSING], server=None), SharingMode.EXCLUSIVE),
        (gpu_reading(beside=[BYPASSING, ANOTHER], server=None), SharingMode.TIME_SLICING),
    ]:
        with subtests.test(reading=reading, expected=expected):
            assert mode(reduced(*DAEMON_AT_WORK, *twice(reading))) is expected


@pytest.mark.parametrize(
    ("reading", "expected"),
    [
        (gpu_reading(server=None), SharingMode.IDLE),
        (gpu_reading([CLIENT], server=None), SharingMode.MPS),
        (gpu_reading(beside=[BYPASSING], server=None), SharingMode.EXCLUSIVE),
        (gpu_reading(beside=[BYPASSING, ANOTHER], server=None), SharingMode.TIME_SLICING),
    ],
)
def test_mode_without_a_daemon(reading: GpuReading, expected: SharingMode) -> None:
    assert mode(reduced(*twice(reading), start=NO_DAEMON)) is expected


INCONCLUSIVE: dict[str, tuple[Node, tuple[Observation, ...]]] = {
    "bypassing process in one reading": (node(), (*DAEMON_AT_WORK, gpu_reading([CLIENT], beside=[BYPASSING]))),
    "daemon with unknown servers": (node(), twice(gpu_reading([CLIENT]))),
    "clients of an unknown daemon": (NO_DAEMON, twice(gpu_reading([CLIENT]))),
    "failed reading": (node(), (*DAEMON_AT_WORK, GpuReading(at=AT, gpu=GPU, problem=failure("GPU is lost")))),
    "failed collection": (
        node(),
        (*DAEMON_AT_WORK, *twice(gpu_reading()), look(at=AT + 60, problem=failure("NVML is gone"))),
    ),
    "no list of processes": (node(), (*DAEMON_AT_WORK, GpuReading(at=AT, gpu=GPU, mps_processes=()))),
    "no list of MPS clients": (node(), (*DAEMON_AT_WORK, GpuReading(at=AT, gpu=GPU, compute_processes=()))),
}


def test_mode_is_unknown_if_the_evidence_is_inconclusive(subtests: pytest.Subtests) -> None:
    for start, seen in INCONCLUSIVE.values():
        with subtests.test(start=start, seen=seen):
            assert mode(reduced(*seen, start=start)) is None


def test_mode_is_unknown_until_a_possible_new_server_is_listed() -> None:
    new_server = 900
    readings = twice(gpu_reading([CLIENT], beside=[new_server]))
    assert mode(reduced(*DAEMON_AT_WORK, *readings[:1])) is None
    assert mode(reduced(*DAEMON_AT_WORK, *readings[:1], servers(SERVER, new_server), *readings[1:])) is SharingMode.MPS


@pytest.mark.parametrize(
    "reading",
    [
        gpu_reading(server=None, mig_mode=True),
        gpu_reading(beside=[BYPASSING, ANOTHER], mig_mode=True),
        GpuReading(at=AT, gpu=GPU, mig_mode=True),
    ],
)
def test_mode_is_mig_whatever_the_process_lists_contain(reading: GpuReading) -> None:
    assert mode(reduced(*DAEMON_AT_WORK, *twice(reading))) is SharingMode.MIG
