"""Makers of what is seen at the doors of libcuda; times are those of the observations."""

from collections.abc import Iterable
from typing import Any

from exporter.model.launches import ProcessWork, WorkReading

SECOND_NS = 1_000_000_000
BOOTED = 1_000_000.0 - 10_000.0
"""When the machine was booted: long before the processes of the other makers began."""

SEEN = 1_000_000.0 + 10


def boot_ns(at: float) -> int:
    """A time, in nanoseconds since boot."""
    return round((at - BOOTED) * SECOND_NS)


def work(pid: int, *, launched: float | None = None, since: float | None = None, **known: Any) -> ProcessWork:
    """What a process has done; `launched` is when last, `since` since when it has work in flight."""
    return ProcessWork(
        pid=pid,
        **{
            "first_ns": boot_ns(BOOTED + 9_000),
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
    """The doors were read, and watched for so long before that: those of whoever has worked, and of these."""
    pids = tuple(dict.fromkeys((*watched, *(each.pid for each in works))))
    return WorkReading(at=at, boot_ns=boot_ns(at), seconds=seconds, sms=sms, lost=lost, processes=works, watched=pids)
