"""The collector finds libcuda, reads the launches, and pauses if probes would cost too much."""

import itertools
import os
from collections.abc import Callable
from dataclasses import replace

import pytest

from exporter.collectors.nvml.driver import DriverError
from exporter.collectors.proc import Proc
from exporter.libcuda_probes.collector import (
    CLEANUP_SECONDS,
    MAX_HITS_PER_SECOND,
    MAX_QUERIES_PER_SECOND,
    SETTLED_HITS_PER_SECOND,
    sms_of,
)
from exporter.libcuda_probes.libraries import Found, Libraries
from exporter.model.launches import ProcessWork, WorkReading, began_ns
from exporter.model.reason import Reason, ReasonCode
from exporter.model.sharing import GpuUse

from .conftest import TimedCollector
from .process_work import SMS, boot_ns
from .standin import LAUNCH, SYNCHRONISE, Program, StandInCuda, Work, code_at

QUERY = "cuStreamQuery"
MUCH = Work(mode="turns", count=2, launches=200_000, each=200_000, nanoseconds=0)
GROW = (
    *("kernels", "graphs", "syncs", "spans", "flight_ns", "area", "widths"),
    *("sure_area", "sure_widths", "sure_gaps", "sure_heights", "sure_event_heights", "queries"),
)


def of(reading: WorkReading, pid: int) -> ProcessWork:
    return next((work for work in reading.processes if work.pid == pid), ProcessWork(pid=pid, first_ns=0))


def probed(target: Program, cuda: StandInCuda, function: str = LAUNCH) -> bool:
    offset = cuda.offsets()[function]
    return code_at(target.pid, cuda.library, offset) != cuda.library.read_bytes()[offset : offset + 1]


def test_reads_launches_with_gpu_utilization(start_collector: Callable[..., TimedCollector], cuda: StandInCuda) -> None:
    timed = start_collector()
    first = timed.after(0)

    _, (truth,) = cuda.run(Work())
    second = timed.after(1)

    assert first.seconds == 0
    assert second.seconds == 1
    assert (of(second, truth.pid).kernels, of(second, truth.pid).spans) == (truth.kernels, truth.spans)


def test_finds_a_library_that_only_a_client_uses(
    start_collector: Callable[..., TimedCollector], cuda: StandInCuda
) -> None:
    """Such as the library of a container."""
    timed = start_collector(nodes_own=())
    with cuda.started(Work(blocks=9)) as target:
        timed.collector.watch({target.pid: 5.0}, ())
        assert timed.after(0).watched == (target.pid,)
        _, (truth,) = target.end()

    work = of(timed.after(1), truth.pid)
    assert sms_of(5.0, SMS) == 8  # fewer than a kernel has blocks
    assert (work.kernels, work.widths) == (truth.kernels, 8 * truth.kernels)


def test_probes_stay_attached_at_a_low_launch_rate(
    start_collector: Callable[..., TimedCollector], cuda: StandInCuda
) -> None:
    timed = start_collector()
    timed.after(0)
    for _ in range(3):
        cuda.run(Work(launches=500, each=500, nanoseconds=0))
        assert timed.after(1).seconds == 1

    with cuda.started(Work()) as target:
        assert probed(target, cuda)


def test_pauses_at_a_high_launch_rate(start_collector: Callable[..., TimedCollector], cuda: StandInCuda) -> None:
    timed = start_collector()
    with cuda.started(MUCH) as target:
        timed.collector.watch({target.pid: 100.0}, ())
        timed.after(0)
        target.go("turn")
        last = timed.after(1)
        assert [probed(target, cuda, each) for each in (LAUNCH, QUERY, SYNCHRONISE)] == [False, False, True]
        resting = timed.after(1)
        _, (truth,) = target.end()
    later = timed.after(1)

    assert truth.kernels == 400_000
    assert (last.seconds, resting.seconds, later.seconds) == (1, 0, 0)
    assert last.watched == resting.watched == (truth.pid,)
    assert of(last, truth.pid).kernels == of(later, truth.pid).kernels == 200_000


def test_pauses_all_probes_if_rare_functions_are_called_often(
    start_collector: Callable[..., TimedCollector], cuda: StandInCuda
) -> None:
    timed = start_collector()
    with cuda.started(replace(MUCH, launches=60_000, each=1)) as target:
        timed.after(0)
        target.go("turn")
        timed.after(1)
        assert [probed(target, cuda, each) for each in (LAUNCH, QUERY, SYNCHRONISE)] == [False, False, False]
        assert of(timed.after(1), target.pid).context_syncs == 60_000


def asking(queries: float) -> Work:
    """Return turns with so many launches, and as many queries."""
    return replace(MUCH, launches=int(queries), each=1, synchronise=QUERY)


