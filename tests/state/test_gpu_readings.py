"""GPU readings of NVML: monotonic counters, supported values, and MIG."""

from dataclasses import replace

import pytest

from exporter.model.event import EventName
from exporter.model.gpu import Gpu
from exporter.model.observation import GpuReading
from exporter.model.reason import Reason, ReasonCode
from tests.builders import AT, CLIENT, GPU, OTHER_GPU, SENSORS, Reduced, at_work, failure, gpu_reading, look, reduced

BYPASSING = 801
ALL = gpu_reading([CLIENT], **SENSORS)
FAILED = GpuReading(at=AT, gpu=GPU, problem=failure("GPU is lost"))


def gpu(result: Reduced) -> Gpu:
    return result.node.gpus[GPU]


def total(result: Reduced) -> int:
    """Return the GPU's energy."""
    energy = gpu(result).energy
    assert energy is not None
    return energy.total


def energies(*millijoules: int | None) -> list[int]:
    """Return the energy counter after each reading."""
    seen = [gpu_reading(energy_millijoules=each) for each in millijoules]
    return [total(reduced(*seen[: count + 1])) for count in range(len(seen))]


class TestCounters:
    """A counter never decreases."""

    def test_counter_starts_with_the_value_of_the_driver(self) -> None:
        """A restart of the exporter does not reset it."""
        assert energies(1000, 1500) == [1000, 1500]

    def test_counter_continues_after_a_driver_reset(self) -> None:
        assert energies(1000, 200, 300) == [1000, 1200, 1300]

    def test_counter_does_not_change_without_a_reading(self) -> None:
        assert energies(1000, None, 1100) == [1000, 1000, 1100]

    def test_counters_survive_a_failed_reading(self) -> None:
        """The driver may have reset its values."""
        result = reduced(gpu_reading(energy_millijoules=1000), FAILED, gpu_reading(energy_millijoules=50))
        assert total(result) == 1050


class TestGpm:
    """A missing value of GPM is not zero. Without GPM, launches are the only measure."""

    def test_failed_reading_does_not_change_whether_there_is_gpm(self) -> None:
        assert gpu(reduced(ALL, FAILED)).has_gpm is True
        assert gpu(reduced(FAILED)).has_gpm is None

    def test_gpu_without_values_has_no_gpm(self) -> None:
        bare = GpuReading(at=AT, gpu=GPU)
        assert gpu(reduced(bare, bare)).has_gpm is False
        assert gpu(reduced(replace(ALL, mig_mode=True, sm_utilization=None, dram_bandwidth=None))).has_gpm is False

    def test_gpm_that_nvml_reports_needs_no_values(self) -> None:
        """The first reading has none."""
        first = replace(ALL, sm_utilization=None, dram_bandwidth=None, gpm_supported=True)
        assert gpu(reduced(first, first)).has_gpm is True
        assert gpu(reduced(ALL, replace(first, gpm_supported=False))).has_gpm is False

    def test_gpm_is_unknown_after_the_first_reading(self) -> None:
        """GPM values cover the time between two readings."""
        first = replace(ALL, sm_utilization=None, dram_bandwidth=None)
        assert gpu(reduced(first)).has_gpm is None
        assert gpu(reduced(first, ALL)).has_gpm is True
        assert gpu(reduced(first, first)).has_gpm is False

    def test_gpm_stays_supported_after_a_driver_reset(self) -> None:
        """The first reading after the reset has no GPM values."""
        first = replace(ALL, sm_utilization=None, dram_bandwidth=None)
        assert gpu(reduced(ALL, FAILED, first)).has_gpm is True


@pytest.mark.parametrize(("ended_at", "seconds", "is_known"), [(4, 4.0, True), (4, 1.0, False), (30, 30.0, False)])
def test_values_are_unknown_after_a_collection_that_did_not_read_them_or_hung(
    ended_at: int, seconds: float, is_known: bool
) -> None:
    ended = replace(look(at=AT + ended_at), seconds=seconds)
    assert (gpu(reduced(ALL, ended)).reading.problem is None) is is_known


class TestMig:
    """With MIG, the process lists of the GPU include all its instances, and may be incomplete."""

    @pytest.mark.parametrize("mig", [False, True])
    def test_no_process_is_bypassing_with_mig(self, mig: bool) -> None:
        seen = [gpu_reading([CLIENT], beside=[BYPASSING], at=AT + passed, mig_mode=mig) for passed in (0, 2, 4)]
        result = reduced(*at_work(CLIENT), *seen)
        assert (len(result.of(EventName.PROCESS_BYPASSING)) == 0) is mig
        assert gpu(result).bypassing_known is not mig

    def test_bypassing_processes_are_removed_when_mig_is_enabled(self) -> None:
        """Only an unused GPU can be partitioned."""
        seen = [gpu_reading([CLIENT], beside=[BYPASSING], at=AT + passed) for passed in (0, 2)]
        result = reduced(*at_work(CLIENT), *seen, gpu_reading(at=AT + 4, mig_mode=True), look(at=AT + 4))
        assert (gpu(result).bypassing, gpu(result).mps_since) == ((), {})

    def test_client_missing_from_a_mig_list_stays_connected(self) -> None:
        """The list may be empty because the exporter lacks permission."""
        result = reduced(*at_work(CLIENT), gpu_reading([CLIENT]), gpu_reading(at=AT + 2, server=None, mig_mode=True))
        assert CLIENT in result.daemon.clients
        assert gpu(result).mps_left == {}


