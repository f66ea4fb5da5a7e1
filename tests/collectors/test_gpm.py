"""SM utilization of every GPU from GPM, with a driver that another collector opens."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from exporter.collectors.nvml import gpu as nvml_gpu
from exporter.collectors.nvml.collector import GpuUses
from exporter.collectors.nvml.driver import Driver, DriverError
from exporter.model.reason import Reason, ReasonCode
from tests.clocks import HandClock

GPUS = ("GPU-0", "GPU-1")
CORES = {"GPU-0": 16896, "GPU-1": 14592}
BUS_BITS = {"GPU-0": 6016, "GPU-1": 5120}


class FakeDriver(Driver):
    """A driver that a test opens and closes."""

    def __init__(self) -> None:
        super().__init__()
        self.open = True
        self.callbacks: list[Callable[[], None]] = []

    def before_closing(self, callback: Callable[[], None]) -> None:
        self.callbacks.append(callback)

    @contextlib.contextmanager
    def joined(self, within: float) -> Iterator[None]:
        """Raise DriverError if the driver is not open."""
        if not self.open:
            raise DriverError(Reason(ReasonCode.DRIVER_NOT_OPEN))
        yield


class Nvml:
    """NVML functions with the utilization, support and errors of each GPU that a test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gpus = list(GPUS)
        self.percent = dict.fromkeys(GPUS, 50.0)
        self.supported = set(GPUS)
        self.failing: dict[str, int] = {}
        self.capability = (9, 0)
        self.samples = 0
        answers: dict[str, Callable[..., Any]] = {
            "nvmlDeviceGetCount": lambda: len(self.gpus),
            "nvmlDeviceGetHandleByIndex": lambda index: self.gpus[index],
            "nvmlDeviceGetUUID": lambda gpu: gpu,
            "nvmlGpmQueryDeviceSupport": lambda gpu: SimpleNamespace(isSupportedDevice=gpu in self.supported),
            "nvmlDeviceGetNumGpuCores": lambda gpu: CORES[gpu],
            "nvmlDeviceGetCudaComputeCapability": lambda gpu: self.capability,
            "nvmlDeviceGetMemoryBusWidth": lambda gpu: BUS_BITS[gpu],
            "nvmlDeviceGetMaxClockInfo": lambda gpu, domain: {pynvml.NVML_CLOCK_MEM: 3201}[domain],
            "nvmlGpmSampleAlloc": self._sample_alloc,
            "nvmlGpmSampleGet": self._sample_get,
            "nvmlGpmSampleFree": self._sample_free,
            "nvmlGpmMetricsGet": self._metrics,
        }
        monkeypatch.setattr(pynvml, "c_nvmlGpmMetricsGet_t", self._metrics_get)
        for name, answer in answers.items():
            monkeypatch.setattr(pynvml, name, answer)

    def _metrics_get(self) -> SimpleNamespace:
        return SimpleNamespace(metrics=[SimpleNamespace(value=0.0, nvmlReturn=0) for _ in range(2)])

    def _sample_alloc(self) -> dict[str, str]:
        self.samples += 1
        return {}

    def _sample_free(self, sample: object) -> None:
        self.samples -= 1

    def _sample_get(self, gpu: str, sample: dict[str, str]) -> dict[str, str]:
        if gpu in self.failing:
            raise pynvml.NVMLError(self.failing[gpu])
        sample["gpu"] = gpu
        return sample

    def _metrics(self, request: SimpleNamespace) -> None:
        request.metrics[0].value = self.percent[request.sample1["gpu"]]
        request.metrics[1].value = 10.0


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    return Nvml(monkeypatch)


