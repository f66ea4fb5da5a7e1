"""What the control daemon says of itself, its servers and those who want one."""

from exporter.core import clients, life, limits, servers
from exporter.core.step import Step, quiet
from exporter.model.daemon import Daemon
from exporter.model.replace import replace
from exporter.model.server import DepartureReason, ServerState
from exporter.parse import log_message as said
from exporter.parse.log_line import LogEntry


def read(daemon: Daemon, at: float, entry: LogEntry) -> Step:
    """One more line of the daemon itself was written."""
    match entry.message:
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
            return life.exit_told(daemon, at, entry.pid)
        case said.ServerStarting(server, uid):
            return servers.start(daemon, at, server, uid, ServerState.INITIALIZING)
        case said.ServerReady(int(server)):
            return servers.ready(daemon, at, server)
        case said.ServerExited(server):
            return servers.end(daemon, at, server, DepartureReason.SERVER_GONE)
        case said.ServerToldToLeave(server):
            return quiet(servers.told_to_leave(daemon, server))
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
