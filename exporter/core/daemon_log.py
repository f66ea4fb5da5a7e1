"""What the control daemon says of itself, its servers and those who want one."""

from exporter.core import claims, clients, life, limits, servers
from exporter.core.server_log import seen_alive
from exporter.core.step import Step, chain, quiet
from exporter.model.claim import ClaimKind
from exporter.model.daemon import Daemon
from exporter.model.replace import replace
from exporter.model.server import ServerState
from exporter.parse import log_message
from exporter.parse.log_line import LogEntry


def read(daemon: Daemon, at: float, entry: LogEntry) -> Step:
    """One more line of the daemon itself was written."""
    match entry.message:
        case log_message.SessionClosed():
            return quiet(replace(known := life.quit_claim_ended(daemon), log=replace(known.log, echoing=False)))
        case log_message.CommandDenied():
            return quiet(life.quit_claim_ended(daemon))
        case log_message.CommandReceived(text) if _is_quit(text):
            return quiet(life.quit_claimed(daemon, at))
        case _ if daemon.log.echoing:
            return quiet(daemon)
        case log_message.CommandReceived(text):
            return quiet(_command_issued(limits.command_seen(daemon, text), text))
        case log_message.VersionReported(version):
            return quiet(replace(daemon, runtime=replace(daemon.runtime, version=version)))
        case log_message.ProtocolReported(protocol):
            return quiet(life.protocol_told(daemon, at, protocol))
        case log_message.DefaultMemoryLimitSet(device):
            return quiet(limits.default_memory_claimed(daemon, device))
        case log_message.DaemonStarting():
            return quiet(life.start_claimed(daemon))
        case log_message.DaemonExiting():
            return life.exit_claimed(daemon, at, entry.pid)
        case log_message.ServerStarting(server, uid):
            return _server_starting(daemon, at, server, uid)
        case log_message.ServerReady(int(server)):
            return chain(seen_alive(daemon, at, server), lambda daemon: servers.ready(daemon, at, server))
        case log_message.ServerExited(server):
            listed = server in daemon.servers
            return quiet(claims.made(daemon, at, ClaimKind.SERVER_EXIT, server) if listed else daemon)
        case log_message.ServerShutdownRequested(server):
            return quiet(servers.told_to_leave(daemon, server))
        case log_message.ServerWillNotShutDown(server):
            return clients.wait_for_turn(daemon, at, server)
        case log_message.ClientQueued(pid, uid):
            return quiet(clients.queue(daemon, pid, uid))
        case log_message.ClientForwarded(pid):
            return quiet(clients.dequeue(daemon, pid))
        case _:
            return quiet(daemon)


def _server_starting(daemon: Daemon, at: float, server: int, uid: int) -> Step:
    if server in daemon.clients:
        return quiet(daemon)
    if server not in daemon.servers and not daemon.gone:
        daemon = claims.made(daemon, at, ClaimKind.SERVER_START, server)
    return servers.start(daemon, at, server, uid, ServerState.INITIALIZING)


def _command_issued(daemon: Daemon, text: str) -> Daemon:
    """`ps` is answered with the clients' own command lines, which may read like anything.

    Until its session is closed, nothing is listened to but a quit; and that is taken back when the session is closed.
    """
    return replace(daemon, log=replace(daemon.log, echoing=text.split()[:1] == ["ps"]))


def _is_quit(text: str) -> bool:
    return text.split()[:1] == ["quit"]
