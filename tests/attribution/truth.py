"""A recording of a mix of clients, and what they themselves counted: the SM time that each had, as it went on."""

import gzip
import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from exporter.model.launches import GpuUse
from exporter.model.node import Node
from exporter.model.observation import GpuReading, Observation
from exporter.model.usage import Share, Split
from exporter.recording import Recording
from exporter.state.reducer import reduce

HERE = Path(__file__).parent
FRAMEWORKS = HERE / "frameworks"
"""Mixes of PyTorch, JAX, CuPy and Triton on an H200 (driver 580.159.04). Each client worked alone first; the truth is
the SM time that one of its steps took then, by GPM, times its steps. One of the clients launches so much in some of the
mixes that the probes are detached most of the time."""

EVERY_SECONDS = 5.0
GPM_LAG_SECONDS = 0.1


def without_gpm(seen: Iterable[Observation]) -> Iterator[Observation]:
    """Return the same observations of GPUs that have no GPM, as those before Hopper."""
    for each in seen:
        if isinstance(each, GpuReading):
            yield replace(each, sm_utilization=None, dram_bandwidth=None, gpm_seconds=None)
        elif not isinstance(each, GpuUse):
            yield each


@dataclass(frozen=True)
class Minute:
    """The gauge of one client at some moment, None if there was none, and what the client really used."""

    pid: int
    at: float
    share: Share | None
    true: float

    @property
    def is_covered(self) -> bool:
        """Whether the truth lies within two standard errors; the gauge has a resolution of a tenth of a point."""
        return self.share is not None and abs(self.share.sm - self.true) <= 2 * self.share.error + 0.001


@dataclass(frozen=True)
class Mix:
    """Its files: NAME.jsonl.gz, and NAME.truth.json, which has the figures of each client, its samples, and `sms`."""

    name: str
    directory: Path = HERE

    def __repr__(self) -> str:
        return self.name

    @cached_property
    def truth(self) -> "Truth":
        """What the clients counted."""
        told = json.loads((self.directory / f"{self.name}.truth.json").read_text())
        samples = {int(pid): [(at, used) for at, used in each] for pid, each in told["clients"].items()}
        return Truth(sms=told["sms"], began=told["from"], ended=told["to"], samples=samples)

    @cached_property
    def windows(self) -> tuple[Split, ...]:
        """How the exporter split the GPU's SM time, window by window."""
        return tuple(last[-1] for last, _ in self._lives())

    @cached_property
    def node_without_gpm(self) -> Node:
        """The node at the end, if its GPUs had no GPM."""
        with gzip.open(self.directory / f"{self.name}.jsonl.gz", "rt") as stream:
            recording = Recording(stream)
            node = recording.header.node()
            for seen in without_gpm(recording.observations()):
                node, _ = reduce(node, seen)
        return node

    @cached_property
    def minutes(self) -> tuple[tuple[Split, tuple[Minute, ...]], ...]:
        """How the last minute was split, every few seconds, and the gauge of each client beside the truth."""
        found, due = [], self.truth.began + 15
        for windows, split in self._lives():
            if due <= split.at <= self.truth.ended + 0.5:
                due = split.at + EVERY_SECONDS
                found.append((split, self._minutes(windows[0].at - windows[0].seconds, split)))
        return tuple(found)

    def _minutes(self, began: float, split: Split) -> tuple[Minute, ...]:
        """Scale the truth to what GPM measured, if it is about that: kernels last longer in company than alone."""
        used = {
            pid: self.truth.used(pid, began - GPM_LAG_SECONDS, split.at - GPM_LAG_SECONDS) for pid in self.truth.samples
        }
        whole = sum(used.values()) / (self.truth.sms * (split.at - began))
        scale = split.sm / whole if whole and 0.8 < split.sm / whole < 1.25 else 1.0
        part = scale / (self.truth.sms * (split.at - began))
        return tuple(Minute(pid, split.at, split.shares.get(pid), part * each) for pid, each in used.items())

    def _lives(self) -> Iterator[tuple[tuple[Split, ...], Split]]:
        """After each window: the last windows of the GPU, and how all of them were split."""
        with gzip.open(self.directory / f"{self.name}.jsonl.gz", "rt") as stream:
            recording = Recording(stream)
            node, last = recording.header.node(), None
            for seen in recording.observations():
                node, _ = reduce(node, seen)
                for uuid, known in node.attribution.gpus.items():
                    if known.windows and known.windows[-1] is not last:
                        last = known.windows[-1]
                        yield known.windows, node.splits[uuid]

    def wrong_by(self) -> Mapping[int, float]:
        """By how many percentage points of all SMs each client's share is wrong, over the whole mix."""
        truth = self.truth
        windows = [each for each in self.windows if truth.began <= each.at - each.seconds and each.at <= truth.ended]
        lasted = sum(window.seconds for window in windows)
        told = {
            pid: sum(window.seconds * window.shares[pid].sm for window in windows if pid in window.shares) / lasted
            for pid in truth.samples
        }
        real = {
            pid: sum(window.seconds * truth.share(pid, window) for window in windows) / lasted for pid in truth.samples
        }
        return {pid: 100 * (told[pid] - real[pid]) for pid in truth.samples}


@dataclass(frozen=True)
class Truth:
    """By PID, when it said so (in seconds since the epoch), and how much SM time it had had, in seconds of one SM."""

    sms: int
    began: float
    ended: float
    samples: Mapping[int, list[tuple[float, float]]]

    def share(self, pid: int, window: Split) -> float:
        """Of all SMs in this window, as GPM saw it: a tenth of a second before it was read."""
        until = window.at - GPM_LAG_SECONDS
        return self.used(pid, until - window.seconds, until) / (self.sms * window.seconds)

    def used(self, pid: int, began: float, ended: float) -> float:
        """How much SM time it used in between, in seconds of one SM."""
        return self._used(pid, ended) - self._used(pid, began)

    def _used(self, pid: int, at: float) -> float:
        samples = self.samples[pid]
        place = bisect_left(samples, (at,))
        if place == 0:
            return samples[0][1]
        if place == len(samples):
            return samples[-1][1]
        (before, had), (after, has) = samples[place - 1], samples[place]
        return had + (has - had) * (at - before) / (after - before)
