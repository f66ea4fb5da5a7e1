"""How much of a GPU's SM time each client used in a window: by what it launched, and how long its kernels last.

Of a client that is new it is believed what its first window shows: how long kernels lasted in bursts at whose end the
GPU was behind, less what launching and synchronising cost; else only that they cannot have lasted longer than there was
work in flight. From then on every window corrects the beliefs, so that together they make up what the device measured:
the more, the less sure they are. So clients that start, stop or change their pace are told apart, and one that is alone
is known.

Figures are of an H200 (driver 580.159.04); docs/accounting.md has what the whole is worth.
"""

import math
from collections.abc import Mapping

from exporter.model.beliefs import Beliefs
from exporter.model.effort import Effort

SYNC_NS, EVENT_NS, GAP_NS = 14_000, 90_000, 1_250
"""What a burst takes besides its kernels: until it has begun and the caller has been told that it is over, which an
event with blocking synchronisation tells late; and between kernels, in units of the gap within a graph."""

SYNC_DOUBT_NS, EVENT_DOUBT_NS, KERNEL_DOUBT_NS = 6_000, 45_000, 1_500
OWN_DOUBT = 0.05
OTHERS_DOUBT, FULL_DOUBT = 0.25, 1.0
"""How far a length that was seen may be wrong. For SYNC_NS and EVENT_NS, by so much in each burst; for GAP_NS, in each
kernel; by so much of itself; and because others slowed the client down: by so much of itself where they had all SMs in
flight meanwhile, and where, besides, the GPU was full."""

SEEN_PART = 0.2
"""Of so many of its launches the length must have been seen."""

GUESSED, GUESS_DOUBT = 0.25, 0.5
"""A length that was not seen, and its doubt, as parts of the longest that it may be."""

WORTH_LEARNING = 3.0
"""A length that is seen again teaches something only while the belief is at least a third as unsure."""

SURE = 2.0
"""So many standard errors beyond what is believed, a kernel is over."""

IMPOSSIBLE = 1.5
"""A length, or a doubt of it, is impossible that is so many times the longest that it may be in a window."""

CONTRADICTION = 3.0
"""A length that is seen so many standard errors from what was believed shows that the client does something else now,
or had hardly begun when it was seen first."""

DEVICE_DOUBT, LEAST_DEVICE_DOUBT = 0.02, 0.001
"""How far the device's SM time may be wrong: by so much of itself, and by so much of all SMs."""

FULL, CROWDED = 0.8, 1.15
"""A GPU that is this full is crowded if its clients should need this much more than there was: then they wait for each
other, and none takes as long as it would alone."""

CROWDED_DOUBT = 0.1


def learned(beliefs: Beliefs, efforts: Mapping[int, Effort], room: float, busy: float) -> Beliefs:
    """The beliefs after a window with `room` for so much SM time, in nanoseconds of one SM, of which `busy` was used.

    `efforts` are those of all clients: what others used is not in `busy`.
    """
    launched = {pid: effort for pid, effort in efforts.items() if effort.widths}
    lasting = sum(effort.area for pid, effort in efforts.items() if _lasts(beliefs, pid, effort))
    area = lasting + sum(effort.area for effort in launched.values())
    slowness = {pid: _slowness(area - effort.area, room, busy) for pid, effort in launched.items()}
    beliefs = _possible(beliefs, launched, slowness)
    expected = sum(_used(beliefs, pid, effort) for pid, effort in launched.items())
    crowded = busy > FULL * room and expected > CROWDED * busy
    if not crowded:
        beliefs = _with_lengths_seen(beliefs, launched, slowness)
    if lasting and expected < busy:
        return beliefs
    doubt = DEVICE_DOUBT * busy + LEAST_DEVICE_DOUBT * room + (CROWDED_DOUBT * busy if crowded else 0.0)
    weights = {pid: float(effort.widths) for pid, effort in launched.items()}
    measured = weights, busy, math.hypot(doubt, min(busy, float(lasting)) / 2)
    return (beliefs if crowded else beliefs.shaken(*measured)).measured(*measured)


def _possible(beliefs: Beliefs, launched: Mapping[int, Effort], slowness: Mapping[int, float]) -> Beliefs:
    """Kernels last no longer than there was work in flight: what is believed beyond that is believed no more."""
    for pid, effort in launched.items():
        longest = effort.area / effort.widths
        known = beliefs.length(pid)
        if known is None:
            beliefs = beliefs.with_new(pid, *_first(effort, slowness[pid]))
        elif known > IMPOSSIBLE * longest or beliefs.deviation(pid) > IMPOSSIBLE * longest:
            beliefs = beliefs.without((pid,)).with_new(pid, *_first(effort, slowness[pid]))
    return beliefs


