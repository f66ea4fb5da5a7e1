"""Programs have the same output and exit status with and without probes."""

import shutil
import signal
from pathlib import Path

import pytest

from exporter.libcuda_probes.probes import PROBE_POINTS, LibcudaProbes, MessageKind

from .standin import NEVER, StandInCuda, Work

PROGRAMS = {
    "steady": Work(),
    "threads": Work(mode="threads", count=8, synchronise="cuStreamSynchronize"),
    "late threads": Work(
        mode="late-threads", count=8, launch="cuLaunchKernel_ptsz", synchronise="cuStreamSynchronize_ptsz"
    ),
    "children": Work(mode="children", count=4),
    "another program": Work(mode="exec"),
    "many streams": Work(mode="streams", count=64),
    "graphs": Work(launch="cuGraphLaunch_ptsz", synchronise="cuStreamSynchronize_ptsz"),
    "events": Work(synchronise="cuEventSynchronize"),
    "queries for events": Work(synchronise="cuEventQuery"),
    "queries for streams": Work(mode="late-threads", count=4, synchronise="cuStreamQuery", nanoseconds=1_000_000),
    "queries of children": Work(mode="children", count=4, synchronise="cuEventQuery"),
    "queries before another program": Work(mode="exec", synchronise="cuStreamQuery"),
    "queries in a container that kills for calls": Work(mode="filtered-deadly", synchronise="cuEventQuery"),
    "launch-ex": Work(launch="cuLaunchKernelEx"),
    "never": Work(synchronise=NEVER, launches=20_000, nanoseconds=1),
    "bad configurations": Work(mode="bad-configurations"),
    "absurd grids": Work(mode="absurd-grids"),
    "in a container that refuses calls": Work(mode="filtered", launches=200),
    "in a container that kills for calls": Work(mode="filtered-deadly", launches=200),
}

NO_HANDLES = {"streams", "bad-configurations", "absurd-grids"}
HANDLES = {"get_function", "same_kernel", "same_graph", "add_node", "add_node_v2", "end_capture"}
RETURNING = [point.name for point in PROBE_POINTS if point.kind in HANDLES]
"""Functions that return a handle, and have a return probe."""


@pytest.fixture(scope="module")
def unprobed(cuda: StandInCuda, tmp_path_factory: pytest.TempPathFactory) -> StandInCuda:
    """Copy the library and program: probes belong to a file, not to a name."""
    directory = tmp_path_factory.mktemp("unprobed")
    for file in (cuda.library, cuda.program):
        shutil.copy(file, directory)
    return StandInCuda(directory, built=True)


def outcome(cuda: StandInCuda, work: Work, **environment: str) -> tuple[int, list[tuple[int, ...]]]:
    with cuda.started(work, TARGET_STATUS="9", **environment) as program:
        for _ in range(work.mode == "exec"):
            program.go("ready")
        status, truths = program.end()
    return status, [truth.counts for truth in truths]


@pytest.mark.parametrize("name", PROGRAMS)
def test_probes_do_not_change_the_outcome(
    name: str, probes: LibcudaProbes, cuda: StandInCuda, unprobed: StandInCuda
) -> None:
    probed = outcome(cuda, PROGRAMS[name], TARGET_HANDLES="1")

    assert probed == outcome(unprobed, PROGRAMS[name], TARGET_HANDLES="1")
    assert probed[0] == 9
    if PROGRAMS[name].mode not in NO_HANDLES:
        others = {MessageKind.ANEW, MessageKind.REPLACED}
        assert {message.kind for message in probes.messages()} >= {*MessageKind} - others


@pytest.mark.usefixtures("probes")
def test_probes_do_not_change_a_failure(cuda: StandInCuda, unprobed: StandInCuda) -> None:
    probed = outcome(cuda, Work(), STANDIN_CUDA_FAULTY_FROM="3")

    assert probed == outcome(unprobed, Work(), STANDIN_CUDA_FAULTY_FROM="3")
    assert probed[0] == 70


def test_does_not_count_programs_without_probes(probes: LibcudaProbes, unprobed: StandInCuda) -> None:
    _, (truth,) = unprobed.run(Work())

    assert truth.kernels == 12
    assert truth.pid not in [work.pid for work in probes.read()]


@pytest.mark.usefixtures("probes")
def test_a_thread_can_be_cancelled_in_a_query(cuda: StandInCuda) -> None:
    """The stack is unwound through the probed function, as by a C++ exception: no return probe is in the way."""
    status, _ = cuda.run(Work(mode="cancelled", synchronise="cuStreamQuery"), STANDIN_CUDA_BLOCKS="1")

    assert status == 0


@pytest.mark.usefixtures("probes")
@pytest.mark.parametrize("function", RETURNING)
def test_a_call_that_does_not_return_ends_as_without_probes(function: str, cuda: StandInCuda) -> None:
    """A signal ends the process, or its handler leaves the function. A cancelled thread may skip its destructors."""
    work = Work(mode="left", synchronise=function)
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV):
        assert cuda.run(work, STANDIN_CUDA_RAISES=str(number.value))[0] == -number
    status, (truth,) = cuda.run(work, STANDIN_CUDA_RAISES=str(signal.SIGUSR1.value))
    assert (status, truth.result) == (0, 0)
    assert cuda.run(Work(mode="cancelled", synchronise=function), STANDIN_CUDA_BLOCKS="1")[0] in (0, 70)


@pytest.mark.usefixtures("probes")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_probes_do_not_change_the_effect_of_a_signal(number: signal.Signals, cuda: StandInCuda) -> None:
    with cuda.started(Work(mode="flight", launches=3)) as program:
        program.go("in flight")
        program.process.send_signal(number)

        assert program.process.wait() == -number


def test_attaches_and_detaches_while_a_program_runs(probes: LibcudaProbes, cuda: StandInCuda, tmp_path: Path) -> None:
    """Threads in a synchronisation return normally after their return probe was removed."""
    other = StandInCuda(tmp_path)
    offsets = other.offsets()
    with other.started(Work(mode="late-threads", count=4, launches=400, nanoseconds=200_000)) as program:
        program.go()
        for _ in range(5):
            probes.attach(str(other.library), offsets)
            probes.detach(str(other.library))
        status, (truth,) = program.end()

    assert status == 0
    assert truth.kernels == 4 * 400
