"""Lines of control.log and server.log."""

import math

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
from exporter.model.event import Step
from exporter.model.observation import LogLine
from exporter.model.server import (
    BlockSection,
    Client,
    ContextCreation,
    Disconnect,
    FaultLogBlock,
    RefusalReason,
    Server,
    ServerState,
)
from exporter.model.values import increment, made_of, replace, with_latest
from exporter.parse import log_message
from exporter.parse.control_reply import query_changed_by
from exporter.parse.log_line import LogEntry, Pids, parse_log_line, seconds_between, translate_entry, translate_pid
from exporter.parse.log_message import ContextExited, ContextExiting, Message
from exporter.state import claims, lifecycle, limits, servers
from exporter.state.devices import MOST_DEVICES

_OTHERS_FILE = {"control.log": False, "server.log": True}
"""Senders that do not write to a file: a line of a server in control.log, or of the daemon in server.log, is forged."""

LONGEST_COMMAND = 80  # Characters that are stored: any user can send any command. Those of the daemon are shorter.
OWN_SECONDS = 5.0  # The log shows a command of the exporter at most so long after its reply.
NOT_READY = 807  # CUDA_ERROR_MPS_SERVER_NOT_READY: the server is in FAULT.
NAMES_CLIENTS = "13000"  # From this version on (R580), a server names each client that disconnects.

REMEMBERED_SECONDS, MAX_REMEMBERED = 10.0, 256
"""How long, and how many, disconnects of one daemon are remembered: more clients than four servers have."""

SAME_SECONDS = 60.0  # A log line that is read again within this time, with the same timestamp, is the same line.

LONGEST_SECONDS = 10.0
"""How long a server may take to write a block, by its own clock. Later lines belong to another block."""

NAMED_BEFORE_SECONDS = 1.0
"""How long before a block its log may name the client. A client that was named earlier is of another fault."""

TOGETHER_SECONDS = 0.2  # Blocks that follow each other so soon are of one fault: on two GPUs, 1 to 37 ms (R580).


def line_read(step: Step, line: LogLine) -> None:
    """Apply a line of one of the daemon's logs."""
    entry = parse_log_line(line.line)
    recognized = entry is not None and not isinstance(entry.message, log_message.Unrecognized)
    step.daemon = count_lines(step.daemon, line.file, recognized=recognized)
    if entry is None or entry.by_daemon is _OTHERS_FILE.get(line.file):
        return
    entry = translate_entry(entry, line.pids)
    if claims.is_of_another_daemon(step, line.at, entry):
        return
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
            step.daemon = with_log(with_lifecycle(daemon, quit_claimed_at=None), echoing=False, closed_at=at)
        case log_message.CommandDenied():
            # It refused the last command, which may not be the one that ends a client: any user can send one.
            ended_at = None if daemon.log.terminated_at == daemon.log.commanded_at else daemon.log.terminated_at
            step.daemon = with_log(with_lifecycle(daemon, quit_claimed_at=None), terminated_at=ended_at)
        case log_message.CommandReceived(text) if text.split()[:1] == ["quit"]:
            step.daemon = with_log(with_lifecycle(daemon, quit_claimed_at=at), commanded_at=at)
        case _ if daemon.log.echoing:
            pass
        case log_message.CommandReceived(text):
            # Query the limit again: the daemon may have refused the command. Not if an own query followed an own one.
            query, known = query_changed_by(text), daemon.commands.asked_at
            if query and not at - OWN_SECONDS <= known.get(text, -math.inf) <= known.get(query, -math.inf):
                daemon = limits.mark_stale(limits.before_change(daemon, query), query)
            # The reply to `ps` has the command lines of clients, which may contain any text. Until the session is
            # closed, only a quit is read.
            ended_at = at if "terminate" in text else daemon.log.terminated_at
            step.daemon = with_log(daemon, echoing=text.split()[:1] == ["ps"], commanded_at=at, terminated_at=ended_at)
        case log_message.VersionReported(version):
            step.daemon = with_runtime(daemon, version=version)
        case log_message.ProtocolReported(protocol) if not daemon.answers:
            # A daemon that answers queries has the protocol of these queries.
            daemon = with_runtime(daemon, protocol=protocol)
            unsupported = not daemon.supported and not daemon.ended
            step.daemon = lifecycle.with_unknown_state(daemon, at) if unsupported else daemon
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
            servers.report_waiting(step, at, server)
        case log_message.ClientQueued(pid, uid):
            step.daemon = servers.queue(daemon, pid, uid)
        case log_message.ClientForwarded(pid, uid):
            # Of the clients with a hidden PID, the daemon forwards the user's oldest.
            hidden = (n for n, owner in daemon.connections.queued.items() if n < servers.HIDDEN and owner == uid)
            step.daemon = servers.dequeue(daemon, pid or next(hidden, 0))


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
        case log_message.UnnamedDisconnect() if (step.daemon.runtime.version or "") < NAMES_CLIENTS:
            step.daemon = with_log(step.daemon, incomplete_at=at)
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
    if (server := step.daemon.servers.get(server_pid)) is None:
        return
    daemon, pending = step.daemon, server.pending_context
    gpu = pending.gpu if pending is not None and (pending.pid, pending.context) == (pid, context) else None
    if pending is not None:
        daemon = servers.with_server(daemon, replace(server, pending_context=None))
    step.daemon = daemon = claims.remove(daemon, ClaimKind.CLIENT_DISCONNECT, pid)
    if pid not in daemon.clients:
        was = daemon.connections.recently_disconnected.get(pid)
        # A client that was listed may have disconnected before its lines are read.
        is_past = was is not None and was.server == server_pid and pid not in daemon.connections.disconnects
        if (is_past and claims.may_be_unread(daemon, at)) or claims.is_full(daemon, ClaimKind.CLIENT_CONNECT):
            return
        daemon = claims.add(daemon, at, ClaimKind.CLIENT_CONNECT, pid)
    step.daemon = _without_connecting(daemon, server_pid, pid)
    servers.connect(step, at, server_pid, pid)
    step.daemon = servers.add_context(step.daemon, at, pid, context, gpu)


