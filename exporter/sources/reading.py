"""What a source brings back from one look."""

import contextlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue

from exporter.model.observation import Observation


@dataclass(frozen=True, slots=True)
class Reading:
    """Observations, and the problem that kept the source from seeing all it should, in words for a person.

    `more` says that it left something unread, so as not to bring too much at once. `idle` says that the source has
    nothing to look at until something is wanted of it.
    """

    observations: tuple[Observation, ...] = ()
    problem: str | None = None
    more: bool = False
    idle: bool = False


def all_within(
    deadline: float, looks: Mapping[str, Callable[[], Reading]], monotonic: Callable[[], float]
) -> Mapping[str, Reading]:
    """Look once with each of these at the same time, for at most `deadline` seconds in all, as `within` does."""
    brought: SimpleQueue[tuple[str, Reading]] = SimpleQueue()
    for name, look in looks.items():
        threading.Thread(target=partial(_put, brought, name, look), name="look", daemon=True).start()
    readings = {name: Reading(problem=f"no answer for {deadline:g} s") for name in looks}
    ends = monotonic() + deadline
    with contextlib.suppress(Empty):
        for _ in looks:
            name, reading = brought.get(timeout=max(0.0, ends - monotonic()))
            readings[name] = reading
    return readings


def _put(brought: SimpleQueue[tuple[str, Reading]], name: str, look: Callable[[], Reading]) -> None:
    brought.put((name, look()))


def within(deadline: float, look: Callable[[], Reading]) -> Reading:
    """Look once, for at most `deadline` seconds. What hangs then is left to hang; it keeps nobody from ending."""
    brought: SimpleQueue[Reading] = SimpleQueue()
    threading.Thread(target=lambda: brought.put(look()), name="look", daemon=True).start()
    try:
        return brought.get(timeout=deadline)
    except Empty:
        return Reading(problem=f"no answer for {deadline:g} s")
