"""How often to publish: at once where something is new, but for no more than a share of all time.

What a person is woken for is not held back by that: such news have a larger share, and seldom need it.
"""

SOON_SECONDS = 0.1
"""How soon after one publication the next may follow, since each is written out."""

QUIET_SECONDS = 10.0
"""How often to publish where nothing is new but that the sources still see; and the longest that news wait."""

SHARE = 0.01
"""What publishing may take of all time, in the long run."""

GRAVE_SHARE = 0.1
"""What publishing may take of the time in which one grave thing follows the other."""

SAVED_SECONDS = 0.25
"""What may be saved up of it, so that the first of many changes are shown as soon as they are seen."""


class Pace:
    """When the next publication is due, by what those before it took."""

    def __init__(self, at: float) -> None:
        self._at = at
        self._saved = SAVED_SECONDS
        self._next_at = self._grave_at = at

    def published(self, began: float, ended: float) -> None:
        """A publication was made."""
        earned = SHARE * (began - self._at)
        self._at = began
        self._saved = max(min(self._saved + earned, SAVED_SECONDS) - (ended - began), -SHARE * QUIET_SECONDS)
        self._next_at = ended + max(SOON_SECONDS, -self._saved / SHARE)
        self._grave_at = ended + max(SOON_SECONDS, (ended - began) / GRAVE_SHARE)

    def wait(self, now: float, *, news: bool, grave: bool = False) -> float:
        """How many seconds to wait before the next one; 0 where it is due."""
        due = self._next_at if news or grave else self._at + QUIET_SECONDS
        due = min(due, self._grave_at) if grave else due
        return max(0.0, due - now)
