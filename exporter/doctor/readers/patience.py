"""Reading that may hang: of a process that is stuck in the driver, some files in /proc answer nobody."""

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TypeVar

Value = TypeVar("Value")

PATIENCE_SECONDS = 15.0
"""Enough for all that are looked into, on a busy machine."""


def in_time(seconds: float, read: Callable[[], Value]) -> Value | None:
    """What is read; None where that takes longer. What hangs is left to hang, and keeps nobody from ending."""
    brought: SimpleQueue[Value] = SimpleQueue()
    threading.Thread(target=lambda: brought.put(read()), name="read", daemon=True).start()
    try:
        return brought.get(timeout=seconds)
    except Empty:
        return None
