"""Time in flight lies between the time measured inside the library and the time measured by its caller."""

import signal
import time

import pytest

from exporter.libcuda_probes.probes import ENDS, PROBE_POINTS, LibcudaProbes
from tests.eventually import eventually

from .process_work import SMS, boot_ns, work_of
from .standin import StandInCuda, Truth, Work

MILLISECOND = 1_000_000


def run(cuda: StandInCuda, work: Work, **environment: str) -> Truth:
    _, (truth,) = cuda.run(work, **environment)
    return truth


def assert_waiting(probes: LibcudaProbes, pid: int) -> None:
    assert work_of(probes, pid).syncs == 1


@pytest.mark.parametrize(
    "work",
    [
        Work(each=1, nanoseconds=MILLISECOND),
        Work(each=12, nanoseconds=MILLISECOND),
        Work(each=1, nanoseconds=0, launches=1000),
        Work(synchronise="cuEventSynchronize", nanoseconds=MILLISECOND),
        Work(launch="cuGraphLaunch", nanoseconds=MILLISECOND),
        Work(mode="late-threads", count=4, synchronise="cuStreamSynchronize", nanoseconds=MILLISECOND),
    ],
    ids=["steady", "batches", "tiny", "events", "graphs", "threads"],
)
def test_span_lasts_from_first_launch_to_end_of_synchronisation(
    work: Work, probes: LibcudaProbes, cuda: StandInCuda
) -> None:
    truth = run(cuda, work)

    flight = work_of(probes, truth.pid).flight_ns
    assert truth.busy_ns <= truth.flight_ns <= flight <= truth.outer_ns


def test_idle_time_is_not_in_flight(probes: LibcudaProbes, cuda: StandInCuda) -> None:
    """The program is idle between its turns, for longer than it works."""
    with cuda.started(Work(mode="exec", launches=1, each=1, nanoseconds=MILLISECOND)) as program:
        program.go("ready")
        idle = boot_ns()
        while boot_ns() < idle + 20 * MILLISECOND:
            pass
        assert work_of(probes, program.pid).open_ns == 0
        _, truths = program.end()

    flight = work_of(probes, program.pid).flight_ns
    assert flight <= sum(truth.outer_ns for truth in truths)


def test_area_is_time_in_flight_times_width(probes: LibcudaProbes, cuda: StandInCuda) -> None:
    truth = run(cuda, Work(blocks=40))

    work = work_of(probes, truth.pid)
    assert work.area == 40 * work.flight_ns


def test_width_is_at_most_the_sms_of_the_gpu(probes: LibcudaProbes, cuda: StandInCuda) -> None:
    truth = run(cuda, Work(blocks=100_000))

    work = work_of(probes, truth.pid)
    assert work.area == SMS * work.flight_ns


def test_width_is_at_most_the_sm_limit(probes: LibcudaProbes, cuda: StandInCuda) -> None:
    with cuda.started(Work(blocks=100_000)) as program:
        probes.limit_sms({program.pid: 33})
        program.go()
        program.end()

    work = work_of(probes, program.pid)
    assert work.area == 33 * work.flight_ns


def test_a_client_is_busy_while_work_is_in_flight_on_any_stream(probes: LibcudaProbes, cuda: StandInCuda) -> None:
    # While a busy machine interrupts the program between its launches, only the first stream has work.
    truth = run(cuda, Work(mode="streams", count=4, nanoseconds=10 * MILLISECOND))
    work = work_of(probes, truth.pid)
    assert 0 < work.busy_ns < work.flight_ns / 2


def test_short_gaps_are_between_times_with_work_in_flight(probes: LibcudaProbes, cuda: StandInCuda) -> None:
    """The program pauses for 20 ms in the middle, which is no gap."""
    began = boot_ns()
    with cuda.started(Work(mode="turns", count=2, launches=8, each=1, nanoseconds=MILLISECOND)) as program:
        program.go("turn")
        time.sleep(0.02)
        program.end()
    work = work_of(probes, program.pid)
    assert work.busy_ns == work.flight_ns
    assert 0 < work.gap_ns < boot_ns() - began - work.busy_ns - 20 * MILLISECOND


