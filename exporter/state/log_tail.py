"""What the end of a log reports to `status` without a service and to `doctor`: queued clients and failed starts."""

from collections.abc import Iterable

from exporter.model.daemon import ClaimKind, Connections, Daemon, DaemonRuntime, DaemonState, with_connections
from exporter.model.node import Node
from exporter.model.observation import LogLine
from exporter.model.values import replace
from exporter.parse import log_message
from exporter.parse.log_line import parse_log_line, seconds_between, translate_entry
from exporter.state import log_lines, servers
from exporter.state.step import Step


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
        queued = {
            pid: uid
            for pid, uid in daemon.connections.queued.items()
            if pid < 0 or (pid in node.processes and node.processes[pid].uid == uid)
        }
        waiting = daemon.connections.waiting.intersection(queued)
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
