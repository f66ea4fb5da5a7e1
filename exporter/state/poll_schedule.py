"""The poll schedule: which control queries and readings are due."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice

from exporter.model.daemon import ClaimKind, Daemon, DaemonState
from exporter.model.identity import identity_of
from exporter.model.node import CollectorName, Gpu, Node
from exporter.model.observation import DaemonName, GpuUuid, Wanted
from exporter.model.server import Server, ServerState
from exporter.model.settings import PollIntervals
from exporter.model.values import frozen
from exporter.parse.control_reply import DEFAULT_THREADS, LIST_SERVERS, SERVER_STATUS, VERSION_FLAG
from exporter.state import devices, gpus, known_daemons, lifecycle, limits, processes
from exporter.state.control_replies import last_answer_at
from exporter.state.servers import CONFIRMING_SECONDS

MOST_PROCESSES = 4096  # Processes that are monitored in all.
MOST_STATES = 1024  # Processes for which the scheduler state is collected.
RETURN_SECONDS = 60.0  # How long the unit of a daemon that answers again is still collected.
CONFIRMATION_SECONDS = 5.0  # How often NVML is read to confirm processes outside MPS, if they come and go often.
FIRST_SECONDS = 1.0  # For this time after a restart, no query delays the commands that set the limits.
EXIT_SECONDS = 5.0  # How long the process of a disconnected client is monitored for its end.


@frozen
class Query:
    """A control query, the time of its last answer (None: no answer yet), and the longest time until the next."""

    command: str
    known_at: float | None
    period: float

    @property
    def deadline(self) -> float:
        """When the query must be sent again."""
        return float("-inf") if self.known_at is None else self.known_at + self.period


def most_urgent(queries: Sequence[Query], now: float, turn: float) -> str | None:
    """Return the query that must be sent in this turn, so that none is late if one is sent every `turn` seconds."""
    by_deadline = sorted(queries, key=lambda query: query.deadline)
    late = (query.deadline < now + place * turn for place, query in enumerate(by_deadline, start=1))
    return by_deadline[0].command if any(late) else None


def probe(daemon: Daemon) -> str:
    """Return the query that shows whether a daemon answers.

    After a refusal, an empty reply must not look like an answer (R580): this query's answer is never empty.
    """
    usual = daemon.dialect.list_servers
    return DEFAULT_THREADS if daemon.commands.refused_since is not None and usual == LIST_SERVERS else usual


def commands(node: Node, name: str, intervals: PollIntervals) -> tuple[str, ...]:
    """Return the queries that are due for a daemon, the most important first.

    Any answer shows that the daemon lives. If no query is due, one in `liveness` seconds suffices. Then a query that is
    due soon replaces the one that only tests whether the daemon lives.
    """
    daemon, watch = node.daemons[name], node.watches.get(name)
    since = node.at if daemon.ended else daemon.lifecycle.state_since or 0.0
    if watch is not None and watch.restart_runs and node.at - since < FIRST_SECONDS:
        return ()
    others = daemon.runtime.directory is not None and daemon.runtime.directory.other is not None
    if not daemon.supported or daemon.runtime.foreign_owner is not None or others:
        return ()
    state = processes.state_of_daemon(node, daemon)
    suspended_at = state.at if state is not None and processes.is_suspended(state) else None
    uncertain = daemon.commands.unanswered_since is not None or daemon.commands.refused_since is not None
    if not daemon.answers or uncertain or suspended_at is not None:
        usual = daemon.dialect.list_servers
        queried = max(daemon.commands.asked_at.get(query, float("-inf")) for query in (usual, DEFAULT_THREADS))
        confirm = daemon.answers and suspended_at is not None
        period = intervals.stale if confirm else _probe_period(node.at, daemon, intervals)
        due = node.at - queried >= period or (suspended_at is not None and queried < suspended_at)
        return (probe(daemon),) if due else ()
    # After a command that is missing in the log, another one shows whether the log is blocked.
    own, listed_at = daemon.log.own_commands, daemon.commands.asked_at.get(LIST_SERVERS, 0.0)
    if own.blocked_since is None and own.missing_since is not None and listed_at < own.missing_since:
        return (LIST_SERVERS,)
    queries = tuple(_queries(node, daemon, intervals))
    due_now = tuple(query.command for query in queries if query.deadline <= node.at)
    if due_now or node.at - last_answer_at(daemon) < intervals.liveness:
        return due_now
    return (most_urgent(queries, node.at, intervals.liveness) or daemon.dialect.list_servers,)


def _probe_period(at: float, daemon: Daemon, intervals: PollIntervals) -> float:
    """Return the interval of queries for a daemon that does not answer.

    After its end, its log and its pid file report its return. The query is for a daemon of which neither can be read.
    """
    if daemon.ended:
        return intervals.liveness / 3
    starting = daemon.state is DaemonState.STARTING and intervals.is_recent(at, daemon.lifecycle.state_since)
    if daemon.discovered and daemon.runtime.process is not None and daemon.runtime.process.uid != 0:
        # Any user can start a program that never answers. Its queries must cost no more than a healthy daemon's.
        since = daemon.commands.unanswered_since or daemon.commands.refused_since or at
        return intervals.stale if starting else min(max(intervals.fault, (at - since) / 2), 2 * intervals.liveness)
    return intervals.starting if starting else intervals.fault


def _queries(node: Node, daemon: Daemon, intervals: PollIntervals) -> Iterable[Query]:
    asked_at = daemon.commands.asked_at
    if daemon.runtime.version is None and VERSION_FLAG not in asked_at:
        yield Query(command=VERSION_FLAG, known_at=None, period=intervals.lists)
    period = intervals.lists if daemon.log_followed else 2 * intervals.liveness
    if intervals.is_recent(node.at, latest(servers_stale_since(node, daemon))):
        period = intervals.stale
    if daemon.dialect.answers_in_tables:
        yield from _table_queries(node, daemon, intervals, period)
        return
    yield Query(command=LIST_SERVERS, known_at=asked_at.get(LIST_SERVERS), period=period)
    # The daemon forwards this query to all its servers.
    for command, known_at in devices.queries(node, daemon) if _can_query_all(node, daemon) else ():
        yield Query(command=command, known_at=known_at, period=intervals.limits)
    for server in daemon.servers.values():
        if processes.can_query(node, server.pid):
            yield from _server_queries(node, daemon, server, intervals)
    stale_period = intervals.changed if limits.wanted_limits(node, daemon) else intervals.stale
    for command, known_at in limits.queries(node, daemon):
        period = stale_period if command in daemon.default_limits.stale else intervals.limits
        yield Query(command=command, known_at=known_at, period=period)


def _table_queries(node: Node, daemon: Daemon, intervals: PollIntervals, period: float) -> Iterable[Query]:
    """Yield the queries that are answered in tables of all servers. `period` is that of the list of servers.

    What the logs report then is not known, so that the usual intervals are shorter.
    """
    servers, asked_at, dialect = daemon.servers.values(), daemon.commands.asked_at, daemon.dialect
    usual = 2 * intervals.liveness
    period = min((period, usual, *(_status_period(node, daemon, server, intervals) for server in servers)))
    periods = {dialect.list_servers: period}
    if servers and _can_query_all(node, daemon):
        clients = min((usual, *(_clients_period(node, daemon, server, intervals) for server in servers)))
        new = any(not server.namespaces and intervals.is_recent(node.at, server.started_at) for server in servers)
        periods |= {
            dialect.list_clients: clients,
            dialect.list_devices: intervals.limits,
            dialect.list_partitions: usual,
            dialect.list_namespaces: intervals.stale if new else intervals.lists,
        }
    for command, each in periods.items():
        yield Query(command=command, known_at=asked_at.get(command), period=each)


def _can_query_all(node: Node, daemon: Daemon) -> bool:
    return all(processes.can_query(node, pid) for pid in daemon.servers)


def _server_queries(node: Node, daemon: Daemon, server: Server, intervals: PollIntervals) -> Iterable[Query]:
    asked_at = daemon.commands.asked_at
    # If the log reported the start, it also reported everything since then.
    started_at = server.started_at if server.uid is not None else None
    for command, period in (
        (f"{SERVER_STATUS} {server.pid}", _status_period(node, daemon, server, intervals)),
        (daemon.dialect.list_clients.format(server=server.pid), _clients_period(node, daemon, server, intervals)),
    ):
        yield Query(command=command, known_at=asked_at.get(command, started_at), period=period)


def _status_period(node: Node, daemon: Daemon, server: Server, intervals: PollIntervals) -> float:
    suspected_at = server.started_at if server.state is None else server.fault_suspected_at
    claimed = claimed_since(daemon, ClaimKind.FAULT, ClaimKind.RECOVERY)
    # After an Xid on one of the daemon's GPUs, the log should have reported a fault by now.
    due_xids = (xid for xid in node.xids.recent if node.at - xid.at >= XID_SECONDS)
    xids = [xid.at for xid in due_xids if not _is_elsewhere(node, daemon, xid.gpu)]
    if intervals.is_recent(node.at, latest((suspected_at, *claimed, *xids))):
        return intervals.stale
    return intervals.fault if server.state is ServerState.FAULT else intervals.lists


def _is_elsewhere(node: Node, daemon: Daemon, gpu: GpuUuid | None) -> bool:
    return gpu is not None and gpu in node.gpus and devices.uses_gpu(node, daemon, gpu) is False


def _clients_period(node: Node, daemon: Daemon, server: Server, intervals: PollIntervals) -> float:
    queried = daemon.commands.asked_at.get(daemon.dialect.list_clients.format(server=server.pid), 0.0)
    # The list must also confirm the affected clients of a fault, which only the log has reported.
    to_confirm = server.state is ServerState.FAULT and queried < (server.state_since or 0.0)
    stale = intervals.is_recent(node.at, latest(clients_stale_since(node, daemon, server)))
    return intervals.stale if stale or to_confirm else intervals.lists


def nvml_due(node: Node, intervals: PollIntervals) -> bool:
    """Return whether to read NVML now: sooner if a reading may be out of date (`gpu_stale_since`)."""
    source = node.sources.get(CollectorName.NVML)
    if source is None:
        return True
    changed_at = _clients_changed_at(node)
    stale_since = latest(since for gpu in node.gpus.values() for since in gpu_stale_since(node, gpu, changed_at))
    if len(node.gpus) > 1 or any(number >= 0 for begun in node.launch_history.begun.values() for number in begun):
        # Clients may have contexts on another GPU, or launch there. NVML may not show that one.
        read_at = min(gpu.reading.at for gpu in node.gpus.values())
        clients = [client for daemon in node.daemons.values() for client in daemon.clients.values()]
        begun = (each for client in clients for each in node.launch_history.begun.get(client.pid, {}).values())
        newer = latest(chain(begun, (client.gpu_added_at for client in clients)))
        stale_since = latest((stale_since, newer if newer is not None and newer > read_at else None))
    period = intervals.stale if intervals.is_recent(node.at, stale_since) else intervals.nvml
    return node.at - source.last.at >= period


def is_confirmation_due(node: Node, at: float, last_at: float) -> bool:
    """Return whether to read NVML again for the newest process outside MPS. It was last done at `last_at`."""
    seen = (each.first_seen for gpu in node.gpus.values() for each in gpu.bypassing_processes.values())
    due = max(seen, default=float("inf")) + gpus.BYPASSING_AFTER_SECONDS
    return max(due, last_at + CONFIRMATION_SECONDS) <= at and any(gpu.reading.at < due for gpu in node.gpus.values())


def is_read_since(node: Node, at: float) -> bool:
    """Return whether each source was read, and each expected daemon was queried, since a time."""
    daemons = (daemon for daemon in node.daemons.values() if daemon.declared.expected and daemon.supported)
    asked = (
        last_answer_at(daemon) if daemon.commands.unanswered_at is None else daemon.commands.unanswered_at
        for daemon in daemons
        if daemon.runtime.foreign_owner is None
    )
    read = (source.last.at - source.last.seconds for source in node.sources.values())
    return min((*asked, *read), default=at) >= at


def unexplained_ends(node: Node) -> frozenset[DaemonName]:
    """Return the ended daemons with logs that may still report an operator's stop."""
    return frozenset(name for name, daemon in node.daemons.items() if daemon.lifecycle.unexplained_end_at is not None)


