"""The exposition as bytes: written once for each snapshot and encoding, so that a scrape only sends them.

An encoding that was asked for lately is written as soon as there is a new snapshot, by whoever publishes it.
"""

import gzip
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from exporter.clock import Clock
from exporter.metrics.writer import Writer

WANTED_SECONDS = 300.0

TEXT, TEXT_1, OPENMETRICS = "", "text/plain; version=1.0.0", "application/openmetrics-text; version=1.0.0"
"""The formats that are served, each as the Accept header that asks for it and nothing else."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A body, and what a client must be told of it."""

    body: bytes
    content_type: str
    gzipped: bool


Encoding = tuple[str, bool]


class Exposition:
    """The current snapshot in every encoding that somebody wants. Safe to use from several threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._collector: Collector | None = None
        self._metrics: Sequence[Metric] | None = None
        self._encoded: dict[Encoding, Encoded] = {}
        self._wanted: dict[Encoding, float] = {}
        self._writers = {accept: Writer(accept) for accept in (TEXT, TEXT_1, OPENMETRICS)}

    @property
    def ready(self) -> bool:
        """Whether there is a snapshot."""
        return self._collector is not None

    def publish(self, collector: Collector) -> None:
        """Take a new snapshot, and write it in the encodings that were asked for lately."""
        since = self._clock.monotonic() - WANTED_SECONDS
        with self._lock:
            self._wanted = {encoding: at for encoding, at in self._wanted.items() if at >= since}
            wanted = tuple(self._wanted)
        metrics = tuple(collector.collect()) if wanted else None
        encoded = {} if metrics is None else {encoding: self._encode(metrics, encoding) for encoding in wanted}
        with self._lock:
            self._collector, self._metrics, self._encoded = collector, metrics, encoded

    def get(self, accept: str, *, gzipped: bool) -> Encoded | None:
        """The snapshot in the encoding of an Accept header; None before there is one."""
        encoding = (_format(accept), gzipped)
        with self._lock:
            if self._collector is None:
                return None
            self._wanted[encoding] = self._clock.monotonic()
            if self._metrics is None:
                self._metrics = tuple(self._collector.collect())
            if encoding not in self._encoded:
                self._encoded[encoding] = self._encode(self._metrics, encoding)
            return self._encoded[encoding]

    def _encode(self, metrics: Sequence[Metric], encoding: Encoding) -> Encoded:
        accept, gzipped = encoding
        writer = self._writers[accept]
        body = writer.write(metrics)
        return Encoded(gzip.compress(body, compresslevel=1) if gzipped else body, writer.content_type, gzipped)


def _format(accept: str) -> str:
    """The first format in an Accept header that is served here. No name here needs any escaping."""
    for offered in accept.lower().split(","):
        media, *parameters = (part.strip() for part in offered.split(";"))
        if media == "application/openmetrics-text":
            return OPENMETRICS
        if media == "text/plain":
            return TEXT_1 if "version=1.0.0" in parameters else TEXT
    return TEXT
