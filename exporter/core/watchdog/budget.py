"""How often a daemon may be restarted, how soon again, and the circuit breaker that says: no more."""

from exporter.core.watchdog.matter import Told
from exporter.model.event import Event, EventName
from exporter.model.reason import Reason
from exporter.model.replace import replace
from exporter.model.settings import Rules
from exporter.model.watch import Watch

FAILED_IN_A_ROW = 3
"""So many restarts that did not bring the daemon back open the breaker, whatever is left of the budget."""

_MOST_DOUBLINGS = 32


def spent(watch: Watch, rules: Rules, at: float) -> int:
    """How many restarts there were within the window, whoever did them."""
    return sum(at - each < rules.window for each in watch.restarts)


def left(watch: Watch, rules: Rules, at: float) -> int:
    """How many more there may be now: none while the breaker is open."""
    return 0 if watch.opened_at is not None else max(0, rules.restarts - spent(watch, rules, at))


def backoff(times: int, rules: Rules, chance: float) -> float:
    """How long to wait before the next restart, in seconds, where there were so many within the window.

    None of them can have helped for long. The first comes at once.
    """
    if times == 0:
        return 0.0
    seconds = rules.backoff * 2.0 ** min(times - 1, _MOST_DOUBLINGS)
    return min(seconds, rules.longest_backoff) * (1 + chance / 4)


def pruned(watch: Watch, rules: Rules, at: float) -> Watch:
    """Without the restarts that count no more."""
    kept = tuple(each for each in watch.restarts if at - each < rules.window)
    return watch if len(kept) == len(watch.restarts) else replace(watch, restarts=kept)


def opened(watch: Watch, daemon: str, at: float, reason: Reason) -> Told:
    """Open the breaker: the daemon is not restarted until an operator resumes it, or it was well for a whole window."""
    if watch.opened_at is not None:
        return watch, ()
    return replace(watch, opened_at=at), (Event(at=at, event=EventName.CIRCUIT_OPENED, daemon=daemon, reason=reason),)


def closed(watch: Watch, daemon: str, at: float, reason: Reason) -> Told:
    """Close the breaker."""
    if watch.opened_at is None:
        return watch, ()
    return replace(watch, opened_at=None), (Event(at=at, event=EventName.CIRCUIT_CLOSED, daemon=daemon, reason=reason),)
