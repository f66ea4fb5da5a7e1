"""Time in flight is as long as it was: no shorter than the library says from within, no longer than its caller does."""

import signal

import pytest

from exporter.libcuda_probes.probes import LibcudaProbes
from tests.eventually import eventually

from .process_work import SMS, boot_ns, seen
from .standin import StandInCuda, Truth, Work

MILLISECOND = 1_000_000


def run(cuda: StandInCuda, work: Work, **environment: str) -> Truth:
    """What the only process of a program did."""
    _, (truth,) = cuda.run(work, **environment)
    return truth


def waits(watcher: LibcudaProbes, pid: int) -> None:
    """It has begun to synchronise."""
    assert seen(watcher, pid).syncs == 1


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
def test_a_span_is_from_the_first_launch_to_the_end_of_the_wait(
    work: Work, watcher: LibcudaProbes, cuda: StandInCuda
) -> None:
    truth = run(cuda, work)

    flight = seen(watcher, truth.pid).flight_ns
    assert truth.busy_ns <= truth.flight_ns <= flight <= truth.outer_ns


def test_no_time_is_in_flight_while_nothing_was_launched(watcher: LibcudaProbes, cuda: StandInCuda) -> None:
    """Between its turns the program does nothing at all, for longer than in them."""
    with cuda.started(Work(mode="exec", launches=1, each=1, nanoseconds=MILLISECOND)) as program:
        program.go()
        program.reach("ready")
        idle = boot_ns()
        while boot_ns() < idle + 20 * MILLISECOND:
            pass
        assert seen(watcher, program.pid).open_ns == 0
        _, truths = program.end()

    flight = seen(watcher, program.pid).flight_ns
    assert flight <= sum(truth.outer_ns for truth in truths)


def test_the_area_is_the_flight_times_the_width(watcher: LibcudaProbes, cuda: StandInCuda) -> None:
    truth = run(cuda, Work(blocks=40))

    work = seen(watcher, truth.pid)
    assert work.area == 40 * work.flight_ns


def test_nobody_is_wider_than_the_gpu(watcher: LibcudaProbes, cuda: StandInCuda) -> None:
    truth = run(cuda, Work(blocks=100_000))

    work = seen(watcher, truth.pid)
    assert work.area == SMS * work.flight_ns


def test_who_may_use_fewer_sms_is_no_wider_than_those(watcher: LibcudaProbes, cuda: StandInCuda) -> None:
    with cuda.started(Work(blocks=100_000)) as program:
        watcher.limit_sms({program.pid: 33})
        program.go()
        program.end()

    work = seen(watcher, program.pid)
    assert work.area == 33 * work.flight_ns


def test_streams_in_flight_at_once_add_up(watcher: LibcudaProbes, cuda: StandInCuda) -> None:
    truth = run(cuda, Work(mode="streams", count=8, launches=2, nanoseconds=5 * MILLISECOND))

    work = seen(watcher, truth.pid)
    assert work.spans == 8
    assert truth.flight_ns <= work.flight_ns <= 8 * truth.outer_ns


@pytest.mark.parametrize(
    ("door", "spans"), [("cuStreamSynchronize", 2), ("cuEventSynchronize", 1)], ids=["stream", "event"]
)
def test_a_wait_ends_what_it_waits_for_alone(door: str, spans: int, watcher: LibcudaProbes, cuda: StandInCuda) -> None:
    """Not another stream's flight; an event's not even that of what was launched on its stream since."""
    with cuda.started(Work(mode="apart", synchronise=door)) as program:
        program.go()
        program.reach("waited")
        first = seen(watcher, program.pid)
        program.go()
        program.reach("waited again")
        second = seen(watcher, program.pid)
        _, (truth,) = program.end()
    done = seen(watcher, program.pid)

    assert (first.kernels, first.spans) == (2, 1)
    assert (second.kernels, second.spans) == (4, spans)
    assert 0 < first.open_ns < second.open_ns
    assert first.open_since_ns == second.open_since_ns
    assert (done.spans, done.open_ns) == (truth.spans, 0) == (3, 0)


@pytest.mark.parametrize(
    ("door", "by_event"), [("cuStreamSynchronize", False), ("cuEventSynchronize", True)], ids=["stream", "event"]
)
def test_a_burst_that_was_waited_for_long_is_sure(
    door: str, by_event: bool, watcher: LibcudaProbes, cuda: StandInCuda
) -> None:
    truth = run(cuda, Work(each=1, synchronise=door, nanoseconds=MILLISECOND))

    work = seen(watcher, truth.pid)
    heights = (0, 7 * truth.spans) if by_event else (7 * truth.spans, 0)
    assert 7 * truth.busy_ns <= work.sure_area <= work.area
    assert work.sure_widths == work.widths
    assert (work.sure_heights, work.sure_event_heights) == heights


def test_what_lasts_still_is_open(watcher: LibcudaProbes, cuda: StandInCuda) -> None:
    with cuda.started(Work(mode="flight", launches=3, nanoseconds=MILLISECOND)) as program:
        before = boot_ns()
        program.go()
        program.reach("flying")
        after = boot_ns()
        first = seen(watcher, program.pid)
        second = seen(watcher, program.pid)
        program.end()
    done = seen(watcher, program.pid)

    assert (first.spans, first.flight_ns) == (0, 0)
    assert before <= first.open_since_ns <= first.launched_ns <= after
    assert 0 < first.open_ns < second.open_ns
    assert first.open_area == 7 * first.open_ns
    assert (done.spans, done.open_ns) == (1, 0)
    assert done.flight_ns > second.open_ns


def test_who_is_killed_in_mid_flight_stays_so(watcher: LibcudaProbes, cuda: StandInCuda) -> None:
    """That is evidence, where a fault follows; whoever reads it knows that the process has ended."""
    with cuda.started(Work(mode="flight", launches=3, nanoseconds=60_000 * MILLISECOND)) as program:
        program.go()
        program.reach("flying")
        program.process.send_signal(signal.SIGKILL)
        program.process.wait()

    work = seen(watcher, program.pid)
    assert (work.kernels, work.spans) == (3, 0)
    assert work.open_ns > 0


def test_who_is_killed_while_it_waits_stays_in_flight(watcher: LibcudaProbes, cuda: StandInCuda) -> None:
    with cuda.started(Work(mode="flight", launches=3, nanoseconds=60_000 * MILLISECOND)) as program:
        program.go()
        program.reach("flying")
        program.go()
        eventually(lambda: waits(watcher, program.pid))
        program.process.send_signal(signal.SIGKILL)
        program.process.wait()

    assert seen(watcher, program.pid).spans == 0


def test_the_first_wait_that_fails_is_told_and_ends_no_span(watcher: LibcudaProbes, cuda: StandInCuda) -> None:
    before = boot_ns()

    status, (truth,) = cuda.run(Work(), STANDIN_CUDA_FAULTY_FROM="3")

    work = seen(watcher, truth.pid)
    assert (status, truth.result) == (70, 700)
    assert before < work.failed_ns < boot_ns()
    assert work.spans == 2
    assert work.open_ns == seen(watcher, truth.pid).open_ns > 0