def test_adds_up_concurrent_streams(probes: LibcudaProbes, cuda: StandInCuda) -> None:
    truth = run(cuda, Work(mode="streams", count=8, launches=2, nanoseconds=5 * MILLISECOND))

    work = work_of(probes, truth.pid)
    assert work.spans == 8
    assert truth.flight_ns <= work.flight_ns <= 8 * truth.outer_ns


@pytest.mark.parametrize(
    ("function", "spans"), [("cuStreamSynchronize", 2), ("cuEventSynchronize", 1)], ids=["stream", "event"]
)
def test_synchronisation_ends_only_its_own_spans(
    function: str, spans: int, probes: LibcudaProbes, cuda: StandInCuda
) -> None:
    """Another stream stays in flight. With an event, later launches on the same stream do, too."""
    with cuda.started(Work(mode="apart", synchronise=function)) as program:
        program.go("waited")
        first = work_of(probes, program.pid)
        program.go("waited again")
        second = work_of(probes, program.pid)
        _, (truth,) = program.end()
    done = work_of(probes, program.pid)

    assert (first.kernels, first.spans) == (2, 1)
    assert (second.kernels, second.spans) == (4, spans)
    assert 0 < first.open_ns < second.open_ns
    assert first.open_since_ns == second.open_since_ns
    assert (done.spans, done.open_ns) == (truth.spans, 0) == (3, 0)


@pytest.mark.parametrize(
    ("function", "by_event"), [("cuStreamSynchronize", False), ("cuEventSynchronize", True)], ids=["stream", "event"]
)
def test_burst_with_a_long_synchronisation_is_sure(
    function: str, by_event: bool, probes: LibcudaProbes, cuda: StandInCuda
) -> None:
    truth = run(cuda, Work(each=1, synchronise=function, nanoseconds=MILLISECOND))

    work = work_of(probes, truth.pid)
    heights = (0, 7 * truth.spans) if by_event else (7 * truth.spans, 0)
    assert 7 * truth.busy_ns <= work.sure_area <= work.area
    assert work.sure_widths == work.widths
    assert (work.sure_heights, work.sure_event_heights) == heights


def test_work_in_flight_is_open(probes: LibcudaProbes, cuda: StandInCuda) -> None:
    with cuda.started(Work(mode="flight", launches=3, nanoseconds=MILLISECOND)) as program:
        before = boot_ns()
        program.go("in flight")
        after = boot_ns()
        first = work_of(probes, program.pid)
        second = work_of(probes, program.pid)
        program.end()
    done = work_of(probes, program.pid)

    assert (first.spans, first.flight_ns) == (0, 0)
    assert before <= first.open_since_ns <= first.launched_ns <= after
    assert 0 < first.open_ns < second.open_ns
    assert first.open_area == 7 * first.open_ns
    assert (done.spans, done.open_ns) == (1, 0)
    assert done.flight_ns > second.open_ns


def test_process_killed_in_flight_stays_in_flight(probes: LibcudaProbes, cuda: StandInCuda) -> None:
    """If a fault follows, this is evidence. The reader of the counts knows that the process has ended."""
    with cuda.started(Work(mode="flight", launches=3, nanoseconds=60_000 * MILLISECOND)) as program:
        program.go("in flight")
        program.process.send_signal(signal.SIGKILL)
        program.process.wait()

    work = work_of(probes, program.pid)
    assert (work.kernels, work.spans) == (3, 0)
    assert work.open_ns > 0


def test_process_killed_while_synchronising_stays_in_flight(probes: LibcudaProbes, cuda: StandInCuda) -> None:
    with cuda.started(Work(mode="flight", launches=3, nanoseconds=60_000 * MILLISECOND)) as program:
        program.go("in flight")
        program.go()
        eventually(lambda: assert_waiting(probes, program.pid))
        program.process.send_signal(signal.SIGKILL)
        program.process.wait()

    assert work_of(probes, program.pid).spans == 0


