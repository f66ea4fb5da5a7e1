"""Lines of server.log."""

from exporter.incidents import fault_log
from exporter.model.daemon import Claim, ClaimKind, Daemon, with_connections, with_runtime
from exporter.model.server import ContextCreation, RefusalReason
from exporter.model.values import replace
from exporter.parse import log_message
from exporter.parse.log_line import LogEntry
from exporter.state import claims, clients, disconnects, limits, servers
from exporter.state.transition import Pids, Transition, chain

NOT_READY = 807
"""CUDA_ERROR_MPS_SERVER_NOT_READY: the server is in FAULT."""


def read(daemon: Daemon, at: float, entry: LogEntry, pids: Pids) -> Transition:
    """Return the daemon after a line of a server. `pids` translates bare numbers of another PID namespace."""
    server = entry.pid
    match entry.message:
        case log_message.VersionReported(version):
            return with_runtime(daemon, version=version), ()
        case log_message.ServerReady():
            return chain(start_logged(daemon, at, server), lambda daemon: servers.ready(daemon, at, server))
        case log_message.ClientActive(pid, context) if pid != 0:
            return chain(
                start_logged(daemon, at, server), lambda daemon: _client_active(daemon, at, server, pid, context)
            )
        case log_message.ClientDisconnected(pid):
            daemon = disconnects.record_disconnect(_without_connecting(daemon, server, pid), at, entry, pid)
            connected = pid in daemon.clients
            return claims.add(daemon, at, ClaimKind.CLIENT_DISCONNECT, pid) if connected else daemon, ()
        case log_message.ServerStartFailed(text):
            return with_connections(daemon, failed_starts=replace(daemon.connections.failed_starts, words=text)), ()
        case _ if server in daemon.servers:
            return _known_server_read(daemon, at, entry, pids)
        case (
            log_message.ClientConnecting()
            | log_message.HandlingFatalError()
            | log_message.ClientToBeTornDown()
            | log_message.ThreadPercentageSet()
        ):
            return chain(start_logged(daemon, at, server), lambda daemon: _known_server_read(daemon, at, entry, pids))
        case _:
            return daemon, ()


def start_logged(daemon: Daemon, at: float, pid: int) -> Transition:
    """Return the daemon with a server that the log reports. Another source must confirm a new one."""
    if pid in daemon.clients:
        return daemon, ()
    known = pid in daemon.servers
    daemon, events = servers.start_unless_exited(daemon, at, pid)
    is_new = not known and pid in daemon.servers
    return claims.add(daemon, at, ClaimKind.SERVER_START, pid) if is_new else daemon, events


def _client_active(daemon: Daemon, at: float, server_pid: int, pid: int, context: int) -> Transition:
    server = daemon.servers.get(server_pid)
    if server is None:
        return daemon, ()
    pending = server.pending_context
    gpu = pending.gpu if pending is not None and (pending.pid, pending.context) == (pid, context) else None
    if pending is not None:
        daemon = servers.with_server(daemon, replace(server, pending_context=None))
    daemon = claims.remove(daemon, ClaimKind.CLIENT_DISCONNECT, pid)
    if pid not in daemon.clients:
        if claims.is_full(daemon, ClaimKind.CLIENT_CONNECT):
            return daemon, ()
        daemon = claims.add(daemon, at, ClaimKind.CLIENT_CONNECT, pid)
    return chain(
        clients.connect(_without_connecting(daemon, server_pid, pid), at, server_pid, pid),
        lambda daemon: (clients.add_context(daemon, pid, context, gpu), ()),
    )


def _without_connecting(daemon: Daemon, server_pid: int, pid: int) -> Daemon:
    server = daemon.servers.get(server_pid)
    if server is None or pid not in server.connecting:
        return daemon
    return servers.with_server(daemon, replace(server, connecting=server.connecting - {pid}))


