"""One GPU: its properties, readings, GPM samples, process utilization and MIG instances."""

import contextlib
import ctypes
import math
import re
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import pynvml

from exporter.clock import Clock
from exporter.collectors.nvml.driver import Values, optional
from exporter.model.observation import GpuProcess, GpuReading, MigInstance, ProcessUtilization

_TRANSFERS_PER_CLOCK = 2  # of the memory
# ruff: noqa: SLF001 (nvidia-ml-py has no public function that returns the driver's rows as they are)

MIN_SAMPLE_SECONDS = 0.1  # least time between two samples (nvml.h)

GPM_SECONDS = 0.5
"""How long a collection waits for another thread in GPM. A call takes 3 ms, or 400 ms while clients come or go."""


class Utilization(NamedTuple):
    """Fields of a reading: use of SMs and of memory bandwidth, each 0 to 1, in these seconds; None if unknown."""

    sm_utilization: float | None = None
    dram_bandwidth: float | None = None
    gpm_seconds: float | None = None


class Gpm:
    """The last GPM sample of a GPU, and memory for the next one. If GPM is not `supported`, all values are None.

    Objects that share `lock` call GPM one at a time: two threads in nvmlGpmSampleGet crash the process with SIGSEGV
    (measured, R580). A call may hang, so a collection does not wait long for the lock, and then has no GPM values.
    """

    def __init__(self, handle: Any, clock: Clock, lock: threading.Lock, *, gpu_instance: int | None = None) -> None:
        """`handle` is that of the GPU, also if only its MIG instance `gpu_instance` is measured."""
        self._handle = handle
        self._gpu_instance = gpu_instance
        self._clock = clock
        self._lock = lock
        self._last_at: float | None = None
        self._samples: list[Any] = []
        support = optional(pynvml.nvmlGpmQueryDeviceSupport, handle)
        self.supported = support is not None and bool(support.isSupportedDevice)
        self._metrics: Any = pynvml.c_nvmlGpmMetricsGet_t() if self.supported else None

    def read(self) -> Utilization:
        """Return the use since the last call. The first call has no values."""
        if not self.supported or not self._lock.acquire(timeout=GPM_SECONDS):
            return Utilization()
        try:
            before = self._last_at
            too_early = before is not None and self._clock.monotonic() - before < MIN_SAMPLE_SECONDS
            if too_early or not self._sample():
                return Utilization()
            self._last_at = now = self._clock.monotonic()
            self._samples.reverse()  # so that the older comes first
            ratios = None if before is None else optional(self._compare)
            return Utilization() if before is None or ratios is None else Utilization(*ratios, now - before)
        finally:
            self._lock.release()

    def free(self) -> None:
        """Free the samples, unless another thread's call hangs."""
        self._last_at = None
        if not self._lock.acquire(timeout=GPM_SECONDS):
            self._samples.clear()
            return
        try:
            while self._samples:
                with contextlib.suppress(pynvml.NVMLError):
                    pynvml.nvmlGpmSampleFree(self._samples.pop())
        finally:
            self._lock.release()

    def _sample(self) -> bool:
        """Replace the older sample. If that fails, the next sample is a first one again."""
        while len(self._samples) < 2:
            sample = optional(pynvml.nvmlGpmSampleAlloc)
            if sample is None:
                return False
            self._samples.append(sample)
        if self._gpu_instance is None:
            taken = optional(pynvml.nvmlGpmSampleGet, self._handle, self._samples[0])
        else:
            taken = optional(pynvml.nvmlGpmMigSampleGet, self._handle, self._gpu_instance, self._samples[0])
        if taken is None:
            self._last_at = None
            return False
        return True

    def _compare(self) -> tuple[float | None, float | None]:
        metrics = self._metrics
        metrics.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        metrics.sample1, metrics.sample2 = self._samples
        metrics.numMetrics = 2
        metrics.metrics[0].metricId = pynvml.NVML_GPM_METRIC_SM_UTIL
        metrics.metrics[1].metricId = pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL
        pynvml.nvmlGpmMetricsGet(metrics)
        return _ratio(metrics.metrics[0]), _ratio(metrics.metrics[1])


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