def test_a_value_that_fails_for_a_while_reports_nothing() -> None:
    """A list of processes that could not be read shows no process that came, left or bypasses MPS."""
    for missing in (
        {"compute_processes"},
        {"mps_processes"},
        {"memory_used_bytes"},
        {"compute_processes", "mps_processes"},
    ):
        failed = {name: Reason(ReasonCode.DRIVER_ERROR, subject=name, detail="Unknown Error") for name in missing}
        good = [gpu_reading([CLIENT], beside=[BYPASSING], at=AT + passed) for passed in (0, 2)]
        before = reduced(*at_work(CLIENT), *good)
        assert before.of(EventName.PROCESS_BYPASSING)
        bad = [
            replace(reading, at=AT + at, failed=failed, **dict.fromkeys(missing))
            for at, reading in ((4, good[0]), (14, good[0]), (24, good[0]))
        ]
        after = reduced(*bad, gpu_reading([CLIENT], beside=[BYPASSING], at=AT + 34), start=before.node)

        assert (after.events, CLIENT in after.daemon.clients) == ((), True), missing
        assert gpu(after).bypassing == (BYPASSING,)
        assert gpu(after).has_gpm == gpu(before).has_gpm


LOST = Reason(ReasonCode.GPU_LOST, detail="GPU is lost")
OTHER = replace(gpu_reading(gpu=OTHER_GPU, index=1), at=AT)


def lost_events(result: Reduced) -> list[tuple[str | None, object]]:
    return [(each.gpu, each.reason) for each in result.events if each.event is EventName.GPU_LOST]


class TestLostGpu:
    """A known GPU is lost if NVML reports that, or works and does not list it. Other failures say nothing of a GPU."""

    def test_reports_once_that_the_driver_has_lost_a_gpu(self) -> None:
        seen = [GpuReading(at=AT + at, gpu=GPU, problem=LOST) for at in (10, 20)]
        result = reduced(ALL, look(), *seen)
        assert lost_events(result) == [(GPU, "gpu_lost")]

    def test_reports_once_that_nvml_no_longer_lists_a_gpu(self) -> None:
        seen = [each for at in (10, 20) for each in (replace(OTHER, at=AT + at), look(at=AT + at))]
        result = reduced(ALL, OTHER, look(), *seen)
        assert lost_events(result) == [(GPU, "gpu_not_reported")]

    def test_reports_that_nvml_no_longer_lists_the_only_gpu(self) -> None:
        assert lost_events(reduced(ALL, look(), look(at=AT + 10))) == [(GPU, "gpu_not_reported")]

    def test_reports_it_while_a_value_of_another_gpu_fails(self) -> None:
        problem = Reason(ReasonCode.DRIVER_ERROR, subject=f"{OTHER_GPU} energy", detail="Unknown Error")
        seen = (replace(OTHER, at=AT + 10), look(at=AT + 10, problem=problem))
        assert lost_events(reduced(ALL, OTHER, look(), *seen)) == [(GPU, "gpu_not_reported")]

    def test_a_failure_of_nvml_is_no_lost_gpu(self, subtests: pytest.Subtests) -> None:
        for problem in [
            Reason(ReasonCode.PAUSED),
            Reason(ReasonCode.STILL_RUNNING, seconds=12.0),
            Reason(ReasonCode.DRIVER_NOT_LOADED, detail="Driver Not Loaded"),
            Reason(ReasonCode.DRIVER_ERROR, subject="number of GPUs", detail="Unknown Error"),
            Reason(ReasonCode.DRIVER_ERROR, subject="0", detail="Unknown Error"),
        ]:
            with subtests.test(problem=problem):
                result = reduced(ALL, look(), look(at=AT + 10, problem=problem))
                assert lost_events(result) == []
                assert gpu(result).reading.problem == problem

    def test_a_gpu_that_was_read_long_before_a_slow_collection_ended_is_not_lost(self) -> None:
        result = reduced(ALL, OTHER, look(), replace(ALL, at=AT + 11), replace(look(at=AT + 20), seconds=10.0))
        assert lost_events(result) == [(OTHER_GPU, "gpu_not_reported")]

    def test_a_gpu_that_returns_and_is_lost_again_is_reported_again(self) -> None:
        seen = [GpuReading(at=AT + 10, gpu=GPU, problem=LOST), gpu_reading(), GpuReading(at=AT, gpu=GPU, problem=LOST)]
        assert len(lost_events(reduced(ALL, look(), *seen))) == 2
