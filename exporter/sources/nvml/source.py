"""NVML, as two eyes see it: one reads the GPUs, the other waits for their Xids; and how both are closed for a while.

Calls cost 0.01 to 3 ms, and up to 400 ms while clients start or stop (measured, R580): hence never in a scrape.
"""

import threading
from dataclasses import replace

import pynvml

from exporter.clock import Clock
from exporter.model.observation import GpuReading
from exporter.model.problem import Problem, joined
from exporter.sources.eye import Reading
from exporter.sources.nvml.driver import DRIVER_LOST, Driver, DriverError, nvml_problem
from exporter.sources.nvml.gpu import Gpu, Utilization
from exporter.sources.nvml.use import GpuUses
from exporter.sources.nvml.xid_events import XidEvents

CLOSING_SECONDS = 1.0


class Nvml:
    """The driver, opened when it is first read and again whenever it was lost, upgraded or paused."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._driver = Driver()
        self._driver.before_closing(self._let_go)
        self._xids = XidEvents(self._driver, clock)
        self._gpm_lock = threading.Lock()
        self.uses = GpuUses(self._driver, clock, self._gpm_lock)
        self._count = 0
        self._gpus: dict[int, Gpu] = {}
        self._uuids: dict[int, str] = {}
        self._utilization: dict[str, Utilization] = {}

    def look(self) -> Reading:
        """Read every GPU. A GPU that fails is told by its own reading, and leaves the others alone."""
        try:
            with self._driver.opened():
                return self._read()
        except DriverError as error:
            return Reading(problem=error.problem)

    def look_for_xids(self) -> Reading:
        """Wait up to half a second for an Xid, where the other eye has opened the driver."""
        return self._xids.look()

    def driver_version(self) -> str | None:
        """The driver's version, where there is a driver."""
        try:
            with self._driver.opened():
                return str(pynvml.nvmlSystemGetDriverVersion())
        except DriverError:
            return None

    def pause(self, timeout: float) -> bool:
        """Keep nothing of the driver open from now on; False where that took longer, since a call hangs in it.

        Then it is closed when that call comes back. Safe in any thread, as `resume` is.
        """
        return self._driver.pause(timeout)

    def resume(self) -> None:
        """Read again, from the next look on."""
        self._driver.resume()

    def close(self) -> None:
        """Let go of the driver."""
        self._driver.pause(CLOSING_SECONDS)

    def _read(self) -> Reading:
        count = int(pynvml.nvmlDeviceGetCount())
        if count != self._count:
            self._let_go()
            self._count = count
        looks = [self._look_at(index) for index in range(count)]
        readings = tuple(look for look in looks if isinstance(look, GpuReading))
        return Reading(readings, joined(map(_problem, looks)))

    def _look_at(self, index: int) -> GpuReading | Problem:
        """Read one GPU. If it fails and its UUID was never read, return the problem alone."""
        self._driver.go_on()
        try:
            gpu = self._gpus.get(index) or self._meet(index)
            return gpu.read(self._utilization.setdefault(gpu.uuid, Utilization()))
        except pynvml.NVMLError as error:
            if error.value in DRIVER_LOST:
                raise
            self._part(index)
            known = self._uuids.get(index)
            if known is None:
                return nvml_problem(error, str(index))
            return GpuReading(at=self._clock.now(), gpu=known, index=index, problem=nvml_problem(error))

    def _meet(self, index: int) -> Gpu:
        gpu = self._gpus[index] = Gpu(index, self._clock, self._gpm_lock)
        self._uuids[index] = gpu.uuid
        return gpu

    def _part(self, index: int) -> None:
        gpu = self._gpus.pop(index, None)
        if gpu is not None:
            gpu.let_go()

    def _let_go(self) -> None:
        """Another opening, or another number of GPUs, may number them otherwise."""
        for index in tuple(self._gpus):
            self._part(index)
        self._uuids.clear()


def _problem(look: GpuReading | Problem) -> Problem | None:
    if isinstance(look, Problem) or look.problem is None:
        return look if isinstance(look, Problem) else None
    return replace(look.problem, subject=look.gpu)
