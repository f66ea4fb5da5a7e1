"""Families of capacity."""

from tests.builders import GPU, GPU_BYTES, OTHER_GPU, flight, idle, limited, process, reduced, split
from tests.metrics.test_families import families, samples, value

FIT = "cuda_mps_gpu_clients_fit"
THREADS, MEMORY = "cuda_mps_gpu_thread_percentage_committed_ratio", "cuda_mps_gpu_pinned_memory_committed_ratio"


def test_shows_how_many_more_clients_fit_by_each_known_bound() -> None:
    present = split(limited(), {600: flight(0.2), 601: flight(0.2)})
    assert value(present, FIT, gpu=GPU, bound="memory") == 54
    assert value(present, FIT, gpu=GPU, bound="sm") == 3
    assert value(present, FIT, gpu=GPU, bound="slots") == 45
    assert not samples(present, FIT, gpu=OTHER_GPU, bound="sm")


def test_shows_the_sum_of_limits() -> None:
    assert value(limited(), THREADS, gpu=OTHER_GPU) == 1.0
    assert value(limited(), MEMORY, gpu=OTHER_GPU) == (4 << 30) / GPU_BYTES
    assert not samples(limited(), MEMORY, gpu=GPU)


def test_the_sum_is_absent_if_the_limits_of_a_client_are_unknown() -> None:
    """Its environment cannot be read, as in recordings of earlier versions."""
    present = reduced(process(600, environment=None), start=limited()).node
    assert {each.labels["bound"] for each in samples(present, FIT, gpu=OTHER_GPU)} == {"slots"}
    assert not {THREADS, MEMORY} & families(present).keys()


def test_limits_in_the_environment_of_a_client_count() -> None:
    own = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1G"}
    present = reduced(process(600, environment=own), start=limited()).node
    assert value(present, THREADS, gpu=OTHER_GPU) == 0.75
    assert value(present, MEMORY, gpu=OTHER_GPU) == (3 << 30) / GPU_BYTES


def test_a_gpu_without_clients_has_no_series() -> None:
    """A gauge of 0 clients that fit would read as a full GPU."""
    assert not {FIT, THREADS, MEMORY} & families(idle()).keys()
