"""Where the demo's story is set: its daemons, GPUs and strangers as they are now, and what is still to come of them."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from exporter.demo.cast import Cast, Process
from exporter.demo.daemon import SimulatedDaemon
from exporter.demo.gpus import GPU_BYTES, GPUS, SimulatedGpu
from exporter.demo.node import simulated_daemons
from exporter.model.observation import Observation

Happens = Callable[[float], Iterator[Observation]]
"""Something that happens, at a time: what is seen of it."""


@dataclass(slots=True)
class Scene:
    """All of the simulated node. `to_come` is what will happen, and when; while `blind`, NVML cannot be read."""

    cast: Cast
    daemons: tuple[SimulatedDaemon, ...]
    gpus: tuple[SimulatedGpu, ...]
    strangers: dict[int, Process] = field(default_factory=dict)
    to_come: list[tuple[float, Happens]] = field(default_factory=list)
    blind: bool = False
    faults: int = 0

    @property
    def training(self) -> SimulatedDaemon:
        """The daemon of several users, at which the watchdog only looks."""
        return self.daemons[0]

    @property
    def inference(self) -> SimulatedDaemon:
        """The daemon of one user's services, for which the watchdog may act."""
        return self.daemons[1]

    @property
    def notebooks(self) -> SimulatedDaemon:
        """The daemon that has the least luck; for it the watchdog may act too."""
        return self.daemons[2]

    @property
    def clients(self) -> Sequence[Process]:
        """Those of all daemons."""
        return [client for daemon in self.daemons for client in daemon.clients.values()]

    def free_bytes(self, gpu: str) -> int:
        """How much memory a GPU has left."""
        return GPU_BYTES - sum(
            each.used_bytes for each in (*self.clients, *self.strangers.values()) if gpu in each.gpus
        )

    def later(self, at: float, happens: Happens) -> None:
        """Have this happen then."""
        self.to_come.append((at, happens))

    def due(self, at: float) -> Iterator[Observation]:
        """What was to happen by now, the eldest first."""
        due = sorted((each for each in self.to_come if each[0] <= at), key=lambda each: each[0])
        self.to_come = [each for each in self.to_come if each[0] > at]
        for _, happens in due:
            yield from happens(at)


def opening(chance: random.Random) -> Scene:
    """Before anything has happened."""
    return Scene(
        cast=Cast(chance),
        daemons=simulated_daemons(),
        gpus=tuple(SimulatedGpu(uuid=gpu, energy_joules=chance.uniform(1e8, 9e8)) for gpu in GPUS),
    )
