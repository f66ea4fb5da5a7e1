"""Writes snapshots in one format. A family that has not changed since the last one is not written again.

Writing a sample costs more than making it, and between two snapshots of a node most families stay as they are.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

UNESCAPED = "; escaping=allow-utf-8"
"""No name here needs any escaping, and the library is quicker where it need not look for what does."""


class Writer:
    """Writes in the format that an Accept header asks for; the snapshots should follow one another in time."""

    def __init__(self, accept: str) -> None:
        _, self.content_type = choose_encoder(accept)
        self._write, _ = choose_encoder(accept + UNESCAPED if accept else accept)
        self._end = self._write(_Only(()))
        self._written: dict[str, tuple[Metric, bytes]] = {}

    def write(self, metrics: Iterable[Metric]) -> bytes:
        """The whole exposition. Safe to use from several threads, each of which leaves its families for the next."""
        before = self._written
        self._written = after = {metric.name: self._family(metric, before) for metric in metrics}
        return b"".join(text for _, text in after.values()) + self._end

    def _family(self, metric: Metric, before: dict[str, tuple[Metric, bytes]]) -> tuple[Metric, bytes]:
        known = before.get(metric.name)
        if known is not None and (known[0] is metric or known[0] == metric):
            return known
        return metric, self._text(metric)

    def _text(self, metric: Metric) -> bytes:
        return self._write(_Only((metric,))).removesuffix(self._end)


@dataclass(frozen=True, slots=True)
class _Only(Collector):
    """A collector of what is there already."""

    metrics: tuple[Metric, ...]

    def collect(self) -> Iterable[Metric]:
        return self.metrics