def test_pauses_only_the_queries_if_they_are_many(
    start_collector: Callable[..., TimedCollector], cuda: StandInCuda
) -> None:
    timed = start_collector()
    with cuda.started(asking(3 * MAX_QUERIES_PER_SECOND)) as target:
        timed.after(0)
        target.go("turn")
        seconds, asked = [], []
        for _ in range(4):
            seconds.append(timed.after(0.9).seconds)
            asked.append((probed(target, cuda), probed(target, cuda, QUERY)))
        target.end()
    assert seconds == pytest.approx([0.9] * 4)
    assert asked == [(True, False), (True, False), (True, False), (True, True)]


@pytest.mark.parametrize(
    ("queries", "stays"), [(0.2 * MAX_QUERIES_PER_SECOND, True), (2.5 * MAX_QUERIES_PER_SECOND, False)]
)
def test_probes_queries_for_a_moment_to_see_whether_they_are_many(
    queries: float, stays: bool, start_collector: Callable[..., TimedCollector], cuda: StandInCuda
) -> None:
    """While GPM's reading is awaited."""

    def wait(_: float) -> None:
        asked.append(probed(target, cuda, QUERY))
        target.go("turn")

    asked: list[bool] = []
    timed = start_collector(wait=wait)
    with cuda.started(asking(queries)) as target:
        timed.after(0)
        assert asked == [True]
        assert [probed(target, cuda), probed(target, cuda, QUERY)] == [True, stays]
        target.end()


def test_a_client_that_only_asks_pauses_no_launch_probes(
    start_collector: Callable[..., TimedCollector], cuda: StandInCuda
) -> None:
    """Although it asks more often in a moment than a settled client may hit probes in a second."""

    def wait(_: float) -> None:
        target.go("turn")

    timed = start_collector(wait=wait)
    with cuda.started(replace(asking(1), count=3, nanoseconds=300_000_000)) as target:
        timed.collector.watch({target.pid: 100.0}, (), settled=True)
        timed.after(0)
        assert [probed(target, cuda), probed(target, cuda, QUERY)] == [True, False]
        assert timed.after(1).seconds == 1
        target.end()


def test_the_first_cuda_call_is_known_only_of_processes_that_began_after_the_probes(
    start_collector: Callable[..., TimedCollector], cuda: StandInCuda
) -> None:
    """An older process may have launched before, and calls cuInit again."""
    timed = start_collector()
    with cuda.started(Work(mode="flight")) as older:
        timed.collector.watch({older.pid: 100.0}, ())
        timed.after(0)
        with cuda.started(Work(mode="flight")) as later:
            timed.collector.watch({older.pid: 100.0, later.pid: 100.0}, ())
            for target in (older, later):
                target.go("in flight")
            timed.after(1)
            reading = timed.after(1)
            assert of(reading, later.pid).initialized_ns > 0
            assert of(reading, older.pid).initialized_ns == 0
            later.end()
        older.end()


def test_attaches_again_after_a_pause(start_collector: Callable[..., TimedCollector], cuda: StandInCuda) -> None:
    timed = start_collector()
    with cuda.started(MUCH) as target:
        timed.after(0)
        target.go("turn")
        timed.after(1)
        first = timed.after(200_000 / MAX_HITS_PER_SECOND)
        second = timed.after(1)
        target.end()
    third = timed.after(1)

    assert (first.seconds, second.seconds, third.seconds) == (0, 1, 1)
    assert of(third, target.pid).kernels == 400_000


def test_watches_settled_clients_for_a_small_part_of_the_time(
    start_collector: Callable[..., TimedCollector], cuda: StandInCuda
) -> None:
    """At three times the lower limit, until one of them is not settled any more."""
    timed = start_collector()
    calls = int(3 * SETTLED_HITS_PER_SECOND)
    with cuda.started(Work(mode="turns", count=6, launches=calls, each=calls, nanoseconds=0)) as target:
        seconds = []
        for settled in (False, False, True, True, False):
            timed.collector.watch({target.pid: 100.0}, (), settled)
            seconds.append(timed.after(1).seconds)
            assert probed(target, cuda) == (not settled)
            target.go("turn")
        target.end()

    assert seconds == [0, 1, 1, 0, 0]


def test_combines_short_pauses(start_collector: Callable[..., TimedCollector], cuda: StandInCuda) -> None:
    """At 1.5 times the permitted rate, half a second of pause is due for each second."""
    timed = start_collector()
    calls = int(1.5 * MAX_HITS_PER_SECOND)
    turns = Work(mode="turns", count=4, launches=calls, each=calls, nanoseconds=0)
    with cuda.started(turns) as target:
        timed.after(0)
        seconds = []
        for _ in range(3):
            target.go("turn")
            seconds.append(timed.after(1).seconds)
        target.end()

    assert seconds == [1, 1, 0]


