"""Address ranges of clients: which to read, and the last different readings of each."""

from collections.abc import Mapping
from itertools import chain

from exporter.model.node import Node
from exporter.model.observation import AddressRanges, AddressWant
from exporter.model.values import replace
from exporter.state.gpus import used_bytes

MOST_READINGS = 3
"""Readings of one process that are stored: before a fault, after it, and one more."""

MOST_CLIENTS_READ = 512


def last_fault_at(node: Node) -> float:
    """Return when a failed access was last reported."""
    return max((xid.at for xid in node.xids.recent if xid.access is not None), default=0.0)


def wanted(node: Node) -> Mapping[int, AddressWant]:
    """Return the clients whose ranges are wanted, by PID. After a failed access on their GPU, they are due at once.

    A client that has just disconnected, as after a fault, is still wanted while its process runs.
    """
    faults = [(xid.at, xid.gpu) for xid in node.xids.recent if xid.access is not None]
    memory: dict[int, list[int]] = {}
    for gpu in node.gpus.values():
        for pid, used in used_bytes(gpu.reading).items():
            memory.setdefault(pid, []).append(used)
    found: dict[int, AddressWant] = {}
    for pid in chain(*(daemon.clients for daemon in node.daemons.values()), node.address_ranges):
        process = node.processes.get(pid)
        if process is None or pid in found or len(found) >= MOST_CLIENTS_READ:
            continue
        fault_at = max((at for at, gpu in faults if gpu not in node.gpus or _uses(node, gpu, pid)), default=0.0)
        found[pid] = AddressWant(start_ticks=process.start_ticks, memory=tuple(memory.get(pid, ())), fault_at=fault_at)
    return found


def _uses(node: Node, gpu: str | None, pid: int) -> bool:
    """Return whether a client uses the GPU, or did so until now, or may use it because the list has no client."""
    shown = node.gpus[gpu] if gpu is not None else None
    return shown is None or not shown.mps_since or pid in shown.mps_since or pid in shown.mps_left


def ranges_read(node: Node, reading: AddressRanges) -> Node:
    """Add a reading. An equal one only has a later time."""
    before = tuple(each for each in node.address_ranges.get(reading.pid, ()) if each.start_ticks == reading.start_ticks)
    if before and replace(before[-1], at=reading.at) == reading:
        before = before[:-1]
    # Equal ranges of several readings are stored once.
    stored = {each: each for known in before for each in (*known.gpu, *known.host)}
    gpu, host = (tuple(stored.get(each, each) for each in ranges) for ranges in (reading.gpu, reading.host))
    reading = replace(reading, gpu=gpu, host=host)
    readings = (*before, reading)[-MOST_READINGS:]
    return replace(node, address_ranges={**node.address_ranges, reading.pid: readings})


def prune(node: Node) -> Node:
    """Remove the ranges of processes that nothing refers to."""
    kept = {
        pid: readings for pid, readings in node.address_ranges.items() if pid in node.processes or pid in node.deaths
    }
    return node if len(kept) == len(node.address_ranges) else replace(node, address_ranges=kept)
