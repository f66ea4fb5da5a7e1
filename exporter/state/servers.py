"""MPS servers of a daemon: start, state, end, crash loops."""

from math import ceil

from exporter.model.daemon import Claim, ClaimKind, Daemon, FailedStarts, with_connections, with_log, with_totals
from exporter.model.event import Event, EventName
from exporter.model.node import Node
from exporter.model.observation import GpuReading
from exporter.model.reason import Reason, ReasonCode
from exporter.model.server import DisconnectReason, Server, ServerState
from exporter.model.settings import MAX_CONNECTIONS
from exporter.model.values import replace
from exporter.state import clients as state_clients
from exporter.state.clients import CONFIRMING_SECONDS, FRESH_SECONDS, dequeue, dequeue_user, disconnect_all
from exporter.state.gpus import is_from_volta, serves_gpu, version_number
from exporter.state.transition import Transition, chain, for_each, with_latest, without

BEFORE_VOLTA = 16

FROM_VOLTA = ((13000, 48), (13040, 60))
"""Client contexts per device up to each version of MPS. The last version is that of release 615 of the guide."""

LOOP_STARTS = 3
LOOP_SECONDS = 60.0
"""This many consecutive failed starts within this time are a crash loop."""

LOOP_END_SECONDS = 300.0
"""After this long without a failed start, the next one begins another loop."""

MOST_SERVERS = 64
"""Servers that are stored for one daemon, which starts one for each user (R580)."""

MOST_EXITED = 256
"""Servers that exited and are stored for one daemon."""


def clients_limit(node: Node, daemon: Daemon, server: Server) -> int | None:
    """Return how many clients a server accepts.

    The configuration has precedence over the server's own statement, and that over the number of NVIDIA's guide for the
    daemon's GPUs. None: the GPUs or the version are unknown, or the guide has no single number for all of them. It has
    none either if a client requests more work queues than by default.
    """
    stated = daemon.declared.clients_limit or server.clients_limit
    if stated is not None:
        return stated
    if any(_requests_work_queues(node, pid) for pid, client in daemon.clients.items() if client.server == server.pid):
        return None
    gpus = (gpu.reading for gpu in node.gpus.values() if serves_gpu(node, daemon, gpu.reading))
    documented = {_documented(daemon, gpu) for gpu in gpus}
    return documented.pop() if len(documented) == 1 else None


def _requests_work_queues(node: Node, pid: int) -> bool:
    """Return whether a client may have more than the usual 2 work queues, of which all clients share a pool (guide)."""
    process = node.processes.get(pid)
    variables = None if process is None else process.environment
    return variables is not None and variables.get(MAX_CONNECTIONS, "2") not in ("1", "2")


def _documented(daemon: Daemon, gpu: GpuReading) -> int | None:
    from_volta = is_from_volta(gpu)
    if not from_volta:
        return None if from_volta is None else BEFORE_VOLTA
    version = _version(daemon, gpu)
    return None if version is None else next((limit for newest, limit in FROM_VOLTA if version <= newest), None)


def _version(daemon: Daemon, gpu: GpuReading) -> int | None:
    """Return the version of MPS as its programs print it, 13010 for CUDA 13.1; else that of the driver's CUDA."""
    if daemon.runtime.version is not None:
        return int(daemon.runtime.version)
    parts = (gpu.cuda_version or "").partition(".")
    major, minor = version_number(parts[0]), version_number(parts[2])
    return None if major is None or minor is None else 1000 * major + 10 * minor


# -- start and end ---------------------------------------------------------------------------------------------------


def with_server(daemon: Daemon, server: Server) -> Daemon:
    """Return the daemon with this server."""
    return replace(daemon, servers={**daemon.servers, server.pid: server})


