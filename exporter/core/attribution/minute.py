"""The last windows of a GPU, and how its SM time was split in all of them together."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from exporter.model.node import Node
from exporter.model.observation import GpuUuid
from exporter.model.replace import replace
from exporter.model.split import Method, Share, Split

SPLIT_SECONDS = 60.0
MOST_WINDOWS = 120
"""Over how long a split is told, and of how many windows."""

MOST_UNKNOWN = 0.5
"""A client has no share in the minute if nothing is known of it for more than this part of the minute."""

MOST_ERROR, MOST_OF_SHARE = 0.1, 0.25
"""Neither has it one if its standard error is more than this part of all SMs, and more than this part of the share."""

MOST_CHANGE = 0.2
"""If the clients' shares before and after a rest of the probes differ by more than this part of what they used, it is
unknown who used the GPU in between."""


class Splits(Mapping[GpuUuid, Split]):
    """How each GPU's SM time was split: added up only where somebody asks: windows are far more."""

    def __init__(self, windows: Mapping[GpuUuid, tuple[Split, ...]]) -> None:
        self._windows = windows
        self._added: dict[GpuUuid, Split] = {}

    def __getitem__(self, gpu: GpuUuid) -> Split:
        if gpu not in self._added:
            self._added[gpu] = together(self._windows[gpu])
        return self._added[gpu]

    def __iter__(self) -> Iterator[GpuUuid]:
        return iter(self._windows)

    def __len__(self) -> int:
        return len(self._windows)


def fresh_splits(node: Node) -> Mapping[GpuUuid, Split]:
    """How SM time was split; a split that is older than it is long tells of nothing that is now."""
    return {gpu: split for gpu, split in node.splits.items() if 0 <= node.at - split.at <= split.seconds}


def kept(windows: tuple[Split, ...], window: Split) -> tuple[Split, ...]:
    """With one more, without those that are too old; and without those of a time to come, once a clock was set back."""
    recent = (each for each in windows if 0 < window.at - each.at < SPLIT_SECONDS)
    return (*recent, window)[-MOST_WINDOWS:]


def together(windows: tuple[Split, ...]) -> Split:
    """Add up the windows: the share of each client over all of them, with an error that covers the unknown part.

    A client without a share in a window has used nothing in it, unless it is among the unknown ones: then it has used
    between nothing and all that is unattributed there. A share whose error is too large is not told.
    """
    seconds = sum(window.seconds for window in windows)
    sm = sum(window.sm * window.seconds for window in windows) / seconds
    measured = [window for window in windows if window.dram is not None]
    lasted = sum(window.seconds for window in measured)
    shares = _shares(_with_rests_checked(windows), seconds)
    return Split(
        at=windows[-1].at,
        seconds=seconds,
        sm=sm,
        shares=shares,
        unattributed=max(0.0, sm - sum(share.sm for share in shares.values())),
        dram=sum((window.dram or 0.0) * window.seconds for window in measured) / lasted if lasted else None,
    )


@dataclass(slots=True)
class _Sum:
    """What is known of one client: SM time and its error in seconds of all SMs, and for how long nothing is known."""

    method: Method
    used: float = 0.0
    error: float = 0.0
    unknown: float = 0.0


def _shares(windows: Sequence[Split], seconds: float) -> Mapping[int, Share]:
    """The shares over all windows, the latest of which is the first."""
    sums: dict[int, _Sum] = {}
    gaps = [(window, _add(sums, window)) for window in windows]
    for window, pids in gaps:
        for pid in (window.unknown | pids) & sums.keys():
            sums[pid].unknown += window.seconds
    means = {pid: each.used / (seconds - each.unknown) for pid, each in sums.items() if each.unknown < seconds}
    for window, pids in gaps:
        if window.unknown or pids:
            _fill(sums, window, pids, means)
    return {
        pid: Share(method=each.method, sm=each.used / seconds, error=each.error / seconds)
        for pid, each in sums.items()
        if each.unknown <= MOST_UNKNOWN * seconds and each.error <= max(MOST_ERROR * seconds, MOST_OF_SHARE * each.used)
    }


def _add(sums: dict[int, _Sum], window: Split) -> frozenset[int]:
    """Add what is known in a window; return the clients whose share is by a method that cannot be mixed with theirs.

    What was measured in some of the windows and estimated in others is an estimate. An equal part is a convention:
    it is no part of an estimate, nor is an estimate part of a convention.
    """
    mixed = []
    for shares in (window.shares, window.withheld):
        for pid, share in shares.items():
            known = sums.get(pid)
            if known is None:
                known = sums[pid] = _Sum(share.method)
            if share.method is not known.method:
                if Method.EQUAL in (share.method, known.method):
                    mixed.append(pid)
                    continue
                known.method = Method.FLIGHT
            known.used += window.seconds * share.sm
            known.error += window.seconds * share.error
    return frozenset(mixed)


def _fill(sums: Mapping[int, _Sum], window: Split, mixed: frozenset[int], means: Mapping[int, float]) -> None:
    """Add what the clients of which nothing is known in a window have used there on the average, if there was so much.

    Two standard errors from that lie nothing and all that there was.
    """
    without = (window.unknown | mixed) & sums.keys()
    pool = max(0.0, window.sm - sum(share.sm for pid, share in window.estimates.items() if pid not in mixed))
    whole = sum(means.get(pid, 0.0) for pid in without)
    scale = min(1.0, pool / whole) if whole else 0.0
    for pid in without:
        likely = scale * means.get(pid, 0.0)
        sums[pid].used += window.seconds * likely
        sums[pid].error += window.seconds * max(likely, pool - likely) / 2


def _with_rests_checked(windows: tuple[Split, ...]) -> list[Split]:
    """Check what was assumed while the probes were detached by the first window in which they were attached again.

    The latest window is the first.
    """
    checked: list[Split] = []
    after: Split | None = None
    for window in reversed(windows):
        if not window.assumed:
            after = window
        checked.append(_checked(window, after) if window.assumed and after is not None else window)
    return checked


def _checked(window: Split, after: Split) -> Split:
    """If each client did about the same before and after, it did in between; else nothing is known of that time."""
    assumed = {pid: share for pid, share in window.estimates.items() if pid in window.clients}
    later = {pid: share if pid in after.unknown else _later(after, pid) for pid, share in assumed.items()}
    pool = sum(share.sm for share in assumed.values())
    changed = sum(abs(share.sm - later[pid].sm) for pid, share in assumed.items())
    if changed > 2 * MOST_CHANGE * pool:
        beside = {pid: share for pid, share in window.shares.items() if pid not in assumed}
        return replace(window, shares=beside, withheld={}, unknown=window.unknown | assumed.keys())
    between = {
        pid: Share(
            method=share.method,
            sm=share.sm,
            error=math.hypot(later[pid].error, abs(share.sm - later[pid].sm) / 2),
        )
        for pid, share in assumed.items()
    }
    return replace(window, shares={**window.shares, **between}, withheld={})


def _later(after: Split, pid: int) -> Share:
    return after.estimates.get(pid, Share(method=Method.FLIGHT, sm=0.0))
