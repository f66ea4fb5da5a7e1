"""What could be seen of a mix from outside, every quarter of a second."""

import json
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pynvml

from exporter.clock import SystemClock
from exporter.model.observation import Observation
from exporter.model.work import GpuUse, WorkReading
from exporter.recording import write_observation
from exporter.sources.nvml.gpm import Gpm

from .doors import NoDoors, WatchedDoors

LOOK_SECONDS = 0.25
ROWS_SECONDS = 1.0


class Onlooker:
    """Writes a GPU's use with what was done at the doors, as observations; and NVML's rows by process."""

    def __init__(self, doors: WatchedDoors | NoDoors) -> None:
        pynvml.nvmlInit()
        self._gpu: Any = pynvml.nvmlDeviceGetHandleByIndex(0)
        self.uuid: str = pynvml.nvmlDeviceGetUUID(self._gpu)
        self.name: str = pynvml.nvmlDeviceGetName(self._gpu)
        self._clock = SystemClock()
        self._gpm = Gpm(self._gpu, self._clock)
        self._doors = doors
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._pids: tuple[int, ...] = ()
        self._read_at: float | None = None
        self._rows_at = 0

    def watch(self, observations: Path, rows: Path) -> None:
        """Begin to write."""
        self._stopping.clear()
        self._read_at = None
        work = (
            (self._look, observations, LOOK_SECONDS),
            (self._rows, rows, ROWS_SECONDS),
        )
        self._threads = [threading.Thread(target=self._repeat, args=each) for each in work]
        for thread in self._threads:
            thread.start()

    def know(self, pids: tuple[int, ...], sms: Mapping[int, int]) -> None:
        """These are the clients, and so many SMs were given to each."""
        self._pids = pids
        self._doors.widths(sms)

    def stop(self) -> None:
        """No more of this mix."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(10)

    def _repeat(self, do: Callable[[Any], None], file: Path, every: float) -> None:
        due = time.monotonic()
        with file.open("w", buffering=1) as stream:
            while not self._stopping.is_set():
                do(stream)
                due = max(due + every, time.monotonic())
                self._stopping.wait(due - time.monotonic())

    def _look(self, stream: Any) -> None:
        sm, dram, seconds = self._gpm.read()
        seen: list[Observation] = []
        if sm is not None and seconds is not None:
            seen.append(
                GpuUse(at=self._clock.now(), gpu=self.uuid, seconds=seconds, sm_utilization=sm, dram_bandwidth=dram)
            )
        processes = self._doors.read()
        read = self._clock.monotonic()
        seen.append(
            WorkReading(
                at=self._clock.now(),
                boot_ns=time.clock_gettime_ns(time.CLOCK_BOOTTIME),
                seconds=0.0 if self._read_at is None else read - self._read_at,
                processes=processes,
                watched=self._pids,
            )
        )
        self._read_at = read
        for each in seen:
            write_observation(stream, each)

    def _rows(self, stream: Any) -> None:
        """What nvitop would show: the last utilisation sample of each process."""
        try:
            rows = [
                {"pid": each.pid, "at_us": each.timeStamp, "sm": each.smUtil, "memory": each.memUtil}
                for each in pynvml.nvmlDeviceGetProcessUtilization(self._gpu, self._rows_at)
            ]
        except pynvml.NVMLError as problem:
            rows = []
            told = {"problem": str(problem)}
        else:
            told = {}
            self._rows_at = max([self._rows_at, *(each["at_us"] for each in rows)])
        whole = pynvml.nvmlDeviceGetUtilizationRates(self._gpu).gpu
        stream.write(json.dumps({"at": time.time(), "gpu": whole, "rows": rows, **told}) + "\n")
