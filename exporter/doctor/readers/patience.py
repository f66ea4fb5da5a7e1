"""Reading that may hang: a process that is stuck in the driver, or a file server that is gone, answers nobody."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import TypeVar

from exporter.doctor.facts import Area

Value = TypeVar("Value")

PATIENCE_SECONDS = 15.0
"""Enough for all that are looked into, on a busy machine."""


def in_time(seconds: float, read: Callable[[], Value]) -> Value | None:
    """What is read; None where that takes longer. What hangs is left to hang, and keeps nobody from ending."""
    brought: SimpleQueue[Future[Value]] = SimpleQueue()

    def bring() -> None:
        reading: Future[Value] = Future()
        try:
            reading.set_result(read())
        except Exception as error:  # noqa: BLE001 (it is raised where it is waited for)
            reading.set_exception(error)
        brought.put(reading)

    threading.Thread(target=bring, name="read", daemon=True).start()
    try:
        return brought.get(timeout=seconds).result()
    except Empty:
        return None


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
