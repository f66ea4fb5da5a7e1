"""Splits each GPU's SM time as it is read, and posts it to those who used it.

SM time is known from GPM alone: read each second with the libcuda probes, else with each reading of a GPU. NVML's
utilisation is the time with any kernel running, which is up to several times more, and never counts as SM time.
"""

import math
from collections.abc import Mapping

from exporter.core.attribution import estimate
from exporter.core.attribution.minute import Splits, kept
from exporter.core.attribution.presence import beside, clients_on, gpus_of, is_its, left_since
from exporter.core.attribution.window import Present, split
from exporter.core.ledger.payers import payer_of
from exporter.core.ledger.posting import NOBODY, post_time
from exporter.model.attribution import Attribution, Splitting
from exporter.model.effort import Effort, effort
from exporter.model.gpu import Gpu
from exporter.model.ledger import Entry, Purse
from exporter.model.node import Node
from exporter.model.observation import GpuReading, GpuUuid, Observation
from exporter.model.replace import replace
from exporter.model.split import Share, Split
from exporter.model.work import GpuUse, WorkReading

LATE_SECONDS = 15.0
"""What is older than the last window by no more than this is told late, or twice."""

LONGEST_SECONDS = 120.0
"""A longer window is none: nobody knows who was there."""

FOLLOWED_SECONDS = 15.0
"""So long after GPM was read for this, a reading of the GPU tells nothing new of its SM time."""

FRESH_SECONDS = 2.0
"""Work that was read longer before a GPU's use does not explain it."""

WATCHED_PART = 0.8
"""Of a window, so much must have been watched to learn from it, as if the rest had been like it."""


def follow(node: Node, seen: Observation) -> Node:
    """Split what an observation tells of a GPU's SM time."""
    match seen:
        case GpuUse():
            node = _with(node, seen.gpu, replace(_of(node, seen.gpu), followed_at=seen.at))
            return _window(node, seen.gpu, seen.at, seen.seconds, seen.sm_utilization, seen.dram_bandwidth)
        case GpuReading(sm_utilization=sm, gpm_seconds=seconds) if sm is not None and seconds is not None:
            if seen.problem is None and not _followed(node, seen):
                return _window(node, seen.gpu, seen.at, seconds, sm, seen.dram_bandwidth)
    return node


def _followed(node: Node, seen: GpuReading) -> bool:
    followed_at = _of(node, seen.gpu).followed_at
    return followed_at is not None and abs(seen.at - followed_at) < FOLLOWED_SECONDS


def _window(node: Node, uuid: GpuUuid, at: float, seconds: float, sm: float, dram: float | None) -> Node:
    """Split a window of `seconds` in which `sm` of a GPU's SMs were busy; learn from it, tell of it, and post it."""
    gpu, known = node.gpus.get(uuid), _of(node, uuid)
    if gpu is None or math.isnan(sm) or not 0 < seconds <= LONGEST_SECONDS or _is_late(known, at):
        return node
    sm = min(max(sm, 0.0), 1.0)
    clients = clients_on(node, gpu)
    left = left_since(node, gpu, known, clients)
    everybody = clients | left
    work = _work(node, at)
    part = _part_watched(node, known, work)
    efforts = _efforts(node, known, work, clients, left) if part else None
    rests = not part and _is_later(known, work)
    present = _present(node, gpu, known, everybody, efforts, seconds)
    beliefs = known.beliefs.without(_no_longer(node, known, everybody))
    teaches = present.room and present.mps and part >= WATCHED_PART
    if efforts is not None and teaches and everybody <= efforts.keys():
        room = present.room * part
        beliefs = estimate.learned(beliefs.aged(seconds), efforts, room, sm * present.mps * room)
    parts = split(present, beliefs, sm, known.watched if rests else ())
    window = Split(
        at=at,
        seconds=seconds,
        sm=sm,
        shares=parts.shares,
        unattributed=max(0.0, sm - _sum(parts.shares)),
        dram=dram,
        withheld=parts.withheld,
        unknown=parts.unknown,
        clients=everybody,
        assumed=rests and present.alone is None,
    )
    known = replace(
        known,
        windows=kept(known.windows, window),
        beliefs=beliefs,
        clients=clients,
        work=work or known.work,
        watched=(*known.watched, window)[-2:] if efforts is not None else known.watched,
    )
    node = _with(node, uuid, known)
    windows = {gpu: each.windows for gpu, each in node.attribution.gpus.items() if each.windows}
    node = replace(node, splits=Splits(windows))
    return replace(node, ledger=post_time(node.ledger, uuid, round(sm * seconds * 1e6), _parts(node, window), at=at))


