"""One GPU: its properties, readings, GPM samples and process utilization."""

import contextlib
import math
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import pynvml

from exporter.clock import Clock
from exporter.collectors.nvml.driver import CANNOT_TELL, first_there, sensed, told
from exporter.model.observation import GpuProcess, GpuReading, ProcessUtilization

SHORTEST_SECONDS = 0.1
"""Two samples must lie so far apart (nvml.h)."""

PATIENCE_SECONDS = 0.5
"""How long a look waits for another that is in GPM; a call takes 3 ms, and up to 400 ms while clients come or go."""


class Busy(NamedTuple):
    """How busy SMs and memory were, each 0 to 1, in so many seconds; None where that could not be told."""

    sm: float | None = None
    dram: float | None = None
    seconds: float | None = None


_NOTHING = Busy()


class Gpm:
    """The last sample of a GPU, and room for the next. If it is not `supported`, all values are None.

    One at a time of those that share a lock calls GPM: two threads in nvmlGpmSampleGet at once end the process with
    SIGSEGV (measured, R580). As a call may hang, nobody waits for long: a look that has to is one without GPM.
    """

    def __init__(self, handle: Any, clock: Clock, one_at_a_time: threading.Lock) -> None:
        self._handle = handle
        self._clock = clock
        self._one_at_a_time = one_at_a_time
        self._last_at: float | None = None
        self._samples: list[Any] = []
        support = sensed(pynvml.nvmlGpmQueryDeviceSupport, handle)
        self.supported = support is not None and bool(support.isSupportedDevice)
        self._question: Any = pynvml.c_nvmlGpmMetricsGet_t() if self.supported else None

    def read(self) -> Busy:
        """SM utilisation and DRAM bandwidth since the last look, each 0 to 1; nothing at the first."""
        if not self.supported:
            return _NOTHING
        if not self._one_at_a_time.acquire(timeout=PATIENCE_SECONDS):
            return _NOTHING
        try:
            return self._busy()
        finally:
            self._one_at_a_time.release()

    def _busy(self) -> Busy:
        before = self._last_at
        if before is not None and self._clock.monotonic() - before < SHORTEST_SECONDS:
            return _NOTHING
        if not self._sample():
            return _NOTHING
        self._last_at = now = self._clock.monotonic()
        self._samples.reverse()  # so that the older comes first
        ratios = None if before is None else sensed(self._between)
        return _NOTHING if before is None or ratios is None else Busy(*ratios, now - before)

    def let_go(self) -> None:
        """Free the samples; where another's call hangs, leave them."""
        self._last_at = None
        if not self._one_at_a_time.acquire(timeout=PATIENCE_SECONDS):
            self._samples.clear()
            return
        try:
            while self._samples:
                with contextlib.suppress(pynvml.NVMLError):
                    pynvml.nvmlGpmSampleFree(self._samples.pop())
        finally:
            self._one_at_a_time.release()

    def _sample(self) -> bool:
        """Take one into the older of the two. Where that fails, the next one is a first again."""
        while len(self._samples) < 2:
            sample = sensed(pynvml.nvmlGpmSampleAlloc)
            if sample is None:
                return False
            self._samples.append(sample)
        if sensed(pynvml.nvmlGpmSampleGet, self._handle, self._samples[0]) is None:
            self._last_at = None
            return False
        return True

    def _between(self) -> tuple[float | None, float | None]:
        question = self._question
        question.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        question.sample1, question.sample2 = self._samples
        wanted = (pynvml.NVML_GPM_METRIC_SM_UTIL, pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL)
        question.numMetrics = len(wanted)
        for metric, number in zip(question.metrics, wanted, strict=False):
            metric.metricId = number
        pynvml.nvmlGpmMetricsGet(question)
        sm, dram = (_ratio(question.metrics[place]) for place in range(len(wanted)))
        return sm, dram


def _ratio(metric: Any) -> float | None:
    percent = float(metric.value)
    if metric.nvmlReturn != pynvml.NVML_SUCCESS or not math.isfinite(percent) or percent < 0:
        return None
    return percent / 100


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
