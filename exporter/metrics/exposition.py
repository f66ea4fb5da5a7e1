"""The exposition: the metrics as bytes, written once for each snapshot and encoding. A scrape only sends the bytes.

The thread that publishes a snapshot writes the encodings that were requested recently. Most families do not change
between two snapshots. An unchanged family is not written again, because that costs more than making its samples.
"""

import gzip
import re
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from exporter.clock import Clock

WANTED_SECONDS = 300.0

TEXT, TEXT_1, OPENMETRICS = "", "text/plain; version=1.0.0", "application/openmetrics-text; version=1.0.0"
"""The formats, each as the Accept header that requests nothing else."""

UNESCAPED = "; escaping=allow-utf-8"
"""No name here needs escaping, and prometheus_client is faster if it does not check names."""

Encoding = tuple[str, bool]


@dataclass(frozen=True, slots=True)
class _Fixed(Collector):
    """A collector of metrics that exist."""

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


@dataclass(frozen=True, slots=True)
class Encoded:
    """A response body, its content type and its encoding."""

    body: bytes
    content_type: str
    gzipped: bool


class Exposition:
    """The current snapshot in all requested encodings. Several threads may use it."""

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
        """Set the current snapshot, and write it in the encodings that were requested recently."""
        since = self._clock.monotonic() - WANTED_SECONDS
        with self._lock:
            self._wanted = {encoding: at for encoding, at in self._wanted.items() if at >= since}
            wanted = tuple(self._wanted)
        metrics = tuple(collector.collect()) if wanted else None
        encoded = {} if metrics is None else {encoding: self._encode(metrics, encoding) for encoding in wanted}
        with self._lock:
            self._collector, self._metrics, self._encoded = collector, metrics, encoded

    def get(self, accept: str, *, gzipped: bool) -> Encoded | None:
        """Return the snapshot in the encoding of an Accept header; None before the first snapshot."""
        encoding = (_format(accept), gzipped)
        with self._lock:
            metrics = self._current()
            if metrics is None:
                return None
            self._wanted[encoding] = self._clock.monotonic()
            if encoding not in self._encoded:
                self._encoded[encoding] = self._encode(metrics, encoding)
            return self._encoded[encoding]

    def text_of(self, prefix: str) -> str | None:
        """Return the families with this prefix as text 0.0.4; None before the first snapshot.

        node_exporter fails if a file for it has its own families again, such as `process_open_fds`.
        """
        with self._lock:
            metrics = self._current()
        if metrics is None:
            return None
        return Writer(TEXT).write(each for each in metrics if each.name.startswith(prefix)).decode()

    def _current(self) -> Sequence[Metric] | None:
        """Return the metrics of the current snapshot. The caller holds the lock."""
        if self._metrics is None and self._collector is not None:
            self._metrics = tuple(self._collector.collect())
        return self._metrics

    def _encode(self, metrics: Sequence[Metric], encoding: Encoding) -> Encoded:
        accept, gzipped = encoding
        writer = self._writers[accept]
        body = writer.write(metrics)
        return Encoded(gzip.compress(body, compresslevel=1) if gzipped else body, writer.content_type, gzipped)


def _format(accept: str) -> str:
    """Return the available format with the highest quality in an Accept header (RFC 9110), the first of several."""
    best, best_quality = TEXT, 0.0
    for offered in accept.lower().split(","):
        media, *parameters = (part.replace(" ", "") for part in offered.split(";"))
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


def quality_of(parameters: Iterable[str]) -> float:
    """Return the quality (`q=`) among the parameters of an offer; 1 if there is none, 0 if it is invalid."""
    text = next((each[2:] for each in parameters if each.startswith("q=")), "1")
    return float(text) if re.fullmatch(r"0(?:\.\d{0,3})?|1(?:\.0{0,3})?", text, re.ASCII) else 0.0
