"""How much is kept."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long, in seconds, and how many of each. An incident that is open has no age."""

    max_age: float = 30 * 86400.0
    max_incidents: int = 1000
    max_events: int = 10_000
