"""Xid counts, and the correlation of Xids with faults."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import fields
from itertools import islice

from exporter.model.event import Event, EventName
from exporter.model.incident import IncidentXid, RecoveryAction, XidBurst, XidCount, XidReport, Xids, XidSource
from exporter.model.node import CollectorName, Node
from exporter.model.observation import GpuEvent, GpuReading, GpuUuid, KernelRecord
from exporter.model.values import replace
from exporter.model.watchdog import Quarantine
from exporter.parse import kernel_log
from exporter.state import devices

XID_EVENT_TYPE = 8  # NVML's nvmlEventTypeXidCriticalError (nvml.h).

WELL_KNOWN = (13, 31, 43, 45, 48, 63, 64, 74, 79, 94, 95, 119)
"""Xids that are counted from 0 on each GPU: those that applications cause, and those that need a person."""

PAIR_SECONDS = 2.0  # The longest time between two reports of one Xid.

CLAIM_SECONDS = 2.0
"""The longest time between a fault and its Xid. All sources report both within 0.2 s (measured, R580)."""

RECENT_SECONDS = 4.0  # How long Xids are remembered for faults.

BURST_SECONDS = 10.0
MAX_REPORTED = 20
MAX_BURSTS = 64
"""In this time, so many Xids of one number on one GPU have an event. Others are only counted."""

MAX_NUMBERS = 64
MAX_GPUS = 64
OTHER = "other"
"""Limits of the counts: numbers on one GPU, and GPUs. Others are counted as `other`."""

HARDWARE_SECONDS = 3600.0  # How long an Xid of hardware is a problem that needs no action at once.

MAX_UNMATCHED = 256
MAX_RECENT = 256
CROWD = 32
"""If there are more recent Xids, the oldest of the most frequent kind are reported sooner, so many at a time."""


def are_read(node: Node) -> bool:
    """Return whether NVML's events are read. An older recording does not show that: then it is False."""
    source = node.sources.get(CollectorName.NVML_EVENTS)
    return source is not None and not source.problems and source.last_success is not None


def add_gpu_address(node: Node, reading: GpuReading) -> Node:
    """Remember the bus id of a GPU for its Xids: NVML no longer reports it after the GPU has fallen off the bus."""
    address = None if reading.pci_bus_id is None else kernel_log.parse_bus_id(reading.pci_bus_id)
    return node if address is None else _with_address(node, address, reading.gpu)


def _with_address(node: Node, address: str, gpu: GpuUuid) -> Node:
    known = node.xids.addresses
    if known.get(address) == gpu or (address not in known and len(known) >= MAX_GPUS):
        return node
    return replace(node, xids=replace(node.xids, addresses={**known, address: gpu}))


def apply_nvml_event(node: Node, event: GpuEvent) -> Node:
    """Add the Xid of an NVML event, if it is one."""
    if event.type != XID_EVENT_TYPE:
        return node
    boards = [uuid for uuid, known in node.gpus.items() if known.reading.mig is None]
    board = event.gpu or (boards[0] if len(boards) == 1 else None)
    gpu = _instance(node, board, event.gpu_instance, event.compute_instance)
    report = XidReport(at=event.at, source=XidSource.NVML, number=event.xid, gpu=gpu, parent=board)
    return replace(node, xids=_add_report(node.xids, report))


