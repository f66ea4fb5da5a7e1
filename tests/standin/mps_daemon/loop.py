"""An event loop in one thread: descriptors, ends of processes, timers."""

import heapq
import itertools
import os
import selectors
import time
from collections.abc import Callable

Action = Callable[[], None]


class Loop:
    """Run actions, one after another, when a descriptor is readable or a timer expires."""

    def __init__(self) -> None:
        self._selector = selectors.PollSelector()  # A healthy daemon waits in poll, like the real one.
        self._timers: list[tuple[float, int, Action]] = []
        self._order = itertools.count()
        self._running = False

    def watch(self, descriptor: int, action: Action) -> None:
        """Run ``action`` whenever the descriptor is readable."""
        self._selector.register(descriptor, selectors.EVENT_READ, action)

    def unwatch(self, descriptor: int) -> None:
        """Stop this."""
        self._selector.unregister(descriptor)

    def later(self, seconds: float, action: Action) -> None:
        """Run ``action`` once after this time; 0: before the next read."""
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._order), action))

    def run(self) -> None:
        """Run until ``stop``."""
        self._running = True
        while self._running:
            self._run_due_timers()
            if self._running:
                for key, _ in self._selector.select(self._until_next_timer()):
                    self._run_if_still_watched(key)

    def stop(self) -> None:
        """Return from ``run`` after the present action."""
        self._running = False

    def _run_due_timers(self) -> None:
        while self._running and self._timers and self._timers[0][0] <= time.monotonic():
            heapq.heappop(self._timers)[2]()

    def _until_next_timer(self) -> float | None:
        return max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None

    def _run_if_still_watched(self, key: selectors.SelectorKey) -> None:
        """Run the action, unless an earlier one has removed the descriptor."""
        if self._running and self._selector.get_map().get(key.fd) is key:
            key.data()


class ProcessWatch:
    """Notification of the end of processes that are not child processes."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._descriptors: dict[int, int] = {}

    def watch(self, pid: int, ended: Action) -> None:
        """Run ``ended`` when the process ends. An unused PID never ends, so tests can simulate clients."""
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            return

        def once() -> None:
            self.unwatch(pid)
            ended()

        self.unwatch(pid)
        self._descriptors[pid] = descriptor
        self._loop.watch(descriptor, once)

    def unwatch(self, pid: int) -> None:
        """Stop watching the process."""
        descriptor = self._descriptors.pop(pid, None)
        if descriptor is not None:
            self._loop.unwatch(descriptor)
            os.close(descriptor)
