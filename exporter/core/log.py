"""What a line of a daemon's logs says: whose it is, and to whom it is handed."""

from exporter.core import daemon_log, server_log
from exporter.core.step import Step, counted, quiet
from exporter.core.translate import translated
from exporter.model.daemon import Daemon
from exporter.model.observation import LogLine, LogUnrecognized
from exporter.model.replace import replace
from exporter.parse import log_message
from exporter.parse.log_line import LogEntry, parse_log_line

_OTHERS_FILE = {"control.log": False, "server.log": True}
"""Who does not write to a file: a line of a server in control.log, or of the daemon in server.log, is a forgery."""

LONGEST_COMMAND = 80
"""Anybody may give a daemon any command; those that it knows are shorter."""


def line_read(daemon: Daemon, line: LogLine) -> Step:
    """One more line was written."""
    entry = parse_log_line(line.line)
    known = entry is not None and not isinstance(entry.message, log_message.Unrecognized)
    forged = entry is None or entry.by_daemon is _OTHERS_FILE.get(line.file)
    daemon = _count(daemon, line.file, known=known)
    if entry is None or forged:
        return quiet(daemon)
    entry = translated(entry, line.pids)
    if entry.by_daemon:
        return daemon_log.read(_spoken(daemon, entry), line.at, entry)
    if daemon.log.echoing and line.file not in _OTHERS_FILE:
        return quiet(daemon)
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
