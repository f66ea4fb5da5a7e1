"""NVML, as two eyes see it: one reads the GPUs, the other waits for their Xids; and how both are closed for a while.

Calls cost 0.01 to 3 ms, and up to 400 ms while clients start or stop (measured, R580): hence never in a scrape.
"""

import threading

import pynvml

from exporter.clock import Clock
from exporter.model.gpu import PAUSED
from exporter.model.observation import GpuReading
from exporter.sources.nvml.answers import DRIVER_LOST
from exporter.sources.nvml.driver import Driver, DriverError
from exporter.sources.nvml.gpu import Gpu
from exporter.sources.nvml.use import GpuUses
from exporter.sources.nvml.utilization import Utilization
from exporter.sources.nvml.xid_events import XidEvents
from exporter.sources.reading import Reading

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
            words = str(error)
            return Reading(problem=words if words == PAUSED else f"NVML: {words}; is the driver loaded? (nvidia-smi)")

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
        problems = [look if isinstance(look, str) else f"{look.gpu}: {look.problem}" for look in looks if _failed(look)]
        return Reading(readings, "; ".join(problems) or None)

    def _look_at(self, index: int) -> GpuReading | str:
        """One GPU; only the problem of one that failed and was never seen alive, so that nobody knows its UUID."""
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
                return f"GPU {index}: {error}"
            return GpuReading(at=self._clock.now(), gpu=known, index=index, problem=str(error))

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


def _failed(look: GpuReading | str) -> bool:
    return isinstance(look, str) or look.problem is not None
