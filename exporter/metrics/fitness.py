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
        "that their servers have left. The smallest bound counts. If the bound of memory or slots is absent, it is not "
        "known how many more fit.",
        _fit,
    ),
    gauge(
        "cuda_mps_gpu_thread_percentage_committed_ratio",
        ("gpu",),
        "Sum of the parts of the GPU's threads that its clients may use, by their servers' limits and by their own "
        "environment; 1: all of them. Absent where the limit of a client is not known.",
        _committed(lambda found: found.threads_committed),
    ),
    gauge(
        "cuda_mps_gpu_pinned_memory_committed_ratio",
        ("gpu",),
        "Sum of the memory that the GPU's clients may have, by their servers' limits and by their own environment, "
        "divided by the GPU's memory. Absent where a client has no limit, or its limit is not known.",
        _committed(lambda found: found.memory_committed),
    ),
)
