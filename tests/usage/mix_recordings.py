"""A recording of a mix of clients, and the SM time that each client counted."""

import gzip
import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from exporter.model.launches import WorkReading
from exporter.model.node import Node
from exporter.model.observation import ControlReply, GpuReading, LogLine, Observation
from exporter.model.sharing import GpuUse
from exporter.model.usage import Share, Split
from exporter.recording import Recording
from exporter.reducer import reduce
from exporter.usage.attribution import processes_to_watch
from tests.usage.pauses import Thinning

HERE = Path(__file__).parents[1] / "attribution"
FRAMEWORKS = HERE / "frameworks"
"""Mixes of PyTorch, JAX, CuPy and Triton on an H200 (driver 580.159.04). Each client worked alone first; the truth is
the SM time that one of its steps took then, by GPM, times its steps. One of the clients launches so much in some of the
mixes that the probes are detached most of the time."""

TOGETHER = HERE / "together"
"""Such mixes whose clients began together, when the recorder had just started. They worked alone before. Constants of
usage/kernel_times.py were fitted to these mixes."""

SECOND = HERE / "second"
"""Mixes that were recorded after constants had been fitted; rules and errors changed since. In those with the name
apart-*, a client began every three seconds; in together-*, all clients began together."""

H100 = HERE / "h100"
"""The mixes of HERE (counted-*) and of SECOND on an H100 (driver 580.159.04). Rules and errors changed since. In
counted-full-at-once, all clients began together."""

TWO_GPUS = HERE / "two_gpus"
"""Mixes on two H100 (driver 580.159.04), each recorded from the start of the daemon. A client works on both GPUs: in
counted and uneven with different widths, in torch with two networks. Its truth in torch is what GPM measured, without
the other client of the GPU."""

EVERY_SECONDS = 5.0
GPM_LAG_SECONDS = 0.1


def without_gpm(seen: Iterable[Observation]) -> Iterator[Observation]:
    """Yield the observations without GPM, as from GPUs before Hopper."""
    for each in seen:
        if isinstance(each, GpuReading):
            yield replace(each, sm_utilization=None, dram_bandwidth=None, gpm_seconds=None)
        elif not isinstance(each, GpuUse):
            yield each


def without_devices(seen: Iterable[Observation]) -> Iterator[Observation]:
    """Yield the observations without the GPU of each launch, as if the probes were attached after the clients began."""
    return (replace(each, on_devices=()) if isinstance(each, WorkReading) else each for each in seen)


def without_log(seen: Iterable[Observation]) -> Iterator[Observation]:
    """Yield the observations without the lines of the log that show the GPU of a context."""
    return (each for each in seen if not (isinstance(each, LogLine) and " is associated" in each.line))


def with_hidden_gpus(seen: Iterable[Observation], visible: str) -> Iterator[Observation]:
    """Yield the observations of an exporter in a container with one GPU. NVML and daemon show no other."""
    for each in seen:
        is_other = isinstance(each, (GpuReading, GpuUse)) and each.gpu != visible
        if not is_other and not (isinstance(each, ControlReply) and each.command.startswith("device_query")):
            yield each


@dataclass(frozen=True)
class Minute:
    """The gauge of a client at one time (None: absent), its true use, and the use of the GPU."""

    pid: int
    at: float
    share: Share | None
    true: float
    whole: float

    @property
    def error(self) -> float:
        """The error in percentage points of all SMs. An absent gauge counts as 0."""
        return 100 * abs((0.0 if self.share is None else self.share.sm) - self.true)

    @property
    def is_covered(self) -> bool:
        """Whether the truth lies within two standard errors. The gauge has a resolution of a tenth of a point."""
        return self.share is not None and abs(self.share.sm - self.true) <= 2 * self.share.error + 0.001


