"""Disconnects: the end of a client's contexts, then of its connection."""

from exporter.model.daemon import ClaimKind, Daemon
from exporter.model.server import Client, Disconnect, Server, ServerState
from exporter.model.values import replace
from exporter.parse.log_line import LogEntry
from exporter.parse.log_message import ContextExited, ContextExiting
from exporter.state import claims
from exporter.state.transition import with_latest

REMEMBERED_SECONDS = 10.0
MOST_REMEMBERED = 256
"""How long those who have left are of interest, and how many of one daemon: more than fit into four servers."""

REQUESTED_SECONDS = 10.0
"""Whoever leaves within this time after an operator had the server end it does so for that reason (measured: 6 ms)."""


def exit_requested(daemon: Daemon, at: float, server: int, pid: int) -> Daemon:
    """An operator has the server end a client."""
    client = daemon.clients.get(pid)
    if client is None or client.server != server:
        return daemon
    return _with_client(daemon, replace(client, exit_requested_at=at))


def context_exiting(daemon: Daemon, at: float, entry: LogEntry, said: ContextExiting) -> Daemon:
    """One of a client's contexts ends; a claim, once, if that is because of an error that the client alone has.

    A device-side assert is such an error (measured, R580). In a fault, the line says only how its client left.
    """
    server = daemon.servers[entry.pid]
    news = said.in_reset and not _was_in_reset(daemon, said.pid) and not _is_hit(daemon, server, said.pid)
    daemon = _context_ended(daemon, at, entry, said)
    known = _known(daemon, said.pid) is not None
    return claims.made(daemon, at, ClaimKind.CONTAINED_FAULT, said.pid) if news and known else daemon


def context_exited(daemon: Daemon, at: float, entry: LogEntry, said: ContextExited) -> Daemon:
    """One of a client's contexts has ended, as up to R565: with the last one that is known, the client has left."""
    client = daemon.clients.get(said.pid)
    daemon = _context_ended(daemon, at, entry, ContextExiting(said.pid, said.context, in_reset=False))
    if client is None or client.server != entry.pid or daemon.clients[said.pid].contexts:
        return daemon
    return claims.made(disconnected(daemon, at, entry, said.pid), at, ClaimKind.CLIENT_DISCONNECT, said.pid)


def disconnected(daemon: Daemon, at: float, entry: LogEntry, pid: int) -> Daemon:
    """A client's process has left: so have its contexts, of which the log may tell only then (measured, R580)."""
    client = _known(daemon, pid)
    if pid in daemon.connections.disconnects or client is None or client.server != entry.pid:
        return daemon
    return _with(daemon, _leaving(client, at, entry.stamp))


def prune_disconnects(daemon: Daemon, at: float) -> Daemon:
    """Let go of those who left longer ago."""
    if not daemon.connections.disconnects and not daemon.connections.recently_disconnected:
        return daemon
    leavings = {pid: each for pid, each in daemon.connections.disconnects.items() if at - each.at <= REMEMBERED_SECONDS}
    parted = {
        pid: each
        for pid, each in daemon.connections.recently_disconnected.items()
        if pid in daemon.connections.disconnected_at
    }
    return replace(daemon, connections=replace(daemon.connections, disconnects=leavings, recently_disconnected=parted))


def _context_ended(daemon: Daemon, at: float, entry: LogEntry, said: ContextExiting) -> Daemon:
    """With the last context that is known a client has left; it may be that it was not known at all."""
    client = _known(daemon, said.pid) or Client(pid=said.pid, server=entry.pid, connected_at=at)
    if said.pid == 0 or client.server != entry.pid:
        return daemon
    in_reset = client.in_reset or said.in_reset
    client = replace(client, contexts=client.contexts - {said.context}, in_reset=in_reset)
    daemon = _with_client(daemon, client)
    if client.contexts:
        return daemon
    leaving = replace(_leaving(client, at, entry.stamp), contexts=frozenset({said.context}))
    return _with(daemon, _later(daemon.connections.disconnects.get(said.pid), leaving))


def _leaving(client: Client, at: float, stamp: str) -> Disconnect:
    asked_at = client.exit_requested_at
    return Disconnect(
        pid=client.pid,
        server=client.server,
        at=at,
        stamp=stamp,
        gpus=client.gpus,
        in_reset=client.in_reset,
        terminated=asked_at is not None and at - asked_at <= REQUESTED_SECONDS,
    )


def _later(known: Disconnect | None, leaving: Disconnect) -> Disconnect:
    """What both say of one leaving: it was over with the last context of which the log told."""
    if known is None or known.server != leaving.server:
        return leaving
    return replace(
        known if leaving.stamp <= known.stamp else leaving,
        gpus=known.gpus | leaving.gpus,
        in_reset=known.in_reset or leaving.in_reset,
        terminated=known.terminated or leaving.terminated,
        contexts=known.contexts | leaving.contexts,
        logged_twice=known.logged_twice or (bool(known.contexts & leaving.contexts) and known.stamp != leaving.stamp),
    )


def _was_in_reset(daemon: Daemon, pid: int) -> bool:
    client, leaving = _known(daemon, pid), daemon.connections.disconnects.get(pid)
    return (client is not None and client.in_reset) or (leaving is not None and leaving.in_reset)


def _is_hit(daemon: Daemon, server: Server, pid: int) -> bool:
    """Whether a fault has hit the client, though the server may be well again."""
    if server.state is ServerState.FAULT or server.fault_block is None:
        return server.state is ServerState.FAULT
    client, block = _known(daemon, pid), server.fault_block
    came_later = client is not None and client.connected_at > block.at
    return not came_later and pid in block.clients


def _known(daemon: Daemon, pid: int) -> Client | None:
    """A client, also one whose process was seen to be gone before its log told of it."""
    return daemon.clients.get(pid) or daemon.connections.recently_disconnected.get(pid)


def _with_client(daemon: Daemon, client: Client) -> Daemon:
    if client.pid in daemon.clients:
        return replace(daemon, clients={**daemon.clients, client.pid: client})
    if client.pid in daemon.connections.recently_disconnected:
        return replace(
            daemon,
            connections=replace(
                daemon.connections,
                recently_disconnected={**daemon.connections.recently_disconnected, client.pid: client},
            ),
        )
    return daemon


def _with(daemon: Daemon, leaving: Disconnect) -> Daemon:
    if daemon.connections.disconnects.get(leaving.pid) == leaving:
        return daemon
    return replace(
        daemon,
        connections=replace(
            daemon.connections,
            disconnects=with_latest(daemon.connections.disconnects, leaving.pid, leaving, MOST_REMEMBERED),
        ),
    )
