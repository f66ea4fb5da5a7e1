"""A GPU and its clients, second by second, whether an exporter runs or not, and what each client has truly used."""

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
CONNECTED, EXITED = 0.25, 0.5
"""How long after a whole second clients connect and exit. The exporter looks at whole seconds."""

SHARED_EVENLY = 840
"""So many microseconds can be divided by any possible number of clients."""

RELOADS_EVERY = 97
"""How often the driver is loaded anew, in seconds, so that its energy counter begins at 0."""


@dataclass(frozen=True)
class TimelineClient:
    """A client, from its connection to its exit."""

    pid: int
    ticks: int
    user: str
    mib: int
    since: float
    until: float


@dataclass(frozen=True)
class GpuTimeline:
    """All clients, and the energy in millijoules and busy microseconds of each second."""

    all_clients: tuple[TimelineClient, ...]
    millijoules: tuple[int, ...]
    busy: tuple[int, ...]

    @classmethod
    def random(cls, chance: random.Random, seconds: int) -> "GpuTimeline":
        """Return a random one. PIDs are used again, at once or later, by the same or another user."""
        clients = []
        for pid in PIDS:
            at = chance.randrange(4)
            while at < seconds:
                lasts = chance.randint(2, 40)
                user, mib = chance.choice(USERS), chance.randint(1, 900)
                clients.append(TimelineClient(pid, at + 1, user, mib, at + CONNECTED, at + lasts + EXITED))
                at += lasts + chance.randint(1, 9)
        millijoules = tuple(chance.randrange(700) for _ in range(seconds))
        return cls(tuple(clients), millijoules, tuple(SHARED_EVENLY * chance.randrange(1000) for _ in range(seconds)))

    def clients(self, second: float) -> list[TimelineClient]:
        """Return the clients at a time."""
        return [client for client in self.all_clients if client.since <= second < client.until]

    def first(self, second: int) -> Iterator[Observation]:
        """Yield the observations of an exporter that starts at this second."""
        clients = self.clients(second)
        yield from at_work(*(client.pid for client in clients), at=AT + second)
        yield from (_process(client, AT + second) for client in clients)
        yield self._reading(second)

    def next(self, second: int) -> Iterator[Observation]:
        """Yield the observations of an exporter that has watched until the second before."""
        for client in self.all_clients:
            if client.until == second - EXITED:
                yield exited(client.pid, ticks=client.ticks, at=AT + client.until)
        for client in self.all_clients:
            if client.since == second - 1 + CONNECTED:
                yield from server_log(active(client.pid, client.ticks), at=AT + client.since)
                yield _process(client, AT + client.since)
        yield self._reading(second)

    def used(self, begin: int, end: int) -> Counter[str]:
        """Return what was used between two seconds. It shares no code with the exporter."""
        used: Counter[str] = Counter()
        for second in range(begin + 1, end + 1):
            clients = self.clients(second)
            for client in clients:
                used[f"sm {client.user}"] += self.busy[second] // len(clients)
            used["sm"] += self.busy[second]
            used["energy"] += self.millijoules[second]
        for client in self.all_clients:
            seconds = min(client.until, end) - max(client.since, begin)
            used[f"memory {client.user}"] += max(0, int(1000 * seconds)) * client.mib * MIB
        return used

    def _reading(self, second: int) -> Observation:
        used: Mapping[int, int] = {client.pid: client.mib for client in self.clients(second)}
        energy = sum(self.millijoules[second - second % RELOADS_EVERY : second + 1])
        return gpu_reading(used, server=None, at=AT + second, energy_millijoules=energy, gpm_supported=True)


def _process(client: TimelineClient, at: float) -> Observation:
    return process(client.pid, ticks=client.ticks, user=client.user, at=at)
