"""The exposition: the metrics as bytes, written once for each snapshot and encoding. A scrape only sends the bytes.

The thread that publishes a snapshot writes the encodings that were requested recently. Most families do not change
between two snapshots. An unchanged family is not written again, because that costs more than making its samples.
"""

import gzip
import math
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import NamedTuple

from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from exporter.clock import Clock
from exporter.model.values import frozen_positional

WANTED_SECONDS = 300.0
MOST_OFFERS = 64  # A client that sends thousands in each request would delay the scrapes of others.

TEXT, TEXT_1, OPENMETRICS = "", "text/plain; version=1.0.0", "application/openmetrics-text; version=1.0.0"
"""The formats, each as the Accept header that requests nothing else."""

UNESCAPED = "; escaping=allow-utf-8"
"""No name here needs escaping, and prometheus_client is faster if it does not check names."""

Encoding = tuple[str, bool]


@frozen_positional
class _Fixed(Collector):
    metrics: tuple[Metric, ...]

    def collect(self) -> Iterable[Metric]:
        return self.metrics


class Writer:
    """Writes snapshots in the format that an Accept header requests, best in the order of their time."""

    def __init__(self, accept: str) -> None:
        _, self.content_type = choose_encoder(accept)
        self._write, _ = choose_encoder(accept + UNESCAPED if accept else accept)
        self._end = self._write(_Fixed(()))
        self._written: dict[str, tuple[Metric, bytes]] = {}

    def write(self, metrics: Iterable[Metric]) -> bytes:
        """Return the whole exposition. Several threads may call this; each leaves its families for the next."""
        before = self._written
        self._written = after = {metric.name: self._family(metric, before) for metric in metrics}
        return b"".join(text for _, text in after.values()) + self._end

    def _family(self, metric: Metric, before: dict[str, tuple[Metric, bytes]]) -> tuple[Metric, bytes]:
        known = before.get(metric.name)
        if known is not None and (known[0] is metric or known[0] == metric):
            return known
        return metric, self._text(metric)

    def _text(self, metric: Metric) -> bytes:
        return self._write(_Fixed((metric,))).removesuffix(self._end)


class Encoded(NamedTuple):
    """A response body, its content type and its encoding."""

    body: bytes
    content_type: str
    gzipped: bool


class _Snapshot:
    """One snapshot of the metrics. The first thread that needs an encoding writes it; the others wait for it."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._lock = threading.RLock()
        self.written: dict[Encoding, Encoded] = {}

    def metrics(self) -> Sequence[Metric]:
        """Return the metrics. The collector is not kept, because its view of the node is large."""
        with self._lock:
            if not isinstance(self._collector, _Fixed):
                self._collector = _Fixed(tuple(self._collector.collect()))
            return self._collector.metrics

    def encoded(self, encoding: Encoding, writer: Writer) -> Encoded:
        """Return the metrics in an encoding. One that exists does not wait until another is written."""
        if encoding not in self.written:
            with self._lock:
                if encoding not in self.written:
                    body = writer.write(self.metrics())
                    gzipped = encoding[1]
                    text = gzip.compress(body, compresslevel=1) if gzipped else body
                    self.written[encoding] = Encoded(text, writer.content_type, gzipped)
        return self.written[encoding]


class Exposition:
    """The current snapshot in all requested encodings, for several threads. `publish` waits for no scrape."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._snapshot: _Snapshot | None = None
        self._writers = {accept: Writer(accept) for accept in (TEXT, TEXT_1, OPENMETRICS)}
        # All keys exist from the start, so that a thread can read the times while others set them.
        self._requested_at: dict[Encoding, float] = dict.fromkeys(product(self._writers, (False, True)), -math.inf)

    @property
    def ready(self) -> bool:
        """Whether there is a snapshot."""
        return self._snapshot is not None

    def publish(self, collector: Collector) -> None:
        """Set the current snapshot, after it is written in the encodings that were requested recently."""
        snapshot, since = _Snapshot(collector), self._clock.monotonic() - WANTED_SECONDS
        for encoding, at in self._requested_at.items():
            if at >= since:
                snapshot.encoded(encoding, self._writers[encoding[0]])
        self._snapshot = snapshot

    def get(self, accept: str, *, gzipped: bool, write: bool = True) -> Encoded | None:
        """Return the snapshot in the encoding of an Accept header; None before the first snapshot.

        Without `write`, None also if it is not written in that encoding yet.
        """
        snapshot, encoding = self._snapshot, (_format(accept), gzipped)
        self._requested_at[encoding] = self._clock.monotonic()
        if snapshot is None or not (write or encoding in snapshot.written):
            return None
        return snapshot.encoded(encoding, self._writers[encoding[0]])

    def text_of(self, prefix: str) -> str | None:
        """Return families by prefix as text 0.0.4, None at first: node_exporter refuses its own ones in a file."""
        if self._snapshot is None:
            return None
        metrics = self._snapshot.metrics()
        return Writer(TEXT).write(each for each in metrics if each.name.startswith(prefix)).decode()


def _format(accept: str) -> str:
    """Return the available format with the highest quality in an Accept header (RFC 9110), the first of several."""
    best, best_quality = TEXT, 0.0
    for media, parameters in offers(accept):
        if media == "text/plain":
            offer = TEXT_1 if "version=1.0.0" in parameters else TEXT
        elif media == "application/openmetrics-text":
            offer = OPENMETRICS
        else:
            continue
        quality = quality_of(parameters)
        if quality > best_quality:
            best, best_quality = offer, quality
    return best


def offers(header: str) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield the first `MOST_OFFERS` offers of an Accept header, or of one like it, each with its parameters."""
    for offered in header.lower().split(",", MOST_OFFERS)[:MOST_OFFERS]:
        name, *parameters = ("".join(part.split()) for part in offered.split(";"))
        yield name, parameters


def quality_of(parameters: Iterable[str]) -> float:
    """Return the quality (`q=`) among the parameters of an offer; 1 if there is none, 0 if it is invalid."""
    text = next((each[2:] for each in parameters if each.startswith("q=")), "1")
    return float(text) if re.fullmatch(r"0(?:\.\d{0,3})?|1(?:\.0{0,3})?", text, re.ASCII) else 0.0
