"""What a listener does when accept() fails: it counts and logs the failure, waits, and goes on.

A process without free descriptors or memory (EMFILE, ENFILE, ENOMEM) cannot accept a connection now. The connection
stays in the listener's queue. So the loop must not end, and it must not spin.
"""

import threading
from collections.abc import Callable
from errno import EAGAIN, ECONNABORTED, EINTR, EPROTO

import structlog

WAIT_SECONDS = 0.25
LOGGED_EVERY = 240
"""One log record in so many attempts to accept: about one a minute while all of them fail."""

_OF_THE_CLIENT = (EAGAIN, ECONNABORTED, EINTR, EPROTO)
"""After these errors the next accept() can succeed at once (accept(2)), so a client cannot slow others down by them."""


class AcceptFailures:
    """The failures of a server's listeners. Safe to use from several threads."""

    def __init__(self, listener: str) -> None:
        self.total = 0
        self._listener = listener
        self._until_logged = 0
        self._lock = threading.Lock()

    def failed(self, error: OSError, wait: Callable[[float], object]) -> None:
        """Count a failure, log it unless one was logged lately, and wait if the next attempt would fail too."""
        with self._lock:
            self.total += 1
        if error.errno in _OF_THE_CLIENT:
            return
        if self._is_logged():
            structlog.get_logger().warning(
                "accept_failed",
                listener=self._listener,
                problem=error.strerror or str(error),
                consequence="connections wait until accept() succeeds",
            )
        wait(WAIT_SECONDS)

    def succeeded(self) -> None:
        """Note that a connection was accepted: after enough of them, the next failure is logged again."""
        with self._lock:
            self._until_logged = max(0, self._until_logged - 1)

    def _is_logged(self) -> bool:
        with self._lock:
            logged = self._until_logged == 0
            self._until_logged = LOGGED_EVERY if logged else self._until_logged - 1
        return logged
