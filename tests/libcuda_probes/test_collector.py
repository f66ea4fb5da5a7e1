"""The eye on the doors: it finds libcuda, reads what was launched, and rests where to watch would cost too much."""

import itertools
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from exporter.collectors.nvml.driver import DriverError
from exporter.collectors.proc import Proc
from exporter.libcuda_probes.collector import (
    CLEANUP_SECONDS,
    MAX_HITS_PER_SECOND,
    MAX_PAUSE_SECONDS,
    LibcudaCollector,
    pause_seconds,
    sms_of,
)
from exporter.libcuda_probes.libraries import Libraries
from exporter.libcuda_probes.loader import Kernel
from exporter.model.launches import GpuUse, ProcessWork, WorkReading, began_ns
from exporter.model.problem import Problem, ProblemCode
from exporter.parse.elf import Machine
from tests.clocks import HandClock

from .process_work import SMS, boot_ns
from .standin import LAUNCH, Program, StandInCuda, Work, code_at

Uses = Callable[[], tuple[GpuUse, ...]]

MACHINES = {"x86_64": Machine.X86_64, "aarch64": Machine.ARM64}
USE = GpuUse(at=1.0, gpu="GPU-1", seconds=1.0, sm_utilization=0.5)
MUCH = Work(mode="turns", count=2, launches=50_000, each=50_000, nanoseconds=0)
GROW = (
    *("kernels", "graphs", "syncs", "spans", "flight_ns", "area", "widths"),
    *("sure_area", "sure_widths", "sure_gaps", "sure_heights", "sure_event_heights"),
)


@dataclass(slots=True)
class Watched:
    """An eye, and its clock."""

    doors: LibcudaCollector
    clock: HandClock

    def after(self, seconds: float) -> WorkReading:
        """What it reads so much later; no problem is to be told."""
        self.clock.time += seconds
        reading = self.doors.collect()
        assert reading.problem is None
        work, *uses = reading.observations
        assert uses == [USE]
        assert isinstance(work, WorkReading)
        return work


@pytest.fixture
def eye(kernel: Kernel, cuda: StandInCuda) -> Iterator[Callable[..., Watched]]:
    """Makes one, which knows the library as the node's own unless told otherwise."""
    made: list[LibcudaCollector] = []

    def eye(
        nodes_own: tuple[Path, ...] = (cuda.library,), uses: Callable[[], tuple[GpuUse, ...]] = lambda: (USE,)
    ) -> Watched:
        clock = HandClock()
        proc = Proc(Path("/proc"), clock)
        libraries = Libraries(proc, clock, MACHINES[platform.machine()], nodes_own)
        made.append(
            LibcudaCollector(uses=uses, sms=lambda: SMS, libraries=libraries, proc=proc, clock=clock, boot_ns=boot_ns)
        )
        return Watched(made[-1], clock)

    assert kernel
    yield eye
    for each in made:
        each.close()


def of(reading: WorkReading, pid: int) -> ProcessWork:
    """A process' work."""
    return next((work for work in reading.processes if work.pid == pid), ProcessWork(pid=pid, first_ns=0))


def probed(target: Program, cuda: StandInCuda) -> bool:
    """Whether a program would be stopped where it launches."""
    offset = cuda.offsets()[LAUNCH]
    return code_at(target.pid, cuda.library, offset) != cuda.library.read_bytes()[offset : offset + 1]


def test_what_is_launched_is_read_with_how_busy_the_gpu_was(eye: Callable[..., Watched], cuda: StandInCuda) -> None:
    watched = eye()
    first = watched.after(0)

    _, (truth,) = cuda.run(Work())
    second = watched.after(1)

    assert first.seconds == 0
    assert second.seconds == 1
    assert (of(second, truth.pid).kernels, of(second, truth.pid).spans) == (truth.kernels, truth.spans)


def test_a_library_that_a_client_alone_has_is_found_there(eye: Callable[..., Watched], cuda: StandInCuda) -> None:
    """As that of a container."""
    watched = eye(nodes_own=())
    with cuda.started(Work()) as target:
        watched.doors.watch({target.pid: 5.0}, ())
        assert watched.after(0).watched == (target.pid,)
        _, (truth,) = target.end()

    work = of(watched.after(1), truth.pid)
    assert sms_of(5.0, SMS) == 6  # fewer than a kernel has blocks
    assert (work.kernels, work.widths) == (truth.kernels, 6 * truth.kernels)


def test_who_launches_little_is_watched_all_the_time(eye: Callable[..., Watched], cuda: StandInCuda) -> None:
    watched = eye()
    watched.after(0)
    for _ in range(3):
        cuda.run(Work(launches=500, each=500, nanoseconds=0))
        assert watched.after(1).seconds == 1

    with cuda.started(Work()) as target:
        assert probed(target, cuda)


def test_who_launches_too_much_is_let_alone_for_a_while(eye: Callable[..., Watched], cuda: StandInCuda) -> None:
    watched = eye()
    with cuda.started(MUCH) as target:
        watched.doors.watch({target.pid: 100.0}, ())
        watched.after(0)
        target.go()
        target.reach("turn")
        last = watched.after(1)
        assert not probed(target, cuda)
        resting = watched.after(1)
        _, (truth,) = target.end()
    later = watched.after(1)

    assert truth.kernels == 100_000
    assert (last.seconds, resting.seconds, later.seconds) == (1, 0, 0)
    assert last.watched == resting.watched == (truth.pid,)
    assert of(last, truth.pid).kernels == of(later, truth.pid).kernels == 50_000


