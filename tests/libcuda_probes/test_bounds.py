"""The cost that one workload can cause for others is bounded, in time and in map entries."""

import contextlib
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from exporter.collectors.proc import Proc
from exporter.libcuda_probes.collector import MAX_HITS_PER_SECOND, RETRY_SECONDS, LibcudaCollector, Pauses
from exporter.libcuda_probes.libraries import CUDA_MACHINES, Libraries
from exporter.libcuda_probes.loader import BpfError, Kernel
from exporter.libcuda_probes.probes import LibcudaProbes
from exporter.model.launches import ProcessWork, WorkReading
from exporter.model.reason import ReasonCode
from exporter.model.sharing import NodeGpus
from tests.clocks import HandClock

from .conftest import recorder
from .process_work import SMS, boot_ns, work_of
from .standin import StandInCuda, Work


@dataclass(frozen=True, slots=True)
class TimedCollector:
    """A collector of the node's own libcuda, and its clock."""

    collector: LibcudaCollector
    clock: HandClock

    def read(self) -> tuple[ProcessWork, ...]:
        reading, *_ = self.collector.collect().observations
        assert isinstance(reading, WorkReading)
        return reading.processes


@pytest.fixture
def timed(kernel: Kernel, cuda: StandInCuda) -> Iterator[TimedCollector]:
    machine = CUDA_MACHINES.get(platform.machine())
    assert kernel
    assert machine
    clock = HandClock()
    proc = Proc(Path("/proc"), clock)
    collector = LibcudaCollector(
        uses=tuple,
        gpus=lambda: NodeGpus(SMS),
        libraries=Libraries(proc, clock, machine, (cuda.library,)),
        proc=proc,
        clock=clock,
        boot_ns=boot_ns,
        recorder=recorder(),
        wait=lambda _: None,
        check_seccomp=lambda *_: None,
    )
    yield TimedCollector(collector, clock)
    collector.close()


def test_counts_only_clients_when_the_map_is_full(
    timed: TimedCollector, cuda: StandInCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any user can fork many processes that launch. They must not use up the entries of clients."""
    monkeypatch.setattr("exporter.libcuda_probes.collector.MAX_PROCESSES", 4)
    timed.read()
    with contextlib.ExitStack() as running:
        targets = [running.enter_context(cuda.started(Work(mode="flight", launches=3))) for _ in range(4)]
        for target in targets:
            target.go("in flight")
        client = targets[0].pid
        timed.collector.watch({client: 100.0}, ())
        processes, clients = ({work.pid for work in timed.read()} for _ in range(2))

    assert processes >= {target.pid for target in targets}
    assert clients == {client}


def test_delays_the_retry_after_a_failed_attach(timed: TimedCollector, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attempt stops all forks for a moment, and any user can provide such libraries."""
    tries: list[str] = []

    def refused(_: LibcudaProbes, path: str, *__: object) -> None:
        tries.append(path)
        raise BpfError("no probe can be there")

    monkeypatch.setattr(LibcudaProbes, "attach", refused)
    for expected in (1, 2):
        for _ in range(10):
            problem = timed.collector.collect().problem
            assert problem is not None
            assert problem.code is ReasonCode.LIBRARY_NOT_WATCHED
            assert "no probe can be there" in problem.parameters["detail"]
        assert len(tries) == expected
        timed.clock.time += RETRY_SECONDS


CALLS: dict[str, Callable[[int], ProcessWork]] = {
    "launches": lambda calls: ProcessWork(pid=7, first_ns=1, kernels=calls),
    "graphs": lambda calls: ProcessWork(pid=7, first_ns=1, graphs=calls),
    "synchronisations": lambda calls: ProcessWork(pid=7, first_ns=1, syncs=calls),
    "events": lambda calls: ProcessWork(pid=7, first_ns=1, records=calls),
}


@pytest.mark.parametrize("what", CALLS)
def test_pauses_for_many_calls_of_any_kind(what: str) -> None:
    pauses = Pauses()
    pauses.add({}, {7: CALLS[what](int(2 * MAX_HITS_PER_SECOND))}, 1.0)
    assert pauses.seconds > 0


def test_counts_all_probed_calls(probes: LibcudaProbes, cuda: StandInCuda) -> None:
    _, (by_events,) = cuda.run(Work(synchronise="cuEventSynchronize", launches=12, each=3))
    _, (waiting,) = cuda.run(Work(mode="flight", launches=0))

    work = work_of(probes, by_events.pid)
    assert (work.kernels, work.records, work.syncs) == (12, 4, 4)
    work = work_of(probes, waiting.pid)
    assert (work.kernels, work.syncs) == (0, 1)
