"""A thread that looks at something at short intervals."""

import threading
import time


class Poller:
    """Calls `look` until it is closed. An error ends the thread; `problem` then has it."""

    def __init__(self, every: float) -> None:
        self._every = every
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=type(self).__name__, daemon=True)
        self.problem: BaseException | None = None
        self.longest_pause = 0.0
        """The longest time between two looks: how far its times may be wrong."""

    def look(self) -> None:
        """Look once."""
        raise NotImplementedError

    def open(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """Look no more."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        last = time.monotonic()
        try:
            while not self._stop.wait(self._every):
                self.look()
                now = time.monotonic()
                self.longest_pause, last = max(self.longest_pause, now - last), now
        except BaseException as problem:
            self.problem = problem
            raise
