"""How long things take to come about, as they are seen from outside."""

import time
from collections.abc import Callable

from tests.eventually import PATIENCE_SECONDS

LOOK_EVERY_SECONDS = 0.02


def seconds_until(*, within: float = PATIENCE_SECONDS, **signs: Callable[[], bool]) -> dict[str, float]:
    """How long from now until each of these is so. They are looked at in turn, each until it is."""
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
    """That nothing happens can only be watched for a while: the check holds all the time."""
    until = time.monotonic() + for_seconds
    while time.monotonic() < until:
        check()
        time.sleep(0.2)