def start_ticks(node: Node) -> Mapping[int, int]:
    """Return the start times of the daemons' processes, which were read with their PIDs, in clock ticks."""
    identities = (identity_of(daemon.runtime.process) for daemon in node.daemons.values())
    return {each.pid: each.start_ticks for each in identities if each is not None}


def processes_wanted(node: Node) -> frozenset[int]:
    """Return the PIDs of at most `MOST_PROCESSES` processes that are monitored.

    The order is: daemons, servers, bypassing processes, clients, holders of connections of exited clients, queued
    clients, holders of sessions, recently disconnected clients. The exit status of the latter shows who was killed.
    Clients of daemons with few clients come first, so that a daemon that lists thousands of processes displaces no
    others. Then come processes that show the end of a daemon's job or pod, PIDs that may belong to other users than the
    one that a daemon may serve, and other processes that use a GPU.

    The PIDs of a daemon in another PID namespace, and NVML's then, may be those of other processes here.
    """
    seen = [daemon for daemon in node.daemons.values() if not daemon.runtime.hidden]
    daemons = sorted(seen, key=lambda daemon: len(daemon.clients) + len(daemon.connections.queued))
    gpus = node.gpus.values() if len(seen) == len(node.daemons) else ()
    return _first(
        MOST_PROCESSES,
        (daemon.pid for daemon in daemons),
        *(daemon.servers for daemon in daemons),
        *(gpu.bypassing_processes for gpu in gpus),
        *(daemon.clients for daemon in daemons),
        *((each.pid for client in daemon.clients.values() for each in client.holders or ()) for daemon in daemons),
        *(daemon.connections.queued for daemon in daemons),
        (daemon.commands.session_holder.pid for daemon in daemons if daemon.commands.session_holder),
        *(
            (pid for pid, at in daemon.connections.disconnected_at.items() if node.at - at <= EXIT_SECONDS)
            for daemon in daemons
        ),
        *(lifecycle.processes_of(daemon) for daemon in daemons),
        *(
            sorted(known_daemons.named_pids(daemon))
            for daemon in daemons
            if known_daemons.only_user(daemon) is not None
        ),
        # Among them are servers and clients of daemons that are not known.
        *((each.pid for each in gpu.reading.compute_processes or ()) for gpu in gpus),
    )