def _without_connecting(daemon: Daemon, server_pid: int, pid: int) -> Daemon:
    server = daemon.servers.get(server_pid)
    if server is None or pid not in server.connecting:
        return daemon
    return servers.with_server(daemon, replace(server, connecting=server.connecting - {pid}))


def _known_server_read(step: Step, at: float, entry: LogEntry, pids: Pids) -> None:
    pid, message = entry.pid, entry.message
    if (before := step.daemon.servers.get(pid)) is None:
        return
    server = read_block_line(before, at, entry, pids)
    if server is not before:
        step.daemon = servers.with_server(step.daemon, server)
    daemon = step.daemon
    match message:
        case log_message.ClientConnecting(client, context):
            pending = ContextCreation(pid=client, context=context) if context > 0 and client != 0 else None
            connecting = server.connecting
            # The control connection, context 0, is always accepted.
            if context > 0 and len(connecting) < servers.MOST_CLIENTS:
                connecting |= {client}
            server = replace(server, pending_context=pending, connecting=connecting)
            step.daemon = servers.with_server(servers.dequeue(daemon, client), server)
        case log_message.ClientActive(0):
            step.daemon = servers.with_hidden_pids(daemon, pid, True)
        case log_message.ClientLimitReached(limit):
            # Half of them must be known: of some, no line may be read yet. This one may be read after their exits.
            recent = {**daemon.connections.recently_disconnected, **daemon.clients}
            if 2 * sum(client.server == pid for client in recent.values()) < limit:
                claims.contradict(step, at, Claim(kind=ClaimKind.CLIENT_REFUSED, pid=pid, at=at))
                return
            step.daemon = servers.with_server(daemon, replace(server, clients_limit=limit))
            (refused,) = server.connecting if len(server.connecting) == 1 else (None,)
            servers.refuse(step, at, pid, refused, RefusalReason.LIMIT)
        case log_message.ClientRefusedInTeardown(client):
            step.daemon = servers.with_server(daemon, replace(server, refused_client=client))
            servers.refuse(step, at, pid, client, RefusalReason.FAULT)
        case log_message.ClientNotAccepted(client, _) if server.refused_client == client:
            step.daemon = servers.with_server(daemon, replace(server, refused_client=None))
        case log_message.ClientNotAccepted(client, status):
            reason = RefusalReason.FAULT if status == NOT_READY else RefusalReason.OTHER
            servers.refuse(step, at, pid, client, reason)
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
        case log_message.HandlingFatalError() | log_message.ClientToBeTornDown() if has_new_block(before, server):
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
    before, disconnect = servers.last_known(daemon, pid), daemon.connections.disconnects.get(pid)
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
    client = servers.last_known(daemon, pid)
    if pid in daemon.connections.disconnects or client is None or client.server != entry.pid:
        return daemon
    return _with_disconnect(daemon, _disconnect(client, at, entry.stamp))


def prune_disconnects(daemon: Daemon, at: float) -> Daemon:
    """Remove disconnects that are older than `REMEMBERED_SECONDS`."""
    disconnects, clients = daemon.connections.disconnects, daemon.connections.recently_disconnected
    if not disconnects and not clients:
        return daemon
    recent = {pid: each for pid, each in disconnects.items() if at - each.at <= REMEMBERED_SECONDS}
    clients = {pid: each for pid, each in clients.items() if pid in daemon.connections.disconnected_at}
    # These are new values, even if they are equal, so that open incidents are examined again (`incidents.track`).
    connections = replace(daemon.connections, disconnects=recent, recently_disconnected=clients)
    return replace(daemon, connections=connections)


def _remove_context(daemon: Daemon, at: float, entry: LogEntry, message: ContextExiting) -> Daemon:
    """Remove a context, which may be unknown. After its last known context a client has disconnected."""
    client = servers.last_known(daemon, message.pid) or Client(pid=message.pid, server=entry.pid, connected_at=at)
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
    terminated = requested_at is not None and at - requested_at <= servers.TERMINATION_SECONDS
    return made_of(Disconnect, client, at=at, stamp=stamp, terminated=terminated, contexts=frozenset())


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


