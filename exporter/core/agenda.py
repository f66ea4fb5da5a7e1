"""What to look at next: as seldom as will do, since every command to a control daemon costs five lines of its log.

Between the slow looks, clients are known from the logs, NVML and process exits; where two of these disagree, or
something is in doubt, the daemon is asked sooner, for a while.
"""

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


def commands(node: Node, name: str, rhythm: Rhythm) -> tuple[str, ...]:
    """The commands to give one daemon now, most telling first."""
    daemon = node.daemons[name]
    if not daemon.answers or daemon.unanswered_since is not None or daemon.refused_since is not None:
        return (LIST_SERVERS,) if _due(daemon, LIST_SERVERS, node.at, _probe_period(daemon, rhythm)) else ()
    due: list[str] = []
    if daemon.version is None and VERSION not in daemon.asked:
        due.append(VERSION)
    if _due(daemon, LIST_SERVERS, node.at, rhythm.doubt if _servers_in_doubt(daemon) else rhythm.liveness):
        due.append(LIST_SERVERS)
    for server in daemon.servers.values():
        due.extend(_about(node, daemon, server, rhythm))
    return tuple(due)


def _probe_period(daemon: Daemon, rhythm: Rhythm) -> float:
    """A daemon that begins is asked at once, one that does not answer soon, and one that has gone at ease.

    Its return is told by its log and its pid file; where neither can be read, by this.
    """
    if daemon.state in (DaemonState.ABSENT, DaemonState.STOPPED):
        return rhythm.liveness / 3
    return rhythm.begin if daemon.state in (None, DaemonState.STARTING) else rhythm.fault


def _about(node: Node, daemon: Daemon, server: Server, rhythm: Rhythm) -> list[str]:
    """What to ask about one server; nothing yet where the log told of its start, and so of all that came after."""
    began = server.started_at if server.uid is not None else None
    status, clients = f"{SERVER_STATUS} {server.pid}", f"{LIST_CLIENTS} {server.pid}"
    status_period = rhythm.lists
    if server.state is None or server.fault_suspected_at is not None:
        status_period = rhythm.doubt
    elif server.state is ServerState.FAULT:
        status_period = rhythm.fault
    clients_period = rhythm.doubt if _clients_in_doubt(node, daemon, server, rhythm) else rhythm.lists
    return [
        command
        for command, period in ((status, status_period), (clients, clients_period))
        if _due(daemon, command, node.at, period, began)
    ]


def _servers_in_doubt(daemon: Daemon) -> bool:
    return not daemon.servers_listed or any(server.missing_since is not None for server in daemon.servers.values())


def _clients_in_doubt(node: Node, daemon: Daemon, server: Server, rhythm: Rhythm) -> bool:
    """Whether NVML shows clients that nobody told of, or no longer shows one, or an empty list awaits confirmation."""
    clients = [client for client in daemon.clients.values() if client.server == server.pid]
    asked = daemon.asked.get(f"{LIST_CLIENTS} {server.pid}", float("-inf"))
    left = {pid: at for gpu in node.gpus.values() for pid, at in gpu.mps_left.items()}
    if any(client.missing_since is not None or left.get(client.pid, asked) > asked for client in clients):
        return True
    unknown = [since for gpu in node.gpus.values() for since in _unknown_clients(node, gpu)]
    return any(node.at - since <= rhythm.doubted_for for since in unknown)


def _unknown_clients(node: Node, gpu: Gpu) -> list[float]:
    """Since when NVML's MPS list has shown each PID that no daemon is known to serve."""
    known = {pid for daemon in node.daemons.values() for pid in (*daemon.clients, *daemon.departed)}
    return [since for pid, since in gpu.mps_since.items() if pid not in known]


def _due(daemon: Daemon, command: str, now: float, period: float, began: float | None = None) -> bool:
    asked = daemon.asked.get(command, began)
    return asked is None or now - asked >= period


def nvml_due(node: Node, rhythm: Rhythm) -> bool:
    """Whether to read NVML now: sooner than usual where clients came or went since, or a process may bypass MPS."""
    source = node.sources.get(NVML)
    doubtful = any(_gpu_in_doubt(node, gpu) for gpu in node.gpus.values())
    return source is None or node.at - source.last.at >= (rhythm.doubt if doubtful else rhythm.nvml)


def _gpu_in_doubt(node: Node, gpu: Gpu) -> bool:
    read_at = gpu.reading.at
    if any(not stranger.told for stranger in gpu.strangers.values()):
        return True
    return any(
        any(client.connected_at > read_at for client in daemon.clients.values())
        or any(at > read_at for at in daemon.departed.values())
        for daemon in node.daemons.values()
    )


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
