"""How much something matters to whoever looks."""

from enum import StrEnum

from exporter.model.daemon import Daemon, DaemonState

_LOST = (DaemonState.ABSENT, DaemonState.UNRESPONSIVE)


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

    @property
    def words(self) -> str:
        """What is said of a node of which this is the worst."""
        return _WORDS[self]


_WORDS = {
    Level.WELL: "well",
    Level.UNKNOWN: "not known yet",
    Level.CARE: "needs a look",
    Level.GRAVE: "not well",
}


def state_word(daemon: Daemon) -> str:
    """The state of a daemon, or why it has none."""
    return daemon.state or ("unknown" if daemon.supported else "unsupported")


def level_of(daemon: Daemon) -> Level:
    """How a daemon is; the end of one that nobody expects is nobody's outage."""
    if daemon.state is DaemonState.UP:
        return Level.WELL
    if daemon.state is None:
        return Level.UNKNOWN if daemon.supported else Level.CARE
    return Level.GRAVE if daemon.expected and daemon.state in _LOST else Level.CARE
