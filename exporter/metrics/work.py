"""Families about clients' work, as it is seen at the doors of libcuda with `--attribution=bpf`."""

from collections.abc import Iterable

from exporter.core.work import counts_of, watched_part
from exporter.metrics.family import Labels, Samples, counter, gauge
from exporter.model.work import Counts
from exporter.view import View

SECOND_NS = 1e9


def _counted(view: View) -> Iterable[tuple[Labels, Counts]]:
    """What each client has done of whom that can be seen."""
    for daemon, client, client_id in view.clients():
        counts = counts_of(view.node, client.pid)
        if counts is not None:
            yield (daemon.name, client_id), counts


def _launches(view: View) -> Samples:
    for labels, counts in _counted(view):
        yield (*labels, "kernel"), counts.kernels
        yield (*labels, "graph"), counts.graphs


def _watched(view: View) -> Samples:
    part = watched_part(view.node)
    return [] if part is None else [((), part)]


FAMILIES = (
    counter(
        "cuda_mps_client_kernel_launches_total",
        ("daemon", "client", "kind"),
        "What the client has launched, by kind (kernel, or graph, which is many), since its libcuda is watched; absent "
        "where it is not.",
        _launches,
    ),
    counter(
        "cuda_mps_client_in_flight_seconds_total",
        ("daemon", "client"),
        "How long the client's streams had work in flight: from a launch on an idle one until a synchronisation has "
        "returned. With several streams it grows faster than time. Absent where its libcuda is not watched.",
        lambda view: ((labels, counts.flight_ns / SECOND_NS) for labels, counts in _counted(view)),
    ),
    counter(
        "cuda_mps_exporter_launches_lost_total",
        (),
        "Launches that were seen but could not be put down, for want of room; absent where no libcuda is watched.",
        lambda view: [] if view.node.work is None else [((), view.node.work_history.lost)],
    ),
    gauge(
        "cuda_mps_exporter_attribution_watched_ratio",
        (),
        "How much of the last minute clients' libcuda was watched: less than 1 where one launches so much that "
        "watching all of it would slow it down, 0 where nobody uses CUDA; absent without --attribution=bpf, and where "
        "that fails.",
        _watched,
    ),
)
