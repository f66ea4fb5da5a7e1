"""GPU sharing and capacity as text."""

from collections.abc import Iterable, Sequence
from math import ceil

from exporter.model.node import Node
from exporter.model.usage import Method, Share
from exporter.report.identity import who
from exporter.report.text import Line, counted, line_of, listed, mebibytes, pid_text, warning
from exporter.usage.capacity import BandwidthContention, Bound, GpuSharing

MOST_NAMED = 4
"""So many processes are named in one sentence."""

LEAST_TOLD = 0.01
"""A smaller part that is nobody's, or of those who are gone, is not worth a word."""

BOUNDS = {Bound.MEMORY: "memory", Bound.SM: "SM time", Bound.SLOTS: "client slots"}
METHODS = {
    Method.MEASURED: "measured",
    Method.FLIGHT: "estimated by time in flight",
    Method.EQUAL: "in equal shares, by convention",
}


def sentences(node: Node, found: GpuSharing) -> Iterable[Line]:
    """What there is, and how much more would fit; then what was promised, who idles, and who is in whose way."""
    yield line_of(_present(found))
    yield line_of(_room(found))
    for tell in (_limits, _beside, _gone, _unwatched, _idle, _at_limit):
        yield from map(line_of, tell(node, found))
    if found.contention is not None:
        yield line_of(warning(_starving(node, found.contention)))


def percent(part: float) -> str:
    """A part of a whole, as one speaks of it."""
    return "under 1 %" if 0 < part < 0.01 else f"{100 * part:.0f} %"


def used_text(share: Share) -> str:
    """What somebody used of the SMs, and one standard error of it where there is one: rounded up, it is never none."""
    return f"{100 * share.sm:.1f} ± {ceil(1000 * share.error) / 10:.1f} %" if share.error else f"{100 * share.sm:.1f} %"


def _present(found: GpuSharing) -> str:
    held, total = found.memory_held, found.memory_total_bytes
    alone = len(found.clients) == 1
    holding = f" hold{'s' if alone else ''} {percent(held / total)} of its memory" if held and total else ""
    using = f"{' and' if holding else ''} used {_used(found)}" if found.shares else f"; {_busy(found)}"
    return f"{counted(len(found.clients), 'client')}{holding}{using}"


def _used(found: GpuSharing) -> str:
    methods, nobodys = listed([METHODS[method] for method in found.methods]), found.recent.unattributed
    unknown = f"; another {percent(nobodys)} is unattributed" if nobodys >= LEAST_TOLD else ""
    return f"{percent(found.sm_used or 0.0)} of its SMs {_lately(found)} ({methods}{unknown})"


def _busy(found: GpuSharing) -> str:
    if found.recent.sm is None and found.gpm is False:
        return "its SM time is unknown: this GPU has no GPM"
    if found.recent.sm is None:
        return "how busy its SMs are is not known"
    return f"its SMs were {percent(found.recent.sm)} busy {_lately(found)}"


def _lately(found: GpuSharing) -> str:
    seconds = found.recent.seconds
    return "lately" if seconds is None else f"in the last {seconds:.0f} s"


def _room(found: GpuSharing) -> str:
    by, fits = found.headroom.by_bound, found.headroom.fits
    if not by:
        return "how many more would fit is not known"
    known = [f"{by[bound]} by {BOUNDS[bound]}" for bound in sorted(by, key=lambda bound: by[bound])]
    unknown = [f"not known by {BOUNDS[bound]}" for bound in Bound if bound not in by]
    count = "" if fits is None else f"{fits or 'no'} "
    return f"room for {count}more such client{'' if fits == 1 else 's'}: {', '.join((*known, *unknown))}"


def _limits(_: Node, found: GpuSharing) -> Iterable[str]:
    """Nothing is said where every client may use all the threads, and none has a limit on its memory."""
    threads, memory = found.threads_committed, found.memory_committed
    limited = threads is not None and threads < len(found.clients)
    told = [f"{percent(threads)} of its threads"] if limited and threads is not None else []
    told += [] if memory is None else [f"{percent(memory)} of its memory"]
    if told:
        yield f"limits: its clients together may use {listed(told)}"


def _beside(node: Node, found: GpuSharing) -> Iterable[str]:
    if found.bypassing:
        named = [f"{_person(node, pid)} used {used_text(share)}" for pid, share in found.bypassing.items()]
        yield f"beside MPS: {_first(named)} of its SMs"


def _gone(_: Node, found: GpuSharing) -> Iterable[str]:
    if found.departed_sm >= LEAST_TOLD:
        used = percent(found.departed_sm)
        yield f"gone: processes that are there no more used another {used} of its SMs {_lately(found)}"


def _unwatched(node: Node, found: GpuSharing) -> Iterable[str]:
    if found.unwatched:
        named = [_person(node, each.client.pid) for each in found.unwatched]
        yield f"not watched: what {_first(named)} launched cannot be seen"


def _idle(_: Node, found: GpuSharing) -> Iterable[str]:
    if found.idle:
        held = mebibytes(sum(each.memory or 0 for each in found.idle))
        count = counted(len(found.idle), "client holds", "clients hold")
        yield f"idle: {count} {held}, and used under 1 % of its SMs {_lately(found)}"


def _at_limit(node: Node, found: GpuSharing) -> Iterable[str]:
    if found.at_limit:
        named = [_person(node, each.client.pid) for each in found.at_limit]
        yield f"at the limit: {_first(named)} used about all the threads allowed"


def _starving(node: Node, found: BandwidthContention) -> str:
    """A hint, and how far it goes."""
    full = f"memory bandwidth: {percent(found.dram)} is used, so clients are in each other's way"
    if found.pid is None or found.share is None:
        return f"{full}; who uses most of it cannot be told"
    largest = f"{_person(node, found.pid)} used most SM time ({used_text(found.share)})"
    return f"{full}; {largest}, so may use most of it: a hint, no measurement"


def _first(named: Sequence[str]) -> str:
    more = [f"{len(named) - MOST_NAMED} more"] if len(named) > MOST_NAMED else []
    return listed([*named[:MOST_NAMED], *more])


def _person(node: Node, pid: int) -> str:
    command = who(node, pid).command
    return f"{pid_text(pid)} ({command})" if command else pid_text(pid)
