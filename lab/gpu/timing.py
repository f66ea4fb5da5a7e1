"""Time until something happens, and CPU time, measured from outside."""

import time
from collections.abc import Callable

import psutil

from tests.eventually import PATIENCE_SECONDS

LOOK_EVERY_SECONDS = 0.05


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


def cpu_ratios(pid: int, seconds: float) -> tuple[float, float]:
    """Measure for so long how many CPUs a process uses, and its children that ended."""
    process = psutil.Process(pid)
    before, began = process.cpu_times(), time.monotonic()
    time.sleep(seconds)  # the measured window, not a wait
    after, lasted = process.cpu_times(), time.monotonic() - began
    own = after.user - before.user + after.system - before.system
    children = after.children_user - before.children_user + after.children_system - before.children_system
    return own / lasted, children / lasted


def stays(check: Callable[[], None], *, for_seconds: float) -> None:
    """Check that something does not change for a while."""
    until = time.monotonic() + for_seconds
    while time.monotonic() < until:
        check()
        time.sleep(0.2)
