"""Lines of control.log and server.log."""

from exporter.model.daemon import (
    Claim,
    ClaimKind,
    Daemon,
    with_commands,
    with_connections,
    with_lifecycle,
    with_log,
    with_runtime,
    with_totals,
)
from exporter.model.observation import LogLine
from exporter.model.server import Client, ContextCreation, Disconnect, RefusalReason, ServerState
from exporter.model.values import replace
from exporter.parse import log_message
from exporter.parse.control_reply import DEFAULT_PINNED_MEMORY, query_changed_by
from exporter.parse.log_line import LogEntry, Pids, parse_log_line, translate_entry
from exporter.parse.log_message import ContextExited, ContextExiting
from exporter.state import claims, clients, fault_log, lifecycle, limits, servers
from exporter.state.step import Step, increment, with_latest

_OTHERS_FILE = {"control.log": False, "server.log": True}
"""Senders that do not write to a file: a line of a server in control.log, or of the daemon in server.log, is forged."""

LONGEST_COMMAND = 80
"""Characters of a command that are stored. Any user can send any command; those of the daemon are shorter."""


NOT_READY = 807
"""CUDA_ERROR_MPS_SERVER_NOT_READY: the server is in FAULT."""

REMEMBERED_SECONDS = 10.0
MAX_REMEMBERED = 256
"""How long, and how many, disconnects of one daemon are remembered: more clients than four servers have."""

TERMINATION_SECONDS = 10.0
"""A client that disconnects within this time after an operator terminated it was terminated (measured: 6 ms)."""


def line_read(step: Step, line: LogLine) -> None:
    """Apply a line of one of the daemon's logs."""
    entry = parse_log_line(line.line)
    recognized = entry is not None and not isinstance(entry.message, log_message.Unrecognized)
    step.daemon = count_lines(step.daemon, line.file, recognized=recognized)
    if entry is None or entry.by_daemon is _OTHERS_FILE.get(line.file):
        return
    entry = translate_entry(entry, line.pids)
    if entry.by_daemon:
        command = entry.message.text if isinstance(entry.message, log_message.CommandReceived) else None
        step.daemon = with_log(step.daemon, last_command=None if command is None else command[:LONGEST_COMMAND])
        _daemon_line_read(step, line.at, entry)
    elif not step.daemon.log.echoing or line.file in _OTHERS_FILE:
        _server_line_read(step, line.at, entry, line.pids)


def count_lines(daemon: Daemon, file: str, *, recognized: bool, lines: int = 1) -> Daemon:
    """Return the daemon with incremented counters of log lines."""
    totals = daemon.totals
    unrecognized = totals.log_lines_unrecognized
    if not recognized or file not in unrecognized:
        unrecognized = increment(unrecognized, file, by=0 if recognized else lines)
    log_lines = increment(totals.log_lines, file, by=lines)
    return with_totals(daemon, log_lines=log_lines, log_lines_unrecognized=unrecognized)


# -- lines of the daemon ---------------------------------------------------------------------------------------------


