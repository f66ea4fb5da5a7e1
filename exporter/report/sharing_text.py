"""GPU sharing and capacity as text."""

from collections.abc import Iterable, Mapping
from math import ceil

from exporter.model.contention import Resource, Slowdown
from exporter.model.node import Node
from exporter.model.usage import Method, Share
from exporter.parse.printable import printable
from exporter.report.status_view import process_label
from exporter.report.text import Line, counted, line_of, listed, mebibytes, percent, pid_text, warning
from exporter.usage.allocation import AllocatedShares
from exporter.usage.capacity import CLEAR_ERRORS, Bound, GpuSharing

MOST_NAMED = 4
"""At most so many processes are named in one sentence."""

LEAST_SHOWN = 0.01
"""A smaller unattributed fraction, or one of exited processes, is not mentioned."""

BOUNDS = {Bound.MEMORY: "memory", Bound.SM: "SM time", Bound.SLOTS: "client slots"}
RESOURCES = {
    Resource.MEMORY: "memory bandwidth",
    Resource.SMS: "SMs",
    Resource.OTHER: "neither SMs nor memory bandwidth are used up",
}
LEAST_SLOWDOWN, MOST_SLOWED = 1.2, 5
"""Smaller factors are not worth a line; so many clients have one."""

METHODS = {
    Method.MEASURED: "measured",
    Method.FLIGHT: "estimated by time in flight",
    Method.LAUNCHES: "estimated by launches",
}


def sentences(node: Node, found: GpuSharing | None, shares: Mapping[str, AllocatedShares]) -> Iterable[Line]:
    """Yield how the MPS clients of a GPU share it, if it has any, and its shares in Kubernetes, by resource.

    First are the clients with their use and the headroom, then limits, unusual processes, and contention.
    """
    if found is not None:
        for text in (_clients(found), _headroom(found), *_limits(found), *_processes(node, found)):
            yield line_of(text)
        yield from (line_of(warning(text)) for text in _contention(node, found))
    yield from map(line_of, _allocations(shares))


def _allocations(shares: Mapping[str, AllocatedShares]) -> Iterable[str]:
    for resource, found in shares.items():
        text = f"allocated: {found.allocated} of {found.allocatable} shares of {printable(resource)}"
        if found.unused:
            pods = listed([printable(f"{each.namespace}/{each.pod}") for each in found.unused_by or ()], MOST_NAMED)
            text = f"{text}; {found.unused} of them to pods without a CUDA context ({pods})"
        elif found.allocated and found.unused is None:
            text = f"{text}; it is unknown how many of them are used"
        yield text


def used_text(share: Share) -> str:
    """Return the used fraction of the SMs, with its standard error, which is rounded up."""
    return f"{100 * share.sm:.1f} ± {ceil(1000 * share.error) / 10:.1f} %" if share.error else f"{100 * share.sm:.1f} %"


def _clients(found: GpuSharing) -> str:
    held, total = found.memory_held, found.memory_total_bytes
    verb = "holds" if len(found.clients) == 1 else "hold"
    memory = f" {verb} {percent(held / total)} of its memory" if held and total else ""
    if found.shares:
        methods, unattributed = listed([METHODS[method] for method in found.methods]), found.recent.unattributed
        unknown = f"; another {percent(unattributed)} is unattributed" if unattributed >= LEAST_SHOWN else ""
        used = f"{percent(found.sm_used or 0.0)} of its SMs {_recently(found)} ({methods}{unknown})"
        use = f"{' and' if memory else ''} used {used}"
    elif found.recent.sm is not None:
        use = f"; its SMs were {percent(found.recent.sm)} busy {_recently(found)}"
    else:
        use = "; its SM time is unknown"
    return f"{counted(len(found.clients), 'client')}{memory}{use}"


def _recently(found: GpuSharing) -> str:
    seconds = found.recent.seconds
    return "recently" if seconds is None else f"in the last {seconds:.0f} s"


