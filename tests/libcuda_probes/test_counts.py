"""What is launched at libcuda's doors is counted exactly, by process, however it is launched."""

from dataclasses import replace

import pytest

from exporter.libcuda_probes.libraries import LAUNCHES, PROBE_POINTS, WAITS
from exporter.libcuda_probes.probes import LibcudaProbes

from .process_work import seen
from .standin import NEVER, StandInCuda, Truth, Work

LAUNCHING = [point.name for point in PROBE_POINTS if point.kind in LAUNCHES]
SYNCHRONISATIONS = [point.name for point in PROBE_POINTS if point.kind in WAITS]
TWINS = ("_ptsz", "_ptds")


def counted(watcher: LibcudaProbes, truth: Truth) -> bool:
    """Whether all that can be counted was."""
    work = seen(watcher, truth.pid)
    assert (work.kernels, work.graphs, work.spans) == (truth.kernels, truth.graphs, truth.spans)
    return True


def run(cuda: StandInCuda, work: Work) -> Truth:
    """What the only process of a program did."""
    status, (truth,) = cuda.run(work)
    assert status == 0
    return truth


def test_the_stand_in_has_every_door(cuda: StandInCuda) -> None:
    assert {point.name for point in PROBE_POINTS} <= set(cuda.offsets())


@pytest.mark.parametrize("door", LAUNCHING)
def test_every_door_that_launches_is_counted(door: str, watcher: LibcudaProbes, cuda: StandInCuda) -> None:
    twin = "_ptsz" if door.endswith("_ptsz") else ""

    truth = run(cuda, Work(launch=door, synchronise=f"cuStreamSynchronize{twin}"))

    assert counted(watcher, truth)
    assert truth.kernels + truth.graphs == 12
    assert truth.spans == 4


@pytest.mark.parametrize("door", SYNCHRONISATIONS)
def test_every_door_that_waits_ends_a_span(door: str, watcher: LibcudaProbes, cuda: StandInCuda) -> None:
    launch = "cuLaunchKernel_ptsz" if door.endswith(TWINS) else "cuLaunchKernel"

    truth = run(cuda, Work(launch=launch, synchronise=door))

    assert counted(watcher, truth)
    assert truth.spans == seen(watcher, truth.pid).syncs == 4


@pytest.mark.parametrize("door", LAUNCHING)
def test_the_widths_of_kernels_add_up(door: str, watcher: LibcudaProbes, cuda: StandInCuda) -> None:
    """Those of a graph too, which are as wide as what was captured for it."""
    truth = run(cuda, Work(launch=door, blocks=7))

    kernels = truth.kernels + truth.graphs * truth.captured
    assert seen(watcher, truth.pid).widths == 7 * kernels


@pytest.mark.parametrize("door", ["cuLaunchKernel", "cuLaunchKernel_ptsz"])
@pytest.mark.parametrize("mode", ["threads", "late-threads"])
def test_threads_are_of_their_process(mode: str, door: str, watcher: LibcudaProbes, cuda: StandInCuda) -> None:
    """Those too that begin while it is watched; each thread has a stream."""
    twin = door.removeprefix("cuLaunchKernel")

    truth = run(cuda, Work(mode=mode, count=8, launch=door, synchronise=f"cuStreamSynchronize{twin}"))

    assert counted(watcher, truth)
    assert truth.kernels == 8 * 12


def test_more_threads_than_there_is_room_for_streams_are_counted(watcher: LibcudaProbes, cuda: StandInCuda) -> None:
    truth = run(cuda, Work(mode="late-threads", count=64, synchronise="cuStreamSynchronize"))

    assert seen(watcher, truth.pid).kernels == truth.kernels == 64 * 12


def test_children_are_processes_of_their_own(watcher: LibcudaProbes, cuda: StandInCuda) -> None:
    status, truths = cuda.run(Work(mode="children", count=3))

    assert status == 0
    assert len({truth.pid for truth in truths}) == 4
    assert all(counted(watcher, truth) for truth in truths)


def test_a_process_that_becomes_another_program_goes_on_counting(watcher: LibcudaProbes, cuda: StandInCuda) -> None:
    with cuda.started(Work(mode="exec")) as program:
        program.go()
        program.reach("ready")
        status, (before, after) = program.end()

    assert (status, before.pid) == (0, after.pid)
    assert counted(watcher, replace(before, kernels=24, spans=8))


def test_what_is_captured_does_not_run(watcher: LibcudaProbes, cuda: StandInCuda) -> None:
    truth = run(cuda, Work(launch="cuGraphLaunch"))

    work = seen(watcher, truth.pid)
    assert truth.captured == 3
    assert (work.kernels, work.graphs) == (0, 12)


def test_a_graph_is_as_wide_as_the_kernels_that_were_captured_for_it(watcher: LibcudaProbes, cuda: StandInCuda) -> None:
    truth = run(cuda, Work(launch="cuGraphLaunch", blocks=9))

    work = seen(watcher, truth.pid)
    assert work.area == pytest.approx(9 * work.flight_ns, rel=1e-6)


def test_who_never_synchronises_is_counted(watcher: LibcudaProbes, cuda: StandInCuda) -> None:
    truth = run(cuda, Work(synchronise=NEVER))

    work = seen(watcher, truth.pid)
    assert (work.kernels, work.spans) == (truth.kernels, 0)
    assert work.open_ns > 0


@pytest.mark.parametrize("each", [50, 100_000])
def test_a_hundred_thousand_launches_are_a_hundred_thousand(
    each: int, watcher: LibcudaProbes, cuda: StandInCuda
) -> None:
    truth = run(cuda, Work(launches=100_000, each=each, nanoseconds=0))

    assert counted(watcher, truth)
    assert truth.kernels == 100_000


def test_who_was_there_before_is_counted_from_then_on(watcher: LibcudaProbes, cuda: StandInCuda) -> None:
    """A program whose doors were opened before they were watched: this one has the library since before `begin`."""
    with cuda.started(Work(mode="flight", launches=5)) as program:
        program.go()
        program.reach("flying")
        watcher.begin()
        assert seen(watcher, program.pid).open_ns == 0
        _, (truth,) = program.end()

    work = seen(watcher, truth.pid)
    assert work.kernels == truth.kernels == 5
    assert (work.spans, work.flight_ns, work.open_ns) == (0, 0, 0)


def test_processes_at_the_same_time_are_told_apart(watcher: LibcudaProbes, cuda: StandInCuda) -> None:
    with cuda.started(Work(launches=30)) as one, cuda.started(Work(launches=60, blocks=3)) as other:
        one.go()
        other.go()
        (_, (first,)), (_, (second,)) = one.end(), other.end()

    assert counted(watcher, first)
    assert counted(watcher, second)
    assert (first.kernels, second.kernels) == (30, 60)
