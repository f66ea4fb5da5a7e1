"""NVML's samples of what each process used of a GPU's time, each told once."""

from typing import Any

import pynvml

from exporter.model.observation import ProcessUtilization
from exporter.sources.nvml.answers import CANNOT_TELL


class Utilization:
    """The samples of one GPU that came since the last look."""

    def __init__(self) -> None:
        self._since_us = 0

    def read(self, handle: Any) -> tuple[ProcessUtilization, ...] | None:
        """What is new; None where it cannot be told. NVML says NotFound where there is nothing new."""
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
