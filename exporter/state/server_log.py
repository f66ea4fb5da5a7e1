"""Lines of server.log."""

from exporter.incidents import fault_log
from exporter.model.daemon import Claim, ClaimKind, Daemon
from exporter.model.observation import GpuUuid
from exporter.model.server import ContextCreation, RefusalReason, Server
from exporter.model.values import replace
from exporter.parse import log_message
from exporter.parse.log_line import LogEntry
from exporter.parse.log_message import ClientConnecting
from exporter.state import claims, clients, disconnects, limits, servers
from exporter.state.transition import Pids, Transition, chain, without_events


def begun(server: Server, pid: int, context: int) -> Server:
    """A client wants a context; 0 is its control connection, which has no GPU."""
    return replace(
        server, pending_context=ContextCreation(pid=pid, context=context) if context > 0 and pid != 0 else None
    )


def placed(server: Server, gpu: GpuUuid) -> Server:
    """The context that is being made is on this GPU. Where two are told, somebody else's line is between them."""
    pending = server.pending_context
    if pending is None or pending.gpu == gpu:
        return server
    return replace(server, pending_context=replace(pending, gpu=gpu) if pending.gpu is None else None)


def place_of(server: Server, pid: int, context: int) -> GpuUuid | None:
    """Where a context is that has just been accepted; None where that was not told for certain."""
    pending = server.pending_context
    return pending.gpu if pending is not None and (pending.pid, pending.context) == (pid, context) else None


def accepted(server: Server) -> Server:
    """A context is accepted: what comes next is about another."""
    return server if server.pending_context is None else replace(server, pending_context=None)


NOT_READY = 807
"""CUDA_ERROR_MPS_SERVER_NOT_READY: the server is in FAULT."""


def read(daemon: Daemon, at: float, entry: LogEntry, pids: Pids) -> Transition:
    """One more line of a server was written. `pids` has whom a bare number means, where that is another namespace's."""
    match entry.message:
        case log_message.VersionReported(version):
            return without_events(replace(daemon, runtime=replace(daemon.runtime, version=version)))
        case log_message.ServerReady():
            return chain(seen_alive(daemon, at, entry.pid), lambda daemon: servers.ready(daemon, at, entry.pid))
        case log_message.ClientActive(pid, context) if pid != 0:
            return chain(
                seen_alive(daemon, at, entry.pid),
                lambda daemon: _client_active(daemon, at, entry.pid, pid, context),
            )
        case log_message.ClientDisconnected(pid):
            left = disconnects.disconnected(_settled(daemon, entry.pid, pid), at, entry, pid)
            return without_events(
                claims.made(left, at, ClaimKind.CLIENT_DISCONNECT, pid) if pid in left.clients else left
            )
        case _ if entry.pid in daemon.servers:
            return _known_server_says(daemon, at, entry, pids)
        case (
            log_message.ClientConnecting()
            | log_message.HandlingFatalError()
            | log_message.ClientToBeTornDown()
            | log_message.ThreadPercentageSet()
        ):
            return chain(
                seen_alive(daemon, at, entry.pid),
                lambda daemon: _known_server_says(daemon, at, entry, pids),
            )
        case _:
            return without_events(daemon)


def seen_alive(daemon: Daemon, at: float, pid: int) -> Transition:
    """A line of the log speaks of a server as only of one that lives; whether it lives, other sources tell."""
    known = pid in daemon.servers
    if pid in daemon.clients:
        return without_events(daemon)
    daemon, events = servers.seen_alive(daemon, at, pid)
    if known or pid not in daemon.servers:
        return daemon, events
    return claims.made(daemon, at, ClaimKind.SERVER_START, pid), events


def _client_active(daemon: Daemon, at: float, server: int, pid: int, context: int) -> Transition:
    here = daemon.servers.get(server)
    if here is None:
        return without_events(daemon)
    gpu = place_of(here, pid, context)
    daemon = servers.with_server(daemon, accepted(here))
    daemon = claims.dropped(daemon, ClaimKind.CLIENT_DISCONNECT, pid)
    if pid not in daemon.clients:
        if claims.are_many(daemon, ClaimKind.CLIENT_CONNECT):
            return without_events(daemon)
        daemon = claims.made(daemon, at, ClaimKind.CLIENT_CONNECT, pid)
    return chain(
        clients.connect(_settled(daemon, server, pid), at, server, pid),
        lambda daemon: without_events(clients.context_begun(daemon, pid, context, gpu)),
    )


