"""Families of faults. The info of the last fault has what a page needs; workloads have counters of their own."""

from collections import Counter
from collections.abc import Callable, Iterable

from prometheus_client.samples import Exemplar

from exporter.incidents.incidents import REMEMBERED_SECONDS
from exporter.metrics.daemons import DAEMON
from exporter.metrics.family import (
    Buckets,
    Choice,
    Family,
    Items,
    Labels,
    Rows,
    Samples,
    Scope,
    buckets,
    family,
    group,
    info,
)
from exporter.model.daemon import RECOVERY_SECONDS, Daemon
from exporter.model.identity import WorkloadKind
from exporter.model.incident import ClientDetails, FaultKind, Incident
from exporter.parse.printable import printable
from exporter.view import View

SHOWN_SECONDS = REMEMBERED_SECONDS
"""How long after its end a daemon's last fault is reported."""


def _last(view: View) -> Items[Incident]:
    """Return each daemon's last fault, if it is not over or was recently."""
    last = {each.daemon: each for each in view.node.incidents.values() if _recent(each, view.node.at)}
    return (((daemon.name,), last[daemon.name]) for daemon in view.daemons() if daemon.name in last)


def _recent(incident: Incident, at: float) -> bool:
    return incident.ended_at is None or at - incident.ended_at <= SHOWN_SECONDS


_LAST: Scope[Incident] = Scope(DAEMON.labels, _last)


def _infos(view: View) -> Rows:
    for labels, incident in _last(view):
        suspect = incident.suspect
        suspected = (None, None) if suspect is None else (_workload(suspect.client), f"{suspect.confidence:.2f}")
        yield (*labels, incident.id, incident.kind, *suspected)


def _workload(client: ClientDetails) -> str:
    """Return the workload with its kind first, so that no name looks like another kind's."""
    return f"pid/{client.pid}" if client.workload is None else f"{client.workload.kind}/{client.workload.name}"


def _affected_workloads(view: View) -> Samples:
    for labels, incident in _last(view):
        known = (incident.client_details[pid].workload for pid in incident.affected if pid in incident.client_details)
        affected = Counter((each.kind, printable(each.name)) for each in known if each is not None)
        yield from (((*labels, *workload), count) for workload, count in affected.items())


def _blocking(view: View) -> Samples:
    blocking: Counter[tuple[str, int]] = Counter()
    for incident in view.node.incidents.values():
        blocking[incident.daemon, incident.server] += len(incident.blockers)
    return (((daemon.name, str(server.pid)), blocking[daemon.name, server.pid]) for daemon, server in view.servers())


def _recoveries(view: View) -> Iterable[tuple[Labels, Buckets, float]]:
    for labels, daemon in DAEMON.items(view):
        recoveries = daemon.totals.fault_recoveries
        yield labels, buckets(RECOVERY_SECONDS, recoveries.within, recoveries.count), recoveries.seconds


def _with_exemplars(name: str, count: Callable[[Daemon], int]) -> Family:
    """Return a counter of daemons. Its exemplar is the daemon's last incident; only OpenMetrics shows it."""

    def samples(view: View) -> Iterable[tuple[object, ...]]:
        last = dict(_last(view))
        for labels, daemon in DAEMON.items(view):
            incident = last.get(labels)
            if incident is None:
                yield labels, count(daemon)
            else:
                exemplar = Exemplar({"incident": printable(incident.id)}, 1, incident.detected_at + view.clock_step)
                yield labels, count(daemon), None, None, exemplar

    return family(name, DAEMON.labels, samples)


FAULTS = group(
    "Faults",
    "faults of each daemon in the last day",
    "increase(cuda_mps_faults_total[1d]) > 0",
    _with_exemplars("cuda_mps_faults_total", lambda each: each.totals.faults),
    "Times that a server of the daemon entered FAULT after a fatal GPU error, however briefly.",
    DAEMON.time("cuda_mps_fault_last_timestamp_seconds", lambda each: each.connections.last_fault_at),
    "Unix time at which a server of the daemon last entered FAULT.",
    _with_exemplars("cuda_mps_fault_affected_clients_total", lambda each: each.totals.fault_affected),
    "Clients affected by faults: those that share a GPU with the cause, directly or through other clients.",
    info(
        "cuda_mps_fault_info",
        ("daemon", "incident", Choice("kind", FaultKind), "suspect_workload", "confidence"),
        _infos,
    ),
    "Last fault of the daemon, until one hour after its end. suspect_workload is kind/name or pid/N, with a "
    "confidence from 0 to 1. Both are empty without a suspect.",
    _LAST.value("cuda_mps_fault_last_affected_clients", lambda each: len(each.affected)),
    "Clients affected by the daemon's last fault, until one hour after its end.",
    family(
        "cuda_mps_fault_last_affected_workload_clients",
        ("daemon", Choice("workload_kind", WorkloadKind), "workload"),
        _affected_workloads,
    ),
    "Clients of the workload affected by the daemon's last fault, until one hour after its end.",
    family("cuda_mps_fault_blocking_clients", ("daemon", "server"), _blocking),
    "Clients that a fault affected and that still run. Until they exit, the server refuses all new clients.",
    family("cuda_mps_fault_recovery_seconds", ("daemon",), _recoveries, histogram=True),
    "Histogram of the duration of faults: from the first sign until all contexts were destroyed.",
    DAEMON.value("cuda_mps_client_faults_contained_total", lambda each: each.totals.faults_contained),
    "Faults that affected only the client that caused them, such as a device-side assert.",
    DAEMON.value("cuda_mps_server_crash_loops_total", lambda each: each.totals.crash_loops),
    "Times that servers of the daemon began to exit repeatedly before they were ready.",
)