def _known_server_read(daemon: Daemon, at: float, entry: LogEntry, pids: Pids) -> Transition:
    pid, message = entry.pid, entry.message
    before = daemon.servers.get(pid)
    if before is None:
        return daemon, ()
    server = fault_log.read_block_line(before, at, entry, pids)
    daemon = daemon if server is before else servers.with_server(daemon, server)
    match message:
        case log_message.ClientConnecting(client, context):
            pending = ContextCreation(pid=client, context=context) if context > 0 and client != 0 else None
            connecting = server.connecting
            # The control connection, context 0, is always accepted.
            if context > 0 and len(connecting) < clients.MOST_CLIENTS:
                connecting |= {client}
            server = replace(server, pending_context=pending, connecting=connecting)
            return servers.with_server(clients.dequeue(daemon, client), server), ()
        case log_message.ClientActive(0):
            return servers.with_hidden_pids(daemon, pid, True), ()
        case log_message.ClientLimitReached(limit):
            # Half of the clients must be known, as not all of their lines may have been read yet.
            if 2 * sum(client.server == pid for client in daemon.clients.values()) < limit:
                return claims.contradict(daemon, at, Claim(kind=ClaimKind.CLIENT_REFUSED, pid=pid, at=at))
            daemon = servers.with_server(daemon, replace(server, clients_limit=limit))
            (refused,) = server.connecting if len(server.connecting) == 1 else (None,)
            return clients.refuse(daemon, at, pid, refused, RefusalReason.LIMIT)
        case log_message.ClientRefusedInTeardown(client):
            daemon = servers.with_server(daemon, replace(server, refused_client=client))
            return clients.refuse(daemon, at, pid, client, RefusalReason.FAULT)
        case log_message.ClientNotAccepted(client, _) if server.refused_client == client:
            return servers.with_server(daemon, replace(server, refused_client=None)), ()
        case log_message.ClientNotAccepted(client, status):
            reason = RefusalReason.FAULT if status == NOT_READY else RefusalReason.OTHER
            return clients.refuse(daemon, at, pid, client, reason)
        case log_message.ContextExited():
            return disconnects.context_exited(daemon, at, entry, message), ()
        case log_message.ContextExiting():
            return disconnects.context_exiting(daemon, at, entry, message), ()
        case log_message.ClientExitRequested(client):
            return disconnects.request_exit(daemon, at, pid, client), ()
        case log_message.DeviceAssociated(gpu):
            pending = server.pending_context
            if pending is None or pending.gpu == gpu:
                return daemon, ()
            # With a second GPU, lines of two contexts are mixed.
            pending = replace(pending, gpu=gpu) if pending.gpu is None else None
            return servers.with_server(daemon, replace(server, pending_context=pending)), ()
        case log_message.ThreadPercentageSet(percentage):
            return limits.apply_logged_threads(daemon, at, pid, percentage), ()
        case log_message.PinnedMemoryLimitSet(device, limit):
            return limits.apply_logged_memory(daemon, pid, device, limit), ()
        case log_message.PrioritySet(priority):
            return limits.apply_logged_priority(daemon, pid, priority), ()
        case log_message.HandlingFatalError() | log_message.ClientToBeTornDown() if fault_log.has_new_block(
            before, server
        ):
            return claims.add(daemon, at, ClaimKind.FAULT, pid), ()
        case log_message.ServerContextDestroyed(device) if server.devices_to_reset:
            # The server recovers when the last affected client has left each device.
            devices = server.devices_to_reset - {device}
            if not devices:
                return claims.add(daemon, at, ClaimKind.RECOVERY, pid), ()
            return servers.with_server(daemon, replace(server, devices_to_reset=devices)), ()
        case log_message.ServerContextCreated() if server.devices_to_reset:
            # The server creates contexts only after all were destroyed (R515), or for an accepted client (R580).
            return claims.add(daemon, at, ClaimKind.RECOVERY, pid), ()
        case _:
            return daemon, ()