def start(
    daemon: Daemon,
    at: float,
    pid: int,
    uid: int | None = None,
    state: ServerState | None = None,
    *,
    logged: bool = False,
) -> Transition:
    """Return the daemon with a server. An ended daemon has none: the report came too late.

    `logged` is whether its log reports the start.

    More than `MOST_SERVERS` are neither stored nor counted, because no daemon of NVIDIA has so many.
    """
    if daemon.ended:
        return daemon, ()
    if pid in daemon.servers:
        known = daemon.servers[pid]
        return with_server(daemon, replace(known, uid=known.uid if uid is None else uid)), ()
    if len(daemon.servers) >= MOST_SERVERS:
        return daemon, ()
    # A daemon whose servers were known has started it since, and a start in its log is read at once.
    observed = daemon.connections.listed_at is not None and (daemon.log_followed or logged)
    daemon = with_server(daemon, Server(pid=pid, started_at=at, uid=uid, clients_known=observed))
    daemon = with_connections(daemon, server_exited_at=without(daemon.connections.server_exited_at, pid))
    started = (Event(at=at, event=EventName.SERVER_STARTED, daemon=daemon.name, server=pid),)
    if state is None:
        return daemon, started
    return chain((daemon, started), lambda daemon: enter_state(daemon, at, pid, state))


def start_unless_exited(daemon: Daemon, at: float, pid: int) -> Transition:
    """Return the daemon with a server that its log reports. A line that was read late does not restore an old one."""
    if pid in daemon.servers or pid in daemon.connections.server_exited_at:
        return daemon, ()
    return start(daemon, at, pid, logged=True)


def end(daemon: Daemon, at: float, pid: int, reason: DisconnectReason = DisconnectReason.SERVER_GONE) -> Transition:
    """Return the daemon without a server and its clients."""
    server = daemon.servers.get(pid)
    if server is None:
        return daemon, ()
    had_clients = any(client.server == pid for client in daemon.clients.values())
    daemon, events = disconnect_all(daemon, at, reason, server=pid)
    daemon = with_connections(
        replace(daemon, servers=without(daemon.servers, pid)),
        server_exited_at=with_latest(daemon.connections.server_exited_at, pid, at, MOST_EXITED),
    )
    if not had_clients and reason is DisconnectReason.SERVER_GONE:
        daemon = _count_failed_start(daemon, at, server)
    return daemon, (*events, Event(at=at, event=EventName.SERVER_EXITED, daemon=daemon.name, server=pid))


def end_all(daemon: Daemon, at: float, reason: DisconnectReason) -> Transition:
    """Return the daemon without servers and clients."""
    return for_each(daemon, daemon.servers, lambda daemon, pid: end(daemon, at, pid, reason))


def shutdown_requested(daemon: Daemon, pid: int) -> Daemon:
    """Return the daemon after it requested a server to shut down."""
    server = daemon.servers.get(pid)
    return daemon if server is None else with_server(daemon, replace(server, shutdown_requested=True))


def _count_failed_start(daemon: Daemon, at: float, server: Server) -> Daemon:
    """If a server exited before it was ready, count it. Enough of them are the claim of a crash loop."""
    started = server.uid is not None and server.state in (None, ServerState.INITIALIZING)
    quits = daemon.lifecycle.quit_at is not None or daemon.lifecycle.quit_claimed_at is not None
    if not started or server.shutdown_requested or quits:
        return daemon
    last = daemon.connections.failed_starts
    if last.last_exit_at is None or at - last.last_exit_at > LOOP_END_SECONDS:
        last = FailedStarts(words=last.words)
    recent = (each for each in last.started_at if at - each <= LOOP_SECONDS)
    started_at = (*recent, server.started_at)[-LOOP_STARTS:]
    failed = replace(last, started_at=started_at, count=last.count + 1, uid=server.uid, last_exit_at=at)
    daemon = with_connections(daemon, failed_starts=failed)
    if len(failed.started_at) < LOOP_STARTS or failed.reported:
        return daemon
    claim = Claim(kind=ClaimKind.CRASH_LOOP, pid=0, at=at)
    return with_log(daemon, claims={claim.key: claim, **daemon.log.claims})


