"""Families about how well GPUs are shared: how many more clients would fit, and how much is promised to those here."""

from collections.abc import Callable

from exporter.core.fitness.fitness import Fitness
from exporter.metrics.family import Samples, gauge
from exporter.view import View


def _fit(view: View) -> Samples:
    for uuid, found in view.fitness.items():
        yield from (((uuid, bound), count) for bound, count in found.room.by.items())


def _committed(of: Callable[[Fitness], float | None]) -> Callable[[View], Samples]:
    def samples(view: View) -> Samples:
        for uuid, found in view.fitness.items():
            value = of(found)
            if value is not None:
                yield (uuid,), value

    return samples


FAMILIES = (
    gauge(
        "cuda_mps_gpu_clients_fit",
        ("gpu", "bound"),
        "How many more clients such as those on the GPU would fit by its memory, its SM time, and the client slots "
        "that their servers have left: the least of them counts. Absent where it is not known.",
        _fit,
    ),
    gauge(
        "cuda_mps_gpu_thread_percentage_committed_ratio",
        ("gpu",),
        "The parts of the GPU's threads that its clients may have by their servers' limits, added up; 1: all of them.",
        _committed(lambda found: found.threads_committed),
    ),
    gauge(
        "cuda_mps_gpu_pinned_memory_committed_ratio",
        ("gpu",),
        "The memory of the GPU that its clients may have by their servers' limits, added up, of all that it has. "
        "Absent where a client has no limit.",
        _committed(lambda found: found.memory_committed),
    ),
)
