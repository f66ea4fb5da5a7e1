"""The last windows of a GPU, and how its SM time was split in all of them together."""

import math
from collections.abc import Iterator, Mapping

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
    windows = tuple(_with_rests_checked(windows))
    seconds = sum(window.seconds for window in windows)
    sm = sum(window.sm * window.seconds for window in windows) / seconds
    measured = [window for window in windows if window.dram is not None]
    lasted = sum(window.seconds for window in measured)
    shares = _shares(windows, seconds)
    return Split(
        at=windows[-1].at,
        seconds=seconds,
        sm=sm,
        shares=shares,
        unattributed=max(0.0, sm - sum(share.sm for share in shares.values())),
        dram=sum((window.dram or 0.0) * window.seconds for window in measured) / lasted if lasted else None,
        clients=windows[-1].clients,
    )


def _shares(windows: tuple[Split, ...], seconds: float) -> Mapping[int, Share]:
    """The shares over all windows, those apart that are too uncertain."""
    methods = _methods(windows)
    known, errors, unknown = _known(windows, methods)
    means = {pid: known[pid] / (seconds - without) for pid, without in unknown.items() if without < seconds}
    used = dict(known)
    for window in windows:
        pool, without = _without(window, methods)
        likely = {pid: means.get(pid, 0.0) for pid in without}
        scale = min(1.0, pool / sum(likely.values())) if any(likely.values()) else 0.0
        for pid, mean in likely.items():
            filled = scale * mean
            used[pid] += window.seconds * filled
            errors[pid] += window.seconds * max(filled, pool - filled) / 2
    return {
        pid: Share(method=method, sm=used[pid] / seconds, error=errors[pid] / seconds)
        for pid, method in methods.items()
        if unknown[pid] <= MOST_UNKNOWN * seconds
        and errors[pid] <= max(MOST_ERROR * seconds, MOST_OF_SHARE * used[pid])
    }


def _known(
    windows: tuple[Split, ...], methods: Mapping[int, Method]
) -> tuple[dict[int, float], dict[int, float], dict[int, float]]:
    """By PID: the SM time that is known by this method, its error, and the seconds in which nothing is known."""
    known, errors, unknown = (dict.fromkeys(methods, 0.0) for _ in range(3))
    for window in windows:
        _, without = _without(window, methods)
        for pid in without:
            unknown[pid] += window.seconds
        for pid, share in window.estimates.items():
            if pid in methods and pid not in without:
                known[pid] += window.seconds * share.sm
                errors[pid] += window.seconds * share.error
    return known, errors, unknown


def _methods(windows: tuple[Split, ...]) -> Mapping[int, Method]:
    """By PID: the last method; but what was measured in some of the windows and estimated in others is an estimate."""
    methods: dict[int, Method] = {}
    for window in windows:
        for pid, share in window.estimates.items():
            estimated = methods.get(pid) is Method.FLIGHT and share.method is Method.MEASURED
            methods[pid] = Method.FLIGHT if estimated else share.method
    return methods


def _without(window: Split, methods: Mapping[int, Method]) -> tuple[float, frozenset[int]]:
    """What the clients without an estimate may have used in a window, and which of these have a share in others.

    An equal part is a convention: it is none of an estimate, nor is an estimate part of a convention.
    """
    estimates = window.estimates
    mixed = {
        pid
        for pid, share in estimates.items()
        if (share.method is Method.EQUAL) is not (methods[pid] is Method.EQUAL)
    }
    taken = sum(share.sm for pid, share in estimates.items() if pid not in mixed)
    return max(0.0, window.sm - taken), (window.unknown & methods.keys()) | mixed


def _with_rests_checked(windows: tuple[Split, ...]) -> list[Split]:
    """Check what was assumed while the probes were detached by the first window in which they were attached again."""
    checked: list[Split] = []
    after: Split | None = None
    for window in reversed(windows):
        if not window.assumed:
            after = window
        checked.append(_checked(window, after) if window.assumed and after is not None else window)
    return checked[::-1]


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