def _is_late(known: Splitting, at: float) -> bool:
    """Whether it is told twice, or out of turn; where it seems to be from long ago, the clock was set."""
    return bool(known.windows) and 0 <= known.windows[-1].at - at <= LATE_SECONDS


def _no_longer(node: Node, known: Splitting, everybody: frozenset[int]) -> set[int]:
    """PIDs of which something is believed, but that are no clients here any more, or belong to other processes now."""
    works = () if known.work is None else known.work.processes
    believed = known.beliefs.places.keys()
    reused = {work.pid for work in works if work.pid in believed and not is_its(node, work)}
    return reused | (believed - everybody)


def _present(
    node: Node,
    gpu: Gpu,
    known: Splitting,
    clients: frozenset[int],
    efforts: Mapping[int, Effort] | None,
    seconds: float,
) -> Present:
    strangers, mps = beside(gpu)
    alone = next(iter(clients)) if len(clients) == 1 and clients == known.clients else None
    sms = 0 if node.work is None else node.work.sms
    return Present(
        clients=clients,
        alone=alone,
        efforts=efforts,
        beside=strangers,
        mps=mps,
        room=seconds * sms * 1e9,
        equal=node.attribution.equal,
    )


def _work(node: Node, at: float) -> WorkReading | None:
    """What explains a GPU's use that was read now; None where nothing does."""
    return node.work if node.work is not None and -FRESH_SECONDS <= at - node.work.at <= FRESH_SECONDS else None


def _part_watched(node: Node, known: Splitting, work: WorkReading | None) -> float:
    """Of the time since the last window, the part in which everybody's work was seen."""
    if work is None or known.work is None or not _is_later(known, work):
        return 0.0
    seconds = sum(each for at_ns, each in node.work_history.watched if known.work.boot_ns < at_ns <= work.boot_ns)
    return min(1.0, seconds * 1e9 / (work.boot_ns - known.work.boot_ns))


def _is_later(known: Splitting, work: WorkReading | None) -> bool:
    """Whether the probes were read since the last window."""
    return work is not None and known.work is not None and work.boot_ns > known.work.boot_ns


def _efforts(
    node: Node, known: Splitting, work: WorkReading | None, clients: frozenset[int], left: frozenset[int]
) -> Mapping[int, Effort] | None:
    """What each client that is watched did since the last window.

    Who has left is watched no more, but what it did last is told yet.
    """
    if work is None or known.work is None:
        return None
    everybody = clients | left
    earlier = {each.pid: each for each in known.work.processes if each.pid in everybody}
    now = {each.pid: each for each in work.processes if each.pid in everybody}
    watched = (clients & {*work.watched}) | (left & {*known.work.watched, *now})
    return {
        pid: effort(earlier.get(pid), now[pid], work.boot_ns).part(gpus_of(node, pid)) if pid in now else Effort()
        for pid in watched
        if pid not in now or is_its(node, now[pid])
    }


def _parts(node: Node, window: Split) -> Mapping[Entry, float]:
    """Of the SM time of a window, the part that each payer pays."""
    parts: dict[Entry, float] = {}
    if window.sm > 0:
        for pid, share in window.shares.items():
            payer = payer_of(node, pid, at=window.at)
            entry = NOBODY if payer is Purse.UNATTRIBUTED else (payer, share.method)
            parts[entry] = parts.get(entry, 0.0) + share.sm / window.sm
    return parts


def _sum(shares: Mapping[int, Share]) -> float:
    return sum(share.sm for share in shares.values())


def _of(node: Node, uuid: GpuUuid) -> Splitting:
    return node.attribution.gpus.get(uuid, Splitting())


def _with(node: Node, uuid: GpuUuid, splitting: Splitting) -> Node:
    known: Attribution = node.attribution
    return replace(node, attribution=replace(known, gpus={**known.gpus, uuid: splitting}))
