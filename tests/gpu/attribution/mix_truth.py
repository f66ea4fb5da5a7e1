"""The true use of a mix's clients, from their own counts."""

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exporter.model.usage import Split

from .series import Series

PROFILER, ALONE = "profiler", "alone"
"""Sources of PyTorch's time for a step: its profiler in the mix, or the GPU's SM time while it ran alone."""

GPM_LAG_SECONDS = 0.1
"""Seconds from the end of a window of SM time to its reading."""


@dataclass(frozen=True, slots=True)
class Client:
    """A client. `used` is its SM time so far, in seconds of all SMs."""

    pid: int
    name: str
    learns: bool
    used: Series

    def present(self, begin: float, end: float) -> float:
        """Return the part of this time in which the client existed."""
        first, last = self.used.span
        return max(0.0, min(end, last) - max(begin, first)) / (end - begin)


@dataclass(frozen=True, slots=True)
class MixTruth:
    """A mix: its clients, and the measured time in nanoseconds since boot."""

    mix: str
    begin: float
    end: float
    boot_minus_epoch_ns: int
    clients: tuple[Client, ...]

    def boot_ns(self, at: float) -> float:
        """Return the end of a window that was read at this time."""
        return (at - GPM_LAG_SECONDS) * 1e9 + self.boot_minus_epoch_ns


def read_truth(directory: Path, windows: Sequence[Split], sms: int, way: str = PROFILER) -> MixTruth:
    """Read the files of a run. The windows contain the use of a PyTorch client while it ran alone."""
    with gzip.open(directory / "truth.json.gz", "rt") as stream:
        document = json.load(stream)
    offset = document["boot_minus_epoch_ns"]
    return MixTruth(
        mix=document["mix"],
        begin=document["moments"]["all_in"],
        end=document["moments"]["measured"],
        boot_minus_epoch_ns=offset,
        clients=tuple(_client(each, windows, offset, sms, way) for each in document["clients"]),
    )


def _client(document: Mapping[str, Any], windows: Sequence[Split], offset: int, sms: int, way: str) -> Client:
    if document["learns"]:
        unit = _step_in_mix(document) if way == PROFILER else _step_alone(document, windows, offset)
        key = "steps"
    else:
        unit, key = 1 / sms / 1e9, "occupied_ns"
    keys = document["count_keys"]
    counts = [(row[keys.index("boot_ns")], row[keys.index(key)] * unit) for row in document["counts"]]
    return Client(document["pid"], document["name"], document["learns"], Series(counts))


def _step_in_mix(document: Mapping[str, Any]) -> float:
    """Return the seconds of all SMs for a step, from the kernels' times."""
    profiled = _event(document, "profiled")
    return float(profiled["weighted_us"]) / 1e6 / float(profiled["steps"])


def _step_alone(document: Mapping[str, Any], windows: Sequence[Split], offset: int) -> float:
    """Return the same from the GPU, in the windows while the client ran alone and without the profiler."""
    worked = _event(document, "alone")["unobserved"]
    begin, end = float(worked["from_ns"]), float(worked["to_ns"])
    used = seconds = 0.0
    for window in windows:
        until = (window.at - GPM_LAG_SECONDS) * 1e9 + offset
        if begin <= until - window.seconds * 1e9 and until <= end:
            used += window.sm * window.seconds
            seconds += window.seconds
    if not seconds:
        raise ValueError(f"{document['name']}: no window lies within its time alone")
    steps: int = worked["steps"]
    return used / seconds * (end - begin) / 1e9 / steps


def _event(document: Mapping[str, Any], event: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = next(each for each in document["events"] if each["event"] == event)
    return found
