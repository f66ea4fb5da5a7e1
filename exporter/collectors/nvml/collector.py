"""NVML collectors: GPU readings, SM utilization, Xid events."""

import contextlib
import ctypes
import threading
from dataclasses import replace
from typing import Any

import pynvml

from exporter.clock import Clock
from exporter.collectors.nvml.driver import DRIVER_LOST, Driver, DriverError, nvml_problem, sensed
from exporter.collectors.nvml.gpu import Gpm, Gpu, Utilization
from exporter.collectors.thread import Reading
from exporter.model.launches import GpuUse
from exporter.model.observation import GpuEvent, GpuReading
from exporter.model.problem import Problem, ProblemCode, joined

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


REGISTER_SECONDS = 10.0
"""How often GPUs are looked for that are not registered yet."""

WANTED = pynvml.nvmlEventTypeXidCriticalError


class XidEvents:
    """Waits for events of all GPUs. It joins the driver that another opens, and opens none."""

    def __init__(self, driver: Driver, clock: Clock) -> None:
        self._driver = driver
        self._driver.before_closing(self._let_go)
        self._clock = clock
        self._set: Any = None
        self._uuids: dict[int | None, str] = {}
        self._registered_at = 0.0

    def collect(self) -> Reading:
        """Wait for one event, for a while; what stands in the way is told after that while."""
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
            self._let_go()
            raise DriverError(nvml_problem(error)) from error
        gpu = self._uuids.get(_address(event.device))
        return (GpuEvent(at=self._clock.now(), type=int(event.eventType), xid=int(event.eventData), gpu=gpu),)

    def _register_if_due(self) -> None:
        now = self._clock.monotonic()
        if self._set is None:
            self._set = pynvml.nvmlEventSetCreate()
        elif now - self._registered_at < REGISTER_SECONDS:
            return
        self._registered_at = now
        for index in range(pynvml.nvmlDeviceGetCount()):
            self._try_to_register(index)
        if not self._uuids:
            self._let_go()
            raise DriverError(Problem(code=ProblemCode.NOT_SUPPORTED, subject="Xid events"))

    def _try_to_register(self, index: int) -> None:
        with contextlib.suppress(pynvml.NVMLError):
            self._register(index)

    def _register(self, index: int) -> None:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        if _address(handle) in self._uuids:
            return
        uuid = str(pynvml.nvmlDeviceGetUUID(handle))
        types = WANTED & pynvml.nvmlDeviceGetSupportedEventTypes(handle)
        if types:
            pynvml.nvmlDeviceRegisterEvents(handle, types, self._set)
            self._uuids[_address(handle)] = uuid

    def _let_go(self) -> None:
        self._uuids.clear()
        if self._set is not None:
            given_back, self._set = self._set, None
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlEventSetFree(given_back)


def _address(handle: Any) -> int | None:
    """What tells one handle from another; asking a lost GPU for its UUID would fail."""
    return ctypes.cast(handle, ctypes.c_void_p).value


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

    def collect(self) -> Reading:
        """Read every GPU. A GPU that fails is told by its own reading, and leaves the others alone."""
        try:
            with self._driver.opened():
                return self._read()
        except DriverError as error:
            return Reading(problem=error.problem)

    def collect_xids(self) -> Reading:
        """Wait up to half a second for an Xid, where the other eye has opened the driver."""
        return self._xids.collect()

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
        collects = [self._look_at(index) for index in range(count)]
        readings = tuple(collect for collect in collects if isinstance(collect, GpuReading))
        return Reading(readings, joined(map(_problem, collects)))

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


def _problem(collect: GpuReading | Problem) -> Problem | None:
    if isinstance(collect, Problem) or collect.problem is None:
        return collect if isinstance(collect, Problem) else None
    return replace(collect.problem, subject=collect.gpu)
