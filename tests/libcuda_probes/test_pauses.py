"""What is counted while some groups of probes are detached, and what is known afterwards."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from exporter.libcuda_probes.probes import CONTEXTS, PROBE_POINTS, Group, LibcudaProbes, group_of
from tests.eventually import eventually

from .process_work import SMS, boot_ns, work_of
from .standin import SYNCHRONISE, Program, StandInCuda, Work, code_at

MILLISECOND = 1_000_000
PERSISTENT = Work(mode="flight", launches=1, blocks=20, nanoseconds=300_000 * MILLISECOND)
LONG = replace(PERSISTENT, nanoseconds=300 * MILLISECOND)

Resume = Callable[..., None]


@pytest.fixture(scope="module")
def pausable(loaded: LibcudaProbes) -> Iterator[LibcudaProbes]:
    """Unlike the probes of other files, these can be paused."""
    yield loaded
    loaded.close()


@pytest.fixture
def resume(pausable: LibcudaProbes, cuda: StandInCuda) -> Resume:
    """Return a function that attaches these groups again."""

    def resumed(*groups: Group) -> None:
        pausable.attach(str(cuda.library), cuda.offsets())
        pausable.begin(groups)

    return resumed


@pytest.fixture
def probes(pausable: LibcudaProbes, resume: Resume) -> LibcudaProbes:
    """Return the probes with all groups attached."""
    resume(*Group)
    return pausable


def waits(probes: LibcudaProbes, program: Program, syncs: int = 1) -> None:
    """Let a program wait for what it launched."""
    program.go("in flight")
    program.go()
    eventually(lambda: assert_waits(probes, program.pid, syncs))


def assert_waits(probes: LibcudaProbes, pid: int, syncs: int) -> None:
    assert work_of(probes, pid).syncs == syncs


def is_probed(target: Program, cuda: StandInCuda, function: str) -> bool:
    offset = cuda.offsets()[function]
    return code_at(target.pid, cuda.library, offset) != cuda.library.read_bytes()[offset : offset + 1]


def test_rare_functions_and_those_with_names_stay_probed_while_frequent_ones_are_not(
    probes: LibcudaProbes, cuda: StandInCuda
) -> None:
    for group in (Group.QUERIES, Group.FREQUENT):
        probes.pause(group)
    with cuda.started(Work(launch="cuGraphLaunch", launches=6, each=2)) as program:
        probed = {point.name for point in PROBE_POINTS if is_probed(program, cuda, point.name)}
        program.end()
    work = work_of(probes, program.pid)
    stay = {Group.RARE, Group.NAMES, Group.LOOKUPS}
    rare = {point for point in PROBE_POINTS if group_of(point.kind) in stay and point.kind not in CONTEXTS}
    assert probed == {point.name for point in rare} >= {"cuInit", "cuStreamBeginCapture_v2", SYNCHRONISE}
    assert (work.kernels, work.graphs, work.context_syncs, work.syncs) == (0, 0, 3, 3)
    assert work.context_calls == 3  # the first call, and begin and end of the capture
    assert (work.initialized_ns, work.synced_ns) == (0, 0)


def test_what_is_called_first_in_a_pause_is_not_known_after_it(
    probes: LibcudaProbes, cuda: StandInCuda, resume: Resume
) -> None:
    """Launches may have been missed."""
    probes.pause(Group.FREQUENT)
    with cuda.started(Work(mode="flight")) as program:
        program.go("in flight")
        resume(Group.FREQUENT)
        program.end()
    assert work_of(probes, program.pid).initialized_ns == 0


@pytest.mark.parametrize("function", [SYNCHRONISE, "cuStreamSynchronize"])
def test_a_span_survives_a_pause(function: str, probes: LibcudaProbes, cuda: StandInCuda, resume: Resume) -> None:
    """A wait for a context is surely blocked all the time. The return of one for a stream may have been missed."""
    by_context = function == SYNCHRONISE
    with cuda.started(replace(PERSISTENT, synchronise=function)) as program:
        waits(probes, program)
        before = work_of(probes, program.pid)
        probes.pause(Group.FREQUENT)
        paused = work_of(probes, program.pid)
        resume(Group.FREQUENT)
        after = work_of(probes, program.pid)

    for earlier, later in ((before, paused), (paused, after)):
        assert earlier.open_since_ns == later.open_since_ns
        assert earlier.open_ns < later.open_ns
        assert earlier.open_busy_ns < later.open_busy_ns
        assert later.open_area == later.open_bound == 20 * later.open_ns
        assert later.open_unsure_ns == (0 if by_context else later.open_ns)


def test_a_launch_after_a_pause_begins_a_span(probes: LibcudaProbes, cuda: StandInCuda, resume: Resume) -> None:
    """The old one may have ended at any time, so nothing of it is sure. What was read of it stays counted."""
    with cuda.started(Work(mode="turns", count=2, launches=3, each=4, nanoseconds=50 * MILLISECOND)) as program:
        program.go("turn")
        probes.pause(Group.FREQUENT)
        resume(Group.FREQUENT)
        before, resumed_at = work_of(probes, program.pid), boot_ns()
        _, (truth,) = program.end()
    work = work_of(probes, program.pid)
    assert (before.spans, work.spans, truth.spans) == (0, 1, 0)
    assert work.flight_ns > before.open_ns
    assert work.open_since_ns > resumed_at
    assert (work.open_unsure_ns, work.sure_area, work.sure_widths) == (0, 0, 0)


@pytest.mark.parametrize("paused_before_the_wait", [True, False])
def test_a_wait_that_returns_in_a_pause_ends_a_span(
    paused_before_the_wait: bool, probes: LibcudaProbes, cuda: StandInCuda
) -> None:
    """If it was called before the pause, the GPU was behind all the time. Else there may have been other launches."""
    with cuda.started(LONG) as program:
        if paused_before_the_wait:
            program.go("in flight")
            probes.pause(Group.FREQUENT)
        else:
            waits(probes, program)
            probes.pause(Group.FREQUENT)
        program.end()
    work = work_of(probes, program.pid)
    assert (work.spans, work.open_ns, work.open_busy_ns) == (1, 0, 0)
    assert work.area == 20 * work.flight_ns
    assert (work.sure_area, work.sure_widths) == ((0, 0) if paused_before_the_wait else (work.area, 20))


@pytest.mark.parametrize("function", [SYNCHRONISE, "cuStreamSynchronize"])
def test_a_wait_after_a_pause_ends_the_span_from_before(
    function: str, probes: LibcudaProbes, cuda: StandInCuda, resume: Resume
) -> None:
    with cuda.started(replace(LONG, synchronise=function, nanoseconds=1_000 * MILLISECOND)) as program:
        program.go("in flight")
        probes.pause(Group.FREQUENT)
        resume(Group.FREQUENT)
        program.go()
        eventually(lambda: assert_waits(probes, program.pid, 1))
        program.end()
    work = work_of(probes, program.pid)
    assert (work.spans, work.open_ns, work.sure_area) == (1, 0, 0)


def test_the_bound_of_a_graph_has_the_width_of_its_widest_kernel(probes: LibcudaProbes, cuda: StandInCuda) -> None:
    _, (truth,) = cuda.run(Work(launch="cuGraphLaunch", blocks=9))
    work = work_of(probes, truth.pid)
    assert work.bound == 9 * work.flight_ns


@pytest.mark.parametrize("group", [Group.FREQUENT, Group.RARE])
def test_a_graph_that_was_captured_in_a_pause_can_have_any_width(
    group: Group, probes: LibcudaProbes, cuda: StandInCuda, resume: Resume
) -> None:
    with cuda.started(Work(mode="turns", count=3, launch="cuGraphLaunch", blocks=9)) as program:
        program.go("turn")
        before = work_of(probes, program.pid)
        probes.pause(group)
        program.go("turn")
        resume(group)
        paused = work_of(probes, program.pid)
        program.end()
    after = work_of(probes, program.pid)
    assert before.bound == 9 * before.flight_ns
    assert after.bound - paused.bound == SMS * (after.flight_ns - paused.flight_ns) > 0
