"""MIG instances of a GPU: each compute instance is a device of its own, with its processes and its memory.

By NVML's documentation (nvml.h, R580) and NVIDIA's MIG user guide, not tried on hardware.
"""

import re
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pynvml

from exporter.clock import Clock
from exporter.collectors.nvml.driver import Values, optional
from exporter.collectors.nvml.gpu import Gpm, compute_processes, mps_processes
from exporter.model.observation import GpuReading, MigInstance

MAX_INSTANCES = 64
"""Instances of one GPU that are read. A GPU has 7 GPU instances at most (MIG user guide)."""

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
        found = list(self._find(parent))
        shared = Counter(instance.gpu_instance for _, _, instance in found)
        first = {instance.gpu_instance: uuid for _, uuid, instance in reversed(found)}
        for uuid in self._gpms.keys() - {uuid for _, uuid, _ in found}:
            self._gpms.pop(uuid).free()
        return tuple(
            self._read(parent, handle, uuid, instance, alone=shared[instance.gpu_instance] == 1)
            if first[instance.gpu_instance] == uuid
            else replace(
                self._read(parent, handle, uuid, instance, alone=False), memory_used_bytes=None, memory_total_bytes=None
            )
            for handle, uuid, instance in found
        )

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
        utilization = None if gpm is None else gpm.read()
        return GpuReading(
            at=self._clock.now(),
            gpu=uuid,
            name=parent.name,
            mig=instance,
            compute_processes=optional(compute_processes, handle),
            mps_processes=optional(mps_processes, handle),
            memory_used_bytes=None if memory is None else int(memory.used),
            memory_total_bytes=None if memory is None else int(memory.total) or None,
            driver_version=parent.driver_version,
            cuda_version=parent.cuda_version,
            compute_capability=parent.compute_capability,
            mig_mode=False,
            sm_utilization=None if utilization is None else utilization.sm,
            dram_bandwidth=None if utilization is None else utilization.dram,
            gpm_seconds=None if utilization is None else utilization.seconds,
            gpm_supported=gpm is not None and gpm.supported,
        )
