"""The probes count launches exactly, by process, for every launch function."""

from dataclasses import replace

import pytest

from exporter.libcuda_probes.probes import LAUNCHES, PROBE_POINTS, WAITS, LibcudaProbes

from .process_work import SMS, work_of
from .standin import NEVER, StandInCuda, Truth, Work

LAUNCHING = [point.name for point in PROBE_POINTS if point.kind in LAUNCHES]
OLD = [point.name for point in PROBE_POINTS if point.kind == "launch_old"]
SYNCHRONISATIONS = [point.name for point in PROBE_POINTS if point.kind in WAITS - {"download"}]
TWINS = ("_ptsz", "_ptds")


def counted(probes: LibcudaProbes, truth: Truth) -> bool:
    work = work_of(probes, truth.pid)
    assert (work.kernels, work.graphs, work.spans) == (truth.kernels, truth.graphs, truth.spans)
    return True


def run(cuda: StandInCuda, work: Work) -> Truth:
    status, (truth,) = cuda.run(work)
    assert status == 0
    return truth


def test_standin_has_every_probe_point(cuda: StandInCuda) -> None:
    assert {point.name for point in PROBE_POINTS} <= set(cuda.offsets())


@pytest.mark.parametrize("function", LAUNCHING)
def test_counts_every_launch_function(function: str, probes: LibcudaProbes, cuda: StandInCuda) -> None:
    twin = "_ptsz" if function.endswith("_ptsz") else ""

    truth = run(cuda, Work(launch=function, synchronise=f"cuStreamSynchronize{twin}"))

    assert counted(probes, truth)
    assert truth.kernels + truth.graphs == 12
    assert truth.spans == 4


@pytest.mark.parametrize("function", SYNCHRONISATIONS)
def test_every_synchronisation_ends_a_span(function: str, probes: LibcudaProbes, cuda: StandInCuda) -> None:
    launch = "cuLaunchKernel_ptsz" if function.endswith(TWINS) else "cuLaunchKernel"

    truth = run(cuda, Work(launch=launch, synchronise=function))

    assert counted(probes, truth)
    assert truth.spans == work_of(probes, truth.pid).syncs == 4


@pytest.mark.parametrize("function", LAUNCHING)
def test_adds_up_the_widths_of_kernels(function: str, probes: LibcudaProbes, cuda: StandInCuda) -> None:
    """Includes the kernels of a graph, which have the widths of the captured ones."""
    truth = run(cuda, Work(launch=function, blocks=7))

    kernels = truth.kernels + truth.graphs * truth.captured
    assert work_of(probes, truth.pid).widths == (SMS if function in OLD else 7) * kernels


def test_counts_the_kernels_of_graphs(probes: LibcudaProbes, cuda: StandInCuda) -> None:
    truth = run(cuda, Work(launch="cuGraphLaunch"))

    assert work_of(probes, truth.pid).graph_kernels == truth.graphs * truth.captured > 0


@pytest.mark.parametrize(("function", "gap"), [("cuLaunchKernel", 2), ("cuGraphLaunch", 1)])
def test_the_gap_before_a_kernel_is_shorter_in_a_graph(
    function: str, gap: int, probes: LibcudaProbes, cuda: StandInCuda
) -> None:
    work = work_of(probes, run(cuda, Work(launch=function, nanoseconds=10_000_000)).pid)
    assert work.sure_gaps == gap * work.sure_widths > 0


@pytest.mark.parametrize("function", ["cuLaunchKernel", "cuLaunchKernel_ptsz"])
@pytest.mark.parametrize("mode", ["threads", "late-threads"])
def test_counts_threads_for_their_process(mode: str, function: str, probes: LibcudaProbes, cuda: StandInCuda) -> None:
    """Includes threads that start while probes are attached. Each thread has a stream."""
    twin = function.removeprefix("cuLaunchKernel")

    truth = run(cuda, Work(mode=mode, count=8, launch=function, synchronise=f"cuStreamSynchronize{twin}"))

    assert counted(probes, truth)
    assert truth.kernels == 8 * 12


def test_counts_more_threads_than_stream_slots(probes: LibcudaProbes, cuda: StandInCuda) -> None:
    truth = run(cuda, Work(mode="late-threads", count=64, synchronise="cuStreamSynchronize"))

    assert work_of(probes, truth.pid).kernels == truth.kernels == 64 * 12


def test_counts_child_processes_separately(probes: LibcudaProbes, cuda: StandInCuda) -> None:
    status, truths = cuda.run(Work(mode="children", count=3))

    assert status == 0
    assert len({truth.pid for truth in truths}) == 4
    assert all(counted(probes, truth) for truth in truths)


def test_continues_counting_after_exec(probes: LibcudaProbes, cuda: StandInCuda) -> None:
    with cuda.started(Work(mode="exec")) as program:
        program.go("ready")
        status, (before, after) = program.end()

    assert (status, before.pid) == (0, after.pid)
    assert counted(probes, replace(before, kernels=24, spans=8))


def test_graph_has_the_width_of_its_captured_kernels(probes: LibcudaProbes, cuda: StandInCuda) -> None:
    truth = run(cuda, Work(launch="cuGraphLaunch", blocks=9))

    work = work_of(probes, truth.pid)
    assert work.area == pytest.approx(9 * work.flight_ns, rel=1e-6)


def test_counts_a_process_that_never_synchronises(probes: LibcudaProbes, cuda: StandInCuda) -> None:
    truth = run(cuda, Work(synchronise=NEVER))

    work = work_of(probes, truth.pid)
    assert (work.kernels, work.spans) == (truth.kernels, 0)
    assert work.open_ns > 0


@pytest.mark.parametrize("each", [50, 100_000])
def test_counts_a_hundred_thousand_launches_exactly(each: int, probes: LibcudaProbes, cuda: StandInCuda) -> None:
    truth = run(cuda, Work(launches=100_000, each=each, nanoseconds=0))

    assert counted(probes, truth)
    assert truth.kernels == 100_000


def test_counts_a_running_process_from_the_start_of_observation(probes: LibcudaProbes, cuda: StandInCuda) -> None:
    """The program launched before `begin`, so what its streams have is not known: nothing of it is sure."""
    with cuda.started(Work(mode="flight", launches=5)) as program:
        program.go("in flight")
        probes.begin()
        before = work_of(probes, program.pid)
        _, (truth,) = program.end()

    work = work_of(probes, truth.pid)
    assert work.kernels == truth.kernels == 5
    assert before.open_unsure_ns == before.open_ns > 0
    assert (work.spans, work.sure_area, work.open_ns) == (1, 0, 0)


def test_distinguishes_concurrent_processes(probes: LibcudaProbes, cuda: StandInCuda) -> None:
    with cuda.started(Work(launches=30)) as one, cuda.started(Work(launches=60, blocks=3)) as other:
        one.go()
        other.go()
        (_, (first,)), (_, (second,)) = one.end(), other.end()

    assert counted(probes, first)
    assert counted(probes, second)
    assert (first.kernels, second.kernels) == (30, 60)
