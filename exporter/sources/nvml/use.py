"""How busy every GPU was since the last look, by GPM alone: far cheaper than reading all that NVML knows."""

import threading
from typing import Any

import pynvml

from exporter.clock import Clock
from exporter.model.launches import GpuUse
from exporter.sources.nvml.driver import DRIVER_LOST, Driver, sensed
from exporter.sources.nvml.gpm import Gpm

WAIT_SECONDS = 0.5
"""How long one look waits for another to open the driver."""

_FEW_CORES, _MANY_CORES = 64, 128
_CAPABILITIES_WITH_FEW = ((6, 0), (7, 0), (7, 2), (7, 5), (8, 0))
"""An SM of these has 64 cores, of all others since Pascal 128 (CUDA programming guide, compute capabilities)."""


class GpuUses:
    """The GPUs that have GPM. It joins the driver that another opens, and opens none."""

    def __init__(self, driver: Driver, clock: Clock, gpm_lock: threading.Lock) -> None:
        self._driver = driver
        self._driver.before_closing(self._let_go)
        self._clock = clock
        self._gpm_lock = gpm_lock
        self._gpus: dict[str, tuple[Any, Gpm]] = {}

    def read(self) -> tuple[GpuUse, ...]:
        """How busy each was. DriverError where the driver is not open, or lost."""
        with self._driver.joined(WAIT_SECONDS):
            if len(self._gpus) != pynvml.nvmlDeviceGetCount():
                self._meet()
            return tuple(use for uuid in self._gpus if (use := self._use(uuid)) is not None)

    def sms(self) -> int | None:
        """How many SMs the largest GPU has; None where none can be told."""
        with self._driver.joined(WAIT_SECONDS):
            self._meet()
            return max((sms for handle, _ in self._gpus.values() if (sms := _sms(handle)) is not None), default=None)

    def _meet(self) -> None:
        self._let_go()
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = sensed(pynvml.nvmlDeviceGetHandleByIndex, index)
            uuid = None if handle is None else sensed(pynvml.nvmlDeviceGetUUID, handle)
            if uuid is not None:
                self._gpus[str(uuid)] = handle, Gpm(handle, self._clock, self._gpm_lock)

    def _use(self, uuid: str) -> GpuUse | None:
        """None where this GPU has no GPM, or this is the first look."""
        try:
            busy = self._gpus[uuid][1].read()
        except pynvml.NVMLError as error:
            if error.value in DRIVER_LOST:
                raise
            return None
        if busy.sm is None or busy.seconds is None:
            return None
        return GpuUse(
            at=self._clock.now(), gpu=uuid, seconds=busy.seconds, sm_utilization=busy.sm, dram_bandwidth=busy.dram
        )

    def _let_go(self) -> None:
        for _, gpm in self._gpus.values():
            gpm.let_go()
        self._gpus.clear()


def _sms(handle: Any) -> int | None:
    cores = sensed(pynvml.nvmlDeviceGetNumGpuCores, handle)
    capability = sensed(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    if cores is None or capability is None:
        return None
    return int(cores) // (_FEW_CORES if tuple(capability) in _CAPABILITIES_WITH_FEW else _MANY_CORES)
