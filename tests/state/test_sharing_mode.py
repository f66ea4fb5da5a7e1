"""How a GPU is shared is told where the lists and the daemon leave no doubt, and nowhere else."""

from dataclasses import replace

import pytest

from exporter.model.gpu import SharingMode
from exporter.model.node import Node
from exporter.model.observation import GpuReading, Observation
from exporter.state.gpus import sharing_mode
from tests.builders import AT, CLIENT, GPU, SERVER, Reduced, at_work, failure, gpu_reading, look, node, reduced, servers

STRANGER, ANOTHER = 801, 802
NO_DAEMON = Node()


def mode(story: Reduced) -> SharingMode | None:
    """How the GPU is shared."""
    return sharing_mode(story.node, story.node.gpus[GPU])


def twice(reading: GpuReading) -> tuple[GpuReading, ...]:
    """The same once more, so much later that it is settled."""
    return reading, replace(reading, at=reading.at + 2)


DAEMON_AT_WORK = at_work(CLIENT)


@pytest.mark.parametrize(
    ("reading", "expected"),
    [
        (gpu_reading(server=None), SharingMode.IDLE),
        (gpu_reading(), SharingMode.MPS),
        (gpu_reading([CLIENT]), SharingMode.MPS),
        (gpu_reading([CLIENT], beside=[STRANGER]), SharingMode.MIXED),
        (gpu_reading(beside=[STRANGER]), SharingMode.MIXED),
        (gpu_reading(beside=[STRANGER], server=None), SharingMode.EXCLUSIVE),
        (gpu_reading(beside=[STRANGER, ANOTHER], server=None), SharingMode.TIME_SLICING),
    ],
    ids=["nobody", "a server alone", "clients", "clients and others", "a server and another", "one", "several"],
)
def test_beside_a_daemon_that_has_told_its_servers(reading: GpuReading, expected: SharingMode) -> None:
    assert mode(reduced(*DAEMON_AT_WORK, *twice(reading))) is expected


@pytest.mark.parametrize(
    ("reading", "expected"),
    [
        (gpu_reading(server=None), SharingMode.IDLE),
        (gpu_reading([CLIENT], server=None), SharingMode.MPS),
        (gpu_reading(beside=[STRANGER], server=None), SharingMode.EXCLUSIVE),
        (gpu_reading(beside=[STRANGER, ANOTHER], server=None), SharingMode.TIME_SLICING),
    ],
)
def test_without_any_daemon(reading: GpuReading, expected: SharingMode) -> None:
    assert mode(reduced(*twice(reading), start=NO_DAEMON)) is expected


UNJUDGED: dict[str, tuple[Node, tuple[Observation, ...]]] = {
    "a stranger seen but once": (node(), (*DAEMON_AT_WORK, gpu_reading([CLIENT], beside=[STRANGER]))),
    "a daemon that has not told its servers": (node(), twice(gpu_reading([CLIENT]))),
    "clients of a daemon that nobody knows, and maybe its server": (NO_DAEMON, twice(gpu_reading([CLIENT]))),
    "a GPU that failed": (node(), (*DAEMON_AT_WORK, GpuReading(at=AT, gpu=GPU, problem=failure("GPU is lost")))),
    "a GPU that was not read again": (
        node(),
        (*DAEMON_AT_WORK, *twice(gpu_reading()), look(at=AT + 60, problem=failure("NVML is gone"))),
    ),
    "no list of processes": (node(), (*DAEMON_AT_WORK, GpuReading(at=AT, gpu=GPU, mps_processes=()))),
    "no list of MPS clients": (node(), (*DAEMON_AT_WORK, GpuReading(at=AT, gpu=GPU, compute_processes=()))),
}


@pytest.mark.parametrize(("start", "seen"), UNJUDGED.values(), ids=UNJUDGED)
def test_in_doubt_there_is_no_mode(start: Node, seen: tuple[Observation, ...]) -> None:
    assert mode(reduced(*seen, start=start)) is None


def test_a_daemon_that_may_have_a_new_server_leaves_it_open_who_is_beside_it() -> None:
    new_server = 900
    readings = twice(gpu_reading([CLIENT], beside=[new_server]))
    assert mode(reduced(*DAEMON_AT_WORK, *readings[:1])) is None
    assert mode(reduced(*DAEMON_AT_WORK, *readings[:1], servers(SERVER, new_server), *readings[1:])) is SharingMode.MPS


@pytest.mark.parametrize(
    "reading",
    [
        gpu_reading(server=None, mig_mode=True),
        gpu_reading(beside=[STRANGER, ANOTHER], mig_mode=True),
        GpuReading(at=AT, gpu=GPU, mig_mode=True),
    ],
)
def test_under_mig_the_lists_of_the_whole_gpu_say_nothing(reading: GpuReading) -> None:
    assert mode(reduced(*DAEMON_AT_WORK, *twice(reading))) is SharingMode.MIG
