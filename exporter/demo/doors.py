"""What the demo's processes launch, as it is seen at the doors of libcuda; and how busy their GPUs are by that."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from exporter.demo.cast import SMS, Process
from exporter.demo.gpus import busy, dram
from exporter.model.observation import Observation
from exporter.model.work import GpuUse, ProcessWork, WorkReading

NS = 1_000_000_000


class SimulatedDoors:
    """Counts on, second by second, for whoever is there. Nothing of it is left to chance: a story stays as it is."""

    def __init__(self) -> None:
        self._work: dict[int, ProcessWork] = {}

    def readings(self, at: float, gpus: Sequence[str], processes: Iterable[Process]) -> Iterator[Observation]:
        """One second of all of them, and how busy these GPUs were."""
        there = {each.pid: each for each in processes}
        self._work = {pid: _grown(self._work.get(pid) or _begun(pid, at), each) for pid, each in there.items()}
        yield WorkReading(
            at=at, boot_ns=_ns(at), seconds=1.0, sms=SMS, processes=tuple(self._work.values()), watched=tuple(there)
        )
        for gpu in gpus:
            sm = busy(gpu, there.values())
            yield GpuUse(at=at, gpu=gpu, seconds=1.0, sm_utilization=sm, dram_bandwidth=dram(sm))


def _begun(pid: int, at: float) -> ProcessWork:
    return ProcessWork(pid=pid, first_ns=_ns(at))


def _grown(work: ProcessWork, process: Process) -> ProcessWork:
    """A second more: so many kernels as wide as it has them, each in a span, and in a burst, of its own."""
    flight, kernels, width = int(process.duty * NS), 50 + process.pid % 400, process.owner.pace.sms
    return replace(
        work,
        kernels=work.kernels + kernels,
        graphs=work.graphs + process.pid % 3 * 20,
        spans=work.spans + kernels,
        flight_ns=work.flight_ns + flight,
        area=work.area + flight * width,
        widths=work.widths + kernels * width,
        syncs=work.syncs + kernels,
        sure_area=work.sure_area + flight * width,
        sure_widths=work.sure_widths + kernels * width,
        sure_heights=work.sure_heights + kernels * width,
    )


def _ns(at: float) -> int:
    return int(at * NS)