def _daemon_line_read(step: Step, at: float, entry: LogEntry) -> None:
    daemon = step.daemon
    match entry.message:
        # A refused quit, or one whose session was closed, has no effect. An obeyed one leaves its session open until
        # the daemon ends (measured, R580).
        case log_message.SessionClosed():
            step.daemon = with_log(with_lifecycle(daemon, quit_claimed_at=None), echoing=False)
        case log_message.CommandDenied():
            step.daemon = with_lifecycle(daemon, quit_claimed_at=None)
        case log_message.CommandReceived(text) if text.split()[:1] == ["quit"]:
            step.daemon = with_lifecycle(daemon, quit_claimed_at=at)
        case _ if daemon.log.echoing:
            pass
        case log_message.CommandReceived(text):
            # A limit that the command sets is queried again: the daemon may have refused the command.
            query = query_changed_by(text)
            daemon = daemon if query is None else limits.mark_stale(daemon, query)
            # The reply to `ps` has the command lines of clients, which may contain any text. Until the session is
            # closed, only a quit is read.
            step.daemon = with_log(daemon, echoing=text.split()[:1] == ["ps"])
        case log_message.VersionReported(version):
            step.daemon = with_runtime(daemon, version=version)
        case log_message.ProtocolReported(protocol) if not daemon.answers:
            # A daemon that answers queries has the protocol of these queries.
            daemon = with_runtime(daemon, protocol=protocol)
            unsupported = not daemon.supported and not daemon.ended
            step.daemon = lifecycle.with_unknown_state(daemon, at) if unsupported else daemon
        case log_message.DefaultMemoryLimitSet(int(device)):
            step.daemon = limits.mark_stale(daemon, f"{DEFAULT_PINNED_MEMORY} {device}")
        case log_message.DaemonStarting() if daemon.runtime.process is None:
            # Its process or its answer must confirm the start. Several daemons may write to one log, and every user
            # can write to it (measured, R580).
            step.daemon = with_commands(daemon, asked_at={})
        case log_message.DaemonExiting():
            lifecycle.exit_claimed(step, at, entry.pid)
        case log_message.ServerStarting(server, uid) if server not in daemon.clients:
            if server not in daemon.servers and not daemon.ended:
                step.daemon = claims.add(daemon, at, ClaimKind.SERVER_START, server)
            servers.start(step, at, server, uid, ServerState.INITIALIZING, logged=True)
        case log_message.ServerReady(int(server)):
            _start_logged(step, at, server)
            servers.ready(step, at, server)
        case log_message.ServerExited(server) if server in daemon.servers:
            step.daemon = claims.add(daemon, at, ClaimKind.SERVER_EXIT, server)
        case log_message.ServerShutdownRequested(server) if server in daemon.servers:
            step.daemon = servers.with_server(daemon, replace(daemon.servers[server], shutdown_requested=True))
        case log_message.ServerWillNotShutDown(server):
            clients.report_waiting(step, at, server)
        case log_message.ClientQueued(pid, uid):
            step.daemon = clients.queue(daemon, pid, uid)
        case log_message.ClientForwarded(pid, uid):
            # Of the clients with a hidden PID, the daemon forwards the user's oldest.
            hidden = (n for n, owner in daemon.connections.queued.items() if n < clients.HIDDEN and owner == uid)
            step.daemon = clients.dequeue(daemon, pid or next(hidden, 0))


# -- lines of a server -----------------------------------------------------------------------------------------------


def _server_line_read(step: Step, at: float, entry: LogEntry, pids: Pids) -> None:
    """Apply a line of a server. `pids` translates bare numbers of another PID namespace."""
    server = entry.pid
    match entry.message:
        case log_message.VersionReported(version):
            step.daemon = with_runtime(step.daemon, version=version)
        case log_message.ServerReady():
            _start_logged(step, at, server)
            servers.ready(step, at, server)
        case log_message.ClientActive(pid, context) if pid != 0:
            _start_logged(step, at, server)
            _client_active(step, at, server, pid, context)
        case log_message.ClientDisconnected(pid):
            daemon = _without_connecting(step.daemon, server, pid)
            step.daemon = _record_disconnect(daemon, at, entry, pid)
            if pid in step.daemon.clients:
                step.daemon = claims.add(step.daemon, at, ClaimKind.CLIENT_DISCONNECT, pid)
        case log_message.ServerStartFailed(text):
            failed = replace(step.daemon.connections.failed_starts, words=text)
            step.daemon = with_connections(step.daemon, failed_starts=failed)
        case _ if server in step.daemon.servers:
            _known_server_read(step, at, entry, pids)
        case (
            log_message.ClientConnecting()
            | log_message.HandlingFatalError()
            | log_message.ClientToBeTornDown()
            | log_message.ThreadPercentageSet()
        ):
            _start_logged(step, at, server)
            _known_server_read(step, at, entry, pids)


def _start_logged(step: Step, at: float, pid: int) -> None:
    """Add a server that the log reports. Another source must confirm a new one."""
    if pid in step.daemon.clients or pid in step.daemon.servers:
        return
    servers.start_unless_exited(step, at, pid)
    if pid in step.daemon.servers:
        step.daemon = claims.add(step.daemon, at, ClaimKind.SERVER_START, pid)


