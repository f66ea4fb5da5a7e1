"""Limits and use of GPU memory by cgroup, as NVML has them (R615). Not tried on hardware."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pynvml

from exporter.collectors.nvml.driver import Driver, DriverError, optional
from exporter.model.device_memory import DeviceMemory, PciAddress
from exporter.parse.dmem import limit_of
from exporter.parse.kernel_log import parse_bus_id

WAIT_SECONDS = 0.5
"""How long a call waits for another thread to open the driver."""


class CgroupLimits:
    """Asks for the limits of cgroups. It joins the driver that another collector opens."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._driver.before_closing(self._forget)
        self._missing = not hasattr(pynvml, "nvmlDeviceGetMemoryLimits_v1")

    def read(self, cgroup: Path) -> Mapping[PciAddress, DeviceMemory] | None:
        """Return what the cgroup has of each GPU; None if the driver cannot report it."""
        if self._missing:
            return None
        try:
            with self._driver.joined(WAIT_SECONDS):
                return dict(filter(None, (self._of_gpu(index, cgroup) for index in range(pynvml.nvmlDeviceGetCount()))))
        except DriverError:
            return None

    def _of_gpu(self, index: int, cgroup: Path) -> tuple[PciAddress, DeviceMemory] | None:
        handle = optional(pynvml.nvmlDeviceGetHandleByIndex, index)
        pci = None if handle is None else optional(pynvml.nvmlDeviceGetPciInfo, handle)
        address = None if pci is None else parse_bus_id(str(pci.busId))
        limits = None if address is None else optional(self._limits, handle, cgroup)
        if address is None or limits is None:
            return None
        return address, DeviceMemory(
            limit=limit_of(int(limits.hardLimit)), soft_limit=int(limits.softLimit), used=int(limits.currentUsed)
        )

    def _limits(self, handle: Any, cgroup: Path) -> Any:
        limits = pynvml.c_nvmlGetMemoryLimits_v1_t()
        limits.nameSpace = os.fsencode(cgroup)
        try:
            pynvml.nvmlDeviceGetMemoryLimits_v1(handle, limits)
        except pynvml.NVMLError_FunctionNotFound:
            self._missing = True
            return None
        return limits

    def _forget(self) -> None:
        """Ask again after the driver is opened again: it may be a newer one."""
        self._missing = not hasattr(pynvml, "nvmlDeviceGetMemoryLimits_v1")