def apply_kernel_record(node: Node, record: KernelRecord) -> Node:
    """Add the Xid or the GPU address in a line of the kernel log. Lines that programs wrote are ignored."""
    message = kernel_log.parse_kernel_record(record.record)
    if message is None:
        return node
    located = kernel_log.parse_gpu_address(message)
    if located is not None:
        return _with_address(node, *located)
    xids, error, lost = node.xids, kernel_log.parse_xid(message), kernel_log.parse_lost_gpu(message)
    recent = ((each.number, each.bus_id) for each in xids.recent if record.at - each.at <= PAIR_SECONDS)
    if error is None and lost is not None and (kernel_log.LOST_GPU_XID, lost) not in recent:
        # The GPU has fallen off the bus, and the driver has not just reported that Xid.
        error = kernel_log.Xid(number=kernel_log.LOST_GPU_XID, bus_id=lost)
    if error is None:
        return node
    access = kernel_log.parse_failed_access(error.text)
    core_dump = kernel_log.is_of_core_dump(error.text)
    if error.number == kernel_log.ILLEGAL_ADDRESS and access is None and not core_dump:
        xids = replace(xids, addresses_unrecognized=xids.addresses_unrecognized + 1)
    board = xids.addresses.get(error.bus_id)
    gpu = _instance(node, board, error.gpu_instance, error.compute_instance)
    report = XidReport(
        at=record.at,
        source=XidSource.KERNEL,
        number=error.number,
        gpu=gpu,
        parent=board,
        bus_id=error.bus_id,
        pid=None if core_dump or record.apart else error.pid,
        name=None if core_dump or record.apart else error.name,
        access=access,
        core_dump=core_dump,
        kernel_seconds=int(record.record.split(",")[2]) / 1e6,
    )
    if error.number == kernel_log.RECOVERY_XID and board is not None:
        action = kernel_log.parse_recovery_action(error.text)
        xids = _with_recovery_action(xids, board, record.at, action or None)
        if action == "":
            return with_resets(replace(node, xids=_add_report(xids, report)), (board,), record.at)
    return replace(node, xids=_add_report(xids, report))


def _instance(node: Node, gpu: GpuUuid | None, gpu_instance: int | None, number: int | None) -> GpuUuid | None:
    """Return the MIG instance that a source names; the GPU if it names none, or none that is known."""
    if gpu is None or gpu_instance is None:
        return gpu
    all_of_gpu = ((uuid, node.gpus[uuid].reading.mig) for uuid in devices.instances_of(node, gpu))
    of_instance = [(uuid, mig) for uuid, mig in all_of_gpu if mig is not None and mig.gpu_instance == gpu_instance]
    instances = [uuid for uuid, mig in of_instance if number in (None, mig.compute_instance)]
    return instances[0] if len(instances) == 1 else gpu


def _with_recovery_action(xids: Xids, gpu: GpuUuid, at: float, action: str | None) -> Xids:
    actions = {other: each for other, each in xids.recovery_actions.items() if other != gpu}
    if action is not None and len(actions) < MAX_GPUS:
        actions[gpu] = RecoveryAction(at=at, action=action)
    return replace(xids, recovery_actions=actions)


def with_resets(node: Node, gpus: Collection[str], at: float) -> Node:
    """Return the node after a reset of these GPUs: their Xids until then are no problem any more."""
    gpus = {*gpus, *(each for gpu in gpus for each in devices.instances_of(node, gpu))}
    actions = {gpu: action for gpu, action in node.xids.recovery_actions.items() if gpu not in gpus or action.at > at}
    resets = {**node.xids.resets, **dict.fromkeys(gpus, at)}
    return replace(node, xids=replace(node.xids, recovery_actions=actions, resets=resets))


def of_hardware(node: Node) -> Iterator[Quarantine]:
    """Yield the Xids that no program causes since the last reset of their GPU, with the action that they need at once.

    The driver demands it with Xid 154. For others, NVIDIA's catalogue has it; it is empty if they need none.
    """
    for gpu, demand in node.xids.recovery_actions.items():
        yield Quarantine(at=demand.at, xid=kernel_log.RECOVERY_XID, gpu=gpu, action=demand.action)
    for (gpu, number), count in node.xids.counts.items():
        if number.isdecimal() and kernel_log.exonerates(int(number)) and count.last_at > node.xids.resets.get(gpu, 0.0):
            action = kernel_log.XIDS[int(number)].action or ""
            urgent = action if action in (kernel_log.RESET, kernel_log.REBOOT) else ""
            yield Quarantine(at=count.last_at, xid=int(number), gpu=gpu, action=urgent)


