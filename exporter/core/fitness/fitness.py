"""What is to be said of how a GPU is shared: the facts, which others put into words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import hypot

from exporter.core.fitness.commitment import memory_committed, threads_committed
from exporter.core.fitness.holding import Holding, holdings
from exporter.core.fitness.lately import Lately, lately
from exporter.core.fitness.room import Room, gone, room
from exporter.core.fitness.starving import Starving, starving
from exporter.core.support import GPM
from exporter.model.node import Node
from exporter.model.observation import GpuUuid
from exporter.model.split import Method, Share

IDLE_BELOW = 0.01
"""Whoever used less of the SMs has done about nothing."""

AT_LIMIT = 0.9
"""Whoever used this much of what it may use is held back by its limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitness:
    """How a GPU is shared by MPS clients. None: not known.

    `threads_committed` and `memory_committed` are what the clients may use in all, as parts of what there is.
    `beside` is what processes beside MPS are known to have used of the SMs, by PID, and `gone` what those are known to
    have used who are on the GPU no more. `gpm` is whether the GPU has GPM, which alone measures SM time.
    """

    holdings: Sequence[Holding]
    use: Lately
    room: Room
    memory_total_bytes: int | None
    threads_committed: float | None
    memory_committed: float | None
    starving: Starving | None
    beside: Mapping[int, Share]
    gone: float
    gpm: bool | None = None

    @property
    def memory_held(self) -> int | None:
        """What the clients hold of its memory, as far as it is told, in bytes."""
        told = [each.memory for each in self.holdings if each.memory is not None]
        return sum(told) if told else None

    @property
    def shares(self) -> Sequence[Share]:
        """What is known of what the clients have used."""
        return [each.used for each in self.holdings if each.used is not None]

    @property
    def sm_used(self) -> float | None:
        """What the clients have used of the SMs, as far as it is known."""
        return sum(share.sm for share in self.shares) if self.shares else None

    @property
    def sm_error(self) -> float:
        """One standard error of that, as if the clients' errors were independent."""
        return hypot(*(share.error for share in self.shares))

    @property
    def methods(self) -> Sequence[Method]:
        """How that was found out: one method, or several."""
        return [method for method in Method if any(share.method is method for share in self.shares)]

    @property
    def unwatched(self) -> Sequence[Holding]:
        """Whose work cannot be seen from outside, though it is looked for."""
        return [each for each in self.holdings if each.watched is False]

    @property
    def idle(self) -> Sequence[Holding]:
        """Who holds memory, and is known to have used about nothing of the SMs."""
        return [each for each in self.holdings if each.memory and _at_most(each) < IDLE_BELOW]

    @property
    def at_limit(self) -> Sequence[Holding]:
        """Who is known to have used about all of the threads that it may use, where these are not all."""
        return [
            each
            for each in self.holdings
            if each.threads is not None and each.threads < 1 and _at_least(each) >= AT_LIMIT * each.threads
        ]


def fitness(node: Node) -> Mapping[GpuUuid, Fitness]:
    """Of each GPU that has MPS clients."""
    return {uuid: _of(node, uuid, here) for uuid, here in holdings(node).items()}


def _of(node: Node, uuid: GpuUuid, here: Sequence[Holding]) -> Fitness:
    gpu, use = node.gpus[uuid], lately(node, uuid)
    total = gpu.reading.memory_total_bytes
    return Fitness(
        holdings=here,
        use=use,
        room=room(node, gpu, here, use),
        memory_total_bytes=total,
        threads_committed=threads_committed(here),
        memory_committed=memory_committed(here, total),
        starving=starving(use, len(here) + len(gpu.bypassing)),
        beside={pid: use.shares[pid] for pid in gpu.bypassing if pid in use.shares},
        gone=gone(node, gpu, here, use),
        gpm=gpu.supported.get(GPM),
    )


def _at_most(holding: Holding) -> float:
    """What it has used of the SMs, by its error more; 1 where it was not found out: a convention tells of no one."""
    found = _found(holding)
    return 1.0 if found is None else found.sm + found.error


def _at_least(holding: Holding) -> float:
    """The same, by its error less; 0 where it was not found out."""
    found = _found(holding)
    return 0.0 if found is None else found.sm - found.error


def _found(holding: Holding) -> Share | None:
    return None if holding.used is None or holding.used.method is Method.EQUAL else holding.used
