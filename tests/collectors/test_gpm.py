"""How busy every GPU was, by GPM alone, from a driver that another opens."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from exporter.collectors.nvml import gpu as nvml_gpu
from exporter.collectors.nvml.collector import GpuUses
from exporter.collectors.nvml.driver import Driver, DriverError
from exporter.model.problem import Problem, ProblemCode
from tests.clocks import HandClock

GPUS = ("GPU-0", "GPU-1")
CORES = {"GPU-0": 16896, "GPU-1": 14592}


class HandDriver(Driver):
    """Open or not, as a test has it."""

    def __init__(self) -> None:
        super().__init__()
        self.open = True
        self.give_back: list[Callable[[], None]] = []

    def before_closing(self, give_back: Callable[[], None]) -> None:
        """Who is to be told."""
        self.give_back.append(give_back)

    @contextlib.contextmanager
    def joined(self, within: float) -> Iterator[None]:
        """As long as it is open."""
        if not self.open:
            raise DriverError(Problem(code=ProblemCode.DRIVER_NOT_OPEN))
        yield


class Nvml:
    """What the driver says: of each GPU, how busy it was by each sample; and which of them fail, and how."""

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
            "nvmlGpmSampleAlloc": self._allocated,
            "nvmlGpmSampleGet": self._sampled,
            "nvmlGpmSampleFree": self._freed,
            "nvmlGpmMetricsGet": self._metrics,
        }
        monkeypatch.setattr(pynvml, "c_nvmlGpmMetricsGet_t", self._question)
        for name, answer in answers.items():
            monkeypatch.setattr(pynvml, name, answer)

    def _question(self) -> SimpleNamespace:
        return SimpleNamespace(metrics=[SimpleNamespace(value=0.0, nvmlReturn=0) for _ in range(2)])

    def _allocated(self) -> dict[str, str]:
        self.samples += 1
        return {}

    def _freed(self, sample: object) -> None:
        self.samples -= 1

    def _sampled(self, gpu: str, sample: dict[str, str]) -> dict[str, str]:
        if gpu in self.failing:
            raise pynvml.NVMLError(self.failing[gpu])
        sample["gpu"] = gpu
        return sample

    def _metrics(self, question: SimpleNamespace) -> None:
        question.metrics[0].value = self.percent[question.sample1["gpu"]]
        question.metrics[1].value = 10.0


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    """Two GPUs that have GPM."""
    return Nvml(monkeypatch)


class Looker:
    """Reads them, so much later."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.driver = HandDriver()
        self.gpm_lock = threading.Lock()
        self.uses = GpuUses(self.driver, self.clock, self.gpm_lock)

    def after(self, seconds: float) -> dict[str, tuple[float, float]]:
        """How busy each was, and for how long."""
        self.clock.time += seconds
        return {use.gpu: (use.sm_utilization, use.seconds) for use in self.uses.read()}


def test_each_is_told_of_since_the_look_before(nvml: Nvml) -> None:
    looker = Looker()
    assert looker.after(0) == {}
    assert looker.after(1) == {"GPU-0": (0.5, 1.0), "GPU-1": (0.5, 1.0)}
    assert looker.after(2.5)["GPU-0"] == (0.5, 2.5)


def test_two_are_never_in_gpm_at_once(nvml: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would end the process. Whoever waits too long for the other goes without."""
    monkeypatch.setattr(nvml_gpu, "GPM_SECONDS", 0.01)
    looker = Looker()
    looker.after(0)
    with looker.gpm_lock:
        assert looker.after(1) == {}
    assert looker.after(1)["GPU-0"] == (0.5, 2.0)
    assert not looker.gpm_lock.locked()


def test_the_lock_is_given_back_however_a_look_ends(nvml: Nvml) -> None:
    looker = Looker()
    looker.after(0)
    nvml.failing = dict.fromkeys(GPUS, pynvml.NVML_ERROR_GPU_IS_LOST)
    looker.after(1)
    assert not looker.gpm_lock.locked()


def test_one_without_gpm_is_left_out(nvml: Nvml) -> None:
    nvml.supported = {"GPU-1"}
    looker = Looker()
    looker.after(0)
    assert looker.after(1).keys() == {"GPU-1"}


def test_two_looks_too_close_are_one(nvml: Nvml) -> None:
    """The next tells of all the time since the first."""
    looker = Looker()
    looker.after(0)
    assert looker.after(0.05) == {}
    assert looker.after(0.95)["GPU-0"] == (0.5, 1.0)


def test_what_is_no_number_is_not_told(nvml: Nvml) -> None:
    nvml.percent = {"GPU-0": float("nan"), "GPU-1": -1.0}
    looker = Looker()
    looker.after(0)
    assert looker.after(1) == {}


def test_a_gpu_that_fails_leaves_the_other_and_begins_anew(nvml: Nvml) -> None:
    """What lies before the failure is not told of twice."""
    looker = Looker()
    looker.after(0)
    nvml.failing = {"GPU-0": pynvml.NVML_ERROR_UNKNOWN}
    assert looker.after(1).keys() == {"GPU-1"}
    nvml.failing = {}
    assert looker.after(1).keys() == {"GPU-1"}
    assert looker.after(1)["GPU-0"] == (0.5, 1.0)


def test_a_gpu_that_is_new_is_met(nvml: Nvml) -> None:
    nvml.gpus = ["GPU-0"]
    looker = Looker()
    looker.after(0)
    nvml.gpus = list(GPUS)
    looker.after(1)
    assert looker.after(1).keys() == set(GPUS)


def test_all_is_given_back_before_the_driver_closes(nvml: Nvml) -> None:
    looker = Looker()
    looker.after(0)
    assert nvml.samples == 4
    for give_back in looker.driver.give_back:
        give_back()
    assert nvml.samples == 0
    assert looker.after(1) == {}


def test_a_driver_that_is_not_open_is_an_error(nvml: Nvml) -> None:
    looker = Looker()
    looker.driver.open = False
    with pytest.raises(DriverError):
        looker.after(0)


@pytest.mark.parametrize(("capability", "sms"), [((9, 0), 132), ((8, 0), 264)])
def test_the_largest_gpus_sms_are_told(nvml: Nvml, capability: tuple[int, int], sms: int) -> None:
    """By its cores, of which an SM has 64 or 128."""
    nvml.capability = capability
    assert Looker().uses.sms() == sms
