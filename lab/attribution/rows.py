"""NVML's samples by process once a second, which nvitop shows."""

import json
import threading
import time
from pathlib import Path
from typing import Any

import pynvml

PERIOD_SECONDS = 1.0


class Rows:
    """Write the samples as JSON Lines."""

    def __init__(self) -> None:
        pynvml.nvmlInit()
        self._gpu: Any = pynvml.nvmlDeviceGetHandleByIndex(0)
        self.uuid: str = pynvml.nvmlDeviceGetUUID(self._gpu)
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._read_at = 0

    def watch(self, file: Path) -> None:
        """Start to write."""
        self._stopping.clear()
        self._thread = threading.Thread(target=self._write, args=(file,))
        self._thread.start()

    def stop(self) -> None:
        """Stop writing."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(10)

    def _write(self, file: Path) -> None:
        with file.open("w", buffering=1) as stream:
            while not self._stopping.wait(PERIOD_SECONDS):
                stream.write(json.dumps({"at": time.time(), **self._read()}) + "\n")

    def _read(self) -> dict[str, Any]:
        """Return the samples. Without new samples NVML returns `Not Found`."""
        try:
            read = pynvml.nvmlDeviceGetProcessUtilization(self._gpu, self._read_at)
        except pynvml.NVMLError as problem:
            return {"rows": [], "problem": str(problem)}
        rows = [{"pid": each.pid, "at_us": each.timeStamp, "sm": each.smUtil, "memory": each.memUtil} for each in read]
        self._read_at = max([self._read_at, *(each["at_us"] for each in rows)])
        return {"rows": rows}