_FUTURE_SECONDS = 3600.0  # by how much NVML's clock may be ahead


class ProcessUtilizations:
    """NVML's utilization samples of the processes of one GPU, each returned once."""

    def __init__(self) -> None:
        self._since_us = 0

    def read(self, handle: Any, now: float) -> tuple[ProcessUtilization, ...]:
        """Return the new samples, except ones from the future, which would hide later ones. Raises NVMLError."""
        since = self._since_us
        try:
            samples = pynvml.nvmlDeviceGetProcessUtilization(handle, since)
        except pynvml.NVMLError_NotFound:
            return ()
        latest = (now + _FUTURE_SECONDS) * 1e6
        fresh = [sample for sample in samples if since < sample.timeStamp <= latest and sample.smUtil <= 100]
        self._since_us = max((int(sample.timeStamp) for sample in fresh), default=since)
        return tuple(
            ProcessUtilization(pid=int(sample.pid), timestamp_us=int(sample.timeStamp), sm_percent=int(sample.smUtil))
            for sample in fresh
        )


class Gpu:
    """A GPU's handle, and the values that do not change."""

    def __init__(self, index: int, clock: Clock, gpm_lock: threading.Lock) -> None:
        self._clock = clock
        self._index = index
        self.handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        self.uuid = str(Values().text("UUID", pynvml.nvmlDeviceGetUUID, self.handle))
        self._constants: dict[str, Any] = {}
        self.gpm = Gpm(self.handle, clock, gpm_lock)
        self._listed: frozenset[int] = frozenset()

    def changed_processes(self) -> frozenset[int]:
        """Return the processes that began or stopped using the GPU since its reading. Raises NVMLError."""
        return self._listed.symmetric_difference(_rows(_COMPUTE, self.handle).cast("I")[:: _PROCESS.size // 4])

    def read(self, processes: ProcessUtilizations) -> GpuReading:
        """Return all values; one that fails is None, with its problem. Raises NVMLError if GPU or driver is lost."""
        handle, values = self.handle, Values()
        for name, function in _CONSTANTS.items():
            # An earlier call may have failed.
            if name not in self._constants and (value := values.text(name, function, handle)) is not None:
                self._constants[name] = str(value)
        memory = values.read("memory", pynvml.nvmlDeviceGetMemoryInfo, handle)
        node = values.read("NUMA node", pynvml.nvmlDeviceGetNumaNodeId, handle)
        use = values.read("utilization", pynvml.nvmlDeviceGetUtilizationRates, handle)
        mig = values.read("MIG mode", pynvml.nvmlDeviceGetMigMode, handle)
        persistence = values.read("persistence mode", pynvml.nvmlDeviceGetPersistenceMode, handle)
        mode = values.read("compute mode", pynvml.nvmlDeviceGetComputeMode, handle)
        utilization, at = self.gpm.read(), self._clock.now()
        # A client that begins from now on may be missing.
        listed = values.read("processes", compute_processes, handle)
        self._listed = frozenset(process.pid for process in listed or ())
        return GpuReading(
            **utilization._asdict(),
            gpu=self.uuid,
            index=self._index,
            compute_processes=listed,
            mps_processes=values.read("mps_processes", mps_processes, handle),
            process_utilization=values.read("process_utilization", processes.read, handle, self._clock.now()),
            gpu_percent=None if use is None else int(use.gpu),
            memory_used_bytes=None if memory is None else int(memory.used),
            memory_total_bytes=None if memory is None else int(memory.total) or None,
            unified_memory=node is not None or "memory" in values.not_supported or (None if memory is None else False),
            energy_millijoules=values.read("energy", pynvml.nvmlDeviceGetTotalEnergyConsumption, handle),
            compute_mode=COMPUTE_MODES.get(mode),
            mig_mode=None if mig is None else bool(mig[0]),
            persistence_mode=None if persistence is None else bool(persistence),
            power_milliwatts=values.read("power", pynvml.nvmlDeviceGetPowerUsage, handle),
            gpm_supported=self.gpm.supported,
            sms=sm_count(handle),
            at=at,
            failed=values.problems,
            **self._constants,
        )


_CONSTANTS: Mapping[str, Callable[[Any], str]] = {
    "name": pynvml.nvmlDeviceGetName,
    "pci_bus_id": lambda handle: str(pynvml.nvmlDeviceGetPciInfo(handle).busId),
    "driver_version": lambda _: str(pynvml.nvmlSystemGetDriverVersion()),
    "cuda_version": lambda _: "{}.{}".format(*divmod(int(pynvml.nvmlSystemGetCudaDriverVersion_v2()) // 10, 100)),
    "compute_capability": lambda handle: "{}.{}".format(*pynvml.nvmlDeviceGetCudaComputeCapability(handle)),
}
"""The fields of a reading that do not change while a GPU is open."""


_WITH_64_CORES_PER_SM = frozenset({(6, 0), (7, 0), (7, 2), (7, 5), (8, 0)})
"""Compute capabilities. All other GPUs since Pascal have 128 (CUDA programming guide)."""


def sm_count(handle: Any) -> int | None:
    """Return how many SMs a GPU has; None if it is unknown."""
    cores = optional(pynvml.nvmlDeviceGetNumGpuCores, handle)
    capability = optional(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    if cores is None or capability is None:
        return None
    return int(cores) // (64 if tuple(capability) in _WITH_64_CORES_PER_SM else 128) or None


def memory_bandwidth(handle: Any) -> int:
    """Return how many bytes a GPU's memory can move in a second; 0 if that is unknown.

    GPM divides by the same number: on an H200, copies of known size differ by less than 0.1 % (driver 580.159.04).
    """
    bits = optional(pynvml.nvmlDeviceGetMemoryBusWidth, handle)
    megahertz = optional(pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_MEM)
    return int(bits or 0) // 8 * int(megahertz or 0) * 1_000_000 * _TRANSFERS_PER_CLOCK


MOST_PROCESSES = 1024  # The driver lists at most 950 on one GPU (NV2080_CTRL_GPU_GET_PIDS_MAX_COUNT).

_PROCESS = struct.Struct("@IQ8x")  # nvmlProcessInfo_v2_t: PID and memory, without the MIG instance
_UNKNOWN_MEMORY = 2**64 - 1  # NVML_VALUE_NOT_AVAILABLE


def _rows(name: str, handle: Any) -> memoryview:
    """Call the newest version of a function that the driver has, and return its rows. Raises NVMLError.

    nvidia-ml-py's own functions call it twice, and take 30 times as long to convert the rows.
    """
    count, rows = ctypes.c_uint(MOST_PROCESSES), ctypes.create_string_buffer(MOST_PROCESSES * _PROCESS.size)
    for version in ("_v3", "_v2"):
        with contextlib.suppress(pynvml.NVMLError_FunctionNotFound):
            function = pynvml._nvmlGetFunctionPointer(name + version)
            pynvml._nvmlCheckReturn(function(handle, ctypes.byref(count), rows))
            return memoryview(rows).cast("B")[: count.value * _PROCESS.size]
    raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)


def _processes(name: str, handle: Any) -> tuple[GpuProcess, ...]:
    return _unpacked(bytes(_rows(name, handle)))


@lru_cache(32)
def _unpacked(rows: bytes) -> tuple[GpuProcess, ...]:
    """Return the processes, which are the same objects if nothing has changed: both lists of eight GPUs."""
    each_row = _PROCESS.iter_unpack(rows)
    return tuple(GpuProcess(pid=pid, used_bytes=None if used == _UNKNOWN_MEMORY else used) for pid, used in each_row)


_COMPUTE = "nvmlDeviceGetComputeRunningProcesses"
compute_processes = partial(_processes, _COMPUTE)
mps_processes = partial(_processes, "nvmlDeviceGetMPSComputeRunningProcesses")
"""The processes with a compute context on a GPU or MIG instance, and the MPS clients there. Raise NVMLError."""


# -- MIG instances -----------------------------------------------------------------------------------------------------

MAX_INSTANCES = 64  # Instances of one GPU that are read. A GPU has 7 GPU instances at most (MIG user guide).

_OF_PARENT = ("name", "unified_memory", "driver_version", "cuda_version", "compute_capability")
_PROFILE = re.compile(r"\bMIG ((?:[1-9]c\.)?[1-9]g\.[0-9]{1,4}gb[+.a-z0-9]{0,12})\s*$")
"""The end of a MIG device's name (nvml.h: the names identify devices by their attributes)."""


class MigInstances:
    """The instances of one GPU, found anew at each reading: an administrator may change them while the GPU is used."""

    def __init__(self, handle: Any, clock: Clock, gpm_lock: threading.Lock) -> None:
        self._handle = handle
        self._clock = clock
        self._gpm_lock = gpm_lock
        self._gpms: dict[str, Gpm] = {}

    def read(self, parent: GpuReading) -> tuple[GpuReading, ...]:
        """Return a reading of each instance. `parent` is the reading of the GPU."""
        instances = list(self._find(parent))
        counts = Counter(instance.gpu_instance for _, _, instance in instances)
        for uuid in self._gpms.keys() - {uuid for _, uuid, _ in instances}:
            self._gpms.pop(uuid).free()
        readings: list[GpuReading] = []
        for handle, uuid, instance in instances:
            reading = self._read(parent, handle, uuid, instance, alone=counts[instance.gpu_instance] == 1)
            if any(instance.gpu_instance == other.mig.gpu_instance for other in readings if other.mig is not None):
                # The compute instances of a GPU instance share its memory, which counts once.
                reading = replace(reading, memory_used_bytes=None, memory_total_bytes=None)
            readings.append(reading)
        return tuple(readings)

    def free(self) -> None:
        """Free all GPM samples."""
        for gpm in self._gpms.values():
            gpm.free()
        self._gpms.clear()

    def _find(self, parent: GpuReading) -> Iterator[tuple[Any, str, MigInstance]]:
        count = optional(pynvml.nvmlDeviceGetMaxMigDeviceCount, self._handle) or 0
        for index in range(min(int(count), MAX_INSTANCES)):
            handle = optional(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, self._handle, index)
            if handle is None:
                continue
            uuid = Values().text("UUID", pynvml.nvmlDeviceGetUUID, handle)
            gpu_instance = optional(pynvml.nvmlDeviceGetGpuInstanceId, handle)
            compute_instance = optional(pynvml.nvmlDeviceGetComputeInstanceId, handle)
            if uuid is None or gpu_instance is None or compute_instance is None:
                continue
            name = _PROFILE.search(Values().text("name", pynvml.nvmlDeviceGetName, handle) or "")
            attributes = optional(pynvml.nvmlDeviceGetAttributes_v2, handle)
            instance = MigInstance(
                parent=parent.gpu,
                gpu_instance=int(gpu_instance),
                compute_instance=int(compute_instance),
                profile=None if name is None else name[1],
                sms=None if attributes is None else int(attributes.multiprocessorCount) or None,
            )
            yield handle, str(uuid), instance

    def _read(self, parent: GpuReading, handle: Any, uuid: str, instance: MigInstance, *, alone: bool) -> GpuReading:
        """Return a reading. GPM measures a GPU instance: what several compute instances used of it is not known."""
        memory = optional(pynvml.nvmlDeviceGetMemoryInfo, handle)
        if alone and uuid not in self._gpms:
            self._gpms[uuid] = Gpm(self._handle, self._clock, self._gpm_lock, gpu_instance=instance.gpu_instance)
        gpm = self._gpms.get(uuid) if alone else None
        utilization = Utilization() if gpm is None else gpm.read()
        return GpuReading(
            **utilization._asdict(),
            at=self._clock.now(),
            gpu=uuid,
            mig=instance,
            compute_processes=optional(compute_processes, handle),
            mps_processes=optional(mps_processes, handle),
            memory_used_bytes=None if memory is None else int(memory.used),
            memory_total_bytes=None if memory is None else int(memory.total) or None,
            mig_mode=False,
            gpm_supported=gpm is not None and gpm.supported,
            sms=instance.sms,
            **{name: getattr(parent, name) for name in _OF_PARENT},
        )