def _headroom(found: GpuSharing) -> str:
    by, fits = found.headroom.by_bound, found.headroom.fits
    if not by:
        return "it is unknown how many more clients fit"
    known = [f"{by[bound]} by {BOUNDS[bound]}" for bound in sorted(by, key=lambda bound: by[bound])]
    unknown = [f"unknown by {BOUNDS[bound]}" for bound in Bound if bound not in by]
    bounds = ", ".join((*known, *unknown))
    if fits is None:
        return f"room for an unknown number of clients like these: {bounds}"
    return f"room for {fits} more client{'' if fits == 1 else 's'} like these, the smallest of: {bounds}"


def _limits(found: GpuSharing) -> Iterable[str]:
    """Yield nothing if every client may use all threads, and none has a memory limit."""
    threads, memory = found.threads_committed, found.memory_committed
    limits = []
    if threads is not None and threads < len(found.clients):
        limits.append(f"{percent(threads)} of its threads")
    if memory is not None:
        limits.append(f"{percent(memory)} of its memory")
    if limits:
        yield f"limits: its clients together may use {listed(limits)}"


def _processes(node: Node, found: GpuSharing) -> Iterable[str]:
    if found.bypassing:
        uses = [f"{_process(node, pid)} used {used_text(share)}" for pid, share in found.bypassing.items()]
        yield f"bypassing MPS: {listed(uses, MOST_NAMED)} of its SMs"
    if found.departed_sm >= LEAST_SHOWN:
        yield f"exited processes used another {percent(found.departed_sm)} of its SMs {_recently(found)}"
    if found.unwatched:
        names = [_process(node, each.client.pid) for each in found.unwatched]
        yield f"not measured: launches of {listed(names, MOST_NAMED)} cannot be counted"
    if found.idle:
        held = mebibytes(sum(each.memory or 0 for each in found.idle))
        count = counted(len(found.idle), "client holds", "clients hold")
        yield f"idle: {count} {held}, and used under 1 % of its SMs {_recently(found)}"
    if found.over_limit:
        uses = [
            f"{_process(node, each.client.pid)} holds {mebibytes(each.memory or 0)}"
            f" of the {mebibytes(each.memory_limit or 0)} allowed"
            for each in found.over_limit
        ]
        yield f"over the memory limit: {listed(uses, MOST_NAMED)}"


def _contention(node: Node, found: GpuSharing) -> Iterable[str]:
    """Yield which clients are slowed down, the most first, by what and by whom, and that bandwidth is used up."""
    slowed = [each for each in found.clients if each.slowdown is not None and is_slowed(each.slowdown)]
    slowed.sort(key=lambda each: 0.0 if each.slowdown is None else -each.slowdown.ratio)
    for each in slowed[:MOST_SLOWED]:
        yield f"slowed down: {_process(node, each.client.pid)} is {slowdown_text(node, each.slowdown)}"
    if len(slowed) > MOST_SLOWED:
        yield f"slowed down: {len(slowed) - MOST_SLOWED} more"
    if found.contention is not None:
        full = f"memory bandwidth: {percent(found.contention.dram)} is used, so clients slow each other down"
        pid = found.contention.pid
        used = [
            f"{percent(each.bandwidth.part)}" for each in found.clients if each.client.pid == pid and each.bandwidth
        ]
        who = "it is unknown which client uses" if pid is None else f"{_process(node, pid)} uses"
        yield f"{full}; {who} most of it{''.join(f' ({part})' for part in used)}"


def is_slowed(found: Slowdown) -> bool:
    """Return whether a client is clearly slower than on a quiet GPU."""
    return found.ratio - CLEAR_ERRORS * found.error > LEAST_SLOWDOWN


def slowdown_text(node: Node, found: Slowdown | None) -> str:
    """Return how much slower a client is than on a quiet GPU, by which resource, and who used most of it."""
    if found is None:
        return "-"
    factor = f"{'at least ' if found.is_bound else ''}{found.ratio:.2g} times slower than alone"
    if found.resource is None:
        return factor
    names = [f"{percent(part)} by {_process(node, pid)}" for pid, part in found.neighbours[:1] if part >= LEAST_SHOWN]
    return f"{factor}: {RESOURCES[found.resource]}{''.join(f', used to {name}' for name in names)}"


def _process(node: Node, pid: int) -> str:
    command = process_label(node, pid).command
    return f"{pid_text(pid)} ({command})" if command else pid_text(pid)
