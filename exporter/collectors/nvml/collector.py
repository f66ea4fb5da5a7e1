"""NVML collectors: GPU readings, SM utilization, Xid events."""

import contextlib
import ctypes
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml

from exporter.clock import Clock
from exporter.collectors.nvml.driver import DRIVER_LOST, READY_FILE, Driver, DriverError, Values, nvml_problem, optional
from exporter.collectors.nvml.gpu import Gpm, Gpu, MigInstances, ProcessUtilizations, memory_bandwidth, sm_count
from exporter.collectors.thread import Defects, Reading
from exporter.model.observation import GpuEvent, GpuReading
from exporter.model.reason import Reason, ReasonCode, joined
from exporter.model.sharing import GpuUse, NodeGpus

NAME = "nvml"  # the name of the collector in the log
WAIT_SECONDS = 1.0  # how long a call waits for another thread to open the driver, and for an Xid event
CLOSE_SECONDS = 1.0

DEVICES = Path("/sys/bus/pci/drivers/nvidia")
"""Links to the PCI devices of the driver. A container has the node's /sys, also if it has only some of its GPUs."""

REGISTER_SECONDS = 10.0  # how often new GPUs are registered for Xid events


class GpuUses:
    """Reads the use of the GPUs that have GPM. It joins the driver that another collector opens."""

    def __init__(self, driver: Driver, clock: Clock, gpm_lock: threading.Lock, devices: Path = DEVICES) -> None:
        self._driver = driver
        self._driver.before_closing(self._free)
        self._clock = clock
        self._gpm_lock = gpm_lock
        self._devices = devices
        self._gpus: dict[str, tuple[Any, Gpm]] = {}

    def read(self) -> tuple[GpuUse, ...]:
        """Return the use of each GPU since the last call. Raises DriverError if the driver is not open, or lost."""
        with self._driver.joined(WAIT_SECONDS):
            count = optional(pynvml.nvmlDeviceGetCount)
            if count is not None and len(self._gpus) != count:
                self._find_gpus()
            return tuple(use for uuid, (_, gpm) in self._gpus.items() if (use := self._use(uuid, gpm)) is not None)

    def gpus(self) -> NodeGpus:
        """Return the number of GPUs, with hidden ones, their SMs and bandwidth. Raises DriverError as `read` does."""
        with self._driver.joined(WAIT_SECONDS):
            self._find_gpus()
            handles = [handle for handle, _ in self._gpus.values()]
            sms = [number for handle in handles if (number := sm_count(handle)) is not None]
            number = max(len(handles), sum(1 for _ in self._devices.glob("*:*")))
            return NodeGpus(max(sms, default=None), number, max(map(memory_bandwidth, handles), default=0))

    def _find_gpus(self) -> None:
        self._free()
        for index in range(optional(pynvml.nvmlDeviceGetCount) or 0):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                uuid = Values().text("UUID", pynvml.nvmlDeviceGetUUID, handle)
                if uuid is not None:
                    self._gpus[uuid] = handle, Gpm(handle, self._clock, self._gpm_lock)
            except pynvml.NVMLError as error:
                if error.value in DRIVER_LOST:
                    raise

    def _use(self, uuid: str, gpm: Gpm) -> GpuUse | None:
        """Return the use of a GPU; None if it has no GPM, or only one sample yet."""
        try:
            sm, dram, seconds = gpm.read()
        except pynvml.NVMLError as error:
            if error.value in DRIVER_LOST:
                raise
            return None
        if sm is None or seconds is None:
            return None
        return GpuUse(at=self._clock.now(), gpu=uuid, seconds=seconds, sm_utilization=sm, dram_bandwidth=dram)

    def _free(self) -> None:
        for _, gpm in self._gpus.values():
            gpm.free()
        self._gpus.clear()


