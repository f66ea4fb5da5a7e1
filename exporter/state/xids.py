"""Xid counts, and the correlation of Xids with faults."""

from collections import Counter
from collections.abc import Collection, Iterable
from itertools import islice

from exporter.model.event import Event, EventName
from exporter.model.gpu import IncidentXid, RecoveryAction, XidBurst, XidCount, XidReport, Xids, XidSource
from exporter.model.node import Node
from exporter.model.observation import GpuEvent, GpuReading, GpuUuid, KernelRecord
from exporter.model.values import replace
from exporter.parse.kernel_log import (
    RECOVERY_XID,
    parse_bus_id,
    parse_failed_access,
    parse_gpu_address,
    parse_kernel_record,
    parse_recovery_action,
    parse_xid,
)

KERNEL = "kernel"
NVML_EVENTS = "nvml_events"
"""The sources that tell of Xids have these names."""

XID_EVENT_TYPE = 8
"""NVML's nvmlEventTypeXidCriticalError (nvml.h)."""

PAIR_SECONDS = 2.0
"""Two tellings of one Xid are not further apart."""

WELL_KNOWN = (13, 31, 43, 45, 48, 63, 64, 74, 79, 94, 95, 119)
"""Xids that are counted from 0 on each GPU: those that applications cause, and those for which one is called."""

MOST_NUMBERS = 64
MOST_GPUS = 64
MOST_UNPAIRED = 256
OTHER = "other"
"""Numbers on one GPU, GPUs, and tellings that wait for another are bounded; what is beyond is counted as `other`."""


def are_read(node: Node) -> bool:
    """Return whether NVML's events are read. An older recording does not say so: then it is False."""
    source = node.sources.get(NVML_EVENTS)
    return source is not None and not source.problems and source.last_success is not None


def gpu_read(node: Node, seen: GpuReading) -> Node:
    """NVML says where a GPU is. It is remembered for when NVML no longer can: a GPU falls off the bus with an Xid."""
    address = None if seen.pci_bus_id is None else parse_bus_id(seen.pci_bus_id)
    return node if address is None else _located(node, address, seen.gpu)


def event_read(node: Node, seen: GpuEvent) -> Node:
    """NVML tells of an event; it may be an Xid."""
    if seen.type != XID_EVENT_TYPE:
        return node
    gpu = seen.gpu or _only_gpu(node)
    telling = XidReport(at=seen.at, source=XidSource.NVML, number=seen.xid, gpu=gpu)
    return replace(node, xids=_told(node.xids, telling))


def record_read(node: Node, seen: KernelRecord) -> Node:
    """The kernel's log tells something; what others wrote into it is not heard."""
    read = parse_kernel_record(seen.record)
    if read is None or not read.by_kernel:
        return node
    located = parse_gpu_address(read.message)
    if located is not None:
        return _located(node, *located)
    error = parse_xid(read.message)
    if error is None:
        return node
    gpu = node.xids.addresses.get(error.bus_id)
    telling = XidReport(
        at=seen.at,
        source=XidSource.KERNEL,
        number=error.number,
        gpu=gpu,
        bus_id=error.bus_id,
        pid=error.pid,
        name=error.name,
        access=parse_failed_access(error.text),
    )
    xids = (
        _demanded(node.xids, telling, parse_recovery_action(error.text)) if error.number == RECOVERY_XID else node.xids
    )
    return replace(node, xids=_told(xids, telling))


def _demanded(xids: Xids, telling: XidReport, action: str | None) -> Xids:
    """The driver tells what a GPU needs from now on."""
    gpu = telling.gpu
    if gpu is None or (gpu not in xids.recovery_actions and len(xids.recovery_actions) >= MOST_GPUS):
        return xids
    others = {other: demand for other, demand in xids.recovery_actions.items() if other != gpu}
    demands = others if action is None else {**others, gpu: RecoveryAction(at=telling.at, action=action)}
    return replace(xids, recovery_actions=demands)


def pair_pending(node: Node, *, force: bool = False) -> Node:
    """Wait no longer for those who would have spoken by now; with `force`, for nobody."""
    over = [each for each in node.xids.unmatched if force or node.at - each.at > PAIR_SECONDS]
    return replace(node, xids=_over(node.xids, over)) if over else node


