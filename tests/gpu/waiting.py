"""Waiting for something to become true, instead of sleeping and hoping."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(check: Callable[[], T], *, within: float = 30, every: float = 0.1) -> T:
    """What `check` returns as soon as it no longer fails; its last failure if `within` seconds pass first.

    Only AssertionError means "not yet": anything else will not mend itself by waiting.
    """
    deadline = time.monotonic() + within
    while True:
        try:
            return check()
        except AssertionError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(every)
