"""The block of lines in which a server's log tells of a fault, read line by line.

Measured on R580: who is named, who is torn down, which devices are reset, and last who has a sticky error set.
"""

from dataclasses import replace

from exporter.core.clients import MOST_CLIENTS
from exporter.core.devices import MOST_DEVICES
from exporter.model.server import FaultBlock, Listing, Server
from exporter.parse import log_message as said
from exporter.parse.log_message import Message

SAME_SECONDS = 60.0
"""A line of the log that is read twice has one stamp, and is read again within this time."""


def read(server: Server, at: float, stamp: str, message: Message) -> Server:
    """One more line of this server was written; the server as it is if that tells nothing of a fault."""
    if isinstance(message, said.ClientEncountered):
        return replace(server, encountered=(stamp, message.pid))
    if isinstance(message, said.FaultHandled):
        return _begun(server, at, stamp)
    if isinstance(message, said.ContextDestroyed):
        server = replace(server, reset_stamp=stamp)
    if server.block is None:
        return server
    block = _extended(server.block, message)
    if block is server.block:
        return server
    added = block.devices - server.block.devices
    return replace(server, block=block, devices_to_reset=(server.devices_to_reset or frozenset()) | added or None)


def is_same(block: FaultBlock, at: float, stamp: str) -> bool:
    """Whether a block that was seen then, with this stamp, is this one."""
    return block.stamp == stamp and abs(at - block.at) <= SAME_SECONDS


def _begun(server: Server, at: float, stamp: str) -> Server:
    """The same line read again, from the same moment, begins nothing."""
    if server.block is not None and is_same(server.block, at, stamp):
        return server
    named = server.encountered[1] if server.encountered is not None and server.encountered[0] <= stamp else None
    return replace(server, block=FaultBlock(at=at, stamp=stamp, named=named), encountered=None)


def _extended(block: FaultBlock, message: Message) -> FaultBlock:
    match message:
        case said.ClientToBeTornDown(pid) if len(block.torn) < MOST_CLIENTS:
            return replace(block, torn=block.torn | {pid}, listing=Listing.NOTHING)
        case said.DevicesFollow():
            return replace(block, listing=Listing.DEVICES)
        case said.VictimsFollow():
            return replace(block, listing=Listing.VICTIMS, victims_follow=True)
        case said.Number(device) if block.listing is Listing.DEVICES and device < MOST_DEVICES:
            return replace(block, devices=block.devices | {device})
        case said.Number(pid) if block.listing is Listing.VICTIMS and len(block.victims) < MOST_CLIENTS:
            return block if pid in block.victims else replace(block, victims=(*block.victims, pid))
        case said.Number() | said.Noise():
            return block
        case _ if block.listing is Listing.NOTHING:
            return block
        case _:
            return replace(block, listing=Listing.NOTHING)
