"""One thread, waiting for descriptors, for processes to end, and for the time."""

import heapq
import itertools
import os
import selectors
import time
from collections.abc import Callable

Action = Callable[[], None]


class Loop:
    """Runs actions when a descriptor is readable or a time has come, one after the other."""

    def __init__(self) -> None:
        self._selector = selectors.PollSelector()  # A healthy daemon waits in poll, as the real one.
        self._timers: list[tuple[float, int, Action]] = []
        self._order = itertools.count()
        self._running = False

    def watch(self, descriptor: int, action: Action) -> None:
        """Run ``action`` whenever there is something to read."""
        self._selector.register(descriptor, selectors.EVENT_READ, action)

    def unwatch(self, descriptor: int) -> None:
        """No longer."""
        self._selector.unregister(descriptor)

    def later(self, seconds: float, action: Action) -> None:
        """Run ``action`` once, after so long; 0 means before anything else is read."""
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._order), action))

    def run(self) -> None:
        """Go on until ``stop``."""
        self._running = True
        while self._running:
            self._run_due_timers()
            if self._running:
                for key, _ in self._selector.select(self._until_next_timer()):
                    self._run_if_still_watched(key)

    def stop(self) -> None:
        """Come back from ``run`` after the present action."""
        self._running = False

    def _run_due_timers(self) -> None:
        while self._running and self._timers and self._timers[0][0] <= time.monotonic():
            heapq.heappop(self._timers)[2]()

    def _until_next_timer(self) -> float | None:
        return max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None

    def _run_if_still_watched(self, key: selectors.SelectorKey) -> None:
        """An action may unwatch a descriptor that was found readable together with its own."""
        if self._running and self._selector.get_map().get(key.fd) is key:
            key.data()


class ProcessWatch:
    """Tells, at once, when a process that is not our child has ended."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._descriptors: dict[int, int] = {}

    def watch(self, pid: int, ended: Action) -> None:
        """Run ``ended`` when the process ends. A PID that nobody has never ends: a test may make clients up."""
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
        """Its end is of no interest any more."""
        descriptor = self._descriptors.pop(pid, None)
        if descriptor is not None:
            self._loop.unwatch(descriptor)
            os.close(descriptor)
