"""A real VictoriaMetrics at work on the loopback device, for the tests that need one."""

import json
import math
import struct
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.eventually import answering, eventually
from tests.ports import free_address
from tests.tools import needed

Labels = Mapping[str, str]
Series = tuple[Labels, Sequence[float], Sequence[float]]
"""Labels, values, and their times in seconds."""

STALE = 0x7FF0000000000002
"""The bits of the marker that ends a series (Prometheus, model/value)."""


class Store:
    """VictoriaMetrics at an address."""

    def __init__(self, address: str) -> None:
        self.url = f"http://{address}"

    def read(self, path: str, body: bytes | None = None) -> bytes:
        """Return an answer."""
        with answering(), urllib.request.urlopen(f"{self.url}{path}", data=body, timeout=30) as response:
            answer: bytes = response.read()
        return answer

    def write(self, series: Sequence[Series]) -> None:
        """Write samples, and wait until they can be read."""
        lines = (
            json.dumps({"metric": labels, "values": values, "timestamps": [1000 * each for each in times]})
            for labels, values, times in series
        )
        self.read("/api/v1/import", "\n".join(lines).encode())
        self.flush()

    def write_as_prometheus(self, series: Sequence[Series]) -> None:
        """Write samples as Prometheus' remote write does. NaN is the marker that ends a series."""
        body = b"".join(_field(1, _time_series(*each)) for each in series)
        blocks = (body[start : start + 65536] for start in range(0, len(body), 65536))
        # Snappy with literals alone.
        literals = (b"\xf4" + struct.pack("<H", len(each) - 1) + each for each in blocks)
        self.read("/api/v1/write", _varint(len(body)) + b"".join(literals))
        self.flush()

    def flush(self) -> None:
        """Wait until all that was written can be read."""
        self.read("/internal/force_flush")

    def query(self, expression: str, at: float) -> Sequence[tuple[Labels, float]]:
        """Return the samples of an expression at a time."""
        query = urllib.parse.urlencode({"query": expression, "time": at, "nocache": 1})
        found = json.loads(self.read("/api/v1/query", query.encode()))["data"]["result"]
        return [(each["metric"], float(each["value"][1])) for each in found]

    def samples(self, expression: str, begin: float, end: float, step: float) -> Sequence[tuple[Labels, set[float]]]:
        """Return the times of the samples of an expression."""
        parameters = {"query": expression, "start": begin, "end": end, "step": step, "nocache": 1}
        found = json.loads(self.read("/api/v1/query_range", urllib.parse.urlencode(parameters).encode()))
        return [(each["metric"], {float(at) for at, _ in each["values"]}) for each in found["data"]["result"]]


@contextmanager
def running(directory: Path, *more: str) -> Iterator[Store]:
    """Run it without data."""
    address = free_address()
    options = (f"-storageDataPath={directory / 'data'}", f"-httpListenAddr={address}", "-retentionPeriod=100y", *more)
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen([needed("victoria-metrics"), *options], stdout=log, stderr=log, cwd=directory)
    store = Store(address)
    try:
        eventually(lambda: store.read("/health"))
        yield store
    finally:
        process.kill()
        process.wait()


def _time_series(labels: Labels, values: Sequence[float], times: Sequence[float]) -> bytes:
    """Return a TimeSeries of Prometheus' remote write (prompb/types.proto)."""
    pairs = (_field(1, _field(1, name.encode()) + _field(2, text.encode())) for name, text in sorted(labels.items()))
    samples = (
        _field(2, b"\x09" + _bits(value) + b"\x10" + _varint(round(1000 * at)))
        for value, at in zip(values, times, strict=True)
    )
    return b"".join(pairs) + b"".join(samples)


def _bits(value: float) -> bytes:
    return struct.pack("<Q", STALE) if math.isnan(value) else struct.pack("<d", value)


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    digits = bytearray()
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*digits, number])
