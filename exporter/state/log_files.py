"""Log files of a daemon, and detection of a blocked log."""

from collections.abc import Iterable

from exporter.model.daemon import (
    ClaimKind,
    Connections,
    Daemon,
    DaemonRuntime,
    DaemonState,
    with_connections,
    with_log,
    with_totals,
)
from exporter.model.event import EventName, Step
from exporter.model.node import Node
from exporter.model.observation import ControlReply, LogFile, LogGap, LoggedCommands, LogLine, SourceReading
from exporter.model.values import increment, replace, without
from exporter.parse import log_message
from exporter.parse.control_reply import EXPORTER_QUERIES, LIST_SERVERS
from exporter.parse.log_line import parse_log_line, seconds_between, translate_entry, translate_pid
from exporter.state import log_lines, servers

LATE_SECONDS = 5.0
"""A line is read 0.02 s after it was written, 0.5 s later at most. On a busy machine it may take ten times as long."""

FILES = frozenset(("control.log", "stdout.log"))
"""The files into which a daemon writes commands. The journal may be late, and may drop lines."""

_COMMAND = "] Cmd:"


def file_read(daemon: Daemon, observed: LogFile) -> Daemon:
    """Return the daemon with the state of a log file, or without a file that is not a log of the daemon."""
    log, totals, file = daemon.log, daemon.totals, observed.file
    problems, sizes, unread = without(log.problems, file), without(log.sizes, file), without(log.unread, file)
    if not observed.followed:
        return with_log(daemon, problems=problems, sizes=sizes, unread=unread)
    return with_totals(
        with_log(
            daemon,
            incomplete_at=observed.at if observed.unread or any(log.unread.values()) else log.incomplete_at,
            problems={**log.problems, file: observed.problem},
            sizes=sizes if observed.size is None else {**sizes, file: observed.size},
            unread=unread if observed.unread is None else {**unread, file: observed.unread},
        ),
        log_lines=increment(totals.log_lines, file, by=0),
        log_lines_unrecognized=increment(totals.log_lines_unrecognized, file, by=0),
        log_lines_lost=increment(totals.log_lines_lost, file, by=0),
    )


def files_collected(daemon: Daemon, reading: SourceReading) -> Daemon:
    """Return the daemon with the problem of one collection of all its logs.

    If no file has this problem, the collection as a whole hangs or failed. Until one ends, no file is followed.
    """
    before, problem = daemon.log.stuck, reading.problem
    of_files = [each for each in daemon.log.problems.values() if each not in (None, before)]
    stuck = None if problem is None or any(each in of_files for each in problem.each) else problem
    if stuck == before:
        return daemon
    problems = {file: stuck if each in (None, before) else each for file, each in daemon.log.problems.items()}
    return with_log(daemon, problems=problems, stuck=stuck, incomplete_at=reading.at)


def gap_read(daemon: Daemon, gap: LogGap) -> Daemon:
    """Return the daemon after lines of a log were lost.

    A command of the exporter may have been among them, or what became of clients that were about to connect.
    """
    daemon = with_totals(daemon, log_lines_lost=increment(daemon.totals.log_lines_lost, gap.file, by=gap.lines))
    daemon = with_log(daemon, incomplete_at=gap.at)
    for server in daemon.servers.values():
        daemon = servers.with_server(daemon, replace(server, connecting=frozenset(), pending_context=None))
    if gap.file not in FILES:
        return daemon
    return with_log(daemon, last_command=None, own_commands=replace(daemon.log.own_commands, awaited=None))


def own_command_read(step: Step, line: LogLine) -> None:
    """Apply a line. A command that the exporter may have sent shows that the log is not blocked."""
    daemon = step.daemon
    if _COMMAND not in line.line or line.file not in FILES:
        return
    known, entry = daemon.log.own_commands, parse_log_line(line.line)
    if entry is None or not entry.by_daemon or not isinstance(entry.message, log_message.CommandReceived):
        return
    words, writer = entry.message.text.split(maxsplit=1), translate_pid(entry.pid, line.pids)
    if not words or words[0] not in EXPORTER_QUERIES or daemon.pid not in (None, writer):
        return
    late = known.awaited is not None and line.at < known.awaited[0]
    logged = LoggedCommands(read_at=line.at, writer=writer, awaited=known.awaited if late else None)
    step.daemon = with_log(daemon, own_commands=logged)
    if known.blocked_since is not None:
        step.report(line.at, EventName.LOG_UNBLOCKED)


