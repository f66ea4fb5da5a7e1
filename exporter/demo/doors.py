"""What the demo's processes launch, as it is seen at the doors of libcuda; and how busy their GPUs are by that."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from exporter.demo.cast import Process
from exporter.model.observation import Observation
from exporter.model.work import GpuUse, ProcessWork, WorkReading

SMS = 132
"""Of an H200."""

NS = 1_000_000_000
DRAM_OF_SM = 0.7


class SimulatedDoors:
    """Counts on, second by second, for whoever is there. Nothing of it is left to chance: a story stays as it is."""

    def __init__(self) -> None:
        self._work: dict[int, ProcessWork] = {}

    def readings(self, at: float, gpus: Sequence[str], processes: Iterable[Process]) -> Iterator[Observation]:
        """One second of all of them; who is on several GPUs uses each as much as the others."""
        there = {each.pid: each for each in processes}
        self._work = {pid: _grown(self._work.get(pid) or _begun(pid, at), pid) for pid in there}
        for gpu in gpus:
            here = {pid: len(each.gpus) for pid, each in there.items() if gpu in each.gpus}
            busy = min(1.0, sum(_duty(pid) * _width(pid) / on for pid, on in here.items()) / SMS)
            yield GpuUse(at=at, gpu=gpu, seconds=1.0, sm_utilization=busy, dram_bandwidth=DRAM_OF_SM * busy)
        yield WorkReading(
            at=at, boot_ns=_ns(at), seconds=1.0, processes=tuple(self._work.values()), watched=tuple(there)
        )


def _begun(pid: int, at: float) -> ProcessWork:
    return ProcessWork(pid=pid, first_ns=_ns(at))


def _grown(work: ProcessWork, pid: int) -> ProcessWork:
    """A second more: so many kernels of its width, each in a span, and in a burst, of its own."""
    flight, kernels = int(_duty(pid) * NS), 50 + pid % 400
    return replace(
        work,
        kernels=work.kernels + kernels,
        graphs=work.graphs + pid % 3 * 20,
        spans=work.spans + kernels,
        flight_ns=work.flight_ns + flight,
        area=work.area + flight * _width(pid),
        widths=work.widths + kernels * _width(pid),
        syncs=work.syncs + kernels,
        sure_area=work.sure_area + flight * _width(pid),
        sure_widths=work.sure_widths + kernels * _width(pid),
        sure_heights=work.sure_heights + kernels * _width(pid),
    )


def _duty(pid: int) -> float:
    """How much of the time it has work in flight."""
    return 0.05 + pid % 7 / 10


def _width(pid: int) -> int:
    """On how many SMs its kernels run."""
    return 8 + pid % 5 * 8


def _ns(at: float) -> int:
    return int(at * NS)
