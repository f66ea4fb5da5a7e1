"""Families about limits that should hold: whether they do."""

from collections.abc import Iterable

from exporter.core.watchdog.drift import Demand, Standing, demands
from exporter.metrics.family import Labels, Samples, counter, gauge
from exporter.model.daemon import Daemon
from exporter.view import View


def _of_servers(view: View) -> Samples:
    for daemon, found in _wanted(view):
        for server in daemon.servers:
            yield from _drifted((daemon.name, str(server)), [each for each in found if each.server == server])


def _of_defaults(view: View) -> Samples:
    for daemon, found in _wanted(view):
        yield from _drifted((daemon.name,), [each for each in found if each.server is None])


def _wanted(view: View) -> Iterable[tuple[Daemon, tuple[Demand, ...]]]:
    for daemon in view.daemons():
        watch = view.node.watches.get(daemon.name)
        if watch is not None and watch.wanted is not None and daemon.answers:
            yield daemon, demands(daemon, watch.wanted, view.node.at)


def _drifted(labels: Labels, found: list[Demand]) -> Samples:
    """What is not yet known has no sample, unless another limit has drifted for certain."""
    worst = max((each.standing for each in found), default=Standing.UNKNOWN)
    if worst is not Standing.UNKNOWN:
        yield labels, worst is Standing.DRIFTED


def _before_limits(view: View) -> Samples:
    for daemon in view.daemons():
        watch = view.node.watches.get(daemon.name)
        if watch is not None:
            yield (daemon.name,), watch.bypassed


FAMILIES = (
    gauge(
        "cuda_mps_server_limits_drifted",
        ("daemon", "server"),
        "Whether a limit of the server is not as configured, or as it was before its daemon was started again.",
        _of_servers,
    ),
    gauge(
        "cuda_mps_daemon_limits_drifted",
        ("daemon",),
        "Whether a limit that the daemon's next server will have is not as configured, or as it was before its start.",
        _of_defaults,
    ),
    counter(
        "cuda_mps_clients_before_limits_total",
        ("daemon",),
        "Clients that were on a server before its limits were, and are not held to them.",
        _before_limits,
    ),
)