def states_wanted(node: Node) -> frozenset[int]:
    """Return the PIDs of at most `MOST_STATES` daemons and servers for which the scheduler state is collected."""
    supported = [daemon for daemon in node.daemons.values() if daemon.supported and not daemon.runtime.hidden]
    daemons = sorted(supported, key=lambda daemon: len(daemon.servers))
    return _first(MOST_STATES, (daemon.pid for daemon in daemons), *(daemon.servers for daemon in daemons))


def _first(most: int, *pids: Iterable[int | None]) -> frozenset[int]:
    return frozenset(islice(dict.fromkeys(pid for pid in chain(*pids) if pid is not None and pid > 0), most))


def readings_wanted(node: Node) -> Wanted:
    """Return which states, session holders, control sockets and holders of connections to collect."""
    daemons = [daemon for daemon in node.daemons.values() if daemon.supported]
    return Wanted(
        states=states_wanted(node),
        holders=frozenset(
            daemon.name
            for daemon in daemons
            if processes.is_refused(daemon) or (processes.is_unanswered(daemon) and not daemon.ended)
        ),
        sockets=frozenset(daemon.name for daemon in daemons if processes.is_unanswered(daemon)),
        exited={
            daemon.name: {
                pid: process for pid in daemon.clients if (process := node.processes.get(pid)) is None or process.ended
            }
            for daemon in daemons
        },
    )


