"""The true use of a mix's clients, from their own counts."""

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .series import Series

GPM_LAG_SECONDS = 0.1
"""Seconds from the end of a window of SM time to its reading."""


@dataclass(frozen=True, slots=True)
class Client:
    """A client. `used` is its SM time so far, in seconds of all SMs."""

    pid: int
    name: str
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


def read_truth(directory: Path, sms: int) -> MixTruth:
    """Read the truth of a run on a GPU with so many SMs."""
    with gzip.open(directory / "truth.json.gz", "rt") as stream:
        document = json.load(stream)
    return MixTruth(
        mix=document["mix"],
        begin=document["moments"]["all_in"],
        end=document["moments"]["measured"],
        boot_minus_epoch_ns=document["boot_minus_epoch_ns"],
        clients=tuple(_client(each, sms) for each in document["clients"]),
    )


def _client(document: Mapping[str, Any], sms: int) -> Client:
    keys = document["count_keys"]
    at, used = keys.index("boot_ns"), keys.index("occupied_ns")
    counts = [(row[at], row[used] / sms / 1e9) for row in document["counts"]]
    return Client(document["pid"], document["name"], Series(counts))