def _settled(daemon: Daemon, server: int, pid: int) -> Daemon:
    """It is decided whether a client that was connecting is let in."""
    here = daemon.servers.get(server)
    if here is None or pid not in here.connecting:
        return daemon
    return servers.with_server(daemon, replace(here, connecting=here.connecting - {pid}))


def _known_server_says(daemon: Daemon, at: float, entry: LogEntry, pids: Pids) -> Transition:
    pid, message = entry.pid, entry.message
    known = daemon.servers.get(pid)
    if known is None:
        return without_events(daemon)
    server = fault_log.read_block_line(known, at, entry, pids)
    daemon = daemon if server is known else servers.with_server(daemon, server)
    match message:
        case log_message.ClientConnecting(client, context):
            daemon = clients.dequeue(daemon, client)
            return without_events(servers.with_server(daemon, _connecting(begun(server, client, context), message)))
        case log_message.ClientActive(0):
            return without_events(servers.hidden_pids_listed(daemon, pid, True))
        case log_message.ClientLimitReached(limit) if not _may_be_full(daemon, pid, limit):
            return claims.contradicted(daemon, at, Claim(kind=ClaimKind.CLIENT_REFUSED, pid=pid, at=at))
        case log_message.ClientLimitReached(limit):
            daemon = servers.with_server(daemon, replace(server, clients_limit=limit))
            (only,) = server.connecting if len(server.connecting) == 1 else (None,)
            return clients.refuse(daemon, at, pid, only, RefusalReason.LIMIT)
        case log_message.ClientRefusedInTeardown(client):
            daemon = servers.with_server(daemon, replace(server, refused_client=client))
            return clients.refuse(daemon, at, pid, client, RefusalReason.FAULT)
        case log_message.ClientNotAccepted(client, _) if server.refused_client == client:
            return without_events(servers.with_server(daemon, replace(server, refused_client=None)))
        case log_message.ClientNotAccepted(client, status):
            reason = RefusalReason.FAULT if status == NOT_READY else RefusalReason.OTHER
            return clients.refuse(daemon, at, pid, client, reason)
        case log_message.ContextExited():
            return without_events(disconnects.context_exited(daemon, at, entry, message))
        case log_message.ContextExiting():
            return without_events(disconnects.context_exiting(daemon, at, entry, message))
        case log_message.ClientExitRequested(client):
            return without_events(disconnects.exit_requested(daemon, at, pid, client))
        case log_message.DeviceAssociated(gpu):
            return without_events(servers.with_server(daemon, placed(server, gpu)))
        case log_message.ThreadPercentageSet(percentage):
            return without_events(limits.threads_told(daemon, at, pid, percentage))
        case log_message.PinnedMemoryLimitSet(device, limit):
            return without_events(limits.memory_told(daemon, pid, device, limit))
        case log_message.PrioritySet(priority):
            return without_events(limits.priority_told(daemon, pid, priority))
        case log_message.HandlingFatalError() | log_message.ClientToBeTornDown() if fault_log.has_new_block(
            known, server
        ):
            return without_events(claims.made(daemon, at, ClaimKind.FAULT, pid))
        case log_message.ServerContextDestroyed(device) if server.devices_to_reset:
            return _device_reset(daemon, at, pid, server.devices_to_reset - {device})
        case log_message.ServerContextCreated() if server.devices_to_reset:
            # It makes new ones only after all have been destroyed (R515), or for a client that it lets in (R580).
            return without_events(claims.made(daemon, at, ClaimKind.RECOVERY, pid))
        case _:
            return without_events(daemon)


def _may_be_full(daemon: Daemon, server: int, limit: int) -> bool:
    """Return whether a server may have all its clients: half of them are known, as not all have been read of yet."""
    return 2 * sum(client.server == server for client in daemon.clients.values()) >= limit


def _connecting(server: Server, said: ClientConnecting) -> Server:
    """It is yet to be decided whether a client is let in; its control connection, context 0, always is."""
    if said.context <= 0 or len(server.connecting) >= clients.MOST_CLIENTS:
        return server
    return replace(server, connecting=server.connecting | {said.pid})


def _device_reset(daemon: Daemon, at: float, pid: int, left: frozenset[int]) -> Transition:
    """The last victim on a device has left; when that is so on all of them, the server is well again."""
    if not left:
        return without_events(claims.made(daemon, at, ClaimKind.RECOVERY, pid))
    return without_events(servers.with_server(daemon, replace(daemon.servers[pid], devices_to_reset=left)))
