"""When what befalls the simulated node, and what is seen of it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from exporter.demo import faults, outages, throngs
from exporter.demo.mishap import Mishap, Planned
from exporter.demo.scene import Scene
from exporter.model.observation import Observation

Befall = Callable[[Scene, float, float], Iterator[Observation]]
"""At a time, for so many seconds, where it lasts."""


@dataclass(frozen=True, slots=True)
class Recurring:
    """One that comes again and again: `first` seconds after the demo begins, or before, and then `every` so many."""

    first: float
    every: float
    mishap: Mishap
    seconds: float = 0.0


STORY = (
    Recurring(-870, 3000, Mishap.HARDWARE_XID, 90),
    Recurring(-800, 2000, Mishap.MEMORY_FULL, 120),
    Recurring(-650, 950, Mishap.UNKNOWN_LINE),
    Recurring(-620, 2600, Mishap.SERVERS_CRASH, 30),
    Recurring(-570, 600, Mishap.FAULT_HELD, 60),
    Recurring(-450, 1660, Mishap.DAEMON_RESTARTS),
    Recurring(-400, 700, Mishap.CONTAINED_FAULT),
    Recurring(-330, 1300, Mishap.SERVER_FULL, 120),
    Recurring(-270, 1200, Mishap.FAULT),
    Recurring(-150, 1500, Mishap.DAEMON_DIES, 45),
    Recurring(-20, 900, Mishap.LIMITS_DRIFT, 120),
    Recurring(-10, 300, Mishap.BYPASS, 90),
    Recurring(2, 800, Mishap.USER_WAITS, 90),
    Recurring(-30, 2400, Mishap.DAEMON_KEEPS_DYING, 180),
    Recurring(12, 400, Mishap.SESSION_HELD, 40),
    Recurring(520, 1700, Mishap.DAEMON_HANGS, 60),
)
"""An hour has all of it, and its first minute most."""

BEFALL: Mapping[Mishap, Befall] = {
    Mishap.FAULT: faults.strike,
    Mishap.FAULT_HELD: faults.strike,
    Mishap.CONTAINED_FAULT: faults.contain,
    Mishap.HARDWARE_XID: faults.fail_memory,
    Mishap.DAEMON_RESTARTS: outages.restart,
    Mishap.DAEMON_DIES: outages.die,
    Mishap.DAEMON_KEEPS_DYING: outages.keep_dying,
    Mishap.DAEMON_HANGS: outages.hang,
    Mishap.SESSION_HELD: outages.hold,
    Mishap.SERVERS_CRASH: outages.crash_servers,
    Mishap.SERVER_FULL: throngs.fill_server,
    Mishap.USER_WAITS: throngs.wait,
    Mishap.LIMITS_DRIFT: throngs.drift,
    Mishap.BYPASS: throngs.bypass,
    Mishap.MEMORY_FULL: throngs.fill_memory,
    Mishap.UNKNOWN_LINE: throngs.say_something_new,
    Mishap.NVML_FAILS: outages.blind,
}


class Calendar:
    """What is due, from the story, and from what was planned."""

    def __init__(self, begins: float, story: Sequence[Recurring]) -> None:
        """The demo begins at this time; nothing is planned yet."""
        self._begins = begins
        self._story = story
        self._planned: list[tuple[float, Planned]] = []

    def expect(self, at: float, plan: Sequence[Planned]) -> None:
        """Have all of a plan befall the node, so long after this time."""
        self._planned += [(at + each.after, each) for each in plan]

    def due(self, scene: Scene, at: float) -> Iterator[Observation]:
        """What befalls the node in this second."""
        after = at - self._begins
        for each in self._story:
            if after >= each.first and (after - each.first) % each.every < 1:
                yield from BEFALL[each.mishap](scene, at, each.seconds)
        for when, planned in self._planned:
            if 0 <= at - when < 1:
                yield from BEFALL[planned.mishap](scene, at, planned.seconds)
