"""For how long a server was without the configured limits, as the stand-in itself reports."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.chaos.client_loop import ServerNow
from tests.chaos.poller import Poller
from tests.chaos.slowness import Slowness
from tests.standin.mps import RequestError, ask_side_channel

LOOK_SECONDS = 0.04
ANSWER_SECONDS = 0.25
IN_FAULT = "FAULT"
"""Such a server takes no clients and no commands until it has recovered."""

STALL_SECONDS = 0.2
"""A longer time between two looks is the fault of the machine, and does not count."""


@dataclass(slots=True)
class Lapse:
    """A server without its limits: for how long, and what it had instead. `began` is of the monotonic clock."""

    server: int
    began: float
    seconds: float = 0.0
    had: str = ""
    slowness: float = 1.0
    """How many times slower than at rest the machine was meanwhile."""


class LimitsWatch(Poller):
    """A thread that asks the stand-in, which needs no session for that.

    Time counts while a server is ready, its daemon answers, and the exporter runs and can send commands (`may_act`).
    """

    def __init__(
        self, directory: str, percentage: float, memory: str, may_act: Callable[[], bool], slowness: Slowness
    ) -> None:
        super().__init__(LOOK_SECONDS)
        self._directory = directory
        self._percentage, self._memory = percentage, memory
        self._may_act = may_act
        self._slowness = slowness
        self._looked_at = time.monotonic()
        self._lapse: Lapse | None = None
        self.lapses: list[Lapse] = []
        """Each that has ended, and the present one."""
        self.answered_at: float | None = None
        """When the daemon was asked what it last answered, seconds since the epoch; None: it does not answer now."""
        self.server: ServerNow | None = None

    @property
    def answers(self) -> bool:
        """Whether the daemon answers."""
        return self.answered_at is not None

    def begin_anew(self) -> None:
        """Start a new lapse, because an operator has just set a limit."""
        self._lapse = None

    def look(self) -> None:
        """Ask the stand-in, and count the time since the last look."""
        asked_at = time.time()
        self.answered_at = asked_at if self._ask() else None
        now = time.monotonic()
        self._count(now - self._looked_at)
        self._looked_at = now

    def _ask(self) -> bool:
        try:
            self.server = ServerNow.parse(ask_side_channel(self._directory, "server", ANSWER_SECONDS))
        except (OSError, RequestError):
            return False
        return True

    def _count(self, seconds: float) -> None:
        """A server with its limits, another server, or one that takes no commands ends the lapse."""
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
