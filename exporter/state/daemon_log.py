"""Lines of control.log."""

from exporter.model.daemon import ClaimKind, Daemon, with_commands, with_lifecycle, with_log, with_runtime, with_totals
from exporter.model.observation import LogLine
from exporter.model.server import ServerState
from exporter.parse import log_message
from exporter.parse.log_line import LogEntry, parse_log_line
from exporter.state import claims, clients, lifecycle, limits, server_log, servers
from exporter.state.transition import Transition, chain, increment, translate_entry

_OTHERS_FILE = {"control.log": False, "server.log": True}
"""Senders that do not write to a file: a line of a server in control.log, or of the daemon in server.log, is forged."""

LONGEST_COMMAND = 80
"""Characters of a command that are stored. Any user can send any command; those of the daemon are shorter."""


def line_read(daemon: Daemon, line: LogLine) -> Transition:
    """Return the daemon after a line of one of its logs."""
    entry = parse_log_line(line.line)
    recognized = entry is not None and not isinstance(entry.message, log_message.Unrecognized)
    daemon = count_lines(daemon, line.file, recognized=recognized)
    if entry is None or entry.by_daemon is _OTHERS_FILE.get(line.file):
        return daemon, ()
    entry = translate_entry(entry, line.pids)
    if entry.by_daemon:
        command = entry.message.text if isinstance(entry.message, log_message.CommandReceived) else None
        daemon = with_log(daemon, last_command=None if command is None else command[:LONGEST_COMMAND])
        return _daemon_line_read(daemon, line.at, entry)
    if daemon.log.echoing and line.file not in _OTHERS_FILE:
        return daemon, ()
    return server_log.read(daemon, line.at, entry, line.pids)


def count_lines(daemon: Daemon, file: str, *, recognized: bool, lines: int = 1) -> Daemon:
    """Return the daemon with incremented counters of log lines."""
    totals = daemon.totals
    unrecognized = totals.log_lines_unrecognized
    if not recognized or file not in unrecognized:
        unrecognized = increment(unrecognized, file, by=0 if recognized else lines)
    log_lines = increment(totals.log_lines, file, by=lines)
    return with_totals(daemon, log_lines=log_lines, log_lines_unrecognized=unrecognized)


def _daemon_line_read(daemon: Daemon, at: float, entry: LogEntry) -> Transition:
    match entry.message:
        # A refused quit, or one whose session was closed, has no effect. An obeyed one leaves its session open until
        # the daemon ends (measured, R580).
        case log_message.SessionClosed():
            return with_log(with_lifecycle(daemon, quit_claimed_at=None), echoing=False), ()
        case log_message.CommandDenied():
            return with_lifecycle(daemon, quit_claimed_at=None), ()
        case log_message.CommandReceived(text) if text.split()[:1] == ["quit"]:
            return with_lifecycle(daemon, quit_claimed_at=at), ()
        case _ if daemon.log.echoing:
            return daemon, ()
        case log_message.CommandReceived(text):
            # The reply to `ps` has the command lines of clients, which may contain any text. Until the session is
            # closed, only a quit is read.
            return with_log(limits.apply_logged_command(daemon, text), echoing=text.split()[:1] == ["ps"]), ()
        case log_message.VersionReported(version):
            return with_runtime(daemon, version=version), ()
        case log_message.ProtocolReported(protocol):
            return lifecycle.protocol_logged(daemon, at, protocol), ()
        case log_message.DefaultMemoryLimitSet(device):
            return limits.apply_logged_default_memory(daemon, device), ()
        case log_message.DaemonStarting():
            # Its process or its answer must confirm the start. Several daemons may write to one log, and every user
            # can write to it (measured, R580).
            return with_commands(daemon, asked_at={}) if daemon.runtime.process is None else daemon, ()
        case log_message.DaemonExiting():
            return lifecycle.exit_claimed(daemon, at, entry.pid)
        case log_message.ServerStarting(server, uid):
            if server in daemon.clients:
                return daemon, ()
            if server not in daemon.servers and not daemon.ended:
                daemon = claims.add(daemon, at, ClaimKind.SERVER_START, server)
            return servers.start(daemon, at, server, uid, ServerState.INITIALIZING, logged=True)
        case log_message.ServerReady(int(server)):
            return chain(server_log.start_logged(daemon, at, server), lambda daemon: servers.ready(daemon, at, server))
        case log_message.ServerExited(server):
            known = server in daemon.servers
            return claims.add(daemon, at, ClaimKind.SERVER_EXIT, server) if known else daemon, ()
        case log_message.ServerShutdownRequested(server):
            return servers.shutdown_requested(daemon, server), ()
        case log_message.ServerWillNotShutDown(server):
            return clients.report_waiting(daemon, at, server)
        case log_message.ClientQueued(pid, uid):
            return clients.queue(daemon, pid, uid), ()
        case log_message.ClientForwarded(pid, uid):
            return clients.forward(daemon, pid, uid), ()
        case _:
            return daemon, ()
