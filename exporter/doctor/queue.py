"""Who waits at a daemon for another user's turn to end, by the end of its log."""

from collections.abc import Iterable, Mapping

from exporter.parse.log_line import parse_log_line
from exporter.parse.log_message import ClientForwarded, ClientQueued, DaemonStarting, ServerReady, ServerStarting


def queued(lines: Iterable[str]) -> Mapping[int, int]:
    """The UIDs of those who were last put off, by their PIDs, and have not been let through since."""
    waiting: dict[int, int] = {}
    users: dict[int, int] = {}
    for line in lines:
        entry = parse_log_line(line)
        if entry is None or not entry.by_daemon:
            continue
        match entry.message:
            case DaemonStarting():
                waiting.clear()
            case ServerStarting(pid, uid):
                users[pid] = uid
            case ServerReady(int() as pid):
                waiting = {each: uid for each, uid in waiting.items() if uid != users.get(pid)}
            case ClientQueued(pid, uid):
                waiting[pid] = uid
            case ClientForwarded(pid):
                waiting.pop(pid, None)
    return waiting
