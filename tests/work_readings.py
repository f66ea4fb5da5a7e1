"""Makers of what is seen at the doors of libcuda; times are those of the observations."""

from collections.abc import Iterable
from typing import Any

from exporter.model.work import ProcessWork, WorkReading

SECOND_NS = 1_000_000_000
BOOTED = 1_000_000.0 - 10_000.0
"""When the machine was booted: long before the processes of the other makers began."""


def boot_ns(at: float) -> int:
    """A time, in nanoseconds since boot."""
    return round((at - BOOTED) * SECOND_NS)


def work(pid: int, *, launched: float | None = None, flying: float = 0.0, **known: Any) -> ProcessWork:
    """What a process has done; `launched` is when last, `flying` how long its open spans last already."""
    return ProcessWork(
        pid=pid,
        **{
            "first_ns": boot_ns(BOOTED + 9_000),
            "kernels": 0 if launched is None else 1,
            "launched_ns": 0 if launched is None else boot_ns(launched),
            "open_ns": round(flying * SECOND_NS),
            **known,
        },
    )


def reading(at: float, *works: ProcessWork, watched: Iterable[int] = (), seconds: float = 1.0) -> WorkReading:
    """The doors were read, and watched for so long before that: those of whoever has worked, and of these."""
    pids = dict.fromkeys((*watched, *(each.pid for each in works)))
    return WorkReading(at=at, boot_ns=boot_ns(at), seconds=seconds, processes=works, watched=tuple(pids))
