"""Prometheus and VictoriaMetrics at work: samples are written by remote write, with stale markers, and queried."""

import json
import struct
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

from benchmarks.fleet.samples import Exposed, Sample, Series
from benchmarks.measure import cpu
from tests.eventually import answering, eventually
from tests.ports import free_address
from tests.tools import needed

JOB = "cuda-mps-exporter"
STALE = struct.unpack("<d", struct.pack("<Q", 0x7FF0000000000002))[0]
LONGEST_ANSWER = 600.0

Result = Mapping[frozenset[tuple[str, str]], float]
"""Values by the labels of their series."""


class Store(ABC):
    """A server that speaks PromQL, with its data in a directory; ended with its context."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.name = type(self).__name__
        self._directory, self._options = directory, options
        self.address = free_address()

    @abstractmethod
    def command(self) -> Sequence[str]:
        """Return the command that starts it."""

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True, exist_ok=True)
        with (self._directory / "log").open("wb") as log:
            self.process = subprocess.Popen(self.command(), stdout=log, stderr=log, cwd=self._directory)
        eventually(self._is_ready)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()

    def _is_ready(self) -> None:
        if self.process.poll() is not None:
            raise RuntimeError((self._directory / "log").read_text())
        with answering():
            urllib.request.urlopen(f"http://{self.address}/-/ready").close()

    def get(self, path: str, **parameters: str | float) -> Any:
        """Return the data of an answer."""
        body = urllib.parse.urlencode({**parameters, "nocache": 1}).encode() if parameters else None
        return json.loads(_post(f"http://{self.address}/api/v1/{path}", body))["data"]

    def query(self, expression: str, at: float | None = None) -> Result:
        """Return the values of an expression at a time."""
        found = self.get("query", query=expression, **({} if at is None else {"time": at}))
        if found["resultType"] == "scalar":
            return {frozenset(): float(found["result"][1])}
        return {frozenset(each["metric"].items()): float(each["value"][1]) for each in found["result"]}

    def seconds(self, expression: str, began: float, ended: float, step: float = 0, *, times: int = 2) -> float:
        """Return the least time that a range query takes, or an instant query if the step is 0.

        It is CPU time, if that is less than the time until the answer: other programs may delay it.
        """
        took = []
        for _ in range(times):
            before, cpu_before = time.perf_counter(), cpu(self.process.pid)
            if step:
                self.get("query_range", query=expression, start=began, end=ended, step=step)
            else:
                self.get("query", query=expression, time=ended)
            took += [time.perf_counter() - before, cpu(self.process.pid).since(cpu_before).own]
        return min(took)

    def write(self, series: Iterable[bytes]) -> None:
        """Send series by remote write."""
        write_to(self.address, series)

    @abstractmethod
    def settle(self) -> None:
        """Make what was written visible."""


def write_to(address: str, series: Iterable[bytes]) -> None:
    """Send series to a store by remote write."""
    headers = {
        "Content-Encoding": "snappy",
        "Content-Type": "application/x-protobuf",
        "X-Prometheus-Remote-Write-Version": "0.1.0",
    }
    _post(f"http://{address}/api/v1/write", _uncompressed_snappy(b"".join(_field(1, each) for each in series)), headers)


def _post(url: str, body: bytes | None, headers: Mapping[str, str] | None = None) -> bytes:
    request = urllib.request.Request(url, data=body, headers=dict(headers or {}))  # noqa: S310 (the loopback)
    try:
        with urllib.request.urlopen(request, timeout=LONGEST_ANSWER) as response:  # noqa: S310 (the loopback)
            answer: bytes = response.read()
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"{url}: {error.read()[:500]!r}") from error
    return answer


class Prometheus(Store):
    """Prometheus. It scrapes what its configuration names, and accepts remote writes of any time."""

    def __init__(self, directory: Path, configuration: Mapping[str, Any], *options: str) -> None:
        super().__init__(directory, *options)
        self._configuration = {"storage": {"tsdb": {"out_of_order_time_window": "1000d"}}, **configuration}

    def command(self) -> Sequence[str]:
        """Return the command that starts it."""
        file = self._directory / "prometheus.yml"
        file.write_text(json.dumps(self._configuration))  # YAML holds all of JSON
        return (
            needed("prometheus"),
            f"--config.file={file}",
            f"--storage.tsdb.path={self._directory / 'data'}",
            "--storage.tsdb.retention.time=100y",
            "--web.enable-remote-write-receiver",
            f"--query.timeout={LONGEST_ANSWER:.0f}s",
            f"--web.listen-address={self.address}",
            *self._options,
        )

    def settle(self) -> None:
        """Do nothing: what was written is visible."""


class VictoriaMetrics(Store):
    """VictoriaMetrics, as one process."""

    def command(self) -> Sequence[str]:
        """Return the command that starts it."""
        return (
            needed("victoria-metrics"),
            f"-storageDataPath={self._directory / 'data'}",
            "-retentionPeriod=100y",
            f"-search.maxQueryDuration={LONGEST_ANSWER:.0f}s",
            f"-httpListenAddr={self.address}",
            *self._options,
        )

    def settle(self) -> None:
        """Make what was written visible."""
        urllib.request.urlopen(f"http://{self.address}/internal/force_flush").close()


def scraped(node: Exposed, times: Sequence[float]) -> Iterator[bytes]:
    """Yield the series of a node as if it was scraped at these times, with a stale marker where a series ends.

    The last time only ends the series that are not there any more: it is the first of the next call.
    """
    values: dict[Series, list[tuple[float, float]]] = {}
    before: set[Series] = set()
    for at in times:
        now: list[Sample] = list(node.samples(at))
        if node.node.began <= at < node.node.ended:
            now.append((node.series("up"), float(bool(now))))
        shown = {series for series, _ in now}
        for series in before - shown:
            values[series].append((at, STALE))
        before = shown
        if at != times[-1]:
            for series, value in now:
                values.setdefault(series, []).append((at, value))
    for series, samples in values.items():
        yield _encoded_labels(series, node.node.instance) + _encoded_samples(samples)


@lru_cache(maxsize=100_000)
def _encoded_labels(series: Series, instance: str) -> bytes:
    return _encoded({"__name__": series.name, "job": JOB, "instance": instance, **series.labels})


def time_series(labels: Mapping[str, str], samples: Iterable[tuple[float, float]]) -> bytes:
    """Return a series in the format of remote write. Times are in seconds."""
    return _encoded(labels) + _encoded_samples(samples)


def _encoded(labels: Mapping[str, str]) -> bytes:
    return b"".join(
        _field(1, _field(1, name.encode()) + _field(2, value.encode()))
        for name, value in sorted(labels.items())
        if value
    )


def _encoded_samples(samples: Iterable[tuple[float, float]]) -> bytes:
    """Return samples of a series: each is a field of 16 bytes, with the value and the time in milliseconds."""
    return b"".join(struct.pack("<3sd7s", b"\x12\x10\x09", value, _time(at)) for at, value in samples)


@lru_cache(maxsize=10_000)
def _time(at: float) -> bytes:
    return b"\x10" + _varint(round(1000 * at))


def _field(number: int, content: bytes) -> bytes:
    return bytes((number << 3 | 2,)) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def _uncompressed_snappy(content: bytes) -> bytes:
    """Return the content as one literal."""
    return _varint(len(content)) + b"\xfc" + struct.pack("<I", len(content) - 1) + content
