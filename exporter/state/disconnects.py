"""Disconnects: the end of a client's contexts, then of its connection."""

from exporter.model.daemon import ClaimKind, Daemon
from exporter.model.server import Client, Disconnect, Server, ServerState
from exporter.model.values import replace
from exporter.parse.log_line import LogEntry
from exporter.parse.log_message import ContextExited, ContextExiting
from exporter.state import claims
from exporter.state.step import with_latest

REMEMBERED_SECONDS = 10.0
MAX_REMEMBERED = 256
"""How long, and how many, disconnects of one daemon are remembered: more clients than four servers have."""

TERMINATION_SECONDS = 10.0
"""A client that disconnects within this time after an operator terminated it was terminated (measured: 6 ms)."""


def request_exit(daemon: Daemon, at: float, server: int, pid: int) -> Daemon:
    """Record that an operator has the server end a client."""
    client = daemon.clients.get(pid)
    if client is None or client.server != server:
        return daemon
    return _with_client(daemon, replace(client, exit_requested_at=at))


def context_exiting(daemon: Daemon, at: float, entry: LogEntry, message: ContextExiting) -> Daemon:
    """Remove a context. If an error that affects only this client ends it, add a claim of a contained fault, once.

    A device-side assert is such an error (measured, R580). During a fault, the line only shows how the client ended.
    """
    pid = message.pid
    before, disconnect = _client(daemon, pid), daemon.connections.disconnects.get(pid)
    was_in_reset = any(each is not None and each.in_reset for each in (before, disconnect))
    contained = message.in_reset and not was_in_reset and not _is_affected(daemon.servers[entry.pid], pid, before)
    daemon = _remove_context(daemon, at, entry, message)
    if not contained or _client(daemon, pid) is None:
        return daemon
    return claims.add(daemon, at, ClaimKind.CONTAINED_FAULT, pid)


def context_exited(daemon: Daemon, at: float, entry: LogEntry, message: ContextExited) -> Daemon:
    """Remove a context, as up to R565. After its last known context a client has disconnected."""
    client = daemon.clients.get(message.pid)
    daemon = _remove_context(daemon, at, entry, ContextExiting(message.pid, message.context, in_reset=False))
    if client is None or client.server != entry.pid or daemon.clients[message.pid].contexts:
        return daemon
    return claims.add(record_disconnect(daemon, at, entry, message.pid), at, ClaimKind.CLIENT_DISCONNECT, message.pid)


def record_disconnect(daemon: Daemon, at: float, entry: LogEntry, pid: int) -> Daemon:
    """Record that a client's process has ended. The log may report the end of its contexts later (measured, R580)."""
    client = _client(daemon, pid)
    if pid in daemon.connections.disconnects or client is None or client.server != entry.pid:
        return daemon
    return _with_disconnect(daemon, _disconnect(client, at, entry.stamp))


def prune_disconnects(daemon: Daemon, at: float) -> Daemon:
    """Remove disconnects that are older than `REMEMBERED_SECONDS`."""
    connections = daemon.connections
    if not connections.disconnects and not connections.recently_disconnected:
        return daemon
    recent = {pid: each for pid, each in connections.disconnects.items() if at - each.at <= REMEMBERED_SECONDS}
    clients = {
        pid: each for pid, each in connections.recently_disconnected.items() if pid in connections.disconnected_at
    }
    return replace(daemon, connections=replace(connections, disconnects=recent, recently_disconnected=clients))


def _remove_context(daemon: Daemon, at: float, entry: LogEntry, message: ContextExiting) -> Daemon:
    """Remove a context, which may be unknown. After its last known context a client has disconnected."""
    client = _client(daemon, message.pid) or Client(pid=message.pid, server=entry.pid, connected_at=at)
    if message.pid == 0 or client.server != entry.pid:
        return daemon
    in_reset = client.in_reset or message.in_reset
    client = replace(client, contexts=client.contexts - {message.context}, in_reset=in_reset)
    daemon = _with_client(daemon, client)
    if client.contexts:
        return daemon
    new = replace(_disconnect(client, at, entry.stamp), contexts=frozenset({message.context}))
    known = daemon.connections.disconnects.get(message.pid)
    if known is None or known.server != new.server:
        return _with_disconnect(daemon, new)
    merged = replace(
        known if new.stamp <= known.stamp else new,
        gpus=known.gpus | new.gpus,
        in_reset=known.in_reset or new.in_reset,
        terminated=known.terminated or new.terminated,
        contexts=known.contexts | new.contexts,
        logged_twice=known.logged_twice or (bool(known.contexts & new.contexts) and known.stamp != new.stamp),
    )
    return _with_disconnect(daemon, merged)


def _disconnect(client: Client, at: float, stamp: str) -> Disconnect:
    requested_at = client.exit_requested_at
    return Disconnect(
        pid=client.pid,
        server=client.server,
        at=at,
        stamp=stamp,
        gpus=client.gpus,
        in_reset=client.in_reset,
        terminated=requested_at is not None and at - requested_at <= TERMINATION_SECONDS,
    )


def _is_affected(server: Server, pid: int, client: Client | None) -> bool:
    """Return whether a fault of the server affected the client. The server may have recovered."""
    block = server.fault_block
    if server.state is ServerState.FAULT or block is None:
        return server.state is ServerState.FAULT
    return pid in block.clients and (client is None or client.connected_at <= block.at)


def _client(daemon: Daemon, pid: int) -> Client | None:
    """Return a client, even if its process ended before the log reported it."""
    return daemon.clients.get(pid) or daemon.connections.recently_disconnected.get(pid)


def _with_client(daemon: Daemon, client: Client) -> Daemon:
    if client.pid in daemon.clients:
        return replace(daemon, clients={**daemon.clients, client.pid: client})
    connections = daemon.connections
    if client.pid not in connections.recently_disconnected:
        return daemon
    recent = {**connections.recently_disconnected, client.pid: client}
    return replace(daemon, connections=replace(connections, recently_disconnected=recent))


def _with_disconnect(daemon: Daemon, disconnect: Disconnect) -> Daemon:
    connections = daemon.connections
    if connections.disconnects.get(disconnect.pid) == disconnect:
        return daemon
    disconnects = with_latest(connections.disconnects, disconnect.pid, disconnect, MAX_REMEMBERED)
    return replace(daemon, connections=replace(connections, disconnects=disconnects))