class Reader:
    """A GPM reader with a clock that the test advances."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.driver = FakeDriver()
        self.gpm_lock = threading.Lock()
        self.uses = GpuUses(self.driver, self.clock, self.gpm_lock)

    def begun(self) -> "Reader":
        """Read for the first time, which has no result."""
        assert self.after(0) == {}
        return self

    def after(self, seconds: float) -> dict[str, tuple[float, float]]:
        """Advance the clock, read, and return the SM utilization and the seconds for each GPU."""
        self.clock.time += seconds
        return {use.gpu: (use.sm_utilization, use.seconds) for use in self.uses.read()}


def test_reports_the_utilization_since_the_previous_read(nvml: Nvml) -> None:
    reader = Reader().begun()
    assert reader.after(1) == {"GPU-0": (0.5, 1.0), "GPU-1": (0.5, 1.0)}
    assert reader.after(2.5)["GPU-0"] == (0.5, 2.5)


def test_never_uses_gpm_in_two_threads_at_once(nvml: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    """Concurrent calls would crash the process. A reader that waits too long for the lock reports nothing."""
    monkeypatch.setattr(nvml_gpu, "GPM_SECONDS", 0.01)
    reader = Reader().begun()
    with reader.gpm_lock:
        assert reader.after(1) == {}
    assert reader.after(1)["GPU-0"] == (0.5, 2.0)
    assert not reader.gpm_lock.locked()


def test_releases_the_lock_if_a_read_fails(nvml: Nvml) -> None:
    reader = Reader().begun()
    nvml.failing = dict.fromkeys(GPUS, pynvml.NVML_ERROR_GPU_IS_LOST)
    reader.after(1)
    assert not reader.gpm_lock.locked()


def test_omits_a_gpu_without_gpm(nvml: Nvml) -> None:
    nvml.supported = {"GPU-1"}
    reader = Reader().begun()
    assert reader.after(1).keys() == {"GPU-1"}


def test_skips_a_read_too_soon_after_the_previous_one(nvml: Nvml) -> None:
    """The next read reports the whole time since the first."""
    reader = Reader().begun()
    assert reader.after(0.05) == {}
    assert reader.after(0.95)["GPU-0"] == (0.5, 1.0)


def test_omits_utilization_that_is_not_a_valid_number(nvml: Nvml) -> None:
    nvml.percent = {"GPU-0": float("nan"), "GPU-1": -1.0}
    reader = Reader().begun()
    assert reader.after(1) == {}


def test_a_failing_gpu_does_not_affect_others_and_starts_again_after_recovery(nvml: Nvml) -> None:
    """The time before the failure is not reported twice."""
    reader = Reader().begun()
    nvml.failing = {"GPU-0": pynvml.NVML_ERROR_UNKNOWN}
    assert reader.after(1).keys() == {"GPU-1"}
    nvml.failing = {}
    assert reader.after(1).keys() == {"GPU-1"}
    assert reader.after(1)["GPU-0"] == (0.5, 1.0)


def test_reads_a_gpu_that_appears_later(nvml: Nvml) -> None:
    nvml.gpus = ["GPU-0"]
    reader = Reader().begun()
    nvml.gpus = list(GPUS)
    reader.after(1)
    assert reader.after(1).keys() == set(GPUS)


def test_frees_all_samples_before_the_driver_closes(nvml: Nvml) -> None:
    reader = Reader().begun()
    assert nvml.samples == 4
    for callback in reader.driver.callbacks:
        callback()
    assert nvml.samples == 0
    assert reader.after(1) == {}


def test_raises_an_error_if_the_driver_is_not_open(nvml: Nvml) -> None:
    reader = Reader()
    reader.driver.open = False
    with pytest.raises(DriverError):
        reader.after(0)


@pytest.mark.parametrize(("capability", "sms"), [((9, 0), 132), ((8, 0), 264)])
def test_computes_the_sm_count_of_the_largest_gpu(nvml: Nvml, capability: tuple[int, int], sms: int) -> None:
    """NVML reports only cores. An SM has 64 or 128 of them."""
    nvml.capability = capability
    assert Reader().uses.gpus()[:2] == (sms, 2)


def test_counts_the_gpus_that_a_container_hides(nvml: Nvml, tmp_path: Path) -> None:
    """Their clients' launches are counted too, so launches have devices."""
    for name in ("0000:17:00.0", "0000:2a:00.0", "0000:c1:00.0", "module", "bind"):
        (tmp_path / name).touch()
    reader = Reader()
    for devices, number in ((tmp_path, 3), (tmp_path / "none", 2)):
        assert GpuUses(reader.driver, reader.clock, reader.gpm_lock, devices).gpus().number == number


def test_computes_the_bandwidth_of_the_fastest_memory(nvml: Nvml) -> None:
    """An H200 has 6016 bits at 3201 MHz, with two transfers for each clock."""
    assert Reader().uses.gpus().bandwidth == 4_814_304_000_000


def test_the_bandwidth_is_unknown_if_the_driver_does_not_tell(nvml: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(gpu: str) -> int:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryBusWidth", refuse)
    assert Reader().uses.gpus() == (132, 2, 0)


def test_a_sample_of_the_future_hides_no_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML returns the samples since a time."""

    def read(*stamps: float) -> list[int]:
        found = [SimpleNamespace(pid=7, timeStamp=int(at * 1e6), smUtil=9) for at in stamps]
        monkeypatch.setattr(pynvml, "nvmlDeviceGetProcessUtilization", lambda *_: found)
        return [each.timestamp_us // 1_000_000 for each in utilizations.read(None, 1000.0)]

    utilizations = nvml_gpu.ProcessUtilizations()
    assert read(990, 10**6) == [990]
    assert read(990, 995, 10**6) == [995]
