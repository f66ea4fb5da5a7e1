"""Who may starve the others of a GPU's memory bandwidth.

No counter tells whose bandwidth it is; the largest user of SM time is the likeliest, and no more than that.
"""

from dataclasses import dataclass
from math import hypot

from exporter.core.fitness.lately import Lately
from exporter.model.split import Method, Share

NEARLY_ALL = 0.8
"""From this part of its peak on, a memory's bandwidth is about used up: no real access pattern reaches all of it."""

CLEAR_ERRORS = 2.0
"""Two shares differ if they do so by this many standard errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Starving:
    """The bandwidth is used up, and `pid` uses by far most SM time; None: nobody stands out, or it is not known."""

    dram: float
    pid: int | None = None
    share: Share | None = None


def starving(use: Lately, processes: int) -> Starving | None:
    """Whether so many processes, if they are several, have too little bandwidth; None: they have not."""
    if use.dram is None or not use.dram >= NEARLY_ALL or processes < 2:
        return None
    known = {pid: share for pid, share in use.shares.items() if share.method is not Method.EQUAL}
    first, *others = sorted(known, key=lambda pid: (-known[pid].sm, pid)) or (None,)
    if first is None:
        return Starving(dram=use.dram)
    next_best = known[others[0]] if others else Share(method=Method.MEASURED, sm=0.0)
    largest = known[first]
    lead = largest.sm - next_best.sm
    clear = lead > CLEAR_ERRORS * hypot(largest.error, next_best.error) and lead > use.unattributed
    return Starving(dram=use.dram, pid=first, share=largest) if clear else Starving(dram=use.dram)
