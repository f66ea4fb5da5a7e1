"""Families about faults. What a page to a person needs stands on the last one's info; owners have their own counts."""

from collections import Counter
from collections.abc import Callable, Iterable

from exporter.core.incidents import REMEMBERED_SECONDS
from exporter.metrics.family import Labels, Samples, Spreads, buckets, counter, gauge, histogram
from exporter.model.daemon import RECOVERY_SECONDS, Daemon
from exporter.model.incident import Incident, Tenant
from exporter.parse.printable import printable
from exporter.view import View

SHOWN_SECONDS = REMEMBERED_SECONDS
"""How long after its end a daemon's last fault is told of."""


def _counted(count: Callable[[Daemon], int]) -> Callable[[View], Samples]:
    return lambda view: (((daemon.name,), count(daemon)) for daemon in view.daemons())


def _last(view: View) -> Samples:
    for daemon in view.daemons():
        if daemon.last_fault_at is not None:
            yield (daemon.name,), daemon.last_fault_at + view.clock_step


def _info(view: View) -> Samples:
    for daemon, incident in _shown(view):
        yield (daemon.name, incident.id, incident.kind, *_suspected(incident)), 1


def _last_affected(view: View) -> Samples:
    for daemon, incident in _shown(view):
        yield (daemon.name,), len(incident.affected)


def _last_affected_owners(view: View) -> Samples:
    for daemon, incident in _shown(view):
        known = (incident.tenants[pid].workload for pid in incident.affected if pid in incident.tenants)
        hit = Counter((each.kind, printable(each.name)) for each in known if each is not None)
        yield from (((daemon.name, *owner), count) for owner, count in hit.items())


def _shown(view: View) -> Iterable[tuple[Daemon, Incident]]:
    """The last fault of each daemon that has a fresh one."""
    last = {each.daemon: each for each in view.node.incidents.values() if _fresh(each, view.node.at)}
    return ((daemon, last[daemon.name]) for daemon in view.daemons() if daemon.name in last)


def _fresh(incident: Incident, at: float) -> bool:
    return incident.ended_at is None or at - incident.ended_at <= SHOWN_SECONDS


def _suspected(incident: Incident) -> Labels:
    suspect = incident.suspect
    return ("", "") if suspect is None else (_owner(suspect.tenant), f"{suspect.confidence:.2f}")


def _owner(tenant: Tenant) -> str:
    """The owner's kind comes first, so that no name can pass for another kind's."""
    return f"pid/{tenant.pid}" if tenant.workload is None else f"{tenant.workload.kind}/{tenant.workload.name}"


def _blocking(view: View) -> Samples:
    held: Counter[tuple[str, int]] = Counter()
    for incident in view.node.incidents.values():
        held[incident.daemon, incident.server] += len(incident.blockers)
    return (((daemon.name, str(server.pid)), held[daemon.name, server.pid]) for daemon, server in view.servers())


def _recoveries(view: View) -> Spreads:
    for daemon in view.daemons():
        told = daemon.totals.fault_recoveries
        yield (daemon.name,), buckets(RECOVERY_SECONDS, told.within, told.count), told.seconds


FAMILIES = (
    counter(
        "cuda_mps_faults_total",
        ("daemon",),
        "Times a server of the daemon went into FAULT, however short: a fatal GPU error hit its clients.",
        _counted(lambda daemon: daemon.totals.faults),
    ),
    gauge(
        "cuda_mps_fault_last_timestamp_seconds",
        ("daemon",),
        "When a server of the daemon last went into FAULT, in seconds since the epoch.",
        _last,
    ),
    counter(
        "cuda_mps_fault_affected_clients_total",
        ("daemon",),
        "Clients that a fault hit: all that shared a GPU with whoever did it, and all that shared one with those.",
        _counted(lambda daemon: daemon.totals.fault_affected),
    ),
    gauge(
        "cuda_mps_fault_info",
        ("daemon", "incident", "kind", "suspect_workload", "confidence"),
        "The daemon's last fault, while it lasts and for an hour. suspect_workload is an owner as `kind/name`, or "
        "`pid/N` where none is known; confidence is how sure that is, 0 to 1; both empty where nobody is suspected.",
        _info,
    ),
    gauge(
        "cuda_mps_fault_last_affected_clients",
        ("daemon",),
        "Clients that the daemon's last fault hit, while it lasts and for an hour.",
        _last_affected,
    ),
    gauge(
        "cuda_mps_fault_last_affected_workload_clients",
        ("daemon", "workload_kind", "workload"),
        "Clients of an owner that the daemon's last fault hit, while it lasts and for an hour.",
        _last_affected_owners,
    ),
    gauge(
        "cuda_mps_fault_blocking_clients",
        ("daemon", "server"),
        "Clients that a fault hit and that live on: until they end, the server turns all new ones away.",
        _blocking,
    ),
    histogram(
        "cuda_mps_fault_recovery_seconds",
        ("daemon",),
        "How long faults lasted: from the first sign until all contexts were destroyed.",
        _recoveries,
    ),
    counter(
        "cuda_mps_client_faults_contained_total",
        ("daemon",),
        "Faults that hit nobody but the client that did it, as a device-side assert does.",
        _counted(lambda daemon: daemon.totals.faults_contained),
    ),
    counter(
        "cuda_mps_server_crash_loops_total",
        ("daemon",),
        "Times that the daemon's servers began to exit again and again, before they were ready.",
        _counted(lambda daemon: daemon.totals.crash_loops),
    ),
)