def units_wanted(node: Node) -> frozenset[str]:
    """Return the units of expected daemons that do not answer, answer again, or were not collected yet."""
    found: set[str] = set()
    for daemon in node.daemons.values():
        unit, since = daemon.declared.unit, daemon.lifecycle.state_since or 0.0
        returned = daemon.state is DaemonState.UP and node.at - since <= RETURN_SECONDS
        if daemon.declared.expected and unit is not None and (unit not in node.units or not daemon.answers or returned):
            found.add(unit)
    return frozenset(found)


def units_urgent(node: Node) -> frozenset[str]:
    """Return the units that may show whether a daemon that has just ended was stopped or lost."""
    ended = (node.daemons[name].declared for name in unexplained_ends(node))
    return frozenset(declared.unit for declared in ended if declared.expected and declared.unit is not None)


# -- staleness --------------------------------------------------------------------------------------------------------

XID_SECONDS = 0.5
"""After an Xid, the log may take this long to report a fault. It takes 0.1 s at most (measured, R580), unless it is
blocked or a user removes lines. Then the daemon is queried."""

NVML_SECONDS = 3.0  # After a client connects, NVML may take this long to show it. Then the daemon is queried.


def servers_stale_since(node: Node, daemon: Daemon) -> Iterable[float | None]:
    """Yield since when the list of servers may be out of date.

    No list was read yet, a server is missing, the log has a claim, or NVML shows processes that no list contains.
    """
    listed_at = daemon.connections.listed_at
    if listed_at is None:
        yield daemon.lifecycle.state_since
    yield from (server.missing_since for server in daemon.servers.values())
    yield from claimed_since(daemon, ClaimKind.SERVER_START, ClaimKind.SERVER_EXIT, ClaimKind.DAEMON_EXIT)
    if daemon.log_followed or listed_at is None:
        return
    bypassing = (each.first_seen for gpu in node.gpus.values() for each in gpu.bypassing_processes.values())
    yield from (since for since in (*bypassing, *_unknown_since(node)) if since > listed_at)


