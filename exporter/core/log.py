"""What a line of a daemon's logs says of it, its servers and their clients."""

from exporter.core import block, clients, life, limits, servers
from exporter.core.step import Step, chain, counted, quiet
from exporter.core.translate import translated
from exporter.model.daemon import Daemon
from exporter.model.observation import LogLine
from exporter.model.replace import replace
from exporter.model.server import DepartureReason, RefusalReason, ServerState
from exporter.parse import log_message as said
from exporter.parse.log_line import LogEntry, parse_line
from exporter.parse.log_message import Message

NOT_READY = 807
"""CUDA_ERROR_MPS_SERVER_NOT_READY: the server is in FAULT."""

_OTHERS_FILE = {"control.log": False, "server.log": True}
"""Who does not write to a file: a line of a server in control.log, or of the daemon in server.log, is a forgery."""


def line_read(daemon: Daemon, line: LogLine) -> Step:
    """One more line was written."""
    entry = parse_line(line.line)
    daemon = _count(daemon, line.file, known=entry is not None and not isinstance(entry.message, said.Unrecognized))
    if entry is None or entry.by_daemon is _OTHERS_FILE.get(line.file):
        return quiet(daemon)
    entry = translated(entry, line.pids)
    if entry.by_daemon:
        return _daemon_says(daemon, line.at, entry.message, entry.pid)
    if daemon.echoing and line.file not in _OTHERS_FILE:
        return quiet(daemon)
    return _server_says(daemon, line.at, entry)


def _count(daemon: Daemon, file: str, *, known: bool) -> Daemon:
    totals = daemon.totals
    unrecognized = totals.log_lines_unrecognized
    if not known or file not in unrecognized:
        unrecognized = counted(unrecognized, file, by=0 if known else 1)
    lines = counted(totals.log_lines, file)
    return replace(daemon, totals=replace(totals, log_lines=lines, log_lines_unrecognized=unrecognized))


def _daemon_says(daemon: Daemon, at: float, message: Message, writer: int) -> Step:
    match message:
        case said.SessionClosed():
            return quiet(replace(life.quit_taken_back(daemon), echoing=False))
        case said.CommandDenied():
            return quiet(life.quit_taken_back(daemon))
        case said.CommandIssued(text) if _is_quit(text):
            return quiet(life.quit_told(daemon, at))
        case _ if daemon.echoing:
            return quiet(daemon)
        case said.CommandIssued(text):
            return quiet(_command_issued(limits.command_seen(daemon, text), text))
        case said.Version(version):
            return quiet(replace(daemon, version=version))
        case said.ProtocolTold(protocol):
            return quiet(life.protocol_told(daemon, at, protocol))
        case said.DefaultMemoryLimitSet(device, limit):
            return quiet(limits.default_memory_told(daemon, device, limit))
        case said.DaemonStarting():
            return life.start_told(daemon, at)
        case said.DaemonExiting():
            return life.exit_told(daemon, at, writer)
        case said.ServerStarting(server, uid):
            return servers.start(daemon, at, server, uid, ServerState.INITIALIZING)
        case said.ServerReady(int(server)):
            return _server_ready(daemon, at, server)
        case said.ServerExited(server):
            return servers.end(daemon, at, server, DepartureReason.SERVER_GONE)
        case said.ServerStays(server):
            return clients.wait_for_turn(daemon, at, server)
        case said.ClientQueued(pid, uid):
            return quiet(clients.queue(daemon, pid, uid))
        case said.ClientForwarded(pid):
            return quiet(clients.dequeue(daemon, pid))
        case _:
            return quiet(daemon)


def _command_issued(daemon: Daemon, text: str) -> Daemon:
    """`ps` is answered with the clients' own command lines, which may read like anything.

    Until its session is closed, nothing is listened to but a quit; and that is taken back when the session is closed.
    """
    return replace(daemon, echoing=text.split()[:1] == ["ps"])


def _is_quit(text: str) -> bool:
    return text.split()[:1] == ["quit"]


def _server_ready(daemon: Daemon, at: float, server: int) -> Step:
    return chain(
        servers.seen_alive(daemon, at, server),
        lambda daemon: quiet(_served(daemon, server)),
        lambda daemon: servers.enter(daemon, at, server, ServerState.ACTIVE),
    )


