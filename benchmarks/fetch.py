"""Scrapes like those of Prometheus, and their duration."""

import gzip
import http.client
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

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
