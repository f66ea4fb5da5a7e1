"""Builders of readings of the libcuda probes. Times are those of observations."""

from collections.abc import Iterable
from typing import Any

from exporter.model.launches import ProcessWork, WorkReading

SECOND_NS = 1_000_000_000
BOOTED = 1_000_000.0 - 10_000.0
"""Time of the boot: long before the start of the processes of the other builders."""

SEEN = 1_000_000.0 + 10


def boot_ns(at: float) -> int:
    """Convert a time to nanoseconds since boot."""
    return round((at - BOOTED) * SECOND_NS)


def work(pid: int, *, launched: float | None = None, since: float | None = None, **known: Any) -> ProcessWork:
    """Return the work of a process: time of its last launch, and since when it has work in flight."""
    return ProcessWork(
        pid=pid,
        **{
            "first_ns": boot_ns(BOOTED + 9_000),
            "initialized_ns": boot_ns(BOOTED + 9_000),
            "kernels": 0 if launched is None else 1,
            "launched_ns": 0 if launched is None else boot_ns(launched),
            "open_ns": 0 if since is None else boot_ns(SEEN) - boot_ns(since),
            "open_since_ns": 0 if since is None else boot_ns(since),
            **known,
        },
    )


def reading(
    at: float, *works: ProcessWork, watched: Iterable[int] = (), seconds: float = 1.0, lost: int = 0, sms: int = 0
) -> WorkReading:
    """Return a reading over the last `seconds`, of the processes of `works` and of those `watched`."""
    pids = tuple(dict.fromkeys((*watched, *(each.pid for each in works))))
    return WorkReading(at=at, boot_ns=boot_ns(at), seconds=seconds, sms=sms, lost=lost, processes=works, watched=pids)