def await_command(daemon: Daemon, reply: ControlReply) -> Daemon:
    """Return the daemon that must log a command which it answered, unless the line was read already.

    A refused command may also return exit code 0, without output (measured, R580).
    """
    known, verb = daemon.log.own_commands, reply.command.partition(" ")[0]
    if reply.exit_code != 0 or verb not in EXPORTER_QUERIES or known.awaited is not None:
        return daemon
    answered = reply.stdout.strip() or (reply.command == LIST_SERVERS and not daemon.servers)
    if not answered or known.read_at is None or known.read_at >= reply.asked_at:
        return daemon
    if daemon.runtime.process is not None and daemon.runtime.process.pid != known.writer:
        return daemon
    return with_log(daemon, own_commands=replace(known, awaited=(reply.asked_at, reply.at)))


def check_overdue(step: Step, reading: SourceReading) -> None:
    """Apply a collection of the daemon's logs. If two answered commands are missing, the log is blocked.

    Only a complete collection counts that began long enough after the answer.
    """
    daemon = step.daemon
    known, awaited = daemon.log.own_commands, daemon.log.own_commands.awaited
    if awaited is None or reading.daemon not in (None, daemon.name) or daemon.ended:
        return
    asked_at, answered_at = awaited
    if reading.more:
        step.daemon = with_log(daemon, own_commands=replace(known, awaited=(asked_at, max(answered_at, reading.at))))
        return
    if reading.at - reading.seconds < answered_at + LATE_SECONDS or not any(map(daemon.follows_log, FILES)):
        return
    known = replace(known, awaited=None)
    if known.missing_since is None:
        known = replace(known, missing_since=reading.at)
    elif known.blocked_since is None and asked_at >= known.missing_since:
        known = replace(known, blocked_since=reading.at)
        step.report(reading.at, EventName.LOG_BLOCKED)
    step.daemon = with_log(daemon, own_commands=known)


# -- the end of a log -------------------------------------------------------------------------------------------------


def with_log_tail(node: Node, name: str, lines: Iterable[tuple[str, str]]) -> Node:
    """Return the node with what the last lines of a daemon's logs report, each with the name of its file.

    The last line is that of a query just now, so it shows how long ago the others were written, in any time zone.
    """
    daemon = node.daemons[name]
    found, last = _read(daemon, lines)
    failed, shift = found.failed_starts, node.at - last
    if failed.last_exit_at is not None:
        started_at = tuple(at + shift for at in failed.started_at)
        failed = replace(failed, started_at=started_at, last_exit_at=failed.last_exit_at + shift)
    daemon = with_connections(daemon, queued=found.queued, waiting=found.waiting, failed_starts=failed)
    return replace(node, daemons={**node.daemons, name: daemon})


def without_reused_pids(node: Node) -> Node:
    """Return the node without queued clients whose PIDs belong to no process now, or to another user's."""
    daemons = {}
    for name, daemon in node.daemons.items():
        queued, known = daemon.connections.queued, node.processes
        queued = {pid: uid for pid, uid in queued.items() if pid < 0 or (pid in known and known[pid].uid == uid)}
        waiting = {pid: at for pid, at in daemon.connections.waiting.items() if pid in queued}
        daemons[name] = with_connections(daemon, queued=queued, waiting=waiting)
    return replace(node, daemons=daemons)


def _read(daemon: Daemon, lines: Iterable[tuple[str, str]]) -> tuple[Connections, float]:
    """Return the connections of a daemon of which only these lines are known, and the seconds to the last line.

    server.log and control.log have no common order. Of the first, only the reason why a server cannot start is used.
    """
    runtime = DaemonRuntime(process=daemon.runtime.process, protocol=daemon.runtime.protocol)
    start = replace(daemon, state=DaemonState.UP, runtime=runtime, servers={}, clients={}, connections=Connections())
    # A PID that cannot be translated becomes negative.
    pids: dict[int, int] | None = {} if daemon.runtime.in_foreign_namespace else None
    step, at, stamp, words = Step(start), 0.0, "", dict[int, str]()
    for file, line in lines:
        raw = parse_log_line(line)
        if raw is None:
            continue
        at += seconds_between(stamp or raw.stamp, raw.stamp)
        stamp, entry = raw.stamp, translate_entry(raw, pids)
        match entry.message:
            case log_message.ServerStartFailed(text) if not entry.by_daemon:
                words[entry.pid] = text
            case _ if file.endswith("server.log"):
                pass
            case log_message.DaemonStarting() if entry.by_daemon:
                step.daemon = start
            case log_message.ServerExited(server) if entry.by_daemon and not step.daemon.log.echoing:
                failed = step.daemon.connections.failed_starts
                failed = replace(failed, words=words.get(server, failed.words))
                step.daemon = with_connections(step.daemon, failed_starts=failed)
                servers.end(step, at, server)
                if step.daemon.claimed(ClaimKind.CRASH_LOOP, 0):
                    servers.report_crash_loop(step)
            case _:
                log_lines.line_read(step, LogLine(at=at, daemon=daemon.name, file=file, line=line, pids=pids))
    return step.daemon.connections, at
