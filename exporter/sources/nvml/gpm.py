"""GPM, the counters of Hopper and later: how busy a GPU's SMs and its memory were between two looks.

For the whole device alone: there is none by process, and under MIG only by instance (nvml.h).
"""

import contextlib
import math
import threading
from typing import Any, NamedTuple

import pynvml

from exporter.clock import Clock
from exporter.sources.nvml.driver import sensed

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