def _client_active(step: Step, at: float, server_pid: int, pid: int, context: int) -> None:
    server = step.daemon.servers.get(server_pid)
    if server is None:
        return
    pending = server.pending_context
    gpu = pending.gpu if pending is not None and (pending.pid, pending.context) == (pid, context) else None
    if pending is not None:
        step.daemon = servers.with_server(step.daemon, replace(server, pending_context=None))
    step.daemon = claims.remove(step.daemon, ClaimKind.CLIENT_DISCONNECT, pid)
    if pid not in step.daemon.clients:
        if claims.is_full(step.daemon, ClaimKind.CLIENT_CONNECT):
            return
        step.daemon = claims.add(step.daemon, at, ClaimKind.CLIENT_CONNECT, pid)
    step.daemon = _without_connecting(step.daemon, server_pid, pid)
    clients.connect(step, at, server_pid, pid)
    step.daemon = clients.add_context(step.daemon, pid, context, gpu)


def _without_connecting(daemon: Daemon, server_pid: int, pid: int) -> Daemon:
    server = daemon.servers.get(server_pid)
    if server is None or pid not in server.connecting:
        return daemon
    return servers.with_server(daemon, replace(server, connecting=server.connecting - {pid}))


def _known_server_read(step: Step, at: float, entry: LogEntry, pids: Pids) -> None:
    pid, message = entry.pid, entry.message
    before = step.daemon.servers.get(pid)
    if before is None:
        return
    server = fault_log.read_block_line(before, at, entry, pids)
    if server is not before:
        step.daemon = servers.with_server(step.daemon, server)
    daemon = step.daemon
    match message:
        case log_message.ClientConnecting(client, context):
            pending = ContextCreation(pid=client, context=context) if context > 0 and client != 0 else None
            connecting = server.connecting
            # The control connection, context 0, is always accepted.
            if context > 0 and len(connecting) < clients.MOST_CLIENTS:
                connecting |= {client}
            server = replace(server, pending_context=pending, connecting=connecting)
            step.daemon = servers.with_server(clients.dequeue(daemon, client), server)
        case log_message.ClientActive(0):
            step.daemon = servers.with_hidden_pids(daemon, pid, True)
        case log_message.ClientLimitReached(limit):
            # Half of the clients must be known, as not all of their lines may have been read yet.
            if 2 * sum(client.server == pid for client in daemon.clients.values()) < limit:
                claims.contradict(step, at, Claim(kind=ClaimKind.CLIENT_REFUSED, pid=pid, at=at))
                return
            step.daemon = servers.with_server(daemon, replace(server, clients_limit=limit))
            (refused,) = server.connecting if len(server.connecting) == 1 else (None,)
            clients.refuse(step, at, pid, refused, RefusalReason.LIMIT)
        case log_message.ClientRefusedInTeardown(client):
            step.daemon = servers.with_server(daemon, replace(server, refused_client=client))
            clients.refuse(step, at, pid, client, RefusalReason.FAULT)
        case log_message.ClientNotAccepted(client, _) if server.refused_client == client:
            step.daemon = servers.with_server(daemon, replace(server, refused_client=None))
        case log_message.ClientNotAccepted(client, status):
            reason = RefusalReason.FAULT if status == NOT_READY else RefusalReason.OTHER
            clients.refuse(step, at, pid, client, reason)
        case ContextExited(client, context):
            # Up to R565. After its last known context a client has disconnected.
            known = daemon.clients.get(client)
            daemon = _remove_context(daemon, at, entry, ContextExiting(client, context, in_reset=False))
            if known is not None and known.server == pid and not daemon.clients[client].contexts:
                daemon = _record_disconnect(daemon, at, entry, client)
                daemon = claims.add(daemon, at, ClaimKind.CLIENT_DISCONNECT, client)
            step.daemon = daemon
        case ContextExiting():
            step.daemon = _context_exiting(daemon, at, entry, message)
        case log_message.ClientExitRequested(client):
            # An operator has the server end the client.
            known = daemon.clients.get(client)
            if known is not None and known.server == pid:
                step.daemon = _with_client(daemon, replace(known, exit_requested_at=at))
        case log_message.DeviceAssociated(gpu):
            pending = server.pending_context
            if pending is not None and pending.gpu != gpu:
                # With a second GPU, lines of two contexts are mixed.
                pending = replace(pending, gpu=gpu) if pending.gpu is None else None
                step.daemon = servers.with_server(daemon, replace(server, pending_context=pending))
        case log_message.ThreadPercentageSet(percentage) if 0 < percentage <= 100:
            # Memory limits, if there are any, and the priority follow it.
            if server.limits_logged_at is None:
                server = replace(server, limits=replace(server.limits, pinned_memory={}), limits_logged_at=at)
            step.daemon = limits.with_server_limits(daemon, server, active_thread_percentage=percentage)
        case log_message.PinnedMemoryLimitSet(device, limit):
            memory = limits.with_limit(server.limits.pinned_memory, device, limit)
            step.daemon = limits.with_server_limits(daemon, server, pinned_memory=memory)
        case log_message.PrioritySet(priority):
            # A daemon's new default also applies to running servers (R580).
            step.daemon = limits.with_server_limits(daemon, server, client_priority=priority)
        case log_message.HandlingFatalError() | log_message.ClientToBeTornDown() if fault_log.has_new_block(
            before, server
        ):
            step.daemon = claims.add(daemon, at, ClaimKind.FAULT, pid)
        case log_message.ServerContextDestroyed(device) if server.devices_to_reset:
            # The server recovers when the last affected client has left each device.
            devices = server.devices_to_reset - {device}
            if devices:
                step.daemon = servers.with_server(daemon, replace(server, devices_to_reset=devices))
            else:
                step.daemon = claims.add(daemon, at, ClaimKind.RECOVERY, pid)
        case log_message.ServerContextCreated() if server.devices_to_reset:
            # The server creates contexts only after all were destroyed (R515), or for an accepted client (R580).
            step.daemon = claims.add(daemon, at, ClaimKind.RECOVERY, pid)