def clients_stale_since(node: Node, daemon: Daemon, server: Server) -> Iterable[float | None]:
    """Yield since when the list of a server's clients may be out of date.

    NVML shows other clients than the list, a list or a claim awaits confirmation, or clients may confirm a FAULT.
    """
    queried = daemon.commands.asked_at.get(daemon.dialect.list_clients.format(server=server.pid), float("-inf"))
    if server.fault_suspected_at is not None and server.fault_suspected_at > queried:
        yield server.fault_suspected_at
    missing = (each for each in daemon.clients.values() if each.missing_since is not None)
    yield from (client.missing_since for client in missing if client.server == server.pid)
    yield from (since for since in claimed_since(daemon, ClaimKind.CLIENT_DISCONNECT) if since > queried)
    yield from (since for since in claimed_since(daemon, ClaimKind.CLIENT_CONNECT) if node.at - since >= NVML_SECONDS)
    for pid, left_at in chain.from_iterable(gpu.mps_left.items() for gpu in node.gpus.values()):
        if left_at > queried and pid in daemon.clients and daemon.clients[pid].server == server.pid:
            yield left_at
    yield from _unknown_since(node)


def _clients_changed_at(node: Node) -> float | None:
    """Return when a client of any daemon last connected or disconnected, as far as known."""
    return latest(
        at
        for daemon in node.daemons.values()
        for at in (
            *(client.connected_at for client in daemon.clients.values()),
            *daemon.connections.disconnected_at.values(),
            *claimed_since(daemon, ClaimKind.CLIENT_DISCONNECT),
        )
    )


def gpu_stale_since(node: Node, gpu: Gpu, changed_at: float | None) -> Iterable[float]:
    """Yield since when the reading of a GPU may be out of date. Clients last connected or disconnected at `changed_at`.

    A process may bypass MPS, or servers are known that the reading could not use.
    """
    read_at = gpu.reading.at
    yield from (each.first_seen for each in gpu.bypassing_processes.values() if not each.confirmed)
    if changed_at is not None and changed_at > read_at:
        yield changed_at
    for daemon in node.daemons.values():
        connections = daemon.connections
        listed_at = None if gpu.bypassing_known else connections.listed_at
        if listed_at is not None and listed_at > read_at:
            yield listed_at
        # A client that is listed for some time after its end is connected (`servers.listed_after_exit`).
        listed = (at for pid, at in connections.disconnected_at.items() if pid in gpu.mps_since)
        yield from (at for at in listed if at + CONFIRMING_SECONDS > read_at)


def claimed_since(daemon: Daemon, *kinds: ClaimKind) -> Iterable[float]:
    """Yield the times of claims of these kinds that are not confirmed yet."""
    return (each.at for each in daemon.log.claims.values() if each.kind in kinds)


def _unknown_since(node: Node) -> Iterable[float]:
    """Yield since when NVML shows MPS clients that no daemon reports."""
    daemons = node.daemons.values()
    for gpu in node.gpus.values():
        shown = gpu.mps_since.keys()
        # Usually one daemon reports all clients of a GPU.
        if not any(shown <= each.clients.keys() for each in daemons):
            known = chain(*(chain(each.clients, each.connections.disconnected_at) for each in daemons))
            yield from (gpu.mps_since[pid] for pid in shown - set(known))


def latest(times: Iterable[float | None]) -> float | None:
    """Return the latest of the times; None if there is none."""
    return max((time for time in times if time is not None), default=None)