def test_after_the_rest_it_is_watched_anew(eye: Callable[..., Watched], cuda: StandInCuda) -> None:
    watched = eye()
    with cuda.started(MUCH) as target:
        watched.after(0)
        target.go()
        target.reach("turn")
        watched.after(1)
        first = watched.after(50_000 / MAX_HITS_PER_SECOND)
        second = watched.after(1)
        target.end()
    third = watched.after(1)

    assert (first.seconds, second.seconds, third.seconds) == (0, 1, 1)
    assert of(third, target.pid).kernels == 100_000


def test_of_the_time_at_most_so_much_is_watched_that_it_costs_a_hundredth() -> None:
    for rate in (MAX_HITS_PER_SECOND, 2 * MAX_HITS_PER_SECOND, 10 * MAX_HITS_PER_SECOND, 1000 * MAX_HITS_PER_SECOND):
        rest = pause_seconds({}, {7: ProcessWork(pid=7, first_ns=1, kernels=int(rate))}, 1.0)
        assert rest == MAX_PAUSE_SECONDS or rate / (1 + rest) <= MAX_HITS_PER_SECOND * 1.001


def test_what_is_owed_is_rested_together(eye: Callable[..., Watched], cuda: StandInCuda) -> None:
    """Who makes half as many calls again as is allowed owes half a second for each."""
    watched = eye()
    calls = int(1.5 * MAX_HITS_PER_SECOND)
    turns = Work(mode="turns", count=4, launches=calls, each=calls, nanoseconds=0)
    with cuda.started(turns) as target:
        watched.after(0)
        seconds = []
        for _ in range(3):
            target.go()
            target.reach("turn")
            seconds.append(watched.after(1).seconds)
        target.end()

    assert seconds == [1, 1, 0]


def test_no_count_ever_shrinks(eye: Callable[..., Watched], cuda: StandInCuda) -> None:
    """Neither as watching ends in mid-flight, nor as it begins anew, nor as the flight ends after that."""
    watched = eye()
    seen: list[ProcessWork] = []
    with cuda.started(Work(mode="turns", count=3, launches=50_000, each=20_000, nanoseconds=0)) as target:
        watched.after(0)
        for looks in (1, 6):
            target.go()
            target.reach("turn")
            seen.extend(of(watched.after(1), target.pid) for _ in range(looks))
        target.end()
    seen.append(of(watched.after(1), target.pid))

    for before, after in itertools.pairwise(seen):
        assert all(getattr(before, name) <= getattr(after, name) for name in GROW)
        assert before.flight_ns + before.open_ns <= after.flight_ns + after.open_ns
        assert before.area + before.open_area <= after.area + after.open_area
    assert [work.kernels for work in (seen[0], seen[-1])] == [50_000, 100_000]
    assert seen[-1].flight_ns < boot_ns() - seen[0].first_ns


def test_what_was_in_flight_as_a_rest_began_was_in_flight_until_then(
    eye: Callable[..., Watched], cuda: StandInCuda
) -> None:
    watched = eye()
    watched.after(0)
    with cuda.started(Work(mode="flight", launches=50_000, nanoseconds=0)) as target:
        target.go()
        target.reach("flying")
        flown = boot_ns()
        last, resting = (of(watched.after(1), target.pid) for _ in range(2))
        target.end()
    after = of(watched.after(1), target.pid)

    assert last.open_ns > 0
    assert (resting.spans, resting.open_ns) == (0, 0)
    assert resting.flight_ns >= flown - resting.first_ns
    assert resting.area == 7 * resting.flight_ns
    assert (after.flight_ns, after.open_ns) == (resting.flight_ns, 0)


def test_the_dead_are_forgotten_once_what_they_did_was_told(eye: Callable[..., Watched], cuda: StandInCuda) -> None:
    watched = eye()
    watched.after(0)
    _, (truth,) = cuda.run(Work())

    assert of(watched.after(CLEANUP_SECONDS), truth.pid).kernels == truth.kernels
    assert of(watched.after(1), truth.pid).kernels == 0


def test_a_process_that_has_the_pid_of_one_that_is_dead_begins_anew(
    eye: Callable[..., Watched], cuda: StandInCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = eye()
    watched.after(0)
    with cuda.started(Work(mode="turns", count=2)) as program:
        program.go()
        program.reach("turn")
        began = boot_ns()
        monkeypatch.setattr(Proc, "start_ticks", lambda *_: began // began_ns(1) + 1)
        watched.after(CLEANUP_SECONDS)
        _, (truth,) = program.end()

    work = of(watched.after(1), truth.pid)
    assert (work.kernels, truth.kernels) == (12, 24)
    assert work.first_ns > began


def test_an_eye_that_is_closed_watches_no_more_and_can_be_opened_again(
    eye: Callable[..., Watched], cuda: StandInCuda
) -> None:
    watched = eye()
    watched.after(0)
    with cuda.started(Work()) as target:
        assert probed(target, cuda)
        watched.doors.close()
        assert not probed(target, cuda)


NO_DRIVER = Problem(code=ProblemCode.DRIVER_NOT_OPEN)


def test_a_driver_that_is_gone_is_a_problem_in_words(eye: Callable[..., Watched]) -> None:
    def gone() -> tuple[GpuUse, ...]:
        raise DriverError(NO_DRIVER)

    assert eye(uses=gone).doors.collect().problem == NO_DRIVER
