"""What the configuration sets for the pure core: intervals, thresholds, limits; and MPS' own variables."""

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum

from exporter.model.values import frozen


class Mode(StrEnum):
    """Mode of the watchdog: report what it would do, or do it."""

    OBSERVE = "observe"
    ACT = "act"


class AllowedAction(StrEnum):
    """An action that ends processes of clients. The watchdog takes it only if the configuration lists it.

    The first three are the steps against a fault that does not end, in this order.
    """

    KILL_CLIENTS = "kill_clients"
    SHUT_DOWN_SERVER = "shut_down_server"
    RESTART_DAEMON = "restart_daemon"
    END_HUNG_SERVER = "end_hung_server"
    DELETE_POD = "delete_pod"


@frozen
class PollIntervals:
    """Intervals in seconds at which the exporter polls a daemon and NVML.

    The later ones apply for a while after a change or a contradiction. `changed` applies to enforced limits that a
    command may have changed.
    """

    liveness: float = 30.0
    lists: float = 300.0
    limits: float = 3600.0
    nvml: float = 10.0
    stale: float = 2.0
    changed: float = 0.25
    starting: float = 0.5
    fault: float = 5.0
    stale_for: float = 10.0

    def is_recent(self, at: float, stale_since: float | None) -> bool:
        """Return whether to poll sooner. If polls for some time did not confirm a value, further ones will not."""
        return stale_since is not None and at - stale_since <= self.stale_for


@frozen
class Thresholds:
    """When the watchdog acts, in seconds, how often, and which actions that end clients it may take.

    The watchdog restarts a daemon that hangs for `hung_after`. After `restarts` within `window`, the circuit breaker
    opens. The first restart comes at once. After one that did not last, the watchdog waits `backoff`, then twice as
    long each time, up to `longest_backoff`, plus up to a quarter by chance. A restart succeeds if the daemon answers
    within `verify`. systemd has `systemd` to restart a unit itself. A fault may last `fault`; then the watchdog takes
    the listed steps, `step` apart.
    """

    hung_after: float = 90.0
    restarts: int = 5
    window: float = 900.0
    backoff: float = 2.0
    longest_backoff: float = 300.0
    verify: float = 30.0
    systemd: float = 30.0
    fault: float = 60.0
    step: float = 10.0
    allow: frozenset[AllowedAction] = frozenset()


@frozen
class Limits:
    """Limits of a control daemon's servers; what is None, or not there, is not limited, or not known.

    `active_thread_percentage` is the share of a GPU's threads that each client may have, in percent. `pinned_memory` is
    how much of a GPU's memory, in bytes, by the client's own numbers. `client_priority` is 0, normal, or 1, below it.
    """

    active_thread_percentage: float | None = None
    pinned_memory: Mapping[int, int] = field(default_factory=dict)
    client_priority: int | None = None

    def __bool__(self) -> bool:
        """Whether anything is limited."""
        return self != Limits()


PIPE_DIRECTORY = "CUDA_MPS_PIPE_DIRECTORY"
LOG_DIRECTORY = "CUDA_MPS_LOG_DIRECTORY"
PROTOCOL_VERSION = "CUDA_MPS_PROTOCOL_VERSION"
ACTIVE_THREAD_PERCENTAGE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
PINNED_MEMORY_LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
PER_CONTEXT_PARTITIONING = "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING"
VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
DEVICE_ORDER = "CUDA_DEVICE_ORDER"

DEFAULT_PIPE_DIRECTORY = "/tmp/nvidia-mps"  # noqa: S108 (NVIDIA's choice, not ours)
DEFAULT_LOG_DIRECTORY = "/var/log/nvidia-mps"
"""Directories of a daemon without these variables (NVIDIA's MPS guide)."""

CLIENT_PRIORITY = "CUDA_MPS_CLIENT_PRIORITY"
MAX_CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
CLIENT_LIMITS = (
    *(ACTIVE_THREAD_PERCENTAGE, PER_CONTEXT_PARTITIONING, PINNED_MEMORY_LIMIT),
    *(VISIBLE_DEVICES, CLIENT_PRIORITY, MAX_CONNECTIONS),
)
"""The variables by which a client limits itself."""


@frozen
class Retention:
    """How long, in seconds, and how many of each. An incident that is open has no age."""

    max_age: float = 30 * 86400.0
    max_incidents: int = 1000
    max_events: int = 10_000
