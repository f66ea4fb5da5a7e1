"""A GPU and its clients, second by second, whether anybody watches or not; and what each has truly used."""

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from exporter.model.observation import Observation
from tests.builders import (
    AT,
    MIB,
    active,
    at_work,
    exited,
    gpu_reading,
    process,
    server_log,
)

USERS = ("alice", "bob", "carol", "dave")
PIDS = (600, 601, 602, 603, 604)
BORN, GONE = 0.25, 0.5
"""How long after a whole second clients come and go; at whole seconds, they are looked at."""

SHARED_EVENLY = 840
"""So many microseconds can be divided by any number of clients there may be."""

RELOADS_EVERY = 97
"""How often the driver is loaded anew, in seconds, and its counter begins at 0."""


@dataclass(frozen=True)
class Tenure:
    """A client: from when until when it has its PID."""

    pid: int
    ticks: int
    user: str
    mib: int
    since: float
    until: float


@dataclass(frozen=True)
class World:
    """What happens in so many seconds."""

    tenures: tuple[Tenure, ...]
    joules: tuple[int, ...]
    busy: tuple[int, ...]

    @classmethod
    def made(cls, chance: random.Random, seconds: int) -> "World":
        """PIDs are used again, at once or later, by others or by the same user."""
        tenures = []
        for pid in PIDS:
            at = chance.randrange(4)
            while at < seconds:
                lasts = chance.randint(2, 40)
                tenures.append(
                    Tenure(pid, at + 1, chance.choice(USERS), chance.randint(1, 900), at + BORN, at + lasts + GONE)
                )
                at += lasts + chance.randint(1, 9)
        joules = tuple(chance.randrange(700) for _ in range(seconds))
        return cls(tuple(tenures), joules, tuple(SHARED_EVENLY * chance.randrange(1000) for _ in range(seconds)))

    def counter(self, second: int) -> int:
        """The driver's own."""
        return sum(self.joules[second - second % RELOADS_EVERY : second + 1])

    def there(self, second: float) -> list[Tenure]:
        """Who has a PID then."""
        return [each for each in self.tenures if each.since <= second < each.until]

    def begins(self, second: int) -> Iterator[Observation]:
        """What one sees who begins to watch."""
        there = self.there(second)
        yield from at_work(*(each.pid for each in there), at=AT + second)
        yield from (self._known(each, AT + second) for each in there)
        yield self._read(second)

    def goes_on(self, second: int) -> Iterator[Observation]:
        """What one sees who watched until the second before."""
        for each in self.tenures:
            if each.until == second - GONE:
                yield exited(each.pid, ticks=each.ticks, at=AT + each.until)
        for each in self.tenures:
            if each.since == second - 1 + BORN:
                yield from server_log(active(each.pid, each.ticks), at=AT + each.since)
                yield self._known(each, AT + each.since)
        yield self._read(second)

    def used(self, begin: int, end: int) -> Counter[str]:
        """What was used between two seconds, by itself: nothing here knows how the books are kept."""
        used: Counter[str] = Counter()
        for second in range(begin + 1, end + 1):
            there = self.there(second)
            for each in there:
                used[f"sm {each.user}"] += self.busy[second] // len(there)
            used["sm"] += self.busy[second]
            used["energy"] += self.joules[second]
        for each in self.tenures:
            held = min(each.until, end) - max(each.since, begin)
            used[f"memory {each.user}"] += max(0, int(1000 * held)) * each.mib * MIB
        return used

    def _known(self, tenure: Tenure, at: float) -> Observation:
        return process(tenure.pid, ticks=tenure.ticks, user=tenure.user, at=at)

    def _read(self, second: int) -> Observation:
        there: Mapping[int, int] = {each.pid: each.mib for each in self.there(second)}
        reading = {"energy_millijoules": self.counter(second), "gpm_supported": True}
        return gpu_reading(there, server=None, at=AT + second, **reading)
