"""What one workload does, on purpose or not, costs others little: neither their time nor their place."""

import contextlib
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from exporter.collectors.proc import Proc
from exporter.libcuda_probes.collector import MAX_HITS_PER_SECOND, RETRY_SECONDS, LibcudaCollector, pause_seconds
from exporter.libcuda_probes.libraries import Libraries, machine_named
from exporter.libcuda_probes.loader import BpfError, Kernel
from exporter.libcuda_probes.probes import LibcudaProbes
from exporter.model.launches import ProcessWork, WorkReading
from exporter.model.problem import ProblemCode
from tests.clocks import HandClock

from .process_work import SMS, boot_ns, seen
from .standin import StandInCuda, Work


@dataclass(frozen=True, slots=True)
class Eye:
    """An eye on the node's own libcuda, and its clock."""

    doors: LibcudaCollector
    clock: HandClock

    def works(self) -> tuple[ProcessWork, ...]:
        """What it reads of all processes."""
        (reading,) = self.doors.collect().observations
        assert isinstance(reading, WorkReading)
        return reading.processes


@pytest.fixture
def eye(kernel: Kernel, cuda: StandInCuda) -> Iterator[Eye]:
    machine = machine_named(platform.machine())
    assert kernel
    assert machine
    clock = HandClock()
    proc = Proc(Path("/proc"), clock)
    doors = LibcudaCollector(
        uses=tuple,
        sms=lambda: SMS,
        libraries=Libraries(proc, clock, machine, (cuda.library,)),
        proc=proc,
        clock=clock,
        boot_ns=boot_ns,
        wait=lambda _: None,
        check_seccomp=lambda *_: None,
    )
    yield Eye(doors, clock)
    doors.close()


def test_where_room_is_scarce_only_clients_keep_theirs(
    eye: Eye, cuda: StandInCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody can have as many processes launch as they may fork: that takes nobody's place for long."""
    monkeypatch.setattr("exporter.libcuda_probes.collector.MAX_PROCESSES", 4)
    eye.works()
    with contextlib.ExitStack() as running:
        targets = [running.enter_context(cuda.started(Work(mode="flight", launches=3))) for _ in range(4)]
        for target in targets:
            target.go()
            target.reach("flying")
        client = targets[0].pid
        eye.doors.watch({client: 100.0}, ())
        everybody, clients = ({work.pid for work in eye.works()} for _ in range(2))

    assert everybody >= {target.pid for target in targets}
    assert clients == {client}


def test_a_library_that_cannot_be_watched_is_not_tried_again_at_once(eye: Eye, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each try has the kernel halt all forks for a moment, and anybody can bring such libraries."""
    tries: list[str] = []

    def refused(_: LibcudaProbes, path: str, __: object) -> None:
        tries.append(path)
        raise BpfError("no probe can be there")

    monkeypatch.setattr(LibcudaProbes, "attach", refused)
    for tried in (1, 2):
        for _ in range(10):
            problem = eye.doors.collect().problem
            assert problem is not None
            assert problem.code is ProblemCode.LIBRARY_NOT_WATCHED
            assert "no probe can be there" in problem.detail
        assert len(tries) == tried
        eye.clock.time += RETRY_SECONDS


CALLS: dict[str, Callable[[int], ProcessWork]] = {
    "launches": lambda calls: ProcessWork(pid=7, first_ns=1, kernels=calls),
    "graphs": lambda calls: ProcessWork(pid=7, first_ns=1, graphs=calls),
    "synchronisations": lambda calls: ProcessWork(pid=7, first_ns=1, syncs=calls),
    "events": lambda calls: ProcessWork(pid=7, first_ns=1, records=calls),
}


@pytest.mark.parametrize("what", CALLS)
def test_whoever_is_stopped_often_is_let_alone_whatever_they_call(what: str) -> None:
    assert pause_seconds({}, {7: CALLS[what](int(2 * MAX_HITS_PER_SECOND))}, 1.0) > 0


def test_all_calls_that_cost_something_are_counted(watcher: LibcudaProbes, cuda: StandInCuda) -> None:
    _, (by_events,) = cuda.run(Work(synchronise="cuEventSynchronize", launches=12, each=3))
    _, (waiting,) = cuda.run(Work(mode="flight", launches=0))

    work = seen(watcher, by_events.pid)
    assert (work.kernels, work.records, work.syncs) == (12, 4, 4)
    work = seen(watcher, waiting.pid)
    assert (work.kernels, work.syncs) == (0, 1)
