"""Counts Xids, each once, though two witnesses tell of it: the kernel's log and NVML's events.

Either may be first, 15 to 25 ms before the other, and either may be silent: a misaligned store wrote two Xids to the
kernel's log of which NVML told nothing (measured, R580). What cannot be said of a GPU yet waits for the other witness,
who may know.
"""

from collections.abc import Collection

from exporter.core import sightings
from exporter.model.node import Node
from exporter.model.observation import GpuEvent, GpuReading, GpuUuid, KernelRecord
from exporter.model.replace import replace
from exporter.model.xids import Witness, XidCount, XidDemand, Xids, XidTelling
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
    telling = XidTelling(at=seen.at, witness=Witness.NVML, number=seen.xid, gpu=gpu)
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
    telling = XidTelling(
        at=seen.at,
        witness=Witness.KERNEL,
        number=error.number,
        gpu=gpu,
        place=error.bus_id,
        pid=error.pid,
        name=error.name,
        access=parse_failed_access(error.text),
    )
    xids = (
        _demanded(node.xids, telling, parse_recovery_action(error.text)) if error.number == RECOVERY_XID else node.xids
    )
    return replace(node, xids=_told(xids, telling))


def _demanded(xids: Xids, telling: XidTelling, action: str | None) -> Xids:
    """The driver tells what a GPU needs from now on."""
    gpu = telling.gpu
    if gpu is None or (gpu not in xids.demands and len(xids.demands) >= MOST_GPUS):
        return xids
    others = {other: demand for other, demand in xids.demands.items() if other != gpu}
    demands = others if action is None else {**others, gpu: XidDemand(at=telling.at, action=action)}
    return replace(xids, demands=demands)


def settle(node: Node, *, force: bool = False) -> Node:
    """Wait no longer for those who would have spoken by now; with `force`, for nobody."""
    over = [each for each in node.xids.unpaired if force or node.at - each.at > PAIR_SECONDS]
    return replace(node, xids=_over(node.xids, over)) if over else node


def _located(node: Node, address: str, gpu: GpuUuid) -> Node:
    known = node.xids.addresses
    if known.get(address) == gpu or (address not in known and len(known) >= MOST_GPUS):
        return node
    return replace(node, xids=replace(node.xids, addresses={**known, address: gpu}))


def _only_gpu(node: Node) -> GpuUuid | None:
    return next(iter(node.gpus)) if len(node.gpus) == 1 else None


def _told(xids: Xids, telling: XidTelling) -> Xids:
    """Count it, unless it is what the other witness has told of already, or may yet say whose it was."""
    twin = _twin(xids, telling)
    if twin is None:
        xids = sightings.sighted(replace(xids, unpaired=(*xids.unpaired, telling)), telling)
        counted = xids if telling.gpu is None else _counted(xids, telling)
        return _over(counted, xids.unpaired[:-MOST_UNPAIRED])
    xids = sightings.completed(xids, twin, telling)
    xids = replace(xids, unpaired=tuple(each for each in xids.unpaired if each is not twin))
    if twin.gpu is not None:
        return xids
    return _counted(xids, replace(twin, gpu=telling.gpu, place=twin.place or telling.place))


def _twin(xids: Xids, telling: XidTelling) -> XidTelling | None:
    """The other witness's word of the same Xid: on this GPU, or else on one that may be this."""
    others = (each for each in xids.unpaired if each.witness is not telling.witness and each.number == telling.number)
    timely = (each for each in others if abs(each.at - telling.at) <= PAIR_SECONDS)
    fitting = (each for each in timely if each.gpu == telling.gpu or _may_be_one(xids, each, telling))
    return min(fitting, key=lambda each: each.gpu != telling.gpu, default=None)


def _may_be_one(xids: Xids, *tellings: XidTelling) -> bool:
    """Whether two may be of one GPU, which but one of them names: not where the two are known to be elsewhere."""
    named = [each.gpu for each in tellings if each.gpu is not None]
    nameless = [each for each in tellings if each.gpu is None]
    return len(named) == 1 and not (nameless[0].place and named[0] in xids.addresses.values())


def _over(xids: Xids, over: Collection[XidTelling]) -> Xids:
    """These wait no longer; they are counted, unless they are already."""
    for each in over:
        xids = xids if each.gpu is not None else _counted(xids, each)
    gone = {id(each) for each in over}
    return replace(xids, unpaired=tuple(each for each in xids.unpaired if id(each) not in gone))


def _counted(xids: Xids, telling: XidTelling) -> Xids:
    gpu = _bounded(sightings.whose(xids, telling) or "", {gpu for gpu, _ in xids.counts}, MOST_GPUS)
    numbers = {number for counted, number in xids.counts if counted == gpu} | {str(number) for number in WELL_KNOWN}
    number = _bounded(str(telling.number), numbers, MOST_NUMBERS)
    known = xids.counts.get((gpu, number), XidCount(last_at=telling.at))
    count = XidCount(total=known.total + 1, last_at=max(known.last_at, telling.at))
    return replace(xids, counts={**xids.counts, (gpu, number): count})


def _bounded(name: str, known: Collection[str], most: int) -> str:
    return name if name in known or len(known) < most else OTHER