def used(beliefs: Beliefs, efforts: Mapping[int, Effort], busy: float) -> dict[int, float]:
    """The SM time that each should have used, in nanoseconds of one SM; never more than it had work in flight.

    Who launched nothing, but has work in flight from before that may last yet, has what the others leave of what was
    used.
    """
    each_used = {pid: _used(beliefs, pid, effort) for pid, effort in efforts.items()}
    lasting = {pid: float(effort.area) for pid, effort in efforts.items() if _lasts(beliefs, pid, effort)}
    if lasting:
        left = max(0.0, busy - sum(each_used.values()))
        part = min(1.0, left / sum(lasting.values()))
        each_used.update({pid: part * area for pid, area in lasting.items()})
    return each_used


def errors(
    beliefs: Beliefs, efforts: Mapping[int, Effort], each_used: Mapping[int, float], *, complete: bool = True
) -> dict[int, float]:
    """One standard error of each client's part of all that they used, 0 to 1.

    If the clients are not `complete`, what they used together is not known from the device: each has its own error.
    """
    whole = sum(each_used.values())
    if whole <= 0:
        return dict.fromkeys(each_used, 0.0)
    weights = {pid: float(effort.widths) for pid, effort in efforts.items() if beliefs.length(pid) is not None}
    spread = beliefs.together(weights)
    together = {pid: weight * spread[pid] for pid, weight in weights.items()}
    all_variance = sum(together.values())
    found = {}
    for pid, each in each_used.items():
        part = each / whole
        own = (weights[pid] * beliefs.deviation(pid)) ** 2 if pid in weights else (each / 2) ** 2
        variance = own - 2 * part * together.get(pid, 0.0) + part**2 * all_variance if complete else own
        found[pid] = math.sqrt(max(0.0, variance)) / whole
    return found


def _lasts(beliefs: Beliefs, pid: int, effort: Effort) -> bool:
    """Whether what it launched before may run yet. Else it has finished, and never asked."""
    if effort.widths or not effort.area:
        return False
    length = beliefs.length(pid)
    return length is None or effort.idle_ns <= length + SURE * beliefs.deviation(pid)


def _used(beliefs: Beliefs, pid: int, effort: Effort) -> float:
    """By what it launched and how long its kernels are believed to last; never more than it had in flight."""
    length = beliefs.length(pid)
    if not effort.widths:
        return 0.0
    return float(effort.area) if length is None else min(effort.widths * length, float(effort.area))


def _first(effort: Effort, slowness: float) -> tuple[float, float]:
    """What is believed of a new client: a length, and one standard deviation, by its first window alone."""
    longest = effort.area / effort.widths
    seen = _length_seen(effort, slowness)
    return seen if seen is not None else (GUESSED * longest, max(GUESS_DOUBT * longest, KERNEL_DOUBT_NS))


def _with_lengths_seen(beliefs: Beliefs, efforts: Mapping[int, Effort], slowness: Mapping[int, float]) -> Beliefs:
    """Measure the lengths that were seen, each by itself; one that contradicts its belief makes that unsure first."""
    for pid, effort in efforts.items():
        seen = _length_seen(effort, slowness[pid])
        if seen is None:
            continue
        length, doubt = seen
        surprise = abs(length - (beliefs.length(pid) or 0.0))
        if surprise > CONTRADICTION * math.hypot(doubt, beliefs.deviation(pid)):
            beliefs = beliefs.unsure(pid, surprise)
        if beliefs.deviation(pid) * WORTH_LEARNING > doubt:
            beliefs = beliefs.measured({pid: 1.0}, length, doubt)
    return beliefs


def _slowness(others_area: int, room: float, busy: float) -> float:
    """By how much of itself a length that was seen may be too long, for what others had in flight meanwhile."""
    others = min(1.0, others_area / room)
    return OTHERS_DOUBT * others if busy < FULL * room else FULL_DOUBT * min(1.0, 4 * others)


def _length_seen(effort: Effort, slowness: float) -> tuple[float, float] | None:
    """How long kernels lasted while the GPU was behind, and one standard deviation; None where it hardly was."""
    if not effort.widths or effort.sure_widths < SEEN_PART * effort.widths:
        return None
    waits, events = effort.sure_heights / effort.sure_widths, effort.sure_event_heights / effort.sure_widths
    gaps = GAP_NS * effort.sure_gaps / effort.sure_widths
    gross = effort.sure_area / effort.sure_widths
    length = max(gross - SYNC_NS * waits - EVENT_NS * events - gaps, gross / 10)
    length = min(length, effort.area / effort.widths) if effort.area else length
    doubt = math.hypot(SYNC_DOUBT_NS * waits, EVENT_DOUBT_NS * events, KERNEL_DOUBT_NS, OWN_DOUBT * length)
    return length, math.hypot(doubt, slowness * length)
