"""Lines of control.log."""

from exporter.model.daemon import ClaimKind, Daemon
from exporter.model.observation import LogLine, LogUnrecognized
from exporter.model.server import ServerState
from exporter.model.values import replace
from exporter.parse import log_message
from exporter.parse.log_line import LogEntry, parse_log_line
from exporter.state import claims, clients, lifecycle, limits, server_log, servers
from exporter.state.server_log import seen_alive
from exporter.state.transition import Transition, chain, counted, translated, without_events


def read(daemon: Daemon, at: float, entry: LogEntry) -> Transition:
    """One more line of the daemon itself was written."""
    match entry.message:
        case log_message.SessionClosed():
            known = lifecycle.quit_claim_ended(daemon)
            return without_events(replace(known, log=replace(known.log, echoing=False)))
        case log_message.CommandDenied():
            return without_events(lifecycle.quit_claim_ended(daemon))
        case log_message.CommandReceived(text) if _is_quit(text):
            return without_events(lifecycle.quit_claimed(daemon, at))
        case _ if daemon.log.echoing:
            return without_events(daemon)
        case log_message.CommandReceived(text):
            return without_events(_command_issued(limits.command_seen(daemon, text), text))
        case log_message.VersionReported(version):
            return without_events(replace(daemon, runtime=replace(daemon.runtime, version=version)))
        case log_message.ProtocolReported(protocol):
            return without_events(lifecycle.protocol_told(daemon, at, protocol))
        case log_message.DefaultMemoryLimitSet(device):
            return without_events(limits.default_memory_claimed(daemon, device))
        case log_message.DaemonStarting():
            return without_events(lifecycle.start_claimed(daemon))
        case log_message.DaemonExiting():
            return lifecycle.exit_claimed(daemon, at, entry.pid)
        case log_message.ServerStarting(server, uid):
            return _server_starting(daemon, at, server, uid)
        case log_message.ServerReady(int(server)):
            return chain(seen_alive(daemon, at, server), lambda daemon: servers.ready(daemon, at, server))
        case log_message.ServerExited(server):
            listed = server in daemon.servers
            return without_events(claims.made(daemon, at, ClaimKind.SERVER_EXIT, server) if listed else daemon)
        case log_message.ServerShutdownRequested(server):
            return without_events(servers.request_shutdown(daemon, server))
        case log_message.ServerWillNotShutDown(server):
            return clients.wait_for_turn(daemon, at, server)
        case log_message.ClientQueued(pid, uid):
            return without_events(clients.queue(daemon, pid, uid))
        case log_message.ClientForwarded(pid):
            return without_events(clients.dequeue(daemon, pid))
        case _:
            return without_events(daemon)


def _server_starting(daemon: Daemon, at: float, server: int, uid: int) -> Transition:
    if server in daemon.clients:
        return without_events(daemon)
    if server not in daemon.servers and not daemon.ended:
        daemon = claims.made(daemon, at, ClaimKind.SERVER_START, server)
    return servers.start(daemon, at, server, uid, ServerState.INITIALIZING)


def _command_issued(daemon: Daemon, text: str) -> Daemon:
    """`ps` is answered with the clients' own command lines, which may read like anything.

    Until its session is closed, nothing is listened to but a quit; and that is taken back when the session is closed.
    """
    return replace(daemon, log=replace(daemon.log, echoing=text.split()[:1] == ["ps"]))


def _is_quit(text: str) -> bool:
    return text.split()[:1] == ["quit"]


_OTHERS_FILE = {"control.log": False, "server.log": True}
"""Who does not write to a file: a line of a server in control.log, or of the daemon in server.log, is a forgery."""

LONGEST_COMMAND = 80
"""Anybody may give a daemon any command; those that it knows are shorter."""


def line_read(daemon: Daemon, line: LogLine) -> Transition:
    """One more line was written."""
    entry = parse_log_line(line.line)
    known = entry is not None and not isinstance(entry.message, log_message.Unrecognized)
    forged = entry is None or entry.by_daemon is _OTHERS_FILE.get(line.file)
    daemon = _count(daemon, line.file, known=known)
    if entry is None or forged:
        return without_events(daemon)
    entry = translated(entry, line.pids)
    if entry.by_daemon:
        return read(_spoken(daemon, entry), line.at, entry)
    if daemon.log.echoing and line.file not in _OTHERS_FILE:
        return without_events(daemon)
    return server_log.read(daemon, line.at, entry, line.pids)


def lines_unrecognized(daemon: Daemon, seen: LogUnrecognized) -> Daemon:
    """Count lines that no rule knows, and that were not read one by one."""
    return _count(daemon, seen.file, known=False, lines=seen.lines)


def _spoken(daemon: Daemon, entry: LogEntry) -> Daemon:
    """A daemon writes a command down as it is given; its answer, or the session's end, is the next line."""
    command = entry.message.text[:LONGEST_COMMAND] if isinstance(entry.message, log_message.CommandReceived) else None
    return replace(daemon, log=replace(daemon.log, last_command=command))


def _count(daemon: Daemon, file: str, *, known: bool, lines: int = 1) -> Daemon:
    totals = daemon.totals
    unrecognized = totals.log_lines_unrecognized
    if not known or file not in unrecognized:
        unrecognized = counted(unrecognized, file, by=0 if known else lines)
    totals = replace(totals, log_lines=counted(totals.log_lines, file, by=lines), log_lines_unrecognized=unrecognized)
    return replace(daemon, totals=totals)
