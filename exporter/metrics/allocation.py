"""Families of what Kubernetes has allocated: shares of GPUs, and resource claims."""

from collections import Counter
from collections.abc import Iterable
from itertools import islice

from exporter.metrics.family import Items, Labels, Rows, Samples, Scope, family, group, info
from exporter.model.daemon import NamedBy
from exporter.parse.printable import printable
from exporter.parse.resources import claim_uid
from exporter.usage.allocation import AllocatedShares, claim_names
from exporter.view import View

MOST_SERIES = 512
"""At most so many series of containers. The kubelet runs 110 pods by default."""


def _shares(view: View) -> Items[AllocatedShares]:
    for gpu, resources in view.allocation.items():
        for resource, shares in resources.items():
            yield (gpu, resource), shares


def _by_container(view: View) -> Samples:
    """Add up shares with equal labels: names can be equal once they are printable."""
    counts: Counter[Labels] = Counter()
    for labels, shares in _shares(view):
        for container, count in shares.by_container.items():
            counts[*labels, *map(printable, container)] += count
    return islice(sorted(counts.items()), MOST_SERIES)


def _claims(view: View) -> Rows:
    names = claim_names(view.node)
    claims: Iterable[tuple[str, str | None]] = (
        (daemon.name, claim_uid(daemon.pipe_directory))
        for daemon in view.daemons()
        if daemon.declared.by is NamedBy.DRA
    )
    return ((daemon, uid, *names.get(uid, ("", ""))) for daemon, uid in claims if uid is not None)


_SHARES: Scope[AllocatedShares] = Scope(("gpu", "resource"), _shares)

ALLOCATION = group(
    "Allocation (Kubernetes)",
    "fraction of each GPU's allocated shares that belong to pods without a CUDA context",
    "cuda_mps_gpu_unused_shares\n  / on (job, instance, gpu, resource) cuda_mps_gpu_allocated_shares",
    _SHARES.value("cuda_mps_gpu_allocatable_shares", lambda each: each.allocatable),
    "Shares of the GPU that the kubelet can allocate: healthy devices of the resource, allocated or not. Absent if the "
    "kubelet did not report them in the last minute.",
    _SHARES.value("cuda_mps_gpu_allocated_shares", lambda each: each.allocated),
    "Shares of the GPU that the kubelet has allocated to containers.",
    _SHARES.value("cuda_mps_gpu_unused_shares", lambda each: each.unused),
    "Allocated shares of pods that have no CUDA context on the GPU. Absent if the pod of a process with a context is "
    "unknown.",
    family(
        "cuda_mps_container_allocated_shares",
        ("gpu", "resource", "client_namespace", "client_pod", "client_container_name"),
        _by_container,
    ),
    f"Shares of the GPU that the kubelet has allocated to the container. At most {MOST_SERIES} series.",
    info("cuda_mps_daemon_claim_info", ("daemon", "claim_uid", "claim_namespace", "claim_name"), _claims),
    "Resource claim that the daemon runs for (NVIDIA's DRA driver), always 1. The names are empty if they are unknown.",
)
