"""The exposition as bytes: written once for each snapshot and encoding, so that a scrape only sends them.

An encoding that was asked for lately is written as soon as there is a new snapshot, by whoever publishes it.
"""

import gzip
import threading
from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from exporter.clock import Clock

WANTED_SECONDS = 300.0
MOST_ENCODINGS = 8


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
        self._encoded: dict[Encoding, Encoded] = {}
        self._wanted: dict[Encoding, tuple[float, Callable[[Collector], bytes]]] = {}

    def publish(self, collector: Collector) -> None:
        """Take a new snapshot, and write it in the encodings that were asked for lately."""
        since = self._clock.monotonic() - WANTED_SECONDS
        with self._lock:
            self._wanted = {key: want for key, want in self._wanted.items() if want[0] >= since}
            wanted = dict(self._wanted)
        encoded = {key: _encode(collector, key, write) for key, (_, write) in wanted.items()}
        with self._lock:
            self._collector, self._encoded = collector, encoded

    def get(self, accept: str, *, gzipped: bool) -> Encoded | None:
        """The snapshot in the encoding of an Accept header; None before there is one."""
        write, content_type = choose_encoder(accept)
        key = (content_type, gzipped)
        with self._lock:
            if self._collector is None:
                return None
            if key not in self._wanted and len(self._wanted) >= MOST_ENCODINGS:
                return _encode(self._collector, key, write)
            self._wanted[key] = (self._clock.monotonic(), write)
            if key not in self._encoded:
                self._encoded[key] = _encode(self._collector, key, write)
            return self._encoded[key]


def _encode(collector: Collector, encoding: Encoding, write: Callable[[Collector], bytes]) -> Encoded:
    content_type, gzipped = encoding
    body = write(collector)
    return Encoded(gzip.compress(body, compresslevel=1) if gzipped else body, content_type, gzipped)