def unresolved(node: Node) -> Iterator[Quarantine]:
    """Yield the Xids of hardware that are a problem now and not in quarantine: of a GPU, one that needs an action."""
    found = [each for each in of_hardware(node) if not is_in_quarantine(node, each.gpu)]
    urgent = (replace(each, gpu=devices.whole_gpu(node, each.gpu)) for each in found if each.action)
    yield from {each.gpu: each for each in sorted(urgent, key=lambda each: (each.action, -each.xid))}.values()
    yield from (each for each in found if not each.action and node.at - each.at < HARDWARE_SECONDS)


def is_in_quarantine(node: Node, gpu: str) -> bool:
    """Return whether a daemon is in quarantine for this GPU, or for the GPU of this MIG instance."""
    of_watches = (watch.quarantine for watch in node.watches.values())
    return any(each is not None and each.gpu == devices.whole_gpu(node, gpu) for each in of_watches)


def _add_report(xids: Xids, report: XidReport) -> Xids:
    """Count an Xid, unless the other source has reported it. Without its GPU, it is not counted yet."""
    match = _match(xids, report)
    if match is None:
        xid = IncidentXid(**{each.name: getattr(report, each.name) for each in fields(IncidentXid)})
        xids = replace(xids, recent=(*xids.recent, xid), unmatched=(*xids.unmatched, report))
        counted = xids if report.gpu is None else _count(xids, report)
        return _remove_unmatched(counted, xids.unmatched[:-MAX_UNMATCHED])
    xids = _complete(xids, match, report)
    xids = replace(xids, unmatched=tuple(each for each in xids.unmatched if each is not match))
    if match.gpu is not None:
        return xids
    return _count(xids, replace(match, gpu=report.gpu, bus_id=match.bus_id or report.bus_id))


def _match(xids: Xids, report: XidReport) -> XidReport | None:
    """Return the other source's report of the same Xid: on the same GPU, else on one that may be the same."""
    others = (each for each in xids.unmatched if each.source is not report.source and each.number == report.number)
    near = (each for each in others if abs(each.at - report.at) <= PAIR_SECONDS)
    matches = (each for each in near if each.gpu == report.gpu or _may_be_same_gpu(xids, each, report))
    return min(matches, key=lambda each: each.gpu != report.gpu, default=None)


def _may_be_same_gpu(xids: Xids, *reports: XidReport) -> bool:
    """Return whether one report names a MIG instance and the other its GPU, or only one of them names the GPU."""
    named = [each.gpu for each in reports if each.gpu is not None]
    if len(named) == 2:
        return reports[0].gpu == reports[1].parent or reports[1].gpu == reports[0].parent
    unnamed = [each for each in reports if each.gpu is None]
    return len(named) == 1 and not (unnamed[0].bus_id and named[0] in xids.addresses.values())


def _complete(xids: Xids, first: XidReport, second: XidReport) -> Xids:
    key = (first.at, first.number, first.gpu, first.bus_id)
    for index, each in enumerate(xids.recent):
        if (each.at, each.number, each.gpu, each.bus_id) == key:
            parts = (part.name for part in fields(IncidentXid))
            complete = IncidentXid(**{part: getattr(each, part) or getattr(second, part) for part in parts})
            return replace(xids, recent=(*xids.recent[:index], complete, *xids.recent[index + 1 :]))
    return xids


def count_unmatched(node: Node, *, force: bool = False) -> Node:
    """Count the reports that the other source has not confirmed in time; with `force`, all."""
    due = [each for each in node.xids.unmatched if force or node.at - each.at > PAIR_SECONDS]
    return replace(node, xids=_remove_unmatched(node.xids, due)) if due else node


def _remove_unmatched(xids: Xids, reports: Collection[XidReport]) -> Xids:
    for each in reports:
        xids = xids if each.gpu is not None else _count(xids, each)
    removed = {id(each) for each in reports}
    return replace(xids, unmatched=tuple(each for each in xids.unmatched if id(each) not in removed))


