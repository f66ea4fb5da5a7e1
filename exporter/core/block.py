"""The block of lines in which a server's log tells of a fault, read line by line.

Measured on R580: who is named, who is torn down, which devices are reset, and last who has a sticky error set. All of
it was written within two milliseconds.
"""

from exporter.core.clients import MOST_CLIENTS
from exporter.core.devices import MOST_DEVICES
from exporter.core.translate import Pids, outer
from exporter.model.replace import replace
from exporter.model.server import FaultBlock, Listing, Server, ServerState
from exporter.parse import log_message
from exporter.parse.log_line import LogEntry, seconds_between
from exporter.parse.log_message import Message

SAME_SECONDS = 60.0
"""A line of the log that is read twice has one stamp, and is read again within this time."""

LONGEST_SECONDS = 10.0
"""How long a server may take to write a block, by its own clock; what reads like a part of it later is of another."""

NAMED_SECONDS = 1.0
"""How long before a fault its client is named, at most; one who was named earlier has nothing to do with it."""

TOGETHER_SECONDS = 0.2
"""Blocks that follow one another so soon tell of one fault: measured on two GPUs, 1 to 37 ms (R580)."""


def read(server: Server, at: float, entry: LogEntry, pids: Pids = None) -> Server:
    """One more line of this server was written; the server as it is if that tells nothing of a fault.

    A bare number of a daemon in another PID namespace is not translated yet: only here it is known to be a PID.
    """
    stamp, message = entry.stamp, entry.message
    match message:
        case log_message.ClientFatalError(pid) if pid != 0:
            return replace(server, encountered=(stamp, pid))
        case log_message.HandlingFatalError() if _goes_on(server, at, stamp):
            return _named_too(server, stamp)
        case log_message.HandlingFatalError() if server.block is None or not is_same(server.block, at, stamp):
            return _begun(server, at, stamp)
        case log_message.ClientToBeTornDown(pid) if pid != 0 and not _is_current(server.block, at, stamp):
            server = _begun(server, at, stamp)
        case log_message.ServerContextDestroyed():
            server = replace(server, reset_stamp=stamp)
    if server.block is None or not _is_current(server.block, at, stamp):
        return server
    block = _extended(server.block, message, pids)
    if block is server.block:
        return server
    added = block.devices - server.block.devices
    return replace(server, block=block, devices_to_reset=(server.devices_to_reset or frozenset()) | added or None)


def has_begun(before: Server, after: Server) -> bool:
    """Whether a line that was read between the two began a block."""
    return after.block is not None and (before.block is None or after.block.begin != before.block.begin)


def is_same(block: FaultBlock, at: float, stamp: str) -> bool:
    """Whether a block that was seen then, with this stamp, is this one."""
    return block.stamp == stamp and abs(at - block.at) <= SAME_SECONDS


def without(server: Server, pid: int) -> Server:
    """The server, of whose fault nothing is told of this process."""
    if server.encountered is not None and server.encountered[1] == pid:
        server = replace(server, encountered=None)
    block = server.block
    if block is None or pid not in named(server):
        return server
    block = replace(
        block,
        named=None if block.named == pid else block.named,
        torn=block.torn - {pid},
        victims=tuple(each for each in block.victims if each != pid),
    )
    return replace(server, block=block)


def named(server: Server) -> frozenset[int]:
    """All processes of which a server's log told in connection with a fault."""
    pids = set() if server.encountered is None else {server.encountered[1]}
    if server.block is not None:
        pids |= server.block.clients
        pids |= set() if server.block.named is None else {server.block.named}
    return frozenset(pids)


def _goes_on(server: Server, at: float, stamp: str) -> bool:
    """Whether another block is of the same fault: a client that goes with kernels in flight on two GPUs faults both."""
    block = server.block
    if block is None or not _is_current(block, at, stamp):
        return False
    if server.state is not ServerState.FAULT and block.confirmed:
        return False
    return 0 < seconds_between(block.stamp, stamp) <= TOGETHER_SECONDS


def _named_too(server: Server, stamp: str) -> Server:
    """It goes on with whom the log named just before, unless it has named somebody already."""
    block = server.block
    if block is None:
        return server
    culprit = block.named if block.named is not None else _named_before(server, stamp)
    return replace(server, block=replace(block, named=culprit, listing=Listing.NOTHING), encountered=None)


def _is_current(block: FaultBlock | None, at: float, stamp: str) -> bool:
    if block is None or abs(at - block.at) > SAME_SECONDS:
        return False
    return abs(seconds_between(block.stamp, stamp)) <= LONGEST_SECONDS


def _begun(server: Server, at: float, stamp: str) -> Server:
    """Of the first lines, either may be lost."""
    return replace(server, block=FaultBlock(at=at, stamp=stamp, named=_named_before(server, stamp)), encountered=None)


def _named_before(server: Server, stamp: str) -> int | None:
    """Whom the log named just before, as it does of a memory fault."""
    if server.encountered is None:
        return None
    named_at, pid = server.encountered
    return pid if 0 <= seconds_between(named_at, stamp) <= NAMED_SECONDS else None


def _extended(block: FaultBlock, message: Message, pids: Pids) -> FaultBlock:
    match message:
        case log_message.ClientToBeTornDown(pid) if pid != 0 and len(block.torn) < MOST_CLIENTS:
            return replace(block, torn=block.torn | {pid}, listing=Listing.NOTHING)
        case log_message.ResetDevicesFollow():
            return replace(block, listing=Listing.DEVICES)
        case log_message.StickyErrorClientsFollow():
            return replace(block, listing=Listing.VICTIMS)
        case log_message.BareNumber(device) if block.listing is Listing.DEVICES and device < MOST_DEVICES:
            return replace(block, devices=block.devices | {device})
        case log_message.BareNumber(number) if block.listing is Listing.VICTIMS:
            return _with_victim(block, outer(number, pids))
        case log_message.BareNumber() | log_message.Noise():
            return block
        case _ if block.listing is Listing.NOTHING:
            return block
        case _:
            return replace(block, listing=Listing.NOTHING)


def _with_victim(block: FaultBlock, pid: int) -> FaultBlock:
    if pid == 0 or pid in block.victims or len(block.victims) >= MOST_CLIENTS:
        return block
    return replace(block, victims=(*block.victims, pid))