def in_crash_loop(daemon: Daemon, at: float) -> bool:
    """Return whether a crash loop was reported, and no server has become ready since."""
    failed = daemon.connections.failed_starts
    return failed.reported and failed.last_exit_at is not None and at - failed.last_exit_at <= LOOP_END_SECONDS


def report_crash_loop(daemon: Daemon) -> Transition:
    """Report a confirmed crash loop, once."""
    failed = daemon.connections.failed_starts
    if failed.reported or not failed.started_at or failed.last_exit_at is None:
        return daemon, ()
    daemon = with_connections(daemon, failed_starts=replace(failed, reported=True))
    seconds = float(max(1, ceil(failed.last_exit_at - failed.started_at[0])))
    reason = Reason(ReasonCode.SERVERS_EXITED_EARLY, count=LOOP_STARTS, seconds=seconds)
    name = EventName.SERVER_CRASH_LOOP
    event = Event(at=failed.last_exit_at, event=name, daemon=daemon.name, reason=reason)
    return with_totals(daemon, crash_loops=daemon.totals.crash_loops + 1), (event,)


# -- state -----------------------------------------------------------------------------------------------------------


def enter_state(daemon: Daemon, at: float, pid: int, state: ServerState) -> Transition:
    """Change the state of a server. A new state is an event."""
    server = daemon.servers.get(pid)
    if server is None:
        return daemon, ()
    before = server.state
    server = replace(server, fault_suspected_at=None, state=state)
    if state is not ServerState.FAULT:
        server = replace(server, devices_to_reset=None)
    if before is state:
        return with_server(daemon, server), ()
    if state is ServerState.ACTIVE and before is not ServerState.FAULT:
        daemon = with_connections(daemon, failed_starts=FailedStarts())
    daemon = with_server(daemon, replace(server, state_since=at))
    return daemon, (Event(at=at, event=EventName.SERVER_STATE, daemon=daemon.name, server=pid, state=state),)


def ready(daemon: Daemon, at: float, pid: int) -> Transition:
    """Return the daemon after its log reports that a server is ready: queued clients of its user, or all, connect.

    A server becomes ready once, after its start. So this line does not end a FAULT.
    """
    daemon, events = start_unless_exited(daemon, at, pid)
    server = daemon.servers.get(pid)
    if server is None:
        return daemon, events
    if daemon.serves_all_users:
        daemon = dequeue(daemon, *daemon.connections.queued)
    elif server.uid is not None:
        daemon = dequeue_user(daemon, server.uid)
    if server.state is ServerState.FAULT:
        return daemon, events
    return chain((daemon, events), lambda daemon: enter_state(daemon, at, pid, ServerState.ACTIVE))


def status_read(daemon: Daemon, at: float, asked_at: float, pid: int, state: ServerState) -> Transition:
    """Return the daemon after it reported a server's state.

    FAULT needs another indication, because the daemon reports it once for a server that has just exited (measured,
    R580): a fault log block, a second FAULT, or clients that it still lists. A reply to a query from before the log
    reported a fault, or its end, is out of date.
    """
    server = daemon.servers.get(pid)
    if server is None:
        return daemon, ()
    outdated = (server.state_since or at) > asked_at
    if state is not ServerState.FAULT:
        outdated = outdated and server.state is ServerState.FAULT
        return (daemon, ()) if outdated else enter_state(daemon, at, pid, state)
    server = replace(server, fault_reported_at=at)
    suspected_at = server.fault_suspected_at
    if server.state is ServerState.FAULT or (outdated and server.state is not None):
        return with_server(daemon, server), ()
    if suspected_at is not None and at - suspected_at >= FRESH_SECONDS:
        return enter_state(with_server(daemon, server), at, pid, ServerState.FAULT)
    return with_server(daemon, replace(server, fault_suspected_at=suspected_at or at)), ()


