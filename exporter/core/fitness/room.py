"""How many more clients such as those that are there would fit on a GPU."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import ceil

from exporter.core.client_slots import clients_limit
from exporter.core.fitness.holding import Holding
from exporter.core.fitness.lately import Lately
from exporter.model.gpu import Gpu
from exporter.model.node import Node

LARGE_CLIENT = 0.9
"""As much memory as that part of the clients has at most is what one more is expected to need: memory that runs out
is an error. SM time that runs out only makes all of them slower, so there one more is expected to be as the mean."""

LEAST_SM = 1e-4
"""Clients that used less in all have done about nothing, from which nothing follows."""

_DIGITS = 6
"""So that what fits three times but for a rounding error does fit three times."""


class Bound(StrEnum):
    """What there may be too little of for one more."""

    MEMORY = "memory"
    SM = "sm"
    SLOTS = "slots"


NEEDED = frozenset({Bound.MEMORY, Bound.SLOTS})
"""Beyond these bounds a new client fails. Beyond that of SM time, all clients become slower."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """How many more fit by each bound that is known."""

    by: Mapping[Bound, int]

    @property
    def fits(self) -> int | None:
        """Return how many more fit; None where it is not known."""
        return None if self.binds is None else self.by[self.binds]

    @property
    def binds(self) -> Bound | None:
        """Return the smallest bound; None where a bound of NEEDED is not known, unless another one of them is 0."""
        none_fits = any(self.by.get(bound) == 0 for bound in NEEDED)
        known = none_fits or self.by.keys() >= NEEDED
        return min(self.by, key=lambda bound: self.by[bound]) if known else None


def room(node: Node, gpu: Gpu, here: Sequence[Holding], use: Lately) -> Room:
    """How much room there is on a GPU beside these clients."""
    found = {
        Bound.MEMORY: _by_memory(gpu, here),
        Bound.SM: _by_sm_time(node, gpu, here, use),
        Bound.SLOTS: _by_slots(node, here),
    }
    return Room(by={bound: max(0, count) for bound, count in found.items() if count is not None})


def _by_memory(gpu: Gpu, here: Sequence[Holding]) -> int | None:
    """Count a client with a memory limit as if it had all of that memory: it may allocate it at any time."""
    used, total = gpu.reading.memory_used_bytes, gpu.reading.memory_total_bytes
    claims = sorted(claim for each in here if (claim := max(each.memory or 0, each.memory_limit or 0)))
    if used is None or total is None or not claims or not all(each.memory_limit_known for each in here):
        return None
    reserved = sum(max(0, (each.memory_limit or 0) - (each.memory or 0)) for each in here)
    return (total - used - reserved) // claims[ceil(LARGE_CLIENT * len(claims)) - 1]


def _by_sm_time(node: Node, gpu: Gpu, here: Sequence[Holding], use: Lately) -> int | None:
    """What the clients use on the average needs no split, where nobody else is on the GPU.

    What nobody is known to have used is counted as theirs; what those used who are gone by now is free.
    """
    others = _others(node, gpu, here)
    if use.sm is None or others is None or not others <= use.shares.keys():
        return None
    busy = use.sm - gone(node, gpu, here, use)
    theirs = busy - sum(use.shares[pid].sm for pid in others)
    if not theirs >= LEAST_SM:
        return None
    return int(round((1 - busy) / theirs * len(here), _DIGITS))


def gone(node: Node, gpu: Gpu, here: Sequence[Holding], use: Lately) -> float:
    """What those used who are on the GPU no more; nothing while it is not known who is."""
    others = _others(node, gpu, here)
    if others is None:
        return 0.0
    clients = {client.pid for daemon in node.daemons.values() for client in daemon.clients.values()}
    present = {*others, *_servers(node), *clients}
    return sum(share.sm for pid, share in use.shares.items() if pid not in present)


def _others(node: Node, gpu: Gpu, here: Sequence[Holding]) -> set[int] | None:
    """Who is on the GPU and neither client nor server; None where it is not known who is there."""
    if gpu.reading.compute_processes is None:
        return None
    clients = {each.client.pid for each in here}
    return {process.pid for process in gpu.reading.compute_processes} - _servers(node) - clients


def _servers(node: Node) -> set[int]:
    return {pid for daemon in node.daemons.values() for pid in daemon.servers}


def _by_slots(node: Node, here: Sequence[Holding]) -> int | None:
    """By how many clients their servers still take; None where one does not tell."""
    left = [_slots_left(node, *server) for server in {(each.daemon, each.client.server): None for each in here}]
    known = [count for count in left if count is not None]
    return sum(known) if len(known) == len(left) else None


def _slots_left(node: Node, name: str, pid: int) -> int | None:
    daemon = node.daemons[name]
    server = daemon.servers.get(pid)
    limit = None if server is None else clients_limit(node, daemon, server)
    if server is None or limit is None or server.nameless:
        return None
    return max(0, limit - sum(client.server == pid for client in daemon.clients.values()))
