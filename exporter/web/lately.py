"""Pages that are costly to make: made once for all who ask at about the same time."""

import threading
from collections.abc import Callable

FRESH_SECONDS = 1.0
"""How old a page may be; whoever looks at it does so every few seconds."""

SHARE = 0.1
"""What making a page may take of all time, however many look: the larger it is, the older it may be."""


class Lately:
    """A page that is made anew for whoever asks, but no sooner than that; the others get the one that there is.

    Safe to use from several threads: while it is being made, the others wait for it instead of making it too.
    """

    def __init__(self, make: Callable[[], bytes], monotonic: Callable[[], float]) -> None:
        self._make = make
        self._monotonic = monotonic
        self._making = threading.Lock()
        self._made = b""
        self._due = float("-inf")

    def page(self) -> bytes:
        """The page as it is, or lately was."""
        with self._making:
            began = self._monotonic()
            if began >= self._due:
                self._made = self._make()
                took = self._monotonic() - began
                self._due = began + max(FRESH_SECONDS, took / SHARE)
            return self._made
