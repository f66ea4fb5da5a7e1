"""For how long a server was without the limits that were configured, by the stand-in's own word."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.chaos.slowness import Slowness
from tests.chaos.tenant import ServerNow, UnknownError, ask

LOOK_SECONDS = 0.04
ANSWER_SECONDS = 0.25
IN_FAULT = "FAULT"
"""Such a server takes no clients, and is told nothing until it has recovered."""

STALL_SECONDS = 0.2
"""A longer time between two looks is the machine's, and counts for nobody."""


@dataclass(slots=True)
class Lapse:
    """A server without its limits: for how long, and what it had instead. `began` is of the monotonic clock."""

    server: int
    began: float
    seconds: float = 0.0
    had: str = ""
    slowness: float = 1.0
    """How many times slower than at rest the machine was meanwhile."""


class LimitsWatch:
    """A thread that asks the stand-in, whom that costs no session.

    Time counts while a server is ready, its daemon answers and may be commanded: `may_act` says whether somebody is
    there to do it, and nobody keeps him from it.
    """

    def __init__(
        self, directory: str, percentage: float, memory: str, may_act: Callable[[], bool], slowness: Slowness
    ) -> None:
        self._directory = directory
        self._percentage, self._memory = percentage, memory
        self._may_act = may_act
        self._slowness = slowness
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="limits", daemon=True)
        self._lapse: Lapse | None = None
        self.lapses: list[Lapse] = []
        """Each that has ended, and the present one."""
        self.answered_at: float | None = None
        """When the daemon was asked what it last answered, seconds since the epoch; None: it does not answer now."""
        self.server: ServerNow | None = None
        self.problem: BaseException | None = None

    def open(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """Ask no more."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def answers(self) -> bool:
        """Whether the daemon answers."""
        return self.answered_at is not None

    def begin_anew(self) -> None:
        """An operator has just set a limit: what was to be mended before is another matter."""
        self._lapse = None

    def _run(self) -> None:
        last = time.monotonic()
        try:
            while not self._stop.wait(LOOK_SECONDS):
                asked_at = time.time()
                self.answered_at = asked_at if self._ask() else None
                now = time.monotonic()
                self._count(now - last)
                last = now
        except BaseException as problem:
            self.problem = problem
            raise

    def _ask(self) -> bool:
        try:
            self.server = ServerNow.parse(ask(self._directory, "server", ANSWER_SECONDS))
        except (OSError, UnknownError):
            return False
        return True

    def _count(self, seconds: float) -> None:
        """One that has them, or another one, or one that nobody could have told, begins anew."""
        server = self.server if self.answers else None
        if server is None or not server.ready_at or server.state == IN_FAULT:
            self._lapse = None
            return
        if not self._may_act() or self._is_limited(server):
            self._lapse = None
            return
        if self._lapse is None or self._lapse.server != server.pid:
            self._lapse = Lapse(server.pid, time.monotonic())
            self.lapses.append(self._lapse)
            return
        self._lapse.had = f"{server.percentage:g} %, {server.memory or 'no limit on memory'}"
        self._lapse.slowness = self._slowness.since(self._lapse.began)
        if seconds < STALL_SECONDS:
            self._lapse.seconds += seconds

    def _is_limited(self, server: ServerNow) -> bool:
        return server.percentage == self._percentage and server.memory == self._memory
