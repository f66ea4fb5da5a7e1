"""How much something matters to whoever looks."""

from enum import StrEnum


class Level(StrEnum):
    """From what is well to what cannot wait."""

    WELL = "well"
    UNKNOWN = "unknown"
    CARE = "care"
    GRAVE = "grave"

    @property
    def rank(self) -> int:
        """The graver, the higher."""
        return tuple(Level).index(self)
