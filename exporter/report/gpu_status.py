"""The GPUs of the status document: their memory, and how they are shared."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from exporter.model.gpu import Gpu, SharingMode
from exporter.model.node import CollectorName, Node
from exporter.parse.printable import printable
from exporter.report.document import (
    GpuProcess,
    GpuStatus,
    HeadroomStatus,
    NeighbourStatus,
    SharesStatus,
    SharingStatus,
    SlowdownStatus,
)
from exporter.report.finding import Finding
from exporter.report.problem import NodeProblem, Severity
from exporter.report.process_status import by_number, filled, names_of, printed, reason_status
from exporter.report.reasons import source_text
from exporter.report.sharing_text import factor_text, sentences
from exporter.state.bypassing import sharing_mode
from exporter.state.gpus import used_bytes
from exporter.state.processes import client_id
from exporter.usage.allocation import AllocatedShares, allocation
from exporter.usage.capacity import ClientUsage, GpuSharing
from exporter.view import View, gpu_name

MOST_LISTED = 512
"""At most so many entries of a list whose length another user determines."""

MOST_NEIGHBOURS = 4
"""Others that use the resource for which a client waits; the list of the clients has all."""

MODES = {
    SharingMode.IDLE: ("idle", Severity.UNKNOWN),
    SharingMode.EXCLUSIVE: ("one process, without MPS", Severity.UNKNOWN),
    SharingMode.TIME_SLICING: ("time slicing, without MPS", Severity.UNKNOWN),
    SharingMode.MPS: ("shared by MPS", Severity.WELL),
    SharingMode.MIG: ("MIG", Severity.UNKNOWN),
    SharingMode.MIXED: ("MPS, and processes that bypass it", Severity.WARNING),
    None: ("sharing unknown", Severity.UNKNOWN),
}


def gpu_statuses(node: Node, found: Sequence[Finding], sharing: Mapping[str, GpuSharing]) -> tuple[GpuStatus, ...]:
    """Return the GPUs, in the order of their indices."""
    allocated, connections = allocation(node), View(node)
    first_findings = {each.gpu: each for each in reversed(found)}
    roles = {client.pid: "client" for _, client in connections.connected()}
    roles |= {server.pid: "server" for _, server in connections.servers()}
    return tuple(
        _gpu(node, uuid, gpu, sharing.get(uuid), first_findings.get(uuid), roles, allocated.get(uuid, {}))
        for uuid, gpu in ((uuid, node.gpus[uuid]) for uuid in by_number(node, node.gpus))
    )


def _gpu(
    node: Node,
    uuid: str,
    gpu: Gpu,
    sharing: GpuSharing | None,
    finding: Finding | None,
    roles: Mapping[int, str],
    shares: Mapping[str, AllocatedShares],
) -> GpuStatus:
    reading, mode = gpu.reading, sharing_mode(node, gpu)
    label, severity = MODES[mode]
    if finding is not None:
        label, severity = finding.definition.label, finding.severity
    if reading.problem is not None:
        label, severity = "cannot be read", NodeProblem.GPU_UNREADABLE.definition.severity
    held, used = used_bytes(reading), {} if sharing is None else sharing.recent.shares
    clients = {} if sharing is None else {each.client.pid: each for each in sharing.clients}
    pids = sorted({*held, *gpu.bypassing, *clients}, key=lambda pid: (-held.get(pid, 0), pid))

    def process(pid: int) -> GpuProcess:
        share = used.get(pid)
        return GpuProcess(
            **names_of(node, pid),
            role="bypassing" if pid in gpu.bypassing else roles.get(pid, "other"),
            memory_used_bytes=held.get(pid),
            sm_ratio=None if share is None else share.sm,
            sm_error_ratio=None if share is None else share.error,
            method=None if share is None else share.method,
            **(_usage(node, clients[pid]) if pid in clients else {}),
        )

    return filled(
        GpuStatus,
        reading,
        uuid=uuid,
        number=printable(gpu_name(node, uuid)),
        is_mig_instance=reading.mig is not None,
        mig_mode=bool(reading.mig_mode),
        severity=severity,
        label=label,
        mode=mode,
        problem=None if reading.problem is None else reason_status(reading.problem, CollectorName.NVML),
        utilization_ratio=None if reading.gpu_percent is None else reading.gpu_percent / 100,
        processes=tuple(map(process, pids)),
        sharing=None if sharing is None else _sharing(sharing),
        shares=tuple(_shares(resource, each) for resource, each in shares.items()),
        sharing_sentences=tuple(sentences(node, sharing, shares)),
    )


def _sharing(found: GpuSharing) -> SharingStatus:
    headroom = found.headroom
    return filled(
        SharingStatus,
        found,
        found.recent,
        sm_utilization_ratio=found.recent.sm,
        dram_bandwidth_ratio=found.recent.dram,
        clients_sm_ratio=found.sm_used,
        clients_sm_error_ratio=None if found.sm_used is None else found.sm_error,
        unattributed_ratio=found.recent.unattributed if found.recent.shares else None,
        departed_sm_ratio=found.departed_sm if found.recent.shares else None,
        methods=tuple(found.methods),
        clients_memory_bytes=found.memory_held,
        threads_committed_ratio=found.threads_committed,
        memory_committed_ratio=found.memory_committed,
        headroom=HeadroomStatus(
            clients=headroom.fits,
            resource=headroom.binding,
            by_resource={bound.value: count for bound, count in headroom.by_bound.items()},
        ),
        idle=tuple(each.client.pid for each in found.idle),
        over_limit=tuple(each.client.pid for each in found.over_limit),
        sharing_gain_ratio=found.gain,
    )


def _usage(node: Node, usage: ClientUsage) -> Mapping[str, Any]:
    """Return what is known of clients only."""
    slowed, bandwidth = usage.slowdown, usage.bandwidth
    neighbours = () if slowed is None else slowed.neighbours[:MOST_NEIGHBOURS]
    return {
        "client": client_id(usage.client, node.processes.get(usage.client.pid)),
        "daemon": printed(usage.daemon),
        "server": usage.client.server,
        "connected_at": usage.client.connected_at,
        "active_thread_ratio": usage.threads,
        "memory_limit_bytes": usage.memory_limit,
        "dram_bandwidth_ratio": None if bandwidth is None else bandwidth.part,
        "dram_bandwidth_error_ratio": None if bandwidth is None else bandwidth.error,
        "slowdown": None
        if slowed is None
        else SlowdownStatus(
            ratio=slowed.ratio,
            error_ratio=slowed.error,
            at_least=slowed.is_bound,
            resource=slowed.resource,
            neighbours=tuple(NeighbourStatus(pid=pid, used_ratio=part) for pid, part in neighbours),
            text=factor_text(usage),
        ),
        "watched": usage.watched,
    }


def _shares(resource: str, found: AllocatedShares) -> SharesStatus:
    pods = found.unused_by
    named = None if pods is None else tuple(printable(f"{each.namespace}/{each.pod}") for each in pods[:MOST_LISTED])
    return filled(SharesStatus, found, resource=printable(resource), unused_by=named)


def attribution_problem(node: Node, sharing: Iterable[GpuSharing]) -> str | None:
    """Return why no client's SM time is known; None if that of any client is, or if there are no clients."""
    found = list(sharing)
    if not found or any(each.shares for each in found):
        return None
    probes = node.sources.get(CollectorName.LIBCUDA_PROBES)
    if probes is not None and probes.last.problem is not None:
        return f"SM time by client is not known: {source_text(CollectorName.LIBCUDA_PROBES, probes)}"
    if probes is not None or node.work is not None:
        return "SM time by client is not known yet"
    return "SM time by client is not known: start the exporter with --attribution=bpf"