class XidEvents:
    """Waits for Xid events of all GPUs. It joins the driver that another collector opens."""

    def __init__(self, driver: Driver, clock: Clock) -> None:
        self._driver = driver
        self._driver.before_closing(self._free)
        self._clock = clock
        self._set: Any = None
        self._uuids: dict[int | None, str] = {}
        """The UUID of each registered GPU by the address of its handle."""
        self._registered_at = 0.0

    def collect(self) -> Reading:
        """Wait up to `WAIT_SECONDS` for one event. A problem is returned after this time, too."""
        try:
            with self._driver.joined(WAIT_SECONDS):
                return Reading(self._next())
        except DriverError as error:
            problem = error.problem
        self._driver.rest(WAIT_SECONDS)
        return Reading(problem=problem)

    def _next(self) -> tuple[GpuEvent, ...]:
        try:
            self._register_if_due()
            event = pynvml.nvmlEventSetWait_v2(self._set, int(WAIT_SECONDS * 1000))
        except pynvml.NVMLError_Timeout:
            return ()
        except pynvml.NVMLError as error:
            if error.value in DRIVER_LOST:
                raise
            self._free()
            raise DriverError(nvml_problem(error)) from error
        gpu_event = GpuEvent(
            at=self._clock.now(),
            type=int(event.eventType),
            xid=int(event.eventData),
            gpu=self._uuids.get(_address(event.device)),
            gpu_instance=_instance(event.gpuInstanceId),
            compute_instance=_instance(event.computeInstanceId),
        )
        return (gpu_event,)

    def _register_if_due(self) -> None:
        now = self._clock.monotonic()
        if self._set is None:
            self._set = pynvml.nvmlEventSetCreate()
        elif now - self._registered_at < REGISTER_SECONDS:
            return
        self._registered_at = now
        for index in range(pynvml.nvmlDeviceGetCount()):
            with contextlib.suppress(pynvml.NVMLError):
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                if _address(handle) in self._uuids:
                    continue
                uuid = str(Values().text("UUID", pynvml.nvmlDeviceGetUUID, handle))
                types = pynvml.nvmlEventTypeXidCriticalError & pynvml.nvmlDeviceGetSupportedEventTypes(handle)
                if types:
                    pynvml.nvmlDeviceRegisterEvents(handle, types, self._set)
                    self._uuids[_address(handle)] = uuid
        if not self._uuids:
            self._free()
            raise DriverError(Reason(ReasonCode.NOT_SUPPORTED, subject="Xid events"))

    def _free(self) -> None:
        self._uuids.clear()
        if self._set is not None:
            event_set, self._set = self._set, None
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlEventSetFree(event_set)


def _instance(number: int) -> int | None:
    """Return the number of a MIG instance. NVML has 0xFFFFFFFF for none (nvml.h)."""
    return None if number == 0xFFFFFFFF else int(number)


def _address(handle: Any) -> int | None:
    """Return what identifies a handle. The UUID of a lost GPU could not be read."""
    return ctypes.cast(handle, ctypes.c_void_p).value


