"""What NVML's numbers become: counters that never go down, and a word on what it cannot tell."""

from dataclasses import replace

import pytest

from exporter.model.event import EventName
from exporter.model.gpu import Gpu
from exporter.model.observation import GpuProcess, GpuReading
from exporter.state.gpus import ENERGY
from tests.builders import AT, CLIENT, GPU, SENSORS, Reduced, at_work, failure, gpu_reading, look, reduced

STRANGER = 801
ALL = gpu_reading([CLIENT], **SENSORS)
FAILED = GpuReading(at=AT, gpu=GPU, problem=failure("GPU is lost"))


def gpu(story: Reduced) -> Gpu:
    """The GPU as it is remembered."""
    return story.node.gpus[GPU]


def energies(*millijoules: int | None) -> list[int]:
    """What the counter shows after each reading."""
    seen = [gpu_reading(energy_millijoules=each) for each in millijoules]
    return [gpu(reduced(*seen[: place + 1])).counters[ENERGY].total for place in range(len(seen))]


class TestMeters:
    """A counter never goes down."""

    def test_it_begins_with_what_the_driver_has_counted(self) -> None:
        """An exporter that starts again goes on where it was."""
        assert energies(1000, 1500) == [1000, 1500]

    def test_a_driver_that_begins_anew_is_counted_on(self) -> None:
        """All that it has counted since is new."""
        assert energies(1000, 200, 300) == [1000, 1200, 1300]

    def test_no_reading_leaves_it_where_it_is(self) -> None:
        """And what was used meanwhile is counted when it is told."""
        assert energies(1000, None, 1100) == [1000, 1000, 1100]

    def test_a_gpu_that_failed_keeps_its_counters(self) -> None:
        """Whether the driver begins anew or not."""
        story = reduced(gpu_reading(energy_millijoules=1000), FAILED, gpu_reading(energy_millijoules=50))
        assert gpu(story).counters[ENERGY].total == 1050

    def test_ecc_errors_are_counted_so_too(self) -> None:
        """Both kinds, each for itself."""
        seen = [
            gpu_reading(ecc_corrected=corrected, ecc_uncorrected=uncorrected)
            for corrected, uncorrected in ((7, 1), (0, 2))
        ]
        counters = gpu(reduced(*seen)).counters
        assert (counters["ecc_corrected"].total, counters["ecc_uncorrected"].total) == (7, 2)


class TestSupport:
    """Absent is not zero, and here it is said which it is."""

    def test_a_gpu_that_tells_all(self) -> None:
        """Nothing is missing."""
        supported = gpu(reduced(ALL)).supported
        assert {name for name, given in supported.items() if not given} == set()
        assert {"process_memory", "process_utilization", "mps_processes", "gpm", "ecc", "energy"} <= supported.keys()

    def test_a_gpu_that_tells_nothing(self) -> None:
        """It was read, and so it is known that it does not tell."""
        bare = GpuReading(at=AT, gpu=GPU)
        assert not any(gpu(reduced(bare, bare)).supported.values())

    def test_a_gpu_that_was_not_read_is_what_it_was(self) -> None:
        """A failure says nothing about what it could tell."""
        assert gpu(reduced(ALL, FAILED)).supported == gpu(reduced(ALL)).supported
        assert gpu(reduced(FAILED)).supported == {}

    def test_under_mig_nothing_of_single_processes_is_told(self) -> None:
        """Empty lists are not "nobody"."""
        supported = gpu(reduced(replace(ALL, mig_mode=True))).supported
        of_processes = {name for name in supported if "process" in name}
        assert not any(supported[name] for name in of_processes)
        assert of_processes == {"processes", "mps_processes", "process_memory", "process_utilization"}

    def test_processes_without_their_memory(self) -> None:
        """As NVML lists them where it does not tell it."""
        silent = replace(ALL, compute_processes=(GpuProcess(pid=CLIENT),))
        assert gpu(reduced(silent)).supported["process_memory"] is False

    def test_gpm_is_no_matter_of_the_first_reading(self) -> None:
        """It tells of the time between two."""
        first = replace(ALL, sm_utilization=None, dram_bandwidth=None)
        assert "gpm" not in gpu(reduced(first)).supported
        assert gpu(reduced(first, ALL)).supported["gpm"] is True
        assert gpu(reduced(first, first)).supported["gpm"] is False

    def test_gpm_begins_anew_with_the_driver(self) -> None:
        """Which is no reason to call it unsupported."""
        first = replace(ALL, sm_utilization=None, dram_bandwidth=None)
        assert gpu(reduced(ALL, FAILED, first)).supported["gpm"] is True


class TestMig:
    """The whole GPU's lists are of all its instances, for those who may see them."""

    @pytest.mark.parametrize("mig", [False, True])
    def test_nobody_bypasses_mps_on_an_instance_that_may_have_none(self, mig: bool) -> None:
        """Though he would without MIG."""
        seen = [gpu_reading([CLIENT], beside=[STRANGER], at=AT + passed, mig_mode=mig) for passed in (0, 2, 4)]
        story = reduced(*at_work(CLIENT), *seen)
        assert (len(story.of(EventName.PROCESS_BYPASSING)) == 0) is mig
        assert gpu(story).bypassing_known is not mig

    def test_who_was_beside_mps_before_is_forgotten(self) -> None:
        """The GPU had to be free to be divided."""
        seen = [gpu_reading([CLIENT], beside=[STRANGER], at=AT + passed) for passed in (0, 2)]
        story = reduced(*at_work(CLIENT), *seen, gpu_reading(at=AT + 4, mig_mode=True), look(at=AT + 4))
        assert (gpu(story).bypassing, gpu(story).mps_since) == ((), {})

    def test_a_client_missing_from_its_list_has_not_left(self) -> None:
        """An empty list may be what the exporter is allowed to see."""
        story = reduced(*at_work(CLIENT), gpu_reading([CLIENT]), gpu_reading(at=AT + 2, server=None, mig_mode=True))
        assert CLIENT in story.daemon.clients
        assert gpu(story).mps_left == {}