def _count(xids: Xids, report: XidReport) -> Xids:
    gpu = _limited(_gpu_label(xids, report) or "", {gpu for gpu, _ in xids.counts}, MAX_GPUS)
    numbers = {number for counted, number in xids.counts if counted == gpu} | {str(number) for number in WELL_KNOWN}
    number = _limited(str(report.number), numbers, MAX_NUMBERS)
    known = xids.counts.get((gpu, number), XidCount(last_at=report.at))
    count = XidCount(total=known.total + 1, last_at=max(known.last_at, report.at))
    return replace(xids, counts={**xids.counts, (gpu, number): count})


def _limited(name: str, known: Collection[str], most: int) -> str:
    return name if name in known or len(known) < most else OTHER


def _gpu_label(xids: Xids, xid: IncidentXid) -> str | None:
    return xid.gpu or xids.addresses.get(xid.bus_id) or (f"PCI:{xid.bus_id}" if xid.bus_id else None)


# -- Xids of no fault ----------------------------------------------------------------------------------------------


def report_unclaimed(node: Node, *, force: bool = False) -> tuple[Node, tuple[Event, ...]]:
    """Report the Xids that belong to no fault in time; with `force`, all that belong to none so far."""
    recent, latest = node.xids.recent, node.at - CLAIM_SECONDS
    crowd: set[int] = set()
    if len(recent) > MAX_RECENT:
        ((most, _),) = Counter((each.gpu, each.number) for each in recent).most_common(1)
        crowd = {id(each) for each in islice((each for each in recent if (each.gpu, each.number) == most), CROWD)}
    settled = all(each.at >= latest or (each.settled and node.at - each.at <= RECENT_SECONDS) for each in recent)
    if settled and not force and not crowd:
        return node, ()
    due = [each for each in recent if not each.settled and (force or each.at < latest or id(each) in crowd)]
    due_ids = {id(each) for each in due}
    remaining = (each for each in recent if id(each) not in crowd and node.at - each.at <= RECENT_SECONDS)
    xids = replace(
        node.xids, recent=tuple(replace(each, settled=True) if id(each) in due_ids else each for each in remaining)
    )
    xids, events = _report(xids, node.at, [each for each in due if not is_claimed(node, each)])
    return replace(node, xids=xids), events


def is_claimed(node: Node, xid: IncidentXid) -> bool:
    """Return whether an Xid belongs to a fault. Of two equal Xids at one time on one GPU, both do."""
    return any(is_same(each, xid) for incident in node.incidents.values() for each in incident.xids)


def is_same(one: IncidentXid, other: IncidentXid) -> bool:
    """Return whether two values are of one Xid. One of them may lack what only one source reports."""
    if (one.at, one.number) != (other.at, other.number):
        return False
    if one.gpu is not None and other.gpu is not None:
        return one.gpu == other.gpu
    return not (one.bus_id and other.bus_id) or one.bus_id == other.bus_id


def _report(xids: Xids, at: float, unclaimed: Iterable[IncidentXid]) -> tuple[Xids, tuple[Event, ...]]:
    bursts = {key: burst for key, burst in xids.bursts.items() if at - burst.since < BURST_SECONDS}
    events: list[Event] = []
    for each in unclaimed:
        gpu = _gpu_label(xids, each)
        burst = bursts.get((gpu, each.number), XidBurst(since=at, reported=0))
        if burst.reported >= MAX_REPORTED or (not burst.reported and len(bursts) >= MAX_BURSTS):
            continue
        bursts[gpu, each.number] = replace(burst, reported=burst.reported + 1)
        name = EventName.GPU_XID
        events.append(Event(at=each.at, event=name, gpu=gpu, xid=each.number, pid=each.pid, name=each.name))
    return replace(xids, bursts=bursts), tuple(events)
