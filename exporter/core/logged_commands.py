"""Whether a daemon's log is blocked: the exporter's own commands must appear in it.

Servers and the daemon write through a fifo into which every user can write. After one message without a valid header
neither log gets another line, while the daemon answers on (measured, R580). So if the daemon has answered two commands
in a row and its log file shows neither, the log tells nothing any more. A log that never showed a command of this
daemon may be that of another one: nothing follows from it.
"""

from exporter.core.step import Step, quiet
from exporter.core.translate import outer
from exporter.model.daemon import Daemon
from exporter.model.event import Event, EventName
from exporter.model.observation import ControlReply, LogGap, LogLine, SourceReading
from exporter.model.replace import replace
from exporter.model.witnesses import LoggedCommands
from exporter.parse import log_message
from exporter.parse.control_reply import EXPORTER_QUERIES, LIST_SERVERS
from exporter.parse.log_line import parse_log_line

LATE_SECONDS = 5.0
"""A line is read 0.02 s after it was written, 0.5 s later at most; a busy machine has ten times as long."""

FILES = frozenset(("control.log", "stdout.log"))
"""The files into which a daemon writes commands. The journal may be late, and may drop lines."""

_COMMAND = "] Cmd:"


def line_read(daemon: Daemon, line: LogLine) -> Step:
    """Take in a line: a command that the exporter may have given shows that the log is not blocked."""
    if _COMMAND not in line.line or line.file not in FILES:
        return quiet(daemon)
    known, writer = daemon.log.own_commands, _writer(line)
    if writer is None or (daemon.runtime.process is not None and writer != daemon.runtime.process.pid):
        return quiet(daemon)
    late = known.awaited is not None and line.at < known.awaited[0]
    logged = LoggedCommands(read_at=line.at, writer=writer, awaited=known.awaited if late else None)
    daemon = replace(daemon, log=replace(daemon.log, own_commands=logged))
    if known.blocked_since is None:
        return quiet(daemon)
    return daemon, (Event(at=line.at, event=EventName.LOG_UNBLOCKED, daemon=daemon.name),)


def _writer(line: LogLine) -> int | None:
    """Return the PID of the daemon that was asked one of the exporter's questions; None if the line tells of none."""
    entry = parse_log_line(line.line)
    if entry is None or not entry.by_daemon or not isinstance(entry.message, log_message.CommandReceived):
        return None
    words = entry.message.text.split(maxsplit=1)
    return outer(entry.pid, line.pids) if words and words[0] in EXPORTER_QUERIES else None


def reply_read(daemon: Daemon, reply: ControlReply) -> Daemon:
    """Await the line of a command that the daemon has answered, unless it was read already.

    A command may come back with exit code 0 and nothing at all although it was refused (measured, R580).
    """
    known, verb = daemon.log.own_commands, reply.command.partition(" ")[0]
    if reply.exit_code != 0 or verb not in EXPORTER_QUERIES or known.awaited is not None or not _has_shown_any(daemon):
        return daemon
    answered = reply.stdout.strip() or (reply.command == LIST_SERVERS and not daemon.servers)
    if not answered or (known.read_at is not None and known.read_at >= reply.asked_at):
        return daemon
    return replace(daemon, log=replace(daemon.log, own_commands=replace(known, awaited=(reply.asked_at, reply.at))))


def _has_shown_any(daemon: Daemon) -> bool:
    """Whether this daemon, and not one before it, has written a command into the log."""
    known = daemon.log.own_commands
    return known.read_at is not None and (daemon.runtime.process is None or daemon.runtime.process.pid == known.writer)


def gap_read(daemon: Daemon, gap: LogGap) -> Daemon:
    """Lines were lost before they could be read, and a command may be among them."""
    if gap.file not in FILES or daemon.log.own_commands.awaited is None:
        return daemon
    return replace(daemon, log=replace(daemon.log, own_commands=replace(daemon.log.own_commands, awaited=None)))


def looked(daemon: Daemon, reading: SourceReading) -> Step:
    """Judge after a look at the logs that began long enough after the answer, and left nothing unread."""
    known, awaited = daemon.log.own_commands, daemon.log.own_commands.awaited
    if awaited is None or reading.daemon not in (None, daemon.name) or daemon.gone:
        return quiet(daemon)
    asked_at, answered_at = awaited
    if reading.more:
        return quiet(
            replace(
                daemon,
                log=replace(daemon.log, own_commands=replace(known, awaited=(asked_at, max(answered_at, reading.at)))),
            )
        )
    if reading.at - reading.seconds < answered_at + LATE_SECONDS or not _is_followed(daemon):
        return quiet(daemon)
    known = replace(known, awaited=None)
    if known.missing_since is None:
        return quiet(replace(daemon, log=replace(daemon.log, own_commands=replace(known, missing_since=reading.at))))
    if known.blocked_since is not None or asked_at < known.missing_since:
        return quiet(replace(daemon, log=replace(daemon.log, own_commands=known)))
    daemon = replace(daemon, log=replace(daemon.log, own_commands=replace(known, blocked_since=reading.at)))
    return daemon, (Event(at=reading.at, event=EventName.LOG_BLOCKED, daemon=daemon.name),)


def _is_followed(daemon: Daemon) -> bool:
    return any(map(daemon.follows_log, FILES))


def in_doubt_since(daemon: Daemon) -> float | None:
    """Return since when a command is missing in the log; a further one settles it."""
    return None if daemon.log.own_commands.blocked_since is not None else daemon.log.own_commands.missing_since
