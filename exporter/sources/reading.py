"""What a source brings back from one look."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
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


def within(deadline: float, look: Callable[[], Reading]) -> Reading:
    """Look once, for at most `deadline` seconds. What hangs then is left to hang; it keeps nobody from ending."""
    brought: SimpleQueue[Reading] = SimpleQueue()
    threading.Thread(target=lambda: brought.put(look()), name="look", daemon=True).start()
    try:
        return brought.get(timeout=deadline)
    except Empty:
        return Reading(problem=f"no answer for {deadline:g} s")