@dataclass(frozen=True)
class Mix:
    """The files of a mix: NAME.jsonl.gz, and NAME.truth.json with the samples of each client and `sms`.

    If the node has several GPUs, `gpu` is the UUID of one of them.
    """

    name: str
    directory: Path = HERE
    gpu: str | None = None

    def __repr__(self) -> str:
        return "-".join(filter(None, (self.name, self.gpu)))

    @cached_property
    def truth(self) -> "Truth":
        """The counts of the clients."""
        document = json.loads((self.directory / f"{self.name}.truth.json").read_text())
        clients = document["clients"] if self.gpu is None else document["gpus"][self.gpu]
        samples = {int(pid): [(at, used) for at, used in each] for pid, each in clients.items()}
        return Truth(sms=document["sms"], began=document["from"], ended=document["to"], samples=samples)

    @cached_property
    def kinds(self) -> Mapping[int, str]:
        """The kind of each client."""
        document = json.loads((self.directory / f"{self.name}.truth.json").read_text())
        return {int(pid): kind for pid, kind in document["kinds"].items()}

    def minute_at(self, at: float) -> Split:
        """Return the attribution of the last minute at this time."""
        splits = self.node_at(at).splits
        return next(split for gpu, split in splits.items() if self.gpu in (None, gpu))

    def node_at(self, at: float) -> Node:
        """Return the state at this time."""
        node = self._recording[0]
        for each in self._observations:
            if each.at <= at:
                node, _ = reduce(node, each)
        return node

    @cached_property
    def windows(self) -> tuple[Split, ...]:
        """The exporter's attribution of each window."""
        return tuple(last[-1] for last, _ in self._minutes_of_windows(self._observations))

    @cached_property
    def minutes(self) -> tuple[tuple[Split, tuple[Minute, ...]], ...]:
        """The attribution of the last minute, every few seconds, with gauge and truth of each client."""
        return tuple(self._every_few_seconds(self._observations))

    @cached_property
    def minutes_without_gpm(self) -> tuple[tuple[Split, tuple[Minute, ...]], ...]:
        return tuple(self._every_few_seconds(tuple(without_gpm(self._observations))))

    def minutes_with_pauses(self, *, with_gpm: bool) -> tuple[Sequence[Minute], float]:
        """Return the gauges and truths with the present pauses, and the seconds with attached probes."""
        thinning = Thinning()
        observations = self._observations if with_gpm else tuple(without_gpm(self._observations))
        every = [each for _, minutes in self._every_few_seconds(observations, thinning) for each in minutes]
        return every, thinning.seconds

    @property
    def watched_seconds(self) -> float:
        """The time with attached probes."""
        return sum(each.seconds for each in self._observations if isinstance(each, WorkReading))

    @cached_property
    def minutes_without_devices(self) -> tuple[tuple[Split, tuple[Minute, ...]], ...]:
        return tuple(self._every_few_seconds(tuple(without_devices(self._observations))))

    @cached_property
    def minutes_without_log(self) -> tuple[tuple[Split, tuple[Minute, ...]], ...]:
        return tuple(self._every_few_seconds(without_log(self._observations)))

    def minutes_with_hidden_gpus(self, *, log: bool) -> Iterator[tuple[Split, tuple[Minute, ...]]]:
        """Yield the same as `minutes` if the exporter sees only this GPU."""
        observations = self._observations if log else without_log(self._observations)
        return self._every_few_seconds(with_hidden_gpus(observations, self.gpu or ""))

    @cached_property
    def windows_without_log(self) -> tuple[Split, ...]:
        return tuple(last[-1] for last, _ in self._minutes_of_windows(without_log(self._observations)))

    @cached_property
    def _recording(self) -> tuple[Node, tuple[Observation, ...]]:
        with gzip.open(self.directory / f"{self.name}.jsonl.gz", "rt") as stream:
            recording = Recording(stream)
            return recording.header.node(), tuple(recording.observations())

    @property
    def _observations(self) -> tuple[Observation, ...]:
        return self._recording[1]

    def _every_few_seconds(
        self, observations: Iterable[Observation], thinning: Thinning | None = None
    ) -> Iterator[tuple[Split, tuple[Minute, ...]]]:
        due = self.truth.began + 15
        for windows, split in self._minutes_of_windows(observations, thinning):
            if due <= split.at <= self.truth.ended + 0.5:
                due = split.at + EVERY_SECONDS
                yield split, self._minutes(windows[0].at - windows[0].seconds, split)

    def _minutes(self, began: float, split: Split) -> tuple[Minute, ...]:
        """Return gauges and truths. If needed, scale the truth to GPM: kernels take longer beside other clients."""
        used = {
            pid: self.truth.used(pid, began - GPM_LAG_SECONDS, split.at - GPM_LAG_SECONDS) for pid in self.truth.samples
        }
        measured = self._measured(began, split.at)
        whole = sum(used.values()) / (self.truth.sms * (split.at - began))
        scale = measured / whole if whole and 0.8 < measured / whole < 1.25 else 1.0
        part = scale / (self.truth.sms * (split.at - began))
        return tuple(Minute(pid, split.at, split.shares.get(pid), part * each, measured) for pid, each in used.items())

    def _measured(self, began: float, ended: float) -> float:
        """Return what GPM measured between two times, as a fraction of all SMs."""
        uses = [
            (each.at - each.seconds, each)
            for each in self._observations
            if isinstance(each, GpuUse) and self.gpu in (None, each.gpu)
        ]
        return sum(use.sm_utilization * max(0.0, min(ended, use.at) - max(began, since)) for since, use in uses) / (
            ended - began
        )

    def _minutes_of_windows(
        self, observations: Iterable[Observation], thinning: Thinning | None = None
    ) -> Iterator[tuple[tuple[Split, ...], Split]]:
        """Yield the last windows of the GPU and their sum, after each window."""
        node, last = self._recording[0], None
        for each in observations:
            seen = each
            if thinning is not None and isinstance(each, WorkReading):
                seen = thinning.thinned(each, settled=processes_to_watch(node)[2])
            node, _ = reduce(node, seen)
            for uuid, known in node.attribution.items():
                if known.windows and known.windows[-1] is not last and self.gpu in (None, uuid):
                    last = known.windows[-1]
                    yield known.windows, node.splits[uuid]

    def errors_of(self) -> Mapping[int, float]:
        """Return the error of each client's share over the whole mix, in percentage points of all SMs."""
        truth = self.truth
        windows = [each for each in self.windows if truth.began <= each.at - each.seconds and each.at <= truth.ended]
        lasted = sum(window.seconds for window in windows)
        used = {
            pid: sum(window.seconds * window.shares[pid].sm for window in windows if pid in window.shares) / lasted
            for pid in truth.samples
        }
        real = {
            pid: sum(window.seconds * truth.share(pid, window) for window in windows) / lasted for pid in truth.samples
        }
        return {pid: 100 * (used[pid] - real[pid]) for pid in truth.samples}


def mixes_of(directory: Path) -> list[Mix]:
    mixes = []
    for file in sorted(directory.glob("*.truth.json")):
        gpus = json.loads(file.read_text()).get("gpus", (None,))
        mixes += [Mix(file.name.removesuffix(".truth.json"), directory, gpu) for gpu in gpus]
    return mixes


@dataclass(frozen=True)
class Truth:
    """Samples by PID: time (seconds since the epoch) and SM time so far (seconds of one SM)."""

    sms: int
    began: float
    ended: float
    samples: Mapping[int, list[tuple[float, float]]]

    def share(self, pid: int, window: Split) -> float:
        """Return the share of all SMs in the window. GPM lags a tenth of a second."""
        until = window.at - GPM_LAG_SECONDS
        return self.used(pid, until - window.seconds, until) / (self.sms * window.seconds)

    def used(self, pid: int, began: float, ended: float) -> float:
        """Return the SM time between two times, in seconds of one SM."""
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
