"""The last windows of a GPU, and how its SM time was split in all of them together."""

from collections.abc import Iterator, Mapping

from exporter.model.node import Node
from exporter.model.observation import GpuUuid
from exporter.model.split import Share, Split

SPLIT_SECONDS = 60.0
MOST_WINDOWS = 120
"""Over how long a split is told, and of how many windows."""


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
    """The windows as one. Nobody's part is told by two methods at once: what was by another than now is left out."""
    seconds = sum(window.seconds for window in windows)
    measured = [window for window in windows if window.dram is not None]
    lasted = sum(window.seconds for window in measured)
    return Split(
        at=windows[-1].at,
        seconds=seconds,
        sm=sum(window.sm * window.seconds for window in windows) / seconds,
        shares=_shares(windows, seconds),
        unattributed=sum(window.unattributed * window.seconds for window in windows) / seconds,
        dram=sum((window.dram or 0.0) * window.seconds for window in measured) / lasted if lasted else None,
    )


def _shares(windows: tuple[Split, ...], seconds: float) -> Mapping[int, Share]:
    methods = {pid: share.method for window in windows for pid, share in window.shares.items()}
    lasted = dict.fromkeys(methods, seconds)
    used, unsure = dict.fromkeys(methods, 0.0), dict.fromkeys(methods, 0.0)
    for window in windows:
        for pid, share in window.shares.items():
            if share.method is methods[pid]:
                used[pid] += window.seconds * share.sm
                unsure[pid] += window.seconds * share.error
            else:
                lasted[pid] -= window.seconds
    return {
        pid: Share(method=method, sm=used[pid] / lasted[pid], error=unsure[pid] / lasted[pid])
        for pid, method in methods.items()
    }
