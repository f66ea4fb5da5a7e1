"""A recording of a mix of clients, and what they themselves counted: the SM time that each had, as it went on."""

import gzip
import json
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from exporter.core.fold import fold
from exporter.model.split import Split
from exporter.recording import Recording

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Mix:
    """Its files: NAME.jsonl.gz, and NAME.truth.json, which has the figures of each client, its samples, and `sms`."""

    name: str

    def __repr__(self) -> str:
        return self.name

    @cached_property
    def truth(self) -> "Truth":
        """What the clients counted."""
        told = json.loads((HERE / f"{self.name}.truth.json").read_text())
        samples = {int(pid): [(at, used) for at, used in each] for pid, each in told["clients"].items()}
        return Truth(sms=told["sms"], began=told["from"], ended=told["to"], samples=samples)

    @cached_property
    def windows(self) -> tuple[Split, ...]:
        """How the exporter split the GPU's SM time, window by window."""
        with gzip.open(HERE / f"{self.name}.jsonl.gz", "rt") as stream:
            recording = Recording(stream)
            node, found = recording.header.node(), dict[float, Split]()
            for seen in recording.observations():
                node, _ = fold(node, seen)
                for known in node.attribution.gpus.values():
                    found.update({window.at: window for window in known.windows[-1:]})
        return tuple(found.values())

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
        until = window.at - 0.1
        return (self._used(pid, until) - self._used(pid, until - window.seconds)) / (self.sms * window.seconds)

    def _used(self, pid: int, at: float) -> float:
        samples = self.samples[pid]
        place = bisect_left(samples, (at,))
        if place == 0:
            return samples[0][1]
        if place == len(samples):
            return samples[-1][1]
        (before, had), (after, has) = samples[place - 1], samples[place]
        return had + (has - had) * (at - before) / (after - before)
