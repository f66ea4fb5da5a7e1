"""A repeated query ends a span when its thread goes on."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from exporter.libcuda_probes.loader import Kernel
from exporter.libcuda_probes.probes import PROBE_POINTS, QUERIES, Group, LibcudaProbes
from tests.eventually import eventually

from .process_work import SMS, boot_ns, work_of
from .standin import StandInCuda, Work

MILLISECOND = 1_000_000
FUNCTIONS = [point.name for point in PROBE_POINTS if point.kind in QUERIES]
ASKING = Work(launches=4, each=1, synchronise="cuEventQuery", nanoseconds=50 * MILLISECOND)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_repeated_query_ends_a_span(function: str, probes: LibcudaProbes, cuda: StandInCuda) -> None:
    """Each launch shows that the query before it succeeded; after the last one the program ends."""
    launch = "cuLaunchKernel_ptsz" if function.endswith("_ptsz") else "cuLaunchKernel"
    _, (truth,) = cuda.run(replace(ASKING, launch=launch, synchronise=function))

    work = work_of(probes, truth.pid)
    assert (work.spans, truth.spans) == (3, 4)
    assert 0 < work.flight_ns <= truth.flight_ns
    assert (work.queries, work.syncs) == (truth.queries, 0)
    assert work.area == 7 * work.flight_ns
    assert 0 < work.answered_ns < boot_ns()


def test_a_query_ends_a_burst_like_a_wait(probes: LibcudaProbes, cuda: StandInCuda) -> None:
    """It waited since its first question. No event woke it up. On a busy machine, the gaps may be too long to count."""

    def counted() -> None:
        _, (truth,) = cuda.run(ASKING)
        work = work_of(probes, truth.pid)
        assert work.sure_widths == 7 * 3
        assert work.sure_area == work.area
        assert (work.sure_heights, work.sure_event_heights) == (7 * 3, 0)
        assert work.busy_ns == work.flight_ns
        assert work.gap_ns > 0

    eventually(counted)


def test_work_ends_in_the_middle_between_the_last_two_queries(probes: LibcudaProbes, cuda: StandInCuda) -> None:
    """A client that sleeps between its questions is no slower for it."""
    asking = replace(ASKING, launches=2, nanoseconds=300 * MILLISECOND)
    _, (truth,) = cuda.run(asking, TARGET_PAUSE="500000")

    work = work_of(probes, truth.pid)
    assert work.spans == 1
    assert 0.25 < work.flight_ns / (work.answered_ns - work.first_ns) < 0.75


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_single_query_proves_nothing(function: str, probes: LibcudaProbes, cuda: StandInCuda) -> None:
    """Allocators ask once, and go on whatever the answer is."""
    launch = "cuLaunchKernel_ptsz" if function.endswith("_ptsz") else "cuLaunchKernel"
    _, (truth,) = cuda.run(replace(ASKING, launch=launch, synchronise=function, nanoseconds=0))

    work = work_of(probes, truth.pid)
    assert (work.queries, work.spans, work.answered_ns) == (truth.queries, 0, 0) == (4, 0, 0)
    assert work.open_ns > 0


def test_a_query_for_an_event_proves_nothing_of_later_launches(probes: LibcudaProbes, cuda: StandInCuda) -> None:
    with cuda.started(Work(mode="apart", synchronise="cuEventQuery", nanoseconds=50 * MILLISECOND)) as program:
        program.go("waited")
        first = work_of(probes, program.pid)
        program.go("waited again")
        second = work_of(probes, program.pid)
        program.end()
    assert (first.spans, first.kernels) == (0, 2)  # the thread has not gone on
    assert (second.spans, second.kernels) == (1, 4)
    assert second.open_since_ns == first.open_since_ns  # the other stream


@pytest.fixture
def own(kernel: Kernel, cuda: StandInCuda) -> Iterator[LibcudaProbes]:
    """Attach all probes but those on queries."""
    probes = LibcudaProbes(kernel, boot_ns, SMS)
    try:
        probes.attach(str(cuda.library), cuda.offsets(), (Group.RARE, Group.FREQUENT))
        probes.begin((Group.RARE, Group.FREQUENT))
        yield probes
    finally:
        probes.close()


def test_what_began_before_the_queries_were_probed_is_not_sure(own: LibcudaProbes, cuda: StandInCuda) -> None:
    """A client that only asks never ends a span while its queries are not probed."""
    turns = replace(ASKING, mode="turns", count=3)
    with cuda.started(turns) as program:
        program.go("turn")
        unprobed = work_of(own, program.pid)
        own.attach(str(cuda.library), cuda.offsets())
        own.begin([Group.QUERIES])
        program.go("turn")
        probed = work_of(own, program.pid)
        own.pause(Group.QUERIES)
        program.end()
    after = work_of(own, program.pid)

    assert (unprobed.spans, unprobed.queries) == (0, 0)
    assert probed.queries > 0
    # The first of them began in the first turn. The last span of the second turn is open.
    assert probed.spans == 3
    assert probed.sure_widths == 7 * 3
    assert probed.sure_area < probed.area - 7 * (unprobed.open_ns - MILLISECOND)
    assert after.spans == probed.spans
    assert after.open_since_ns == probed.open_since_ns
