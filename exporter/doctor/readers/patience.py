"""Reading that may hang: a process that is stuck in the driver, or a file server that is gone, answers nobody."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from exporter.doctor.facts import Area

Value = TypeVar("Value")

PATIENCE_SECONDS = 15.0
"""Enough for all that are looked into, on a busy machine."""


def in_time(seconds: float, read: Callable[[], Value]) -> Value | None:
    """What is read; None where that takes longer. What hangs is left to hang, and keeps nobody from ending."""
    brought: Future[Value] = Future()
    threading.Thread(target=lambda: _bring(read, brought), name="read", daemon=True).start()
    try:
        return brought.result(timeout=seconds)
    except TimeoutError:
        return None


def _bring(read: Callable[[], Value], brought: Future[Value]) -> None:
    """Whatever goes wrong is for who waits: an error is not to look like a hang."""
    try:
        brought.set_result(read())
    except Exception as error:  # noqa: BLE001 (it is raised again, by who waits)
        brought.set_exception(error)


class Patience:
    """Has each reading wait for no more than its time, and knows of which areas one hung."""

    def __init__(self, seconds: float = PATIENCE_SECONDS) -> None:
        self._seconds = seconds
        self.hung: list[Area] = []

    def read(self, area: Area, read: Callable[[], Value]) -> Value | None:
        """What is read; None where that hangs, or one of the same area did before."""
        found = None if area in self.hung else in_time(self._seconds, read)
        if found is None and area not in self.hung:
            self.hung.append(area)
        return found
