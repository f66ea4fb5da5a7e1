"""How long to wait for a process: until it ends, or its time is over, or everything is broken off."""

import contextlib
import os
import select
import threading
from collections.abc import Callable, Iterator

from exporter.clock import Clock

_SLICE_SECONDS = 0.1
"""How soon it is seen that everything is broken off."""


class Patience:
    """Waits for processes. To be shared by all who do, so that they can be told together to wait no longer."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._ends: list[Callable[[], None]] = []

    def end(self) -> None:
        """Wait for nothing any more."""
        with self._lock:
            self._over.set()
            for end in self._ends:
                end()

    @contextlib.contextmanager
    def ended_by(self, end: Callable[[], None]) -> Iterator[None]:
        """What waits in here for something else is told by this to end, where everything is broken off."""
        with self._lock:
            self._ends.append(end)
            if self.over:
                end()
        try:
            yield
        finally:
            with self._lock:
                self._ends.remove(end)

    @property
    def over(self) -> bool:
        """Whether nothing is waited for any more, and nothing to be begun."""
        return self._over.is_set()

    def rest(self, seconds: float) -> None:
        """Wait for so long."""
        self._over.wait(seconds)

    def until_end(self, descriptor: int, seconds: float, *, grace: float = 0.0) -> bool:
        """Wait for the end of the process of this pidfd, at most so long; whether it came.

        `grace` is how long, at most, it is waited for all the same where everything is broken off.
        """
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        ends = self._clock.monotonic() + seconds
        graced = False
        while True:
            now = self._clock.monotonic()
            if self.over and not graced:
                ends, graced = min(ends, now + grace), True
            if poll.poll(max(0.0, min(_SLICE_SECONDS, ends - now)) * 1000):
                return True
            if now >= ends:
                return False

    def until_end_of(self, pid: int, seconds: float, *, grace: float = 0.0) -> bool:
        """The same of a child of this process, which has not been collected yet."""
        descriptor = os.pidfd_open(pid)
        try:
            return self.until_end(descriptor, seconds, grace=grace)
        finally:
            os.close(descriptor)