# -- the log block of a fault -----------------------------------------------------------------------------------------


def read_block_line(server: Server, at: float, entry: LogEntry, pids: Pids = None) -> Server:
    """Return the server after one more line of its log.

    A bare number is a PID only in the list of clients, so that it is translated from the daemon's PID namespace here.
    """
    stamp, message, block = entry.stamp, entry.message, server.fault_block
    new = FaultLogBlock(at=at, stamp=stamp, named=_named_before(server, stamp))
    current = block is not None and abs(at - block.at) <= SAME_SECONDS
    current = current and block is not None and abs(seconds_between(block.stamp, stamp)) <= LONGEST_SECONDS
    match message:
        case log_message.ClientFatalError(pid) if pid != 0:
            return replace(server, fatal_error=(stamp, pid))
        case log_message.HandlingFatalError() if (
            block is not None
            and current
            and (server.state is ServerState.FAULT or not block.confirmed)
            and 0 < seconds_between(block.stamp, stamp) <= TOGETHER_SECONDS
        ):
            # Of the same fault: a client that exits with kernels in flight on two GPUs causes a fault on both.
            named = _named_before(server, stamp) if block.named is None else block.named
            block = replace(block, named=named, section=BlockSection.NOTHING)
            return replace(server, fault_block=block, fatal_error=None)
        case log_message.HandlingFatalError() if block is None or not is_same_block(block, at, stamp):
            return replace(server, fault_block=new, fatal_error=None)
        case log_message.ClientToBeTornDown(pid) if pid != 0 and not current:
            # The first line of the block was lost.
            server, current = replace(server, fault_block=new, fatal_error=None), True
        case log_message.ServerContextDestroyed():
            server = replace(server, reset_stamp=stamp)
    block = server.fault_block
    if block is None or not current:
        return server
    extended = _extend(block, message, pids)
    if extended is block:
        return server
    devices = (server.devices_to_reset or frozenset()) | (extended.devices - block.devices)
    return replace(server, fault_block=extended, devices_to_reset=devices or None)


def has_new_block(before: Server, after: Server) -> bool:
    """Return whether a block began between the two."""
    old, new = before.fault_block, after.fault_block
    return new is not None and (old is None or (new.at, new.stamp) != (old.at, old.stamp))


def is_same_block(block: FaultLogBlock, at: float, stamp: str) -> bool:
    """Return whether a block that was read at `at`, with this timestamp, is this one."""
    return block.stamp == stamp and abs(at - block.at) <= SAME_SECONDS


def without_client(server: Server, pid: int) -> Server:
    """Return the server without this process in its faults."""
    if server.fatal_error is not None and server.fatal_error[1] == pid:
        server = replace(server, fatal_error=None)
    block = server.fault_block
    if block is None or pid not in named_clients(server):
        return server
    block = replace(
        block,
        named=None if block.named == pid else block.named,
        torn_down=block.torn_down - {pid},
        sticky_error=tuple(each for each in block.sticky_error if each != pid),
    )
    return replace(server, fault_block=block)


def named_clients(server: Server) -> frozenset[int]:
    """Return all PIDs that the server's log names in connection with a fault."""
    error, block = server.fatal_error, server.fault_block
    clients = frozenset() if block is None else block.clients
    named = (None if error is None else error[1], None if block is None else block.named)
    return clients.union(pid for pid in named if pid is not None)


def _named_before(server: Server, stamp: str) -> int | None:
    """Return the client that the log named just before, as it does for a memory fault."""
    if server.fatal_error is None:
        return None
    named_at, pid = server.fatal_error
    return pid if 0 <= seconds_between(named_at, stamp) <= NAMED_BEFORE_SECONDS else None


def _extend(block: FaultLogBlock, message: Message, pids: Pids) -> FaultLogBlock:
    match message:
        case log_message.ClientToBeTornDown(pid) if pid != 0 and len(block.torn_down) < servers.MOST_CLIENTS:
            return replace(block, torn_down=block.torn_down | {pid}, section=BlockSection.NOTHING)
        case log_message.ResetDevicesFollow():
            return replace(block, section=BlockSection.DEVICES)
        case log_message.StickyErrorClientsFollow():
            return replace(block, section=BlockSection.STICKY_ERROR)
        case log_message.BareNumber(device) if block.section is BlockSection.DEVICES and device < MOST_DEVICES:
            return replace(block, devices=block.devices | {device})
        case log_message.BareNumber(number) if block.section is BlockSection.STICKY_ERROR:
            pid = translate_pid(number, pids)
            if pid == 0 or pid in block.sticky_error or len(block.sticky_error) >= servers.MOST_CLIENTS:
                return block
            return replace(block, sticky_error=(*block.sticky_error, pid))
        case log_message.BareNumber() | log_message.Noise():
            return block
        case _ if block.section is BlockSection.NOTHING:
            return block
        case _:
            return replace(block, section=BlockSection.NOTHING)
