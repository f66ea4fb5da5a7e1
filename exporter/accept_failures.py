"""Failures of accept(): a listener counts and logs them, waits, and continues.

A process without free descriptors or memory (EMFILE, ENFILE, ENOMEM) cannot accept a connection now. The connection
stays in the listener's queue. So the loop must not end, and it must not spin.
"""

import threading
from collections.abc import Callable
from errno import EAGAIN, ECONNABORTED, EINTR, EPROTO

import structlog

WAIT_SECONDS = 0.25
LOG_EVERY = 240
"""Attempts to accept for each log record: about one record a minute while all attempts fail."""

_CLIENT_ERRORS = (EAGAIN, ECONNABORTED, EINTR, EPROTO)
"""After these errors the next accept() can succeed at once (accept(2)), so a client cannot use them to delay others."""


class AcceptFailures:
    """The failures of a server's listeners. Safe to use from several threads."""

    def __init__(self, listener: str) -> None:
        self.total = 0
        self._listener = listener
        self._until_logged = 0
        self._lock = threading.Lock()

    def failed(self, error: OSError, wait: Callable[[float], object]) -> None:
        """Count a failure, log some of them, and wait if the next attempt would fail too."""
        ours = error.errno not in _CLIENT_ERRORS
        with self._lock:
            self.total += 1
            logged = ours and self._until_logged == 0
            if ours:
                self._until_logged = LOG_EVERY if logged else self._until_logged - 1
        if logged:
            structlog.get_logger().warning(
                "accept_failed",
                listener=self._listener,
                problem=error.strerror or str(error),
                consequence="connections wait until accept() succeeds",
            )
        if ours:
            wait(WAIT_SECONDS)

    def succeeded(self) -> None:
        """Note an accepted connection. After enough of them, the next failure is logged again."""
        with self._lock:
            self._until_logged = max(0, self._until_logged - 1)