def _served(daemon: Daemon, server: int) -> Daemon:
    """Whoever was queued for the user of this server goes on."""
    ready = daemon.servers.get(server)
    return daemon if ready is None or ready.uid is None else clients.dequeue_user(daemon, ready.uid)


def _server_says(daemon: Daemon, at: float, entry: LogEntry) -> Step:
    match entry.message:
        case said.Version(version):
            return quiet(replace(daemon, version=version))
        case said.ServerReady():
            return _server_ready(daemon, at, entry.pid)
        case said.ClientActive(pid, context) if pid != 0:
            return chain(
                servers.seen_alive(daemon, at, entry.pid),
                lambda daemon: _client_active(daemon, at, entry.pid, pid, context),
            )
        case said.ClientDisconnected(pid):
            return clients.disconnect(_settled(daemon, entry.pid, pid), at, pid, DepartureReason.EXIT)
        case _ if entry.pid in daemon.servers:
            return _known_server_says(daemon, at, entry)
        case said.FaultHandled() | said.ThreadsTold():
            return chain(
                servers.seen_alive(daemon, at, entry.pid),
                lambda daemon: _known_server_says(daemon, at, entry),
            )
        case _:
            return quiet(daemon)


def _client_active(daemon: Daemon, at: float, server: int, pid: int, context: int) -> Step:
    if server not in daemon.servers:
        return quiet(daemon)
    return chain(
        clients.connect(_settled(daemon, server, pid), at, server, pid),
        lambda daemon: quiet(clients.context_begun(daemon, pid, context)),
    )


def _settled(daemon: Daemon, server: int, pid: int) -> Daemon:
    """It is decided whether a client that was connecting is let in."""
    here = daemon.servers.get(server)
    if here is None or pid not in here.connecting:
        return daemon
    return servers.with_server(daemon, replace(here, connecting=here.connecting - {pid}))


def _known_server_says(daemon: Daemon, at: float, entry: LogEntry) -> Step:
    pid, message = entry.pid, entry.message
    known = daemon.servers.get(pid)
    if known is None:
        return quiet(daemon)
    server = block.read(known, at, entry.stamp, message)
    daemon = daemon if server is known else servers.with_server(daemon, server)
    match message:
        case said.ClientConnecting(client, context):
            daemon = clients.dequeue(daemon, client)
            if context > 0 and len(server.connecting) < clients.MOST_CLIENTS:
                server = replace(server, connecting=server.connecting | {client})
            return quiet(servers.with_server(daemon, server))
        case said.ClientLimitReached(limit):
            daemon = servers.with_server(daemon, replace(server, clients_limit=limit))
            (only,) = server.connecting if len(server.connecting) == 1 else (None,)
            return clients.refuse(daemon, at, pid, only, RefusalReason.LIMIT)
        case said.ClientTurnedAway(client):
            daemon = servers.with_server(daemon, replace(server, refusing=client))
            return clients.refuse(daemon, at, pid, client, RefusalReason.FAULT)
        case said.ClientRejected(client, _) if server.refusing == client:
            return quiet(servers.with_server(daemon, replace(server, refusing=None)))
        case said.ClientRejected(client, status):
            reason = RefusalReason.FAULT if status == NOT_READY else RefusalReason.OTHER
            return clients.refuse(daemon, at, pid, client, reason)
        case said.ContextExited(client, context):
            return clients.context_ended(daemon, at, pid, client, context)
        case said.ThreadsTold(percentage):
            return quiet(limits.threads_told(daemon, at, pid, percentage))
        case said.PinnedMemoryLimitTold(device, limit):
            return quiet(limits.memory_told(daemon, pid, device, limit))
        case said.FaultHandled():
            return servers.enter(daemon, at, pid, ServerState.FAULT)
        case said.ContextDestroyed(device) if server.devices_to_reset:
            return _device_reset(daemon, at, pid, server.devices_to_reset - {device})
        case said.ContextCreated() if server.devices_to_reset:
            # It makes new ones only after all have been destroyed (R515), or for a client that it lets in (R580).
            return servers.enter(daemon, at, pid, ServerState.ACTIVE)
        case _:
            return quiet(daemon)


def _device_reset(daemon: Daemon, at: float, pid: int, left: frozenset[int]) -> Step:
    """The last victim on a device has left; when that is so on all of them, the server is well again."""
    if not left:
        return servers.enter(daemon, at, pid, ServerState.ACTIVE)
    return quiet(servers.with_server(daemon, replace(daemon.servers[pid], devices_to_reset=left)))
