"""Time until something happens, measured from outside."""

import time
from collections.abc import Callable

from tests.eventually import PATIENCE_SECONDS

LOOK_EVERY_SECONDS = 0.02


def seconds_until(*, within: float = PATIENCE_SECONDS, **signs: Callable[[], bool]) -> dict[str, float]:
    """Return the seconds until each check succeeds. The checks are polled in turn."""
    began = time.monotonic()
    taken: dict[str, float] = {}
    while len(taken) < len(signs):
        for name, is_so in signs.items():
            if name not in taken and is_so():
                taken[name] = round(time.monotonic() - began, 3)
        missing = signs.keys() - taken.keys()
        assert not missing or time.monotonic() - began < within, f"not within {within} s: {missing}; {taken}"
        time.sleep(LOOK_EVERY_SECONDS)
    return taken


def stays(check: Callable[[], None], *, for_seconds: float) -> None:
    """Check that something does not change for a while."""
    until = time.monotonic() + for_seconds
    while time.monotonic() < until:
        check()
        time.sleep(0.2)
