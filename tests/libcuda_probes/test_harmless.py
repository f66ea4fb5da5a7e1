"""Whoever is watched does what it does unwatched: the same output, the same exit status."""

import shutil
import signal
from pathlib import Path

import pytest

from exporter.libcuda_probes.probes import LibcudaProbes

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
    "launch-ex": Work(launch="cuLaunchKernelEx"),
    "never": Work(synchronise=NEVER, launches=20_000, nanoseconds=0),
    "bad configurations": Work(mode="bad-configurations"),
    "absurd grids": Work(mode="absurd-grids"),
    "in a container that refuses calls": Work(mode="filtered", launches=200),
    "in a container that kills for calls": Work(mode="filtered-deadly", launches=200),
}


@pytest.fixture(scope="module")
def unwatched(cuda: StandInCuda, tmp_path_factory: pytest.TempPathFactory) -> StandInCuda:
    """The same library and programs in another place: probes are at a file, not at a name."""
    place = tmp_path_factory.mktemp("unwatched")
    for file in (cuda.library, cuda.program):
        shutil.copy(file, place)
    return StandInCuda(place, built=True)


def outcome(cuda: StandInCuda, work: Work, **environment: str) -> tuple[int, list[tuple[int, ...]]]:
    """All that is the same in every run."""
    with cuda.started(work, TARGET_STATUS="9", **environment) as program:
        for _ in range(work.mode == "exec"):
            program.go()
            program.reach("ready")
        status, truths = program.end()
    return status, [truth.counts for truth in truths]


@pytest.mark.usefixtures("watcher")
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_ends_as_it_does_unwatched(name: str, cuda: StandInCuda, unwatched: StandInCuda) -> None:
    watched = outcome(cuda, PROGRAMS[name])

    assert watched == outcome(unwatched, PROGRAMS[name])
    assert watched[0] == 9


@pytest.mark.usefixtures("watcher")
def test_a_program_that_fails_fails_alike(cuda: StandInCuda, unwatched: StandInCuda) -> None:
    watched = outcome(cuda, Work(), STANDIN_CUDA_FAULTY_FROM="3")

    assert watched == outcome(unwatched, Work(), STANDIN_CUDA_FAULTY_FROM="3")
    assert watched[0] == 70


def test_the_unwatched_are_not_seen(watcher: LibcudaProbes, unwatched: StandInCuda) -> None:
    _, (truth,) = unwatched.run(Work())

    assert truth.kernels == 12
    assert truth.pid not in [work.pid for work in watcher.read()]


@pytest.mark.usefixtures("watcher")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_program_dies_of_what_kills_it(number: signal.Signals, cuda: StandInCuda) -> None:
    with cuda.started(Work(mode="flight", launches=3)) as program:
        program.go()
        program.reach("flying")
        program.process.send_signal(number)

        assert program.process.wait() == -number


def test_a_program_that_runs_is_watched_and_let_go_of_at_any_time(
    watcher: LibcudaProbes, cuda: StandInCuda, tmp_path: Path
) -> None:
    """While its threads are in a wait: a return that is watched for no more goes where it would have gone."""
    other = StandInCuda(tmp_path)
    offsets = other.offsets()
    with other.started(Work(mode="late-threads", count=4, launches=400, nanoseconds=200_000)) as program:
        program.go()
        for _ in range(5):
            watcher.attach(str(other.library), offsets)
            watcher.detach(str(other.library))
        status, (truth,) = program.end()

    assert status == 0
    assert truth.kernels == 4 * 400
