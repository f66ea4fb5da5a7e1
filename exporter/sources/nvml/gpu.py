"""One GPU, while the driver is open: what it is, which is read once, and how it is, which is read at every look."""

import threading
from collections.abc import Callable
from typing import Any

import pynvml

from exporter.clock import Clock
from exporter.model.observation import GpuProcess, GpuReading, ProcessUtilization
from exporter.sources.nvml.driver import CANNOT_TELL, first_there, sensed, told
from exporter.sources.nvml.gpm import Gpm

COMPUTE_MODES = {
    pynvml.NVML_COMPUTEMODE_DEFAULT: "default",
    pynvml.NVML_COMPUTEMODE_EXCLUSIVE_THREAD: "exclusive_thread",
    pynvml.NVML_COMPUTEMODE_PROHIBITED: "prohibited",
    pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: "exclusive_process",
}

_compute_processes = first_there("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2")
_mps_processes = first_there("nvmlDeviceGetMPSComputeRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v2")
_temperature = first_there("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature")
_clocks_event_reasons = first_there(
    "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"
)


class Utilization:
    """NVML's samples of what each process used of one GPU's time, each returned once."""

    def __init__(self) -> None:
        self._since_us = 0

    def read(self, handle: Any) -> tuple[ProcessUtilization, ...] | None:
        """Return the new samples; None if NVML has none here. It returns NotFound if none is new."""
        since = self._since_us
        try:
            samples = pynvml.nvmlDeviceGetProcessUtilization(handle, since)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_NOT_FOUND:
                return ()
            if error.value in CANNOT_TELL:
                return None
            raise
        fresh = [sample for sample in samples if sample.timeStamp > since]
        self._since_us = max((int(sample.timeStamp) for sample in fresh), default=since)
        return tuple(
            ProcessUtilization(
                pid=int(sample.pid),
                timestamp_us=int(sample.timeStamp),
                sm_percent=int(sample.smUtil),
                memory_percent=int(sample.memUtil),
            )
            for sample in fresh
        )


class Gpu:
    """A GPU's handle, and all that is read with it. One that fails is let go of, and met anew."""

    def __init__(self, index: int, clock: Clock, gpm_lock: threading.Lock) -> None:
        self._clock = clock
        self._index = index
        self._handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        self.uuid = str(pynvml.nvmlDeviceGetUUID(self._handle))
        self._name = told(pynvml.nvmlDeviceGetName, self._handle)
        pci = sensed(pynvml.nvmlDeviceGetPciInfo, self._handle)
        self._pci_bus_id = None if pci is None else str(pci.busId)
        self._driver_version = sensed(pynvml.nvmlSystemGetDriverVersion)
        self._cuda_version = sensed(_cuda_version)
        capability = sensed(pynvml.nvmlDeviceGetCudaComputeCapability, self._handle)
        self._compute_capability = None if capability is None else "{}.{}".format(*capability)
        self._gpm = Gpm(self._handle, clock, gpm_lock)

    def read(self, utilization: Utilization) -> GpuReading:
        """All that it tells now."""
        handle = self._handle
        memory = told(pynvml.nvmlDeviceGetMemoryInfo, handle)
        use = told(pynvml.nvmlDeviceGetUtilizationRates, handle)
        mig = sensed(pynvml.nvmlDeviceGetMigMode, handle)
        persistence = sensed(pynvml.nvmlDeviceGetPersistenceMode, handle)
        busy = self._gpm.read()
        return GpuReading(
            gpu=self.uuid,
            index=self._index,
            name=self._name,
            compute_processes=_listed(_compute_processes, handle),
            mps_processes=_listed(_mps_processes, handle),
            process_utilization=utilization.read(handle),
            gpu_percent=None if use is None else int(use.gpu),
            memory_percent=None if use is None else int(use.memory),
            memory_used_bytes=None if memory is None else int(memory.used),
            memory_total_bytes=None if memory is None else int(memory.total),
            energy_millijoules=sensed(pynvml.nvmlDeviceGetTotalEnergyConsumption, handle),
            pci_bus_id=self._pci_bus_id,
            driver_version=self._driver_version,
            cuda_version=self._cuda_version,
            compute_capability=self._compute_capability,
            compute_mode=COMPUTE_MODES.get(sensed(pynvml.nvmlDeviceGetComputeMode, handle)),
            mig_mode=None if mig is None else bool(mig[0]),
            persistence_mode=None if persistence is None else bool(persistence),
            temperature_celsius=sensed(_temperature, handle, pynvml.NVML_TEMPERATURE_GPU),
            power_milliwatts=sensed(pynvml.nvmlDeviceGetPowerUsage, handle),
            clocks_event_reasons=sensed(_clocks_event_reasons, handle),
            ecc_corrected=_ecc_errors(handle, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
            ecc_uncorrected=_ecc_errors(handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
            sm_utilization=busy.sm,
            dram_bandwidth=busy.dram,
            gpm_seconds=busy.seconds,
            gpm_supported=self._gpm.supported,
            at=self._clock.now(),
        )

    def let_go(self) -> None:
        """Give back what NVML keeps for it."""
        self._gpm.let_go()


def _ecc_errors(handle: Any, kind: int) -> int | None:
    """Aggregate ones: over the board's life, so that none is lost that struck while the driver was not loaded."""
    return sensed(pynvml.nvmlDeviceGetTotalEccErrors, handle, kind, pynvml.NVML_AGGREGATE_ECC)


def _cuda_version() -> str:
    """The newest CUDA that the driver serves."""
    version = int(pynvml.nvmlSystemGetCudaDriverVersion_v2())
    return f"{version // 1000}.{version % 1000 // 10}"


def _listed(function: Callable[..., Any], handle: Any) -> tuple[GpuProcess, ...] | None:
    processes = told(function, handle)
    if processes is None:
        return None
    return tuple(
        GpuProcess(pid=int(each.pid), used_bytes=None if each.usedGpuMemory is None else int(each.usedGpuMemory))
        for each in processes
    )