# -- the end of the contexts of a client, then of its connection -----------------------------------------------------


def _context_exiting(daemon: Daemon, at: float, entry: LogEntry, message: ContextExiting) -> Daemon:
    """Remove a context. If an error that affects only this client ends it, add a claim of a contained fault, once.

    A device-side assert is such an error (measured, R580). During a fault, the line only shows how the client ended.
    """
    pid, server = message.pid, daemon.servers[entry.pid]
    before, disconnect = clients.last_known(daemon, pid), daemon.connections.disconnects.get(pid)
    was_in_reset = any(each is not None and each.in_reset for each in (before, disconnect))
    daemon = _remove_context(daemon, at, entry, message)
    if not message.in_reset or was_in_reset or before is None or server.state is ServerState.FAULT:
        return daemon
    block = server.fault_block
    if block is not None and pid in block.clients and before.connected_at <= block.at:
        # The fault affected the client. The server has recovered since.
        return daemon
    return claims.add(daemon, at, ClaimKind.CONTAINED_FAULT, pid)


def _record_disconnect(daemon: Daemon, at: float, entry: LogEntry, pid: int) -> Daemon:
    """Record that a client's process has ended. The log may report the end of its contexts later (measured, R580)."""
    client = clients.last_known(daemon, pid)
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
    return with_connections(daemon, disconnects=recent, recently_disconnected=clients)


def _remove_context(daemon: Daemon, at: float, entry: LogEntry, message: ContextExiting) -> Daemon:
    """Remove a context, which may be unknown. After its last known context a client has disconnected."""
    client = clients.last_known(daemon, message.pid) or Client(pid=message.pid, server=entry.pid, connected_at=at)
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


def _with_client(daemon: Daemon, client: Client) -> Daemon:
    if client.pid in daemon.clients:
        return replace(daemon, clients={**daemon.clients, client.pid: client})
    recent = daemon.connections.recently_disconnected
    if client.pid not in recent:
        return daemon
    return with_connections(daemon, recently_disconnected={**recent, client.pid: client})


def _with_disconnect(daemon: Daemon, disconnect: Disconnect) -> Daemon:
    known = daemon.connections.disconnects
    if known.get(disconnect.pid) == disconnect:
        return daemon
    return with_connections(daemon, disconnects=with_latest(known, disconnect.pid, disconnect, MAX_REMEMBERED))
