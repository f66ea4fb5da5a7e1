"""Whose word a daemon's name is."""

from enum import StrEnum


class NamedBy(StrEnum):
    """Whose word a daemon's name is, the lightest first."""

    DISCOVERED = "discovered"
    DEVICE_PLUGIN = "device_plugin"
    UNIT = "unit"
    CONFIGURATION = "configuration"

    @property
    def weight(self) -> int:
        """The heavier word stands."""
        return tuple(NamedBy).index(self)
