"""Waiting for something to become true, instead of sleeping and hoping."""

import time
import urllib.error
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

Value = TypeVar("Value")

PATIENCE_SECONDS = 120.0
"""Bounds a failure only: a passing test never waits so long, however busy the machine is."""


def eventually(check: Callable[[], Value], *, within: float = PATIENCE_SECONDS, every: float = 0.02) -> Value:
    """What `check` returns as soon as it no longer fails; its last failure if `within` seconds pass first.

    Only AssertionError means "not yet": any other error does not go away by waiting.
    """
    deadline = time.monotonic() + within
    while True:
        try:
            return check()
        except AssertionError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(every)


def until(holds: Callable[[], object]) -> None:
    """Wait until a condition holds."""

    def check() -> None:
        assert holds()

    eventually(check)


@contextmanager
def answering() -> Iterator[None]:
    """Raise AssertionError, which means "not yet", if a server is not reached or refuses."""
    try:
        yield
    except OSError as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        raise AssertionError(f"not yet: {error}") from error
