"""When processes end, by pidfd."""

import os
import select
import threading
import time

from lab.gpu.child import Child

ROUND_MS = 10
LATE_REAPING_SECONDS = 0.05


class Watcher:
    """Observe processes in a thread. The parent reaps them at once or a little later."""

    def __init__(self, *, reaps_at_once: bool) -> None:
        self.reaps_at_once = reaps_at_once
        self._watched: dict[int, Child] = {}
        self._ended: dict[int, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def watch(self, child: Child) -> None:
        """Observe a process until its end."""
        self._watched = {**self._watched, os.pidfd_open(child.pid): child}
        if self.reaps_at_once:
            threading.Thread(target=child.wait, args=(None,), daemon=True).start()

    def running(self) -> list[Child]:
        """Return the processes that have not ended."""
        return [child for child in self._watched.values() if child.pid not in self._ended]

    def ended(self, pid: int) -> float | None:
        """Return when a process ended."""
        return self._ended.get(pid)

    def close(self) -> None:
        """Stop."""
        self._stop.set()
        self._thread.join()
        for pidfd in self._watched:
            os.close(pidfd)

    def _run(self) -> None:
        while not self._stop.is_set():
            poll = select.poll()
            watched = self._watched
            for pidfd, child in watched.items():
                if child.pid not in self._ended:
                    poll.register(pidfd, select.POLLIN)
            for pidfd, _ in poll.poll(ROUND_MS):
                self._ended[watched[pidfd].pid] = round(time.time(), 4)
            for child in watched.values() if not self.reaps_at_once else ():
                if time.time() - self._ended.get(child.pid, time.time()) > LATE_REAPING_SECONDS:
                    child.exit_code  # noqa: B018  (this reaps it)
