"""Keeps the books as things happen: energy and memory at each reading of a GPU, memory as well when a process leaves.

Between two readings, memory is held as at the first. Who leaves holds it until that was seen, and who came holds what
the second reads from when they were first seen connected.
"""

from collections.abc import Collection, Iterable, Iterator

from exporter.core.identity import used_bytes
from exporter.core.ledger.pages import close_idle
from exporter.core.ledger.payers import payer_of
from exporter.core.ledger.posting import post_energy, post_memory
from exporter.core.meters import ENERGY
from exporter.model.event import Event, EventName
from exporter.model.ledger import Book, Holding, Payer, Purse
from exporter.model.node import Node
from exporter.model.observation import GpuReading, GpuUuid, Observation, ProcessExit, ProcessReading
from exporter.model.replace import replace

LONGEST_GAP_SECONDS = 600.0
"""Twice the longest time that can be set between two readings. What was in a longer one is not known: the exporter
stood still, or its machine slept."""


def follow(before: Node, node: Node, seen: Observation, events: Collection[Event]) -> Node:
    """Post what an observation tells of memory and energy; SM time is posted by whoever has split it."""
    for pid in _left(before, seen, events):
        node = _released(before, node, pid, seen.at)
    if isinstance(seen, GpuReading) and seen.problem is None:
        node = _powered(before, node, seen)
        node = _read(node, seen)
        node = replace(node, ledger=close_idle(node.ledger, node.at))
    return node


def _left(before: Node, seen: Observation, events: Iterable[Event]) -> Iterator[int]:
    """The processes whose memory was given back, as far as this tells."""
    known = before.processes.get(seen.pid) if isinstance(seen, ProcessReading | ProcessExit) else None
    match seen:
        case ProcessExit() if known is None or known.start_ticks == seen.start_ticks:
            yield seen.pid
        case ProcessReading() if known is not None and known.start_ticks != seen.start_ticks:
            yield seen.pid
    gone = EventName.CLIENT_DISCONNECTED
    yield from (event.pid for event in events if event.event is gone and event.pid is not None)


def _released(before: Node, node: Node, pid: int, at: float) -> Node:
    """A process holds nothing from now on: until a reading shows it again, and then not from before."""
    for gpu, book in node.ledger.books.items():
        holding = book.holdings.get(pid)
        if holding is not None and holding.bytes:
            held: dict[Payer, int] = {}
            _hold(held, _payer(before, pid, holding), holding.bytes, holding.since, at)
            left = replace(holding, bytes=0, since=max(at, holding.since))
            node = _with(node, gpu, replace(book, holdings={**book.holdings, pid: left}))
            node = replace(node, ledger=post_memory(node.ledger, gpu, held, at=node.at))
    return node


def _powered(before: Node, node: Node, reading: GpuReading) -> Node:
    """What a GPU used before it was first read in this run is not known; nor who ran in a gap."""
    known, book = before.gpus.get(reading.gpu), node.ledger.books.get(reading.gpu, Book())
    last = None if known is None else known.meters.get(ENERGY)
    if last is None:
        return _with(node, reading.gpu, replace(book, unpowered={}))
    used = node.gpus[reading.gpu].meters[ENERGY].total - last.total
    if used <= 0:
        return node
    in_time = book.read_at is not None and abs(reading.at - book.read_at) <= LONGEST_GAP_SECONDS
    return replace(node, ledger=post_energy(node.ledger, reading.gpu, used, at=node.at, known=in_time))


def _read(node: Node, reading: GpuReading) -> Node:
    """Post the memory that was held until now, and see who holds how much from now on. A late reading is no news."""
    book = node.ledger.books.get(reading.gpu, Book())
    if book.read_at is not None and 0 <= book.read_at - reading.at <= LONGEST_GAP_SECONDS:
        return node
    if reading.compute_processes is None and reading.mps_processes is None:
        return _with(node, reading.gpu, replace(book, read_at=reading.at))
    held: dict[Payer, int] = {}
    for pid, holding in book.holdings.items():
        _hold(held, _payer(node, pid, holding), holding.bytes, holding.since, reading.at)
    holdings: dict[int, Holding] = {}
    for pid, amount in used_bytes(reading).items():
        known = book.holdings.get(pid)
        if known is None or not _goes_on(node, pid, known):
            known = Holding(bytes=0, since=_began(node, pid, book, reading.at), payer=payer_of(node, pid))
            _hold(held, known.payer, amount, known.since, reading.at)
        holdings[pid] = Holding(
            bytes=max(0, amount),
            since=reading.at,
            payer=_payer(node, pid, known),
            start_ticks=_start_ticks(node, pid) or known.start_ticks,
        )
    node = _with(node, reading.gpu, replace(book, holdings=holdings, read_at=reading.at))
    return replace(node, ledger=post_memory(node.ledger, reading.gpu, held, at=node.at))


def _hold(held: dict[Payer, int], payer: Payer, amount: int, since: float, until: float) -> None:
    """Memory was held so long; what a longer gap or a clock that was set makes of it is not known."""
    if 0.0 < until - since <= LONGEST_GAP_SECONDS:
        held[payer] = held.get(payer, 0) + max(0, amount) * (int(1000 * until) - int(1000 * since))


def _began(node: Node, pid: int, book: Book, at: float) -> float:
    """Since when a process that is new holds memory: since it is a client, if that is since the reading before."""
    clients = (daemon.clients[pid] for daemon in node.daemons.values() if pid in daemon.clients)
    left = book.holdings.get(pid)
    return max(
        min((client.connected_at for client in clients), default=at),
        float("-inf") if book.read_at is None else book.read_at,
        float("-inf") if left is None else left.since,
    )


def _goes_on(node: Node, pid: int, holding: Holding) -> bool:
    """Whether whoever has a PID now is who held memory with it."""
    ticks = _start_ticks(node, pid)
    return holding.bytes > 0 and (ticks is None or holding.start_ticks in (None, ticks))


def _payer(node: Node, pid: int, holding: Holding) -> Payer:
    """Once it is known, it stays so: for a server too that its daemon has let go of."""
    return payer_of(node, pid) if holding.payer is Purse.UNATTRIBUTED else holding.payer


def _start_ticks(node: Node, pid: int) -> int | None:
    process = node.processes.get(pid)
    return None if process is None else process.start_ticks


def _with(node: Node, gpu: GpuUuid, book: Book) -> Node:
    return replace(node, ledger=replace(node.ledger, books={**node.ledger.books, gpu: book}))
