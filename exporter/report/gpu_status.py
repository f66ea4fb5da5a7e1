"""The GPUs of the status document: their memory, and how they are shared, also as text."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import hypot, inf
from typing import Any

from exporter.model.contention import Resource, Slowdown
from exporter.model.node import CollectorName, Gpu, Node, SharingMode
from exporter.model.usage import Method
from exporter.parse.printable import printable
from exporter.report.document import (
    GpuProcess,
    GpuStatus,
    HeadroomStatus,
    NeighbourStatus,
    Sentence,
    SharesStatus,
    SharingStatus,
    SlowdownStatus,
)
from exporter.report.finding import Finding
from exporter.report.problem import NodeProblem, Severity
from exporter.report.process_status import by_number, filled, names_of, printed, reason_status
from exporter.report.reasons import source_text
from exporter.report.text import counted, display_name, listed, mebibytes, percent, pid_text, with_error
from exporter.state.gpus import sharing_mode, used_bytes
from exporter.state.processes import client_id
from exporter.usage.allocation import AllocatedShares, allocation
from exporter.usage.capacity import IDLE_BELOW, Bound, ClientUsage, GpuSharing
from exporter.usage.last_minute import fresh_splits
from exporter.view import View, gpu_name

MOST_NAMED, MOST_USERS = 4, 2
"""At most so many processes are named in one sentence, and so many as users of the bandwidth."""

LEAST_SHOWN = 0.01
"""A smaller part of a resource is not mentioned."""

WHOLE_MINUTE = 55.0  # Seconds. Windows do not fill the last minute exactly.

_WAITS = {
    Resource.MEMORY: "it waits for memory bandwidth",
    Resource.SMS: "it waits for SMs",
    Resource.OTHER: "others use up neither the SMs nor the memory bandwidth",
}

BOUNDS = {Bound.MEMORY: "memory", Bound.SM: "SM time", Bound.SLOTS: "client slots", Bound.CONTENTION: "contention"}
MOST_SLOWED, LEAST_APPARENT = 5, 1.5
"""At most so many slowed clients have a line. One that may have changed its own work has one from this factor."""

METHODS = {
    Method.MEASURED: "measured",
    Method.FLIGHT: "estimated by time in flight",
    Method.LAUNCHES: "estimated by launches",
}

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
    used = {**used, **{pid: each.share for pid, each in clients.items() if each.share is not None}}
    pids = sorted({*held, *gpu.outside, *clients}, key=lambda pid: (-held.get(pid, 0), pid))

    def process(pid: int) -> GpuProcess:
        share = used.get(pid)
        return GpuProcess(
            **names_of(node, pid),
            role="bypassing" if pid in gpu.bypassing else roles.get(pid, "other"),
            memory_used_bytes=held.get(pid),
            sm_ratio=None if share is None else share.sm,
            sm_error_ratio=None if share is None else share.error,
            method=None if share is None else share.method,
            **({} if sharing is None or pid not in clients else _usage(node, clients[pid], sharing.sms)),
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
        sharing=None if sharing is None else _sharing(node, sharing),
        shares=tuple(_shares(resource, each) for resource, each in shares.items()),
        sharing_sentences=tuple(sentences(node, sharing, shares)),
    )


def _sharing(node: Node, found: GpuSharing) -> SharingStatus:
    headroom, (used, error, _) = found.headroom, _use(found) if found.shares else (None, None, None)
    return filled(
        SharingStatus,
        found,
        found.recent,
        sm_utilization_ratio=found.recent.sm,
        dram_bandwidth_ratio=found.recent.dram,
        clients_sm_ratio=used,
        clients_sm_error_ratio=error,
        unattributed_ratio=found.recent.unattributed if found.recent.shares else None,
        departed_sm_ratio=found.departed_sm if found.recent.shares else None,
        methods=tuple(found.methods),
        clients_memory_bytes=found.memory_held,
        threads_committed_ratio=found.threads_committed,
        memory_committed_ratio=found.memory_committed,
        reserved=tuple(_reserved(found)),
        headroom=HeadroomStatus(
            clients=headroom.fits,
            resource=headroom.binding,
            by_resource={bound.value: count for bound, count in headroom.by_bound.items()},
        ),
        idle=tuple(each.client.pid for each in _idle(node, found)),
        over_limit=tuple(each.client.pid for each in found.over_limit),
        sharing_gain_ratio=found.gain,
    )


def _usage(node: Node, usage: ClientUsage, sms: int | None) -> Mapping[str, Any]:
    """Return what is known of clients only."""
    slowed, bandwidth = usage.slowdown, usage.bandwidth
    neighbours = () if slowed is None else slowed.neighbours[:MOST_NEIGHBOURS]
    return {
        "client": client_id(usage.client, node.processes.get(usage.client.pid)),
        "daemon": printed(usage.daemon),
        "server": usage.client.server,
        "connected_at": usage.client.connected_at,
        "active_thread_ratio": usage.threads,
        "active_thread_certain": None if usage.threads is None else usage.threads_certain,
        "usable_sms": None if usage.threads is None or sms is None else round(usage.threads * sms),
        "memory_limit_bytes": usage.memory_limit,
        "memory_limit_certain": None if usage.memory_limit is None else usage.memory_limit_certain,
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
        why = ": each client may have used nothing, or all of it" if fresh_splits(node) else " yet"
        return f"SM time by client is not known{why}"
    return "SM time by client is not known: start the exporter with --attribution=bpf"


# -- how the clients share a GPU, as text ----------------------------------------------------------------------------


def sentences(node: Node, found: GpuSharing | None, shares: Mapping[str, AllocatedShares]) -> Iterable[Sentence]:
    """Yield how the MPS clients of a GPU share it, if it has any, and its shares in Kubernetes, by resource.

    First are the clients with their use and the headroom, then limits, unusual processes, and contention.
    """
    if found is not None:
        for text in (_clients(found), *_gain(found), _headroom(found), *_limits(found), *_processes(node, found)):
            yield Sentence(text=text, severity=Severity.WELL)
        yield from (Sentence(text=text, severity=Severity.WARNING) for text in _contention(node, found))
    yield from (Sentence(text=text, severity=Severity.WELL) for text in _allocations(shares))


def _allocations(shares: Mapping[str, AllocatedShares]) -> Iterable[str]:
    for resource, found in shares.items():
        text = f"allocated: {found.allocated} of {found.allocatable} shares of {printable(resource)}"
        if found.unused:
            pods = listed([printable(f"{each.namespace}/{each.pod}") for each in found.unused_by or ()], MOST_NAMED)
            text = f"{text}; {found.unused} of them to pods without a CUDA context ({pods})"
        elif found.allocated and found.unused is None:
            text = f"{text}; it is unknown how many of them are used"
        yield text


def is_idle(found: GpuSharing, client: ClientUsage, at: float) -> bool | None:
    """Return whether a client used next to nothing of the SMs for a whole minute; None: unknown.

    A client that had to wait is not idle. Commands to end clients follow from this: if it is not
    certain, the answer is None.
    """
    if (share := client.share) is None:
        return None
    if client.is_slowed or share.sm - 2 * share.error >= IDLE_BELOW:
        return False
    whole = min(found.recent.seconds or 0.0, at - client.client.connected_at) >= WHOLE_MINUTE
    whole = whole and share == found.recent.shares.get(client.client.pid)
    return True if whole and share.sm + 2 * share.error < IDLE_BELOW else None


def _idle(node: Node, found: GpuSharing) -> list[ClientUsage]:
    return [each for each in found.clients if each.memory and is_idle(found, each, node.at)]


def _use(found: GpuSharing) -> tuple[float, float, float]:
    """Return what the clients used in the last minute, its standard error, and that of what others used.

    If GPM measured the sum of both, the clients' part is as certain as the rest.
    """
    used, pids = found.recent.shares, {each.client.pid for each in found.clients}
    own, others = (hypot(*(used[pid].error for pid in each)) for each in (used.keys() & pids, used.keys() - pids))
    if Method.LAUNCHES not in found.methods:
        own = min(own, hypot(others, found.recent.unattributed))
    return sum(used[pid].sm for pid in used.keys() & pids), own, others


def _clients(found: GpuSharing) -> str:
    held, total = found.memory_held, found.memory_total_bytes
    verb = "holds" if len(found.clients) == 1 else "hold"
    memory = f" {verb} {percent(held / total)} of its memory" if held and total else ""
    if found.shares:
        methods, unattributed = listed([METHODS[method] for method in found.methods]), found.recent.unattributed
        unknown = f"; another {percent(unattributed)} is unattributed" if unattributed >= LEAST_SHOWN else ""
        used = f"{percent(*_use(found)[:2])} of its SMs {_recently(found)} ({methods}{unknown})"
        use = f"{' and' if memory else ''} used {used}"
    elif found.recent.sm is not None:
        use = f"; its SMs were {percent(found.recent.sm)} busy {_recently(found)}"
    else:
        use = "; its SM time is unknown"
    return f"{counted(len(found.clients), 'client')}{memory}{use}"


def _gain(found: GpuSharing) -> Iterable[str]:
    if found.gain is not None and len(found.clients) > 1:
        yield f"sharing gain: its clients together did as much as {factor(found.gain)} clients, each alone on the GPU"


def _recently(found: GpuSharing) -> str:
    seconds = found.recent.seconds
    return "recently" if seconds is None else f"in the last {seconds:.0f} s"


def _headroom(found: GpuSharing) -> str:
    by, fits = found.headroom.by_bound, found.headroom.fits
    if not by:
        return "it is unknown how many more clients fit"
    known = [f"{by[bound]} by {BOUNDS[bound]}" for bound in sorted(by, key=lambda bound: by[bound])]
    names = {**BOUNDS, Bound.MEMORY: "memory, which the GPU and the system share"} if found.unified_memory else BOUNDS
    unknown = [f"unknown by {names[bound]}" for bound in Bound if bound not in by and bound is not Bound.CONTENTION]
    bounds = ", ".join((*known, *unknown))
    if fits is None:
        return f"room for an unknown number of clients like these: {bounds}"
    return f"room for {fits} more client{'' if fits == 1 else 's'} like these, the smallest of: {bounds}"


def _limits(found: GpuSharing) -> Iterable[str]:
    if limits := list(_reserved(found)):
        yield f"limits: its clients together may use {listed(limits)}"


def _reserved(found: GpuSharing) -> Iterable[str]:
    """Yield nothing if every client may use all threads, and none has a memory limit."""
    threads, memory, sms = found.threads_at_most, found.memory_at_most, found.sms
    if threads is not None and threads < len(found.clients):
        text = f"{percent(threads)} of its threads" if sms is None else f"{round(threads * sms)} of its {sms} SMs"
        yield f"{'at most ' * (found.threads_committed is None)}{text}"
    if memory is not None:
        yield f"{'at most ' * (found.memory_committed is None)}{percent(memory)} of its memory"


def _processes(node: Node, found: GpuSharing) -> Iterable[str]:
    if found.bypassing:
        uses = [
            f"{process_name(node, pid)} used {with_error(share.sm, share.error)}"
            for pid, share in found.bypassing.items()
        ]
        yield f"without MPS: {listed(uses, MOST_NAMED)} of its SMs"
    if found.departed_sm >= LEAST_SHOWN:
        used = percent(found.departed_sm, _use(found)[2])
        yield f"exited processes used another {used} of its SMs {_recently(found)}"
    if found.unwatched:
        names = [process_name(node, each.client.pid) for each in found.unwatched]
        yield f"not measured: launches of {listed(names, MOST_NAMED)} cannot be counted"
    if idle := _idle(node, found):
        held = mebibytes(sum(each.memory or 0 for each in idle))
        count = counted(len(idle), "client holds", "clients hold")
        yield f"idle: {count} {held}, and used under 1 % of its SMs {_recently(found)}"
    if found.over_limit:
        uses = [
            f"{process_name(node, each.client.pid)} holds {mebibytes(each.memory or 0)}"
            f" of the {mebibytes(each.memory_limit or 0)} allowed"
            for each in found.over_limit
        ]
        yield f"over the memory limit: {listed(uses, MOST_NAMED)}"


def _contention(node: Node, found: GpuSharing) -> Iterable[str]:
    """Yield which clients are slowed down, the most first, by what and by whom, and that bandwidth is used up."""
    clients = {each.client.pid: each for each in found.clients}
    known = {pid: each.slowdown for pid, each in clients.items() if each.slowdown}
    perhaps = {pid for pid, each in known.items() if each.apparent > max(LEAST_APPARENT, each.ratio)}
    slowed = {pid: each for pid, each in known.items() if clients[pid].is_slowed or pid in perhaps}
    order = sorted(slowed, key=lambda pid: (-slowed[pid].ratio, -slowed[pid].apparent))
    kinds = {pid: "slowed down" if clients[pid].is_slowed else "perhaps slowed down" for pid in order}
    for pid in order[:MOST_SLOWED]:
        yield f"{kinds[pid]}: {process_name(node, pid)} {slowdown_text(node, found, slowed[pid])}"
    for kind, count in Counter(kinds[pid] for pid in order[MOST_SLOWED:]).items():
        yield f"{kind}: {counted(count, 'more client')}"
    if found.bandwidth_is_full:
        uses_of = {pid: use for pid, each in clients.items() if (use := each.bandwidth)}
        parts = {pid: use for pid, use in uses_of.items() if use.part >= max(LEAST_SHOWN, 2 * use.error)}
        largest = sorted(parts, key=lambda pid: -parts[pid].part)[:MOST_USERS]
        uses = [f"{process_name(node, pid)} uses {with_error(*parts[pid])}" for pid in largest]
        who = listed(uses) if uses else "it is unknown which client uses most of it"
        used = percent(found.recent.dram or 0.0)
        yield f"memory bandwidth: {used} is used, so clients may slow each other down; {who}"


def factor_text(usage: ClientUsage) -> str:
    """Return by what factor a client is slowed down. A lower bound is shown only if it is clearly above 1."""
    slowed = usage.slowdown
    if slowed is None or (slowed.is_bound and not usage.is_slowed):
        return ""
    return f"{'≥ ' * slowed.is_bound}{factor(slowed.ratio)}x"


def factor(ratio: float) -> str:
    """Return a factor with two digits."""
    return f"{ratio:.1f}" if ratio < 10 else f"{ratio:.0f}"


def slowdown_text(node: Node, sharing: GpuSharing, found: Slowdown) -> str:
    """Return how much longer a client's work takes, for which resource it waits, and which other uses most of that.

    Without GPM the use of memory bandwidth is unknown, and so is the resource unless it is the SMs. Another client is
    not named if it may have used nothing of it.
    """
    is_other = found.resource is Resource.OTHER
    ratio = found.apparent if is_other else found.ratio
    least = "at least " if found.is_bound and ratio == found.ratio else ""
    slower = f"takes {least}{factor(ratio)} times as long as on a quiet GPU"
    if found.resource is None:
        return slower
    is_unknown = is_other and sharing.recent.dram is None
    why = "it is unknown for which resource it waits" if is_unknown else _WAITS[found.resource]
    uses = {
        each.client.pid: each.bandwidth if found.resource is Resource.MEMORY else each.share for each in sharing.clients
    }
    errors = {pid: inf if use is None else use.error for pid, use in uses.items()}
    largest = [
        (process_name(node, pid), percent(part, errors.get(pid, 0.0)))
        for pid, part in found.neighbours[:1]
        if part >= max(LEAST_SHOWN, 2 * errors.get(pid, 0.0))
    ]
    used = [f", of which {who} uses {part}" for who, part in largest]
    return "".join((slower, "; ", why, *used, ", so this can also be a change of its own work" * is_other))


def process_name(node: Node, pid: int) -> str:
    """Return a PID with the command of its process."""
    process = node.processes.get(pid)
    command = "" if process is None else display_name(process.command)
    return f"{pid_text(pid)} ({command})" if command else pid_text(pid)
