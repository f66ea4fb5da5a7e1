"""Reads NVML: GPUs, the processes on them, and their use. The only importer of pynvml.

Calls cost 0.01 to 3 ms, and up to 400 ms while clients start or stop (measured, R580): hence never in a scrape.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import pynvml

from exporter.clock import Clock
from exporter.model.observation import GpuProcess, GpuReading, ProcessUtilization
from exporter.sources.reading import Reading

Value = TypeVar("Value")

_CANNOT_TELL = (
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_NO_PERMISSION,
)
"""This GPU, driver or user has no such value; the rest of the reading stands."""

_DRIVER_LOST = (
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
)
"""NVML must be opened anew: the driver was unloaded or upgraded."""


class Nvml:
    """The driver, opened when it is first read and again whenever it was lost."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._opened = False
        self._uuids: dict[int, str] = {}
        self._last_sample_us: dict[str, int] = {}

    def look(self) -> Reading:
        """Read every GPU. A GPU that fails is told by its own reading, and leaves the others alone."""
        try:
            self._open()
            looks = [self._device(index) for index in range(pynvml.nvmlDeviceGetCount())]
        except pynvml.NVMLError as error:
            self.close()
            return Reading(problem=f"NVML: {error}; is the driver loaded? (nvidia-smi)")
        readings = tuple(look for look in looks if isinstance(look, GpuReading))
        problems = [look if isinstance(look, str) else f"{look.gpu}: {look.problem}" for look in looks if _failed(look)]
        return Reading(readings, "; ".join(problems) or None)

    def driver_version(self) -> str | None:
        """The driver's version, where there is a driver."""
        try:
            self._open()
            return str(pynvml.nvmlSystemGetDriverVersion())
        except pynvml.NVMLError:
            return None

    def close(self) -> None:
        """Let go of the driver."""
        if not self._opened:
            return
        self._opened = False
        self._uuids.clear()
        try:
            pynvml.nvmlShutdown()
        except pynvml.NVMLError:
            return

    def _open(self) -> None:
        if not self._opened:
            pynvml.nvmlInit()
            self._opened = True

    def _device(self, index: int) -> GpuReading | str:
        """One GPU; only the problem of one that failed and was never seen alive, so that nobody knows its UUID."""
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuid = self._uuids[index] = str(pynvml.nvmlDeviceGetUUID(handle))
            return self._read(handle, index, uuid)
        except pynvml.NVMLError as error:
            if error.value in _DRIVER_LOST:
                raise
            known = self._uuids.get(index)
            if known is None:
                return f"GPU {index}: {error}"
            return GpuReading(at=self._clock.now(), gpu=known, index=index, problem=str(error))

    def _read(self, handle: Any, index: int, uuid: str) -> GpuReading:
        memory = _or_none(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle))
        use = _or_none(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle))
        return GpuReading(
            gpu=uuid,
            index=index,
            name=_or_none(lambda: str(pynvml.nvmlDeviceGetName(handle))),
            compute_processes=_processes(pynvml.nvmlDeviceGetComputeRunningProcesses, handle),
            mps_processes=_processes(pynvml.nvmlDeviceGetMPSComputeRunningProcesses, handle),
            process_utilization=self._utilization(handle, uuid),
            gpu_percent=None if use is None else int(use.gpu),
            memory_percent=None if use is None else int(use.memory),
            memory_used_bytes=None if memory is None else int(memory.used),
            memory_total_bytes=None if memory is None else int(memory.total),
            energy_millijoules=_or_none(lambda: int(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle))),
            at=self._clock.now(),
        )

    def _utilization(self, handle: Any, uuid: str) -> tuple[ProcessUtilization, ...] | None:
        """Samples since the last look; NVML says NotFound where there are none."""
        since = self._last_sample_us.get(uuid, 0)
        try:
            samples = pynvml.nvmlDeviceGetProcessUtilization(handle, since)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_NOT_FOUND:
                return ()
            if error.value in _CANNOT_TELL:
                return None
            raise
        fresh = [sample for sample in samples if sample.timeStamp > since]
        self._last_sample_us[uuid] = max((int(sample.timeStamp) for sample in fresh), default=since)
        return tuple(
            ProcessUtilization(
                pid=int(sample.pid),
                timestamp_us=int(sample.timeStamp),
                sm_percent=int(sample.smUtil),
                memory_percent=int(sample.memUtil),
            )
            for sample in fresh
        )


def _failed(look: GpuReading | str) -> bool:
    return isinstance(look, str) or look.problem is not None


def _processes(function: Callable[[Any], Any], handle: Any) -> tuple[GpuProcess, ...] | None:
    listed = _or_none(lambda: list(function(handle)))
    if listed is None:
        return None
    return tuple(
        GpuProcess(pid=int(each.pid), used_bytes=None if each.usedGpuMemory is None else int(each.usedGpuMemory))
        for each in listed
    )


def _or_none(read: Callable[[], Value]) -> Value | None:
    """A value, or None where it cannot be told; any other error is the GPU's."""
    try:
        return read()
    except pynvml.NVMLLibraryMismatchError:
        return None
    except pynvml.NVMLError as error:
        if error.value in _CANNOT_TELL:
            return None
        raise
