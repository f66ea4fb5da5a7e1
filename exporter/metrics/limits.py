"""Families about limits in force, and the defaults of servers to come."""

from collections.abc import Mapping

from exporter.core.devices import by_its_ordinals
from exporter.metrics.family import Labels, Samples, gauge
from exporter.model.daemon import Daemon
from exporter.view import View


def _threads(view: View) -> Samples:
    for daemon, server in view.servers():
        if server.active_thread_percentage is not None:
            yield (daemon.name, str(server.pid)), server.active_thread_percentage / 100


def _memory(view: View) -> Samples:
    for daemon, server in view.servers():
        yield from _by_gpu(view, daemon, (daemon.name, str(server.pid)), server.pinned_memory_limits)


def _default_threads(view: View) -> Samples:
    for daemon in view.daemons():
        if daemon.default_active_thread_percentage is not None:
            yield (daemon.name,), daemon.default_active_thread_percentage / 100


def _default_memory(view: View) -> Samples:
    for daemon in view.daemons():
        yield from _by_gpu(view, daemon, (daemon.name,), daemon.default_pinned_memory_limits)


def _by_gpu(view: View, daemon: Daemon, labels: Labels, limits: Mapping[int, int]) -> Samples:
    """A limit on a device that is no known GPU has no sample."""
    gpus = by_its_ordinals(view.node, daemon)
    return (((*labels, gpus[device]), limit) for device, limit in sorted(limits.items()) if device in gpus)


FAMILIES = (
    gauge(
        "cuda_mps_server_active_thread_ratio",
        ("daemon", "server"),
        "Share of a GPU's threads that each client of the server may have; a client may have asked for less.",
        _threads,
    ),
    gauge(
        "cuda_mps_server_pinned_memory_limit_bytes",
        ("daemon", "server", "gpu"),
        "Memory of the GPU that each client of the server may have; none where there is no limit.",
        _memory,
    ),
    gauge(
        "cuda_mps_daemon_default_active_thread_ratio",
        ("daemon",),
        "Share of a GPU's threads that clients of the next server may have; a running server's is its own.",
        _default_threads,
    ),
    gauge(
        "cuda_mps_daemon_default_pinned_memory_limit_bytes",
        ("daemon", "gpu"),
        "Memory of the GPU that clients of the next server may have; none where there is no limit.",
        _default_memory,
    ),
)
