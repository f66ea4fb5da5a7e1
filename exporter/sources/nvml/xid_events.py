"""Xids as NVML tells them: their number and GPU at once, with no PID (R580).

Only events after a GPU was registered are told, so whatever is open stays open, and a GPU that could not be registered
is tried again.
"""

import contextlib
import ctypes
from typing import Any

import pynvml

from exporter.clock import Clock
from exporter.model.observation import GpuEvent
from exporter.model.problem import Problem, ProblemCode
from exporter.sources.eye import Reading
from exporter.sources.nvml.driver import DRIVER_LOST, Driver, DriverError, nvml_problem

WAIT_SECONDS = 0.5
"""How long one look waits for an event, and at most keeps a driver from being closed."""

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

    def look(self) -> Reading:
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
