"""CPU time and memory of a process, measured from outside, and the duration of scrapes."""

import gzip
import http.client
import os
import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MEBIBYTE = 1 << 20

_SCHEDULED_TIME = 2
"""CPUCLOCK_SCHED of linux/posix-timers.h: nanoseconds of all threads of a process, ended ones included."""


@dataclass(frozen=True, slots=True)
class Cpu:
    """CPU seconds of a process and of its ended children."""

    own: float
    children: float

    @property
    def all(self) -> float:
        """The sum of both."""
        return self.own + self.children

    def since(self, before: "Cpu") -> "Cpu":
        """Return the use since `before`."""
        return Cpu(self.own - before.own, self.children - before.children)


def cpu(pid: int) -> Cpu:
    """Return the CPU time of a process. That of children has the resolution of kernel ticks (10 ms as a rule)."""
    own = time.clock_gettime((~pid << 3) | _SCHEDULED_TIME)
    ticks = [int(field) for field in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[13:15]]
    return Cpu(own, sum(ticks) / os.sysconf("SC_CLK_TCK"))


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process in MiB, shared memory included."""
    found = re.search(r"^VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    if found is None:
        raise ProcessLookupError(f"process {pid} has no memory any more")
    return int(found[1]) * 1024 / MEBIBYTE


HEADERS = {
    "Accept": "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,"
    "text/plain;version=1.0.0;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
    "Accept-Encoding": "gzip",
}
"""Header of Prometheus (scrape/scrape.go)."""

PATIENCE_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Fetched:
    """A body, and the seconds from the connection's first packet to the last byte."""

    body: bytes
    seconds: float

    @property
    def text(self) -> str:
        """The body as text, decompressed."""
        return (gzip.decompress(self.body) if self.body.startswith(b"\x1f\x8b") else self.body).decode()


def fetch(port: int, path: str = "/metrics") -> Fetched:
    """Send one GET on a new connection."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)
    began = time.perf_counter()
    try:
        connection.request("GET", path, headers=HEADERS)
        answer = connection.getresponse()
        body = answer.read()
    finally:
        connection.close()
    seconds = time.perf_counter() - began
    if answer.status != http.client.OK:
        raise ConnectionError(f"{path}: {answer.status}: {body[:200]!r}")
    return Fetched(body, seconds)


def percentile(seconds: Sequence[float], percent: int) -> float:
    """Return a percentile of measurements."""
    return statistics.quantiles(seconds, n=100, method="inclusive")[percent - 1]
