"""How much of a GPU its clients may use in all: above 1, more than there is, if all of them want it at once."""

from collections.abc import Sequence
from math import fsum

from exporter.core.fitness.holding import Holding


def threads_committed(here: Sequence[Holding]) -> float | None:
    """The parts of the SMs that the clients may use, added up; None where one of them is not known."""
    parts = [each.threads for each in here if each.threads is not None]
    return fsum(parts) if parts and len(parts) == len(here) else None


def memory_committed(here: Sequence[Holding], total_bytes: int | None) -> float | None:
    """The memory that the clients may have, of all that there is; None where one of them has none that is known."""
    limits = [each.memory_limit for each in here if each.memory_limit is not None]
    return sum(limits) / total_bytes if total_bytes and limits and len(limits) == len(here) else None