class Nvml:
    """The GPUs. The driver is opened at the first reading, and again after it was lost, upgraded or paused."""

    def __init__(self, clock: Clock, ready_file: Path = READY_FILE) -> None:
        self._clock = clock
        self.driver = Driver(ready_file)
        self._defects = Defects()
        self.driver.before_closing(self._free)
        self._gpm_lock = threading.Lock()
        self.xid_events = XidEvents(self.driver, clock)
        self.uses = GpuUses(self.driver, clock, self._gpm_lock)
        self._count = 0
        self._gpus: dict[int, Gpu] = {}
        self._instances: dict[int, MigInstances] = {}
        self._uuids: dict[int, str] = {}
        """By index, also of GPUs that fail now."""
        self._utilizations: dict[str, ProcessUtilizations] = {}

    def collect(self) -> Reading:
        """Read every GPU. If one fails, its own reading has the problem."""
        try:
            with self.driver.opened():
                values = Values()
                count = values.read("number of GPUs", pynvml.nvmlDeviceGetCount)
                if count is None:
                    # The GPUs that were known can be read all the same.
                    count = self._count
                if count != self._count:
                    self._free()
                    self._count = count
                results = [result for index in range(count) for result in self._read_gpu(index)]
        except DriverError as error:
            return Reading(problem=error.problem)
        readings = tuple(result for result in results if isinstance(result, GpuReading))
        return Reading(readings, joined((*values.problems.values(), *map(_problem, results))))

    def changed_processes(self) -> Mapping[str, frozenset[int]]:
        """Return the processes that began or stopped using each GPU since its reading. A list that fails is unchanged.

        It takes some microseconds for each GPU, and must be called in the thread that collects.
        """
        changed: dict[str, frozenset[int]] = {}
        with contextlib.suppress(DriverError), self.driver.joined(0.0):
            for gpu in self._gpus.values():
                with contextlib.suppress(pynvml.NVMLError):
                    changed[gpu.uuid] = gpu.changed_processes()
        return changed

    def driver_version(self) -> str | None:
        """Return the version of the driver, if there is one."""
        try:
            with self.driver.opened():
                return str(pynvml.nvmlSystemGetDriverVersion())
        except DriverError:
            return None

    def close(self) -> None:
        """Close the driver."""
        self.driver.pause(CLOSE_SECONDS)

    def _read_gpu(self, index: int) -> list[GpuReading | Reason]:
        result = self._read_whole_gpu(index)
        if isinstance(result, Reason) or not result.mig_mode or result.problem is not None:
            return [result]
        if index not in self._instances:
            self._instances[index] = MigInstances(self._gpus[index].handle, self._clock, self._gpm_lock)
        readings = self._instances[index].read(result)
        return [replace(result, instances=tuple(reading.gpu for reading in readings)), *readings]

    def _read_whole_gpu(self, index: int) -> GpuReading | Reason:
        """Read one GPU. If it fails and its UUID was never read, return the problem alone."""
        self.driver.raise_if_paused()
        try:
            gpu = self._gpus.get(index)
            if gpu is None:
                gpu = self._gpus[index] = Gpu(index, self._clock, self._gpm_lock)
                self._uuids[index] = gpu.uuid
            twin = next(each for each, uuid in self._uuids.items() if uuid == gpu.uuid)
            if twin != index:
                problem = Reason(ReasonCode.DUPLICATE_UUID, subject=gpu.uuid, detail=f"{twin} and {index}")
                return GpuReading(at=self._clock.now(), gpu=f"{gpu.uuid}#{index}", index=index, problem=problem)
            return gpu.read(self._utilizations.setdefault(gpu.uuid, ProcessUtilizations()))
        except pynvml.NVMLError as error:
            if error.value in DRIVER_LOST:
                raise
            if index in self._gpus:
                self._gpus.pop(index).gpm.free()
            if index in self._instances:
                self._instances.pop(index).free()
            problem = nvml_problem(error)
        except Exception as error:
            problem = self._defects.problem(NAME, error)
        uuid = self._uuids.get(index)
        if uuid is None:
            return problem.about(str(index))
        return GpuReading(at=self._clock.now(), gpu=uuid, index=index, problem=problem)

    def _free(self) -> None:
        """Forget the GPUs: after the driver is opened again, or their number changes, their indexes may differ."""
        for gpu in self._gpus.values():
            gpu.gpm.free()
        for instances in self._instances.values():
            instances.free()
        self._gpus.clear()
        self._instances.clear()
        self._uuids.clear()


def _problem(result: GpuReading | Reason) -> Reason | None:
    """Return what could not be read. That a known GPU is lost is a fact, not a failure of this collector."""
    if isinstance(result, Reason):
        return result
    if result.problem is not None and result.problem.code is ReasonCode.GPU_LOST:
        return None
    if result.problem is not None:
        return result.problem.about(result.gpu)
    return joined(each.about(f"{result.gpu} {name}") for name, each in result.failed.items())