def _located(node: Node, address: str, gpu: GpuUuid) -> Node:
    known = node.xids.addresses
    if known.get(address) == gpu or (address not in known and len(known) >= MOST_GPUS):
        return node
    return replace(node, xids=replace(node.xids, addresses={**known, address: gpu}))


def _only_gpu(node: Node) -> GpuUuid | None:
    return next(iter(node.gpus)) if len(node.gpus) == 1 else None


def _told(xids: Xids, telling: XidReport) -> Xids:
    """Count it, unless it is what the other witness has told of already, or may yet say whose it was."""
    twin = _twin(xids, telling)
    if twin is None:
        xids = xid_seen(replace(xids, unmatched=(*xids.unmatched, telling)), telling)
        counted = xids if telling.gpu is None else _counted(xids, telling)
        return _over(counted, xids.unmatched[:-MOST_UNPAIRED])
    xids = completed(xids, twin, telling)
    xids = replace(xids, unmatched=tuple(each for each in xids.unmatched if each is not twin))
    if twin.gpu is not None:
        return xids
    return _counted(xids, replace(twin, gpu=telling.gpu, bus_id=twin.bus_id or telling.bus_id))


def _twin(xids: Xids, telling: XidReport) -> XidReport | None:
    """The other witness's word of the same Xid: on this GPU, or else on one that may be this."""
    others = (each for each in xids.unmatched if each.source is not telling.source and each.number == telling.number)
    timely = (each for each in others if abs(each.at - telling.at) <= PAIR_SECONDS)
    fitting = (each for each in timely if each.gpu == telling.gpu or _may_be_one(xids, each, telling))
    return min(fitting, key=lambda each: each.gpu != telling.gpu, default=None)


def _may_be_one(xids: Xids, *tellings: XidReport) -> bool:
    """Whether two may be of one GPU, which but one of them names: not where the two are known to be elsewhere."""
    named = [each.gpu for each in tellings if each.gpu is not None]
    nameless = [each for each in tellings if each.gpu is None]
    return len(named) == 1 and not (nameless[0].bus_id and named[0] in xids.addresses.values())


def _over(xids: Xids, over: Collection[XidReport]) -> Xids:
    """These wait no longer; they are counted, unless they are already."""
    for each in over:
        xids = xids if each.gpu is not None else _counted(xids, each)
    gone = {id(each) for each in over}
    return replace(xids, unmatched=tuple(each for each in xids.unmatched if id(each) not in gone))


def _counted(xids: Xids, telling: XidReport) -> Xids:
    gpu = _bounded(whose(xids, telling) or "", {gpu for gpu, _ in xids.counts}, MOST_GPUS)
    numbers = {number for counted, number in xids.counts if counted == gpu} | {str(number) for number in WELL_KNOWN}
    number = _bounded(str(telling.number), numbers, MOST_NUMBERS)
    known = xids.counts.get((gpu, number), XidCount(last_at=telling.at))
    count = XidCount(total=known.total + 1, last_at=max(known.last_at, telling.at))
    return replace(xids, counts={**xids.counts, (gpu, number): count})


def _bounded(name: str, known: Collection[str], most: int) -> str:
    return name if name in known or len(known) < most else OTHER


CLAIM_SECONDS = 2.0
"""How far from a fault an Xid of it may be, and so how long a fault may claim one: all that tell of it do so within
0.2 s (measured, R580)."""

RECENT_SECONDS = 4.0
MOST_RECENT = 256
CROWD = 32
"""How long sightings are kept, and how many; of more, so many of those that are most alike are settled sooner."""

BURST_SECONDS = 10.0
MOST_TOLD = 20
MOST_BURSTS = 64
"""So many of one number on one GPU have an event in this time, and so many GPUs and numbers; the rest is counted."""

Correlated = tuple[Node, tuple[Event, ...]]


def xid_seen(xids: Xids, telling: XidReport) -> Xids:
    """Somebody is the first to tell of an Xid."""
    sighting = IncidentXid(
        at=telling.at,
        number=telling.number,
        gpu=telling.gpu,
        bus_id=telling.bus_id,
        pid=telling.pid,
        name=telling.name,
        access=telling.access,
    )
    return replace(xids, recent=(*xids.recent, sighting))