def test_failed_synchronisation_is_reported_and_ends_no_span(probes: LibcudaProbes, cuda: StandInCuda) -> None:
    before = boot_ns()

    status, (truth,) = cuda.run(Work(), STANDIN_CUDA_FAULTY_FROM="3")

    work = work_of(probes, truth.pid)
    assert (status, truth.result) == (70, 700)
    assert before < work.failed_ns < boot_ns()
    assert work.spans == 2
    assert work.open_ns == work_of(probes, truth.pid).open_ns > 0


def test_a_copy_that_waits_counts_as_waiting(probes: LibcudaProbes, cuda: StandInCuda) -> None:
    """The synchronisation after it returns at once. Only the copy shows that the GPU was behind."""
    truth = run(cuda, Work(synchronise="cuMemcpyDtoHAsync_v2", nanoseconds=MILLISECOND))

    work = work_of(probes, truth.pid)
    assert work.spans == truth.spans == 4
    assert work.sure_widths == work.widths


def test_a_copy_alone_ends_no_span(probes: LibcudaProbes, cuda: StandInCuda) -> None:
    """It may have waited for room in a queue, and not for its end."""
    with cuda.started(Work(mode="flight", synchronise="cuMemcpyDtoHAsync_v2", launches=3)) as program:
        program.go("in flight")
        assert work_of(probes, program.pid).open_ns > 0
        _, (truth,) = program.end()
    assert work_of(probes, truth.pid).syncs == 2


def test_bound_has_the_width_of_the_widest_kernel(probes: LibcudaProbes, cuda: StandInCuda) -> None:
    """All kernels are equally wide here, so it is the area."""
    work = work_of(probes, run(cuda, Work(blocks=40)).pid)
    assert work.bound == work.area


def test_the_first_cuda_call_is_known_if_the_probes_were_attached_before(
    probes: LibcudaProbes, cuda: StandInCuda
) -> None:
    with cuda.started(Work(mode="flight")) as program:
        before = boot_ns()
        program.go("in flight")
        assert before <= work_of(probes, program.pid).initialized_ns <= boot_ns()
        probes.begin()
        assert work_of(probes, program.pid).initialized_ns == 0


def test_a_repeated_first_call_proves_nothing(probes: LibcudaProbes, cuda: StandInCuda) -> None:
    """The program launched before it called cuInit again."""
    with cuda.started(Work(mode="turns", count=3)) as program:
        program.go("turn")
        probes.begin()
        program.go("turn")
        assert work_of(probes, program.pid).initialized_ns == 0


@pytest.mark.parametrize(
    ("synchronise", "faulty", "synced"),
    [
        ("cuCtxSynchronize", "9", True),
        ("cuCtxSynchronize", "1", False),
        ("cuStreamSynchronize", "9", False),
        ("cuCtxDestroy_v2", "9", False),
    ],
)
def test_the_last_synchronisation_of_the_whole_context_is_known(
    synchronise: str, faulty: str, synced: bool, probes: LibcudaProbes, cuda: StandInCuda
) -> None:
    """It must have succeeded."""
    truth = run(cuda, Work(synchronise=synchronise), STANDIN_CUDA_FAULTY_FROM=faulty)

    work = work_of(probes, truth.pid)
    assert (work.synced_ns >= work.launched_ns > 0) is synced


@pytest.mark.parametrize("function", [point.name for point in PROBE_POINTS if point.kind in ENDS])
@pytest.mark.parametrize(("launches", "known"), [(3, False), (0, True)], ids=["in flight", "idle"])
def test_the_past_of_a_process_is_unknown_after_work_in_flight_was_destroyed(
    launches: int, known: bool, function: str, probes: LibcudaProbes, cuda: StandInCuda
) -> None:
    """The work may still run, or have failed. The destruction of an idle context or stream changes nothing."""
    truth = run(cuda, Work(mode="flight", launches=launches, synchronise=function))

    work = work_of(probes, truth.pid)
    assert work.open_ns == work.synced_ns == 0
    assert (work.initialized_ns > 0) is known
