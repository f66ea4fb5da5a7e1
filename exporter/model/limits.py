"""Limits on what clients may use of the GPUs."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a control daemon's servers; what is None, or not there, is not limited, or not known.

    `active_thread_percentage` is the share of a GPU's threads that each client may have, in percent. `pinned_memory` is
    how much of a GPU's memory, in bytes, by the daemon's own ordinals. `client_priority` is 0, normal, or 1, below it.
    """

    active_thread_percentage: float | None = None
    pinned_memory: Mapping[int, int] = field(default_factory=dict)
    client_priority: int | None = None

    def __bool__(self) -> bool:
        """Whether anything is limited."""
        return self != Limits()
