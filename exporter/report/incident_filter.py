"""A filter of incidents. The command `incidents` imports it without the model, so that the command starts fast."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from exporter.model.incident import Incident


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentFilter:
    """The incident with an `id`; otherwise the newest `limit` incidents, of one daemon, or only open ones."""

    id: str | None = None
    daemon: str | None = None
    open: bool = False
    limit: int

    def apply(self, incidents: "Iterable[Incident]") -> "list[Incident]":
        """Return the incidents that match. They are expected and returned in order, the newest first."""
        if self.id is not None:
            found = (each for each in incidents if each.id == self.id)
        else:
            daemon_matches = (each for each in incidents if self.daemon in (None, each.daemon))
            found = (each for each in daemon_matches if each.open or not self.open)
        return list(islice(found, self.limit))
