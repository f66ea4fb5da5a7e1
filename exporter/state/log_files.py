"""Log files of a daemon, and detection of a blocked log."""

from exporter.model.daemon import Daemon
from exporter.model.event import Event, EventName
from exporter.model.observation import ControlReply, LogFile, LogGap, LoggedCommands, LogLine, SourceReading
from exporter.model.problem import Problem
from exporter.model.values import replace
from exporter.parse import log_message
from exporter.parse.control_reply import EXPORTER_QUERIES, LIST_SERVERS
from exporter.parse.log_line import parse_log_line
from exporter.state.transition import Transition, counted, outer, without_events


def logs_declared(daemon: Daemon, *, foreground: bool | None, stdout_in_file: bool | None) -> Daemon:
    """It is told where they are; None: not told.

    Files that turn out to be none of them were looked for in vain: nothing more is said of those.
    """
    kept = daemon.runtime.stdout_in_file if stdout_in_file is None else stdout_in_file
    return replace(
        daemon,
        runtime=replace(
            daemon.runtime,
            foreground=daemon.runtime.foreground if foreground is None else foreground,
            stdout_in_file=kept,
        ),
        log=replace(
            daemon.log,
            problems=daemon.log.problems if kept == daemon.runtime.stdout_in_file else {},
            sizes=daemon.log.sizes if kept == daemon.runtime.stdout_in_file else {},
            unread=daemon.log.unread if kept == daemon.runtime.stdout_in_file else {},
        ),
    )


def file_read(daemon: Daemon, seen: LogFile) -> Daemon:
    """One of them was looked at; or is none of them any more, of which nothing more is said."""
    if not seen.followed:
        return replace(
            daemon,
            log=replace(
                daemon.log,
                problems={file: problem for file, problem in daemon.log.problems.items() if file != seen.file},
                sizes={file: size for file, size in daemon.log.sizes.items() if file != seen.file},
                unread={file: unread for file, unread in daemon.log.unread.items() if file != seen.file},
            ),
        )
    totals = replace(
        daemon.totals,
        log_lines=counted(daemon.totals.log_lines, seen.file, by=0),
        log_lines_unrecognized=counted(daemon.totals.log_lines_unrecognized, seen.file, by=0),
        log_lines_lost=counted(daemon.totals.log_lines_lost, seen.file, by=0),
    )
    sizes = {file: size for file, size in daemon.log.sizes.items() if file != seen.file}
    unread = {file: count for file, count in daemon.log.unread.items() if file != seen.file}
    return replace(
        daemon,
        log=replace(
            daemon.log,
            problems={**daemon.log.problems, seen.file: seen.problem},
            sizes=sizes if seen.size is None else {**sizes, seen.file: seen.size},
            unread=unread if seen.unread is None else {**unread, seen.file: seen.unread},
        ),
        totals=totals,
    )


def files_collected(daemon: Daemon, problem: Problem | None) -> Daemon:
    """Take in the `problem` of one read of all logs of this daemon.

    If it is the problem of none of the files, the read as a whole hangs or failed. Until one ends, no file is followed.
    """
    before = daemon.log.stuck
    of_files = [each for each in daemon.log.problems.values() if each not in (None, before)]
    stuck = None if problem is None or any(each in of_files for each in problem.each) else problem
    if stuck == before:
        return daemon
    problems = {file: stuck if each in (None, before) else each for file, each in daemon.log.problems.items()}
    return replace(daemon, log=replace(daemon.log, problems=problems, stuck=stuck))


def gap_read(daemon: Daemon, seen: LogGap) -> Daemon:
    """Lines of it were lost."""
    lost = counted(daemon.totals.log_lines_lost, seen.file, by=seen.lines)
    return replace(daemon, totals=replace(daemon.totals, log_lines_lost=lost))


LATE_SECONDS = 5.0
"""A line is read 0.02 s after it was written, 0.5 s later at most; a busy machine has ten times as long."""

FILES = frozenset(("control.log", "stdout.log"))
"""The files into which a daemon writes commands. The journal may be late, and may drop lines."""

_COMMAND = "] Cmd:"


def own_command_read(daemon: Daemon, line: LogLine) -> Transition:
    """Take in a line: a command that the exporter may have given shows that the log is not blocked."""
    if _COMMAND not in line.line or line.file not in FILES:
        return without_events(daemon)
    known, writer = daemon.log.own_commands, _writer(line)
    if writer is None or (daemon.runtime.process is not None and writer != daemon.runtime.process.pid):
        return without_events(daemon)
    late = known.awaited is not None and line.at < known.awaited[0]
    logged = LoggedCommands(read_at=line.at, writer=writer, awaited=known.awaited if late else None)
    daemon = replace(daemon, log=replace(daemon.log, own_commands=logged))
    if known.blocked_since is None:
        return without_events(daemon)
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


def commands_lost(daemon: Daemon, gap: LogGap) -> Daemon:
    """Lines were lost before they could be read, and a command may be among them."""
    if gap.file not in FILES or daemon.log.own_commands.awaited is None:
        return daemon
    return replace(daemon, log=replace(daemon.log, own_commands=replace(daemon.log.own_commands, awaited=None)))


def check_overdue(daemon: Daemon, reading: SourceReading) -> Transition:
    """Judge after a look at the logs that began long enough after the answer, and left nothing unread."""
    known, awaited = daemon.log.own_commands, daemon.log.own_commands.awaited
    if awaited is None or reading.daemon not in (None, daemon.name) or daemon.ended:
        return without_events(daemon)
    asked_at, answered_at = awaited
    if reading.more:
        return without_events(
            replace(
                daemon,
                log=replace(daemon.log, own_commands=replace(known, awaited=(asked_at, max(answered_at, reading.at)))),
            )
        )
    if reading.at - reading.seconds < answered_at + LATE_SECONDS or not _is_followed(daemon):
        return without_events(daemon)
    known = replace(known, awaited=None)
    if known.missing_since is None:
        return without_events(
            replace(daemon, log=replace(daemon.log, own_commands=replace(known, missing_since=reading.at)))
        )
    if known.blocked_since is not None or asked_at < known.missing_since:
        return without_events(replace(daemon, log=replace(daemon.log, own_commands=known)))
    daemon = replace(daemon, log=replace(daemon.log, own_commands=replace(known, blocked_since=reading.at)))
    return daemon, (Event(at=reading.at, event=EventName.LOG_BLOCKED, daemon=daemon.name),)


def _is_followed(daemon: Daemon) -> bool:
    return any(map(daemon.follows_log, FILES))


def in_doubt_since(daemon: Daemon) -> float | None:
    """Return since when a command is missing in the log; a further one settles it."""
    return None if daemon.log.own_commands.blocked_since is not None else daemon.log.own_commands.missing_since
