"""On which GPU each context of a client is.

Only the log tells: `Device NAME (uuid GPU-...) is associated` stands between `Client {PID, Context ID} connected` and
`Status of client {PID, Context ID} is ACTIVE` of the context that it is about (549 of 552 times; the others were made
at once, measured, R580). Where anything else stands between them, it is not known whose it is.
"""

from exporter.model.observation import GpuUuid
from exporter.model.replace import replace
from exporter.model.server import Making, Server


def begun(server: Server, pid: int, context: int) -> Server:
    """A client wants a context; 0 is its control connection, which has no GPU."""
    return replace(server, making=Making(pid=pid, context=context) if context > 0 and pid != 0 else None)


def placed(server: Server, gpu: GpuUuid) -> Server:
    """The context that is being made is on this GPU. Where two are told, somebody else's line is between them."""
    making = server.making
    if making is None or making.gpu == gpu:
        return server
    return replace(server, making=replace(making, gpu=gpu) if making.gpu is None else None)


def place_of(server: Server, pid: int, context: int) -> GpuUuid | None:
    """Where a context is that has just been accepted; None where that was not told for certain."""
    making = server.making
    return making.gpu if making is not None and (making.pid, making.context) == (pid, context) else None


def accepted(server: Server) -> Server:
    """A context is accepted: what comes next is about another."""
    return server if server.making is None else replace(server, making=None)
