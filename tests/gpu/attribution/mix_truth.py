"""What a mix' clients truly used, by what they counted themselves."""

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exporter.model.usage import Split

from .series import Series

PROFILER, ALONE = "profiler", "alone"
"""How PyTorch's time for a step is known: by its profiler in the mix, or by the device's SM time while it was alone."""

GPM_LAG_SECONDS = 0.1
"""A window of SM time ended so long before it was read."""


@dataclass(frozen=True, slots=True)
class Client:
    """One client: `used` is the SM time that it has used so far, in seconds of all SMs."""

    pid: int
    name: str
    learns: bool
    used: Series

    def present(self, begin: float, end: float) -> float:
        """In what part of this time it was there."""
        first, last = self.used.span
        return max(0.0, min(end, last) - max(begin, first)) / (end - begin)


@dataclass(frozen=True, slots=True)
class MixTruth:
    """A mix: its clients, and from when to when it was measured, in nanoseconds since boot."""

    mix: str
    begin: float
    end: float
    boot_minus_epoch_ns: int
    clients: tuple[Client, ...]

    def boot_ns(self, at: float) -> float:
        """When a window of SM time ended that was read at this time."""
        return (at - GPM_LAG_SECONDS) * 1e9 + self.boot_minus_epoch_ns


def read_truth(directory: Path, windows: Sequence[Split], sms: int, way: str = PROFILER) -> MixTruth:
    """As a play wrote it. The windows tell what a PyTorch client used while it was alone."""
    with gzip.open(directory / "truth.json.gz", "rt") as stream:
        told = json.load(stream)
    offset = told["boot_minus_epoch_ns"]
    return MixTruth(
        mix=told["mix"],
        begin=told["moments"]["all_in"],
        end=told["moments"]["measured"],
        boot_minus_epoch_ns=offset,
        clients=tuple(_client(each, windows, offset, sms, way) for each in told["clients"]),
    )


def _client(told: Mapping[str, Any], windows: Sequence[Split], offset: int, sms: int, way: str) -> Client:
    if told["learns"]:
        unit = _step_in_mix(told) if way == PROFILER else _step_alone(told, windows, offset)
        key = "steps"
    else:
        unit, key = 1 / sms / 1e9, "occupied_ns"
    keys = told["count_keys"]
    counts = [(row[keys.index("boot_ns")], row[keys.index(key)] * unit) for row in told["counts"]]
    return Client(told["pid"], told["name"], told["learns"], Series(counts))


def _step_in_mix(told: Mapping[str, Any]) -> float:
    """Seconds of all SMs a step, by the kernels' times."""
    profiled = _said(told, "profiled")
    return float(profiled["weighted_us"]) / 1e6 / float(profiled["steps"])


def _step_alone(told: Mapping[str, Any], windows: Sequence[Split], offset: int) -> float:
    """The same by the device, in the windows that lie within the time when it was alone and nobody looked."""
    worked = _said(told, "alone")["unobserved"]
    begin, end = float(worked["from_ns"]), float(worked["to_ns"])
    used = seconds = 0.0
    for window in windows:
        until = (window.at - GPM_LAG_SECONDS) * 1e9 + offset
        if begin <= until - window.seconds * 1e9 and until <= end:
            used += window.sm * window.seconds
            seconds += window.seconds
    if not seconds:
        raise ValueError(f"{told['name']}: no window lies within its time alone")
    steps: int = worked["steps"]
    return used / seconds * (end - begin) / 1e9 / steps


def _said(told: Mapping[str, Any], event: str) -> Mapping[str, Any]:
    said: Mapping[str, Any] = next(each for each in told["said"] if each["event"] == event)
    return said
