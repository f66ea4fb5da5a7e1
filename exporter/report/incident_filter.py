"""Which incidents a command or request asks for. `incidents` imports this without the model, so that it starts fast."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from exporter.model.incident import Incident


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentFilter:
    """Those of one daemon, the open ones, or all: the newest `limit` of them. An `id` asks for that one alone."""

    id: str | None = None
    daemon: str | None = None
    open: bool = False
    limit: int

    def of(self, incidents: "Iterable[Incident]") -> "list[Incident]":
        """The incidents that are meant; they are given, and told, the newest first."""
        return list(islice(self._meant(incidents), self.limit))

    def _meant(self, incidents: "Iterable[Incident]") -> "Iterator[Incident]":
        for each in incidents:
            if self.id is not None:
                meant = each.id == self.id
            else:
                meant = (each.open or not self.open) and self.daemon in (None, each.daemon)
            if meant:
                yield each
