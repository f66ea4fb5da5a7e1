"""What to look at next: as seldom as will do, since every command to a control daemon costs five lines of its log.

Between the slow looks, clients are known from the logs, NVML and process exits; where two of these disagree, or
something is in doubt, the daemon is asked sooner, for a while.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from exporter.core.gpus import NVML
from exporter.model.node import Daemon, DaemonState, Gpu, Node, Server, ServerState
from exporter.parse.control_reply import LIST_CLIENTS, LIST_SERVERS, SERVER_STATUS, VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Rhythm:
    """How often to look, in seconds: at a daemon's liveness, its full lists, and NVML; and how often when in doubt."""

    liveness: float = 30.0
    lists: float = 300.0
    nvml: float = 10.0
    doubt: float = 2.0
    begin: float = 0.5
    fault: float = 5.0
    doubted_for: float = 10.0

    def fresh(self, at: float, doubted_since: float | None) -> bool:
        """Whether a doubt is young enough to ask sooner; one that asking did not settle, it will not settle later."""
        return doubted_since is not None and at - doubted_since <= self.doubted_for


def commands(node: Node, name: str, rhythm: Rhythm) -> tuple[str, ...]:
    """The commands to give one daemon now, most telling first."""
    daemon = node.daemons[name]
    if not daemon.answers or daemon.unanswered_since is not None or daemon.refused_since is not None:
        return (LIST_SERVERS,) if _due(daemon, LIST_SERVERS, node.at, _probe_period(node.at, daemon, rhythm)) else ()
    due: list[str] = []
    if daemon.version is None and VERSION not in daemon.asked:
        due.append(VERSION)
    doubt = _latest(_servers_doubted_since(node, daemon))
    if _due(daemon, LIST_SERVERS, node.at, rhythm.doubt if rhythm.fresh(node.at, doubt) else rhythm.liveness):
        due.append(LIST_SERVERS)
    for server in daemon.servers.values():
        due.extend(_about(node, daemon, server, rhythm))
    return tuple(due)


def _probe_period(at: float, daemon: Daemon, rhythm: Rhythm) -> float:
    """A daemon that begins is asked at once, one that does not answer soon, and one that has gone at ease.

    Its return is told by its log and its pid file; where neither can be read, by this.
    """
    if daemon.gone:
        return rhythm.liveness / 3
    begins = daemon.state is DaemonState.STARTING and rhythm.fresh(at, daemon.state_since)
    return rhythm.begin if begins else rhythm.fault


def _about(node: Node, daemon: Daemon, server: Server, rhythm: Rhythm) -> list[str]:
    """What to ask about one server; nothing yet where the log told of its start, and so of all that came after."""
    began = server.started_at if server.uid is not None else None
    status, clients = f"{SERVER_STATUS} {server.pid}", f"{LIST_CLIENTS} {server.pid}"
    status_period = rhythm.fault if server.state is ServerState.FAULT else rhythm.lists
    if rhythm.fresh(node.at, server.started_at if server.state is None else server.fault_suspected_at):
        status_period = rhythm.doubt
    doubt = _latest(_clients_doubted_since(node, daemon, server))
    clients_period = rhythm.doubt if rhythm.fresh(node.at, doubt) else rhythm.lists
    return [
        command
        for command, period in ((status, status_period), (clients, clients_period))
        if _due(daemon, command, node.at, period, began)
    ]


def _servers_doubted_since(node: Node, daemon: Daemon) -> Iterable[float | None]:
    """Since when it has been in doubt which servers there are.

    None were listed yet, one is missing, or NVML shows processes that may be a server, or clients of one, that is new.
    """
    if daemon.listed_at is None:
        yield daemon.state_since
    yield from (server.missing_since for server in daemon.servers.values())
    if daemon.log_followed or daemon.listed_at is None:
        return
    for gpu in node.gpus.values():
        yield from (each.first_seen for each in gpu.strangers.values() if each.first_seen > daemon.listed_at)
    yield from (since for since in _unknown_since(node) if since > daemon.listed_at)


def _clients_doubted_since(node: Node, daemon: Daemon, server: Server) -> Iterable[float | None]:
    """Since when NVML has shown clients that nobody told of, or not shown one, or a list has awaited confirmation."""
    asked = daemon.asked.get(f"{LIST_CLIENTS} {server.pid}", float("-inf"))
    clients = {client.pid: client for client in daemon.clients.values() if client.server == server.pid}
    yield from (client.missing_since for client in clients.values())
    for gpu in node.gpus.values():
        yield from (left_at for pid, left_at in gpu.mps_left.items() if pid in clients and left_at > asked)
    yield from _unknown_since(node)


def _unknown_since(node: Node) -> Iterable[float]:
    """Since when each PID that no daemon is known to serve has been in NVML's MPS list."""
    known = {pid for daemon in node.daemons.values() for pid in (*daemon.clients, *daemon.departed)}
    for gpu in node.gpus.values():
        yield from (since for pid, since in gpu.mps_since.items() if pid not in known)


def _latest(times: Iterable[float | None]) -> float | None:
    return max((time for time in times if time is not None), default=None)


def _due(daemon: Daemon, command: str, now: float, period: float, began: float | None = None) -> bool:
    asked = daemon.asked.get(command, began)
    return asked is None or now - asked >= period


def nvml_due(node: Node, rhythm: Rhythm) -> bool:
    """Whether to read NVML now: sooner than usual where clients came or went since, or a process may bypass MPS."""
    source = node.sources.get(NVML)
    doubt = _latest(since for gpu in node.gpus.values() for since in _gpu_doubted_since(node, gpu))
    return source is None or node.at - source.last.at >= (rhythm.doubt if rhythm.fresh(node.at, doubt) else rhythm.nvml)


def _gpu_doubted_since(node: Node, gpu: Gpu) -> Iterable[float]:
    read_at = gpu.reading.at
    yield from (stranger.first_seen for stranger in gpu.strangers.values() if not stranger.told)
    for daemon in node.daemons.values():
        if not gpu.judged and daemon.listed_at is not None and daemon.listed_at > read_at:
            yield daemon.listed_at
        yield from (client.connected_at for client in daemon.clients.values() if client.connected_at > read_at)
        yield from (left_at for left_at in daemon.departed.values() if left_at > read_at)


def watched(node: Node) -> frozenset[int]:
    """The processes whose facts are wanted, and whose exit is news: daemons, servers, clients, and strangers."""
    pids: set[int] = set()
    for daemon in node.daemons.values():
        pids.update(daemon.servers, daemon.clients, daemon.pending)
        if daemon.process is not None and daemon.process.pid is not None:
            pids.add(daemon.process.pid)
    for gpu in node.gpus.values():
        pids.update(gpu.strangers)
    return frozenset(pid for pid in pids if pid > 0)