def test_counts_never_decrease(start_collector: Callable[..., TimedCollector], cuda: StandInCuda) -> None:
    """Covers a pause with work in flight, the next attachment, and the end of that work."""
    timed = start_collector()
    readings: list[ProcessWork] = []
    with cuda.started(Work(mode="turns", count=3, launches=200_000, each=80_000, nanoseconds=0)) as target:
        timed.after(0)
        for count in (1, 6):
            target.go("turn")
            readings.extend(of(timed.after(1), target.pid) for _ in range(count))
        target.end()
    readings.append(of(timed.after(1), target.pid))

    for before, after in itertools.pairwise(readings):
        assert all(getattr(before, name) <= getattr(after, name) for name in GROW)
        assert before.flight_ns + before.open_ns <= after.flight_ns + after.open_ns
        assert before.area + before.open_area <= after.area + after.open_area
    assert [work.kernels for work in (readings[0], readings[-1])] == [200_000, 400_000]
    assert readings[-1].flight_ns < boot_ns() - readings[0].first_ns


def test_work_in_flight_stays_in_flight_in_a_pause(
    start_collector: Callable[..., TimedCollector], cuda: StandInCuda
) -> None:
    """A wait for the context shows its end even then."""
    timed = start_collector()
    timed.after(0)
    with cuda.started(Work(mode="flight", launches=200_000, nanoseconds=0)) as target:
        target.go("in flight")
        last, resting = (of(timed.after(1), target.pid) for _ in range(2))
        target.end()
    after = of(timed.after(1), target.pid)

    assert 0 < last.open_ns < resting.open_ns
    assert (last.open_unsure_ns, resting.open_unsure_ns) == (0, resting.open_ns)
    assert (resting.spans, resting.open_since_ns) == (0, last.open_since_ns)
    assert resting.open_area == 7 * resting.open_ns
    assert (after.spans, after.open_ns, after.sure_area) == (1, 0, 0)
    assert after.flight_ns > resting.open_ns


def test_counts_a_client_anew_after_its_library_was_not_probed(
    start_collector: Callable[..., TimedCollector], cuda: StandInCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its work may have ended at any time. What was counted before is still read."""
    timed = start_collector()
    with cuda.started(Work(mode="flight")) as target:
        timed.collector.watch({target.pid: 100.0}, ())
        timed.after(0)
        target.go("in flight")
        with monkeypatch.context() as patch:
            patch.setattr(Libraries, "find", lambda *_: Found(()))
            assert of(timed.after(1), target.pid).open_ns > 0
        again = timed.after(1)
        assert again.watched == (target.pid,)
        assert target.pid not in {work.pid for work in again.processes}
        target.end()


def test_deletes_ended_processes_after_they_were_reported(
    start_collector: Callable[..., TimedCollector], cuda: StandInCuda
) -> None:
    timed = start_collector()
    timed.after(0)
    _, (truth,) = cuda.run(Work())

    assert of(timed.after(CLEANUP_SECONDS), truth.pid).kernels == truth.kernels
    assert of(timed.after(1), truth.pid).kernels == 0


def test_reused_pid_starts_with_empty_counts(
    start_collector: Callable[..., TimedCollector], cuda: StandInCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed = start_collector()
    timed.after(0)
    with cuda.started(Work(mode="turns", count=2)) as program:
        program.go("turn")
        began = boot_ns()
        monkeypatch.setattr(Proc, "start_ticks", lambda *_: began // began_ns(1) + 1)
        timed.after(CLEANUP_SECONDS)
        _, (truth,) = program.end()

    work = of(timed.after(1), truth.pid)
    assert (work.kernels, truth.kernels) == (12, 24)
    assert work.first_ns > began


def test_close_removes_the_probes(start_collector: Callable[..., TimedCollector], cuda: StandInCuda) -> None:
    timed = start_collector()
    timed.after(0)
    with cuda.started(Work()) as target:
        assert probed(target, cuda)
        timed.collector.close()
        assert not probed(target, cuda)


NO_DRIVER = Reason(ReasonCode.DRIVER_NOT_OPEN)


def test_reports_a_missing_driver(start_collector: Callable[..., TimedCollector]) -> None:
    def fail() -> tuple[GpuUse, ...]:
        raise DriverError(NO_DRIVER)

    assert start_collector(uses=fail).collector.collect().problem == NO_DRIVER


def test_many_signs_of_faults_do_not_stop_the_counts(start_collector: Callable[..., TimedCollector]) -> None:
    """A process that causes one Xid after the other would end the counts, and the pauses that limit their cost."""
    timed, kinds = start_collector(), list[str]()
    for sign in range(1, 41):
        timed.clock.time += 0.1
        timed.collector.watch({os.getpid(): 100.0}, (), sign_at=float(sign))
        kinds += [type(each).__name__ for each in timed.collector.collect().observations]

    assert kinds.count("WorkReading") >= 30
    assert kinds.count("KernelReading") in range(4, 7)
