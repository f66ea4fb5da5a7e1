"""The demo's node as it would be with accounts: what everybody on its GPUs launches and uses, by a simple rule."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from exporter.core.ledger.payers import payer_of
from exporter.core.ledger.posting import post_energy, post_memory, post_time
from exporter.core.meters import ENERGY
from exporter.model.ledger import Entry, Ledger, Payer
from exporter.model.node import Node
from exporter.model.server import Client
from exporter.model.split import Method, Share, Split
from exporter.model.work import Counts, Doors, Worked, WorkReading

SECONDS = 60.0
KERNELS_A_SECOND, GRAPHS_A_SECOND = 400, 20
UNATTRIBUTED = 0.1
"""So much of all that is used is nobody's."""


class Accounts:
    """Keeps the books of a node from look to look."""

    def __init__(self) -> None:
        self._ledger = Ledger()
        self._last: Mapping[str, int] = {}
        self._at: float | None = None

    def kept(self, node: Node) -> Node:
        """The node with all that accounts need; a GPU that could not be read has none."""
        node = replace(node, splits=dict(_splits(node)), work=_work(node), doors=_doors(node))
        if self._at is not None:
            for gpu, split in node.splits.items():
                self._post(node, gpu, split, node.at - self._at)
        self._last = {uuid: gpu.meters[ENERGY].total for uuid, gpu in node.gpus.items() if ENERGY in gpu.meters}
        self._at = node.at
        return replace(node, ledger=self._ledger)

    def _post(self, node: Node, gpu: str, split: Split, seconds: float) -> None:
        at, held = node.at, dict[Payer, int]()
        parts: dict[Entry, float] = {}
        for pid, share in split.shares.items():
            payer = payer_of(node, pid)
            parts[payer, share.method] = parts.get((payer, share.method), 0.0) + share.sm / split.sm
            held[payer] = held.get(payer, 0) + int(seconds * 1000) << 33
        used = node.gpus[gpu].meters[ENERGY].total - self._last.get(gpu, node.gpus[gpu].meters[ENERGY].total)
        self._ledger = post_time(self._ledger, gpu, int(split.sm * seconds * 1e6), parts, at=at)
        self._ledger = post_energy(self._ledger, gpu, max(0, used), at=at)
        self._ledger = post_memory(self._ledger, gpu, held, at=at)


def _splits(node: Node) -> Iterator[tuple[str, Split]]:
    for uuid, gpu in node.gpus.items():
        reading, serving = gpu.reading, {pid for daemon in node.daemons.values() for pid in daemon.servers}
        here = {each.pid for each in reading.compute_processes or ()} - serving
        busy = reading.sm_utilization
        if busy and here:
            beside = set(gpu.bypassing)
            shares = {pid: _share(busy / len(here), measured=pid in beside) for pid in sorted(here)}
            nobodys = busy * UNATTRIBUTED
            dram = reading.dram_bandwidth
            yield uuid, Split(at=node.at, seconds=SECONDS, sm=busy, shares=shares, unattributed=nobodys, dram=dram)


def _share(part: float, *, measured: bool) -> Share:
    if measured:
        return Share(method=Method.MEASURED, sm=part * (1 - UNATTRIBUTED))
    return Share(method=Method.FLIGHT, sm=part * (1 - UNATTRIBUTED), error=0.05 * part)


def _clients(node: Node) -> Iterable[Client]:
    return (client for daemon in node.daemons.values() for client in daemon.clients.values())


def _work(node: Node) -> WorkReading:
    watched = tuple(client.pid for client in _clients(node))
    return WorkReading(at=node.at, boot_ns=_ns(node.at), seconds=1.0, watched=watched)


def _doors(node: Node) -> Doors:
    return Doors(worked={client.pid: _worked(client, node.at) for client in _clients(node)})


def _worked(client: Client, at: float) -> Worked:
    age, began = at - client.connected_at, _ns(at)
    counts = Counts(kernels=int(KERNELS_A_SECOND * age), graphs=int(GRAPHS_A_SECOND * age), flight_ns=int(0.4e9 * age))
    return Worked(began_ns=began, first_ns=began, last=counts)


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
