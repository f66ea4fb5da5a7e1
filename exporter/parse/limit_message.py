"""What lines of the logs say of limits."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ThreadsTold:
    """The share of a GPU's threads, in percent, that each client of this server may have."""

    percentage: float


@dataclass(frozen=True, slots=True)
class PinnedMemoryLimitTold:
    """The device memory, in bytes, that each client of this server may have; the device is the daemon's ordinal."""

    device: int
    limit: int


@dataclass(frozen=True, slots=True)
class PriorityTold:
    """The priority that clients of this server have: 0, normal, or 1, below it."""

    priority: int


@dataclass(frozen=True, slots=True)
class DefaultMemoryLimitSet:
    """The daemon has taken a new default for servers to come: bytes, for a device by its own ordinal."""

    device: int
    limit: int