def completed(xids: Xids, first: XidReport, second: XidReport) -> Xids:
    """The other witness tells of it too, and may know more."""
    known = (first.at, first.number, first.gpu, first.bus_id)
    for number, each in enumerate(xids.recent):
        if (each.at, each.number, each.gpu, each.bus_id) == known:
            more = replace(
                each,
                gpu=each.gpu or second.gpu,
                bus_id=each.bus_id or second.bus_id,
                pid=second.pid if each.pid is None else each.pid,
                name=second.name if each.name is None else each.name,
                access=each.access or second.access,
            )
            return replace(xids, recent=(*xids.recent[:number], more, *xids.recent[number + 1 :]))
    return xids


def report_unclaimed(node: Node, *, force: bool = False) -> Correlated:
    """Tell of those that no fault has claimed in time; with `force`, of all that none has claimed so far."""
    recent = node.xids.recent
    crowd = _crowd(recent)
    late = node.at - CLAIM_SECONDS
    if not (force or crowd or any(each.at < late and not _stays(each, node.at) for each in recent)):
        return node, ()
    due = [each for each in recent if not each.settled and (force or each.at < late or id(each) in crowd)]
    kept = (each for each in recent if id(each) not in crowd and node.at - each.at <= RECENT_SECONDS)
    over = {id(each) for each in due}
    left = tuple(replace(each, settled=True) if id(each) in over else each for each in kept)
    xids, events = _sightings_told(
        replace(node.xids, recent=left), node.at, [each for each in due if not claimed(node, each)]
    )
    return replace(node, xids=xids), events


def _stays(sighting: IncidentXid, at: float) -> bool:
    """Whether nothing is to be done about a sighting that no fault can claim any more."""
    return sighting.settled and at - sighting.at <= RECENT_SECONDS


def claimed(node: Node, sighting: IncidentXid) -> bool:
    """Whether a fault has this Xid. Of two at one time, with one number, on one GPU, it has both."""
    return any(same(each, sighting) for incident in node.incidents.values() for each in incident.xids)


def same(one: IncidentXid, other: IncidentXid) -> bool:
    """Whether two are of one Xid, of which one may have been told by a single witness so far."""
    if (one.at, one.number) != (other.at, other.number):
        return False
    if one.gpu is not None and other.gpu is not None:
        return one.gpu == other.gpu
    return not (one.bus_id and other.bus_id) or one.bus_id == other.bus_id


def whose(xids: Xids, seen: IncidentXid | XidReport) -> str | None:
    """The GPU's UUID, else where it is; None where neither is known."""
    return seen.gpu or xids.addresses.get(seen.bus_id) or (f"PCI:{seen.bus_id}" if seen.bus_id else None)


def _crowd(recent: tuple[IncidentXid, ...]) -> set[int]:
    """Where there are too many: the eldest of the number and GPU that has the most, so that none puts out another."""
    if len(recent) <= MOST_RECENT:
        return set()
    ((most, _),) = Counter((each.gpu, each.number) for each in recent).most_common(1)
    return {id(each) for each in islice((each for each in recent if (each.gpu, each.number) == most), CROWD)}


def _sightings_told(xids: Xids, at: float, unclaimed: Iterable[IncidentXid]) -> tuple[Xids, tuple[Event, ...]]:
    bursts = {key: burst for key, burst in xids.bursts.items() if at - burst.since < BURST_SECONDS}
    events: list[Event] = []
    for each in unclaimed:
        gpu = whose(xids, each)
        burst = bursts.get((gpu, each.number), XidBurst(since=at, reported=0))
        if burst.reported >= MOST_TOLD or (not burst.reported and len(bursts) >= MOST_BURSTS):
            continue
        bursts[gpu, each.number] = replace(burst, reported=burst.reported + 1)
        events.append(
            Event(at=each.at, event=EventName.GPU_XID, gpu=gpu, xid=each.number, pid=each.pid, name=each.name)
        )
    return replace(xids, bursts=bursts), tuple(events)