def confirm_fault(daemon: Daemon, at: float, pid: int) -> Transition:
    """Return the daemon after it listed clients of a server: the server runs, so a suspected FAULT is confirmed."""
    server = daemon.servers.get(pid)
    if server is None or server.fault_suspected_at is None:
        return daemon, ()
    return enter_state(daemon, at, pid, ServerState.FAULT)


# -- lists -----------------------------------------------------------------------------------------------------------


def listed(daemon: Daemon, at: float, asked_at: float, pids: tuple[int, ...]) -> Transition:
    """Return the daemon with the servers that it lists, without those that it does not list."""
    here = frozenset(pids)
    arrived = [pid for pid in pids if daemon.connections.server_exited_at.get(pid, asked_at - 1) < asked_at]
    missing = [
        server.pid
        for server in daemon.servers.values()
        if server.pid not in here and server.started_at < asked_at - FRESH_SECONDS
    ]
    daemon, events = chain(
        for_each(daemon, arrived, lambda daemon, pid: start(daemon, at, pid)),
        lambda daemon: for_each(daemon, missing, lambda daemon, pid: _missing(daemon, at, pid, confirmed=bool(pids))),
    )
    for pid in pids:
        server = daemon.servers.get(pid)
        if server is not None and not (server.listed and server.missing_since is None):
            daemon = with_server(daemon, replace(server, listed=True, missing_since=None))
    return with_connections(daemon, listed_at=asked_at), events


def _missing(daemon: Daemon, at: float, pid: int, *, confirmed: bool) -> Transition:
    """End a server that is not listed. A quitting daemon lists none (R580), so a second empty list must confirm it."""
    server = daemon.servers[pid]
    since = server.missing_since
    if confirmed or (since is not None and at - since >= CONFIRMING_SECONDS):
        return end(daemon, at, pid)
    return with_server(daemon, replace(server, missing_since=since or at)), ()


# -- hidden PIDs -----------------------------------------------------------------------------------------------------


def with_hidden_pids(daemon: Daemon, pid: int, hidden: bool) -> Daemon:
    """Return the daemon with whether it, or the server, hides the PIDs of the server's clients."""
    server = daemon.servers.get(pid)
    if server is None or server.has_hidden_pids is hidden:
        return daemon
    return with_server(daemon, replace(server, has_hidden_pids=hidden))


def server_with_hidden_pids(node: Node, reading: GpuReading) -> tuple[Daemon, Server] | None:
    """Return the only server on a GPU whose clients have hidden PIDs; None if there are several, or no list."""
    if reading.problem is not None or reading.mig_mode or reading.mps_processes is None:
        return None
    found = [
        (daemon, server)
        for daemon in node.daemons.values()
        for server in daemon.servers.values()
        if server.has_hidden_pids and serves_gpu(node, daemon, reading)
    ]
    return found[0] if len(found) == 1 else None


def hidden_pids_shown(node: Node, daemon: Daemon, pid: int, reading: GpuReading) -> Transition:
    """Return the daemon with the clients of a server that only NVML shows. Without one on any GPU, it disconnected."""
    if pid not in daemon.servers:
        return daemon, ()
    daemon = with_server(daemon, replace(daemon.servers[pid], clients_known=True))
    known = {pid for each in node.daemons.values() for pid in (*each.clients, *each.connections.disconnected_at)}
    arrived = [each.pid for each in reading.mps_processes or () if each.pid not in known]
    left = [
        client.pid
        for client in daemon.clients.values()
        if client.server == pid
        and not client.contexts
        and client.listed_at is None
        and not any(client.pid in gpu.mps_since for gpu in node.gpus.values())
    ]
    exit_reason = DisconnectReason.EXIT
    return chain(
        for_each(daemon, arrived, lambda daemon, client: state_clients.connect(daemon, reading.at, pid, client)),
        lambda daemon: for_each(
            daemon, left, lambda daemon, client: state_clients.disconnect(daemon, reading.at, client, exit_reason)
        ),
    )
