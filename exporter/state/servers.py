"""MPS servers of a daemon, and their clients: start, state, end, connections, crash loops."""

from math import ceil

from exporter.model.daemon import Claim, ClaimKind, Daemon, FailedStarts, with_connections, with_log, with_totals
from exporter.model.event import EventName, Step
from exporter.model.identity import ConnectionHolders
from exporter.model.node import Node
from exporter.model.observation import GpuReading, GpuUuid
from exporter.model.reason import Reason, ReasonCode
from exporter.model.server import Client, DisconnectReason, RefusalReason, Server, ServerState
from exporter.model.values import increment, replace, with_latest, without
from exporter.state.devices import serves_gpu

FRESH_SECONDS = 0.5
"""A list may be older than a log line that was read before it. A change this recent overrides the list."""

CONFIRMING_SECONDS = 1.0
"""An empty list counts if a second one, this much later, is also empty: one empty reply proves nothing (R580)."""

REMEMBERED_SECONDS, LATE_SECONDS = 5.0, 60.0
"""How long a disconnected client is remembered, so that late evidence does not connect it again. The second number is
for a log with unread lines."""

MOST_CLIENTS = 1024
"""How many clients of one daemon are known, and how many disconnected ones are remembered; no daemon has more."""

TERMINATION_SECONDS = 10.0  # A client that disconnects so soon after the server's request was terminated (6 ms).
MAX_CONTEXTS = 64  # How many contexts of one client are remembered; a whole server has fewer.
MAX_QUEUED = 1024  # How many queued clients of one daemon are remembered.

HIDDEN = -(1 << 40)
"""Numbers below stand for queued clients with a hidden PID. PIDs of other namespaces are negative, but larger."""


def connect(step: Step, at: float, server: int, pid: int, exited: Client | None = None) -> None:
    """Add a client: a context of it is ACTIVE, or the daemon lists it, or it is listed although it has `exited`.

    Clients beyond `MOST_CLIENTS` are ignored: no real daemon reports them.
    """
    known = step.daemon.clients.get(pid)
    if known is not None and known.server == server:
        step.daemon = _with_client(step.daemon, replace(exited or known, missing_since=None))
        return
    disconnect(step, at, pid, DisconnectReason.EXIT)
    daemon = step.daemon
    if len(daemon.clients) >= MOST_CLIENTS:
        return
    daemon = _with_client(daemon, exited or Client(pid=pid, server=server, connected_at=at))
    gone, recent = daemon.connections.disconnected_at, daemon.connections.recently_disconnected
    daemon = with_connections(daemon, disconnected_at=without(gone, pid), recently_disconnected=without(recent, pid))
    step.daemon = dequeue(with_totals(daemon, connected=daemon.totals.connected + 1), pid)
    step.report(at, EventName.CLIENT_CONNECTED, server=server, pid=pid)


def disconnect(step: Step, at: float, pid: int, reason: DisconnectReason) -> None:
    """Remove a client, if it is known.

    If the log has reported before that the client exited, the end of its server or daemon is not the reason.
    """
    daemon = step.daemon
    client = daemon.clients.get(pid)
    if client is None:
        return
    sender = None
    if reason is DisconnectReason.EXIT or daemon.claimed(ClaimKind.CLIENT_DISCONNECT, pid):
        reason, sender = _own_end(daemon, client, at)
    connections = daemon.connections
    daemon = with_connections(
        replace(daemon, clients=without(daemon.clients, pid)),
        disconnected_at=with_latest(connections.disconnected_at, pid, at, MOST_CLIENTS),
        recently_disconnected=with_latest(connections.recently_disconnected, pid, client, MOST_CLIENTS),
    )
    step.daemon = with_totals(daemon, disconnected=increment(daemon.totals.disconnected, reason))
    step.report(at, EventName.CLIENT_DISCONNECTED, server=client.server, pid=pid, reason=reason, indications=sender)


def _own_end(daemon: Daemon, client: Client, at: float) -> tuple[DisconnectReason, tuple[Reason, ...] | None]:
    """Return why a client ended although its server did not, and who requested that, as far as it is known.

    A server may also evict clients. Later commands in the log show that none requested that.
    """
    requested_at, terminated_at = client.exit_requested_at, daemon.log.terminated_at
    if client.out_of_memory or requested_at is None or at - requested_at > TERMINATION_SECONDS:
        return DisconnectReason.OUT_OF_MEMORY if client.out_of_memory else DisconnectReason.EXIT, None
    if terminated_at is not None and abs(requested_at - terminated_at) <= TERMINATION_SECONDS:
        seen, is_open = daemon.commands.session_holder, daemon.log.closed_at < terminated_at
        # A process is the sender only if it was seen in that session, which must still be open.
        if is_open and seen is not None and seen.started is not None and seen.started <= terminated_at <= seen.at:
            return DisconnectReason.TERMINATED, (Reason(ReasonCode.ENDED_BY_COMMAND, pid=seen.pid, user=seen.user),)
        return DisconnectReason.TERMINATED, (Reason(ReasonCode.ENDED_BY_COMMAND),)
    evicted = daemon.dialect.servers_by_user and daemon.log.commanded_at > requested_at
    return DisconnectReason.EVICTED if evicted else DisconnectReason.TERMINATED, None


def add_context(daemon: Daemon, at: float, pid: int, context: int, gpu: GpuUuid | None = None) -> Daemon:
    """Add an accepted context of a client, and its GPU if the log reports it. So the client has not disconnected."""
    client = daemon.clients.get(pid)
    if client is None or len(client.contexts | {context}) > MAX_CONTEXTS:
        return daemon
    gpus = client.gpus if client.contexts else frozenset()
    added = set() if gpu is None else {gpu} - gpus
    added_at = at if added else client.gpu_added_at
    client = replace(client, contexts=client.contexts | {context}, gpus=gpus | added, gpu_added_at=added_at)
    daemon = with_connections(daemon, disconnects=without(daemon.connections.disconnects, pid))
    return _with_client(daemon, client)


def apply_list(step: Step, at: float, asked_at: float, server: int, pids: tuple[int, ...], *, complete: bool) -> None:
    """Connect the clients that the daemon lists. Disconnect those that a complete list does not contain.

    The daemon itself lists a client, but any user can write the log (R580). So the time of the list is stored.
    """
    daemon, listed = step.daemon, frozenset(pids)
    if complete and server in daemon.servers:
        step.daemon = with_server(daemon, replace(daemon.servers[server], clients_known=True))
    clients = daemon.clients.items() if complete else ()
    older = (pid for pid, each in clients if each.server == server and each.connected_at < asked_at - FRESH_SECONDS)
    missing = [pid for pid in older if pid not in listed]
    for pid in pids:
        if daemon.connections.disconnected_at.get(pid, asked_at - 1) < asked_at:
            connect(step, at, server, pid)
            if pid in step.daemon.clients:
                client = replace(step.daemon.clients[pid], listed_at=asked_at)
                step.daemon = _with_client(step.daemon, client)
    for pid in missing:
        # One empty list proves nothing: a second one must confirm it.
        since = step.daemon.clients[pid].missing_since
        if pids or (since is not None and at - since >= CONFIRMING_SECONDS):
            disconnect(step, at, pid, DisconnectReason.EXIT)
        else:
            step.daemon = _with_client(step.daemon, replace(step.daemon.clients[pid], missing_since=since or at))


def listed_after_exit(step: Step, node: Node, reading: GpuReading) -> None:
    """Mark clients that NVML still lists some time after their process exited, unless the log reports their end.

    MPS and NVML list a client until every process that has its connection has ended (measured, R580). So it is
    connected again.
    """
    for pid, death in node.deaths.items():
        client = last_known(step.daemon, pid)
        if client is None or pid in node.processes or reading.at - death.at < CONFIRMING_SECONDS:
            continue
        is_connected = client.server in step.daemon.servers and pid not in step.daemon.connections.disconnects
        if is_connected and any(each.pid == pid for each in reading.mps_processes or ()):
            connect(step, reading.at, client.server, pid, replace(client, exited_at=client.exited_at or reading.at))


def holders_read(daemon: Daemon, node: Node, seen: ConnectionHolders) -> Daemon:
    """Return the daemon with what holds the connection of a client that has exited."""
    client, process = daemon.clients.get(seen.pid), node.processes.get(seen.pid)
    if client is None or (process is not None and not process.ended):
        return daemon
    return _with_client(daemon, replace(client, exited_at=client.exited_at or seen.at, holders=seen.holders))


def refuse(step: Step, at: float, server: int, pid: int | None, reason: RefusalReason) -> None:
    """Count and report a refused client."""
    step.daemon = with_totals(step.daemon, refused=increment(step.daemon.totals.refused, reason))
    if pid is not None:
        step.daemon = dequeue(step.daemon, pid)
    if reason is not RefusalReason.FAULT:
        step.daemon = replace(step.daemon, connections=replace(step.daemon.connections, refused_at=at))
    step.report(at, EventName.CLIENT_REFUSED, server=server, pid=pid, reason=reason)


def queue(daemon: Daemon, pid: int, uid: int) -> Daemon:
    """Add a client that waits for a server. That is ordinary: a server takes a moment to start."""
    queued = daemon.connections.queued
    if len(queued) >= MAX_QUEUED:
        return daemon
    # A daemon shows all hidden clients as PID 0. Each has a number of its own, so that several count as several.
    return with_connections(daemon, queued={**queued, pid or min(HIDDEN, *queued, 0) - 1: uid})


def dequeue(daemon: Daemon, *pids: int) -> Daemon:
    """Remove clients that no longer wait for a server."""
    connections = daemon.connections
    if not any(pid in connections.queued for pid in pids):
        return daemon
    queued, waiting = without(connections.queued, *pids), without(connections.waiting, *pids)
    return with_connections(daemon, queued=queued, waiting=waiting)


def report_waiting(step: Step, at: float, server: int) -> None:
    """Report the queued clients: the current server stays until its last client has disconnected.

    If users do not take turns, it is an operator's command that waits for the clients.
    """
    if known := step.daemon.servers.get(server):
        step.daemon = with_server(step.daemon, replace(known, shutdown_requested=False))
    if step.daemon.serves_all_users or step.daemon.dialect.servers_by_user:
        return
    connections = step.daemon.connections
    waiting = [pid for pid in connections.queued if pid not in connections.waiting]
    step.daemon = with_connections(step.daemon, waiting={**connections.waiting, **dict.fromkeys(waiting, at)})
    for pid in waiting:
        step.report(at, EventName.CLIENT_WAITING, server=server, pid=0 if pid < HIDDEN else pid)


def last_known(daemon: Daemon, pid: int) -> Client | None:
    """Return a client, even if its process ended before the log reported it."""
    return daemon.clients.get(pid) or daemon.connections.recently_disconnected.get(pid)


def _with_client(daemon: Daemon, client: Client) -> Daemon:
    return replace(daemon, clients={**daemon.clients, client.pid: client})


LOOP_STARTS = 3
LOOP_SECONDS = 60.0
"""This many consecutive failed starts within this time are a crash loop."""

LOOP_END_SECONDS = 300.0  # After this long without a failed start, the next one begins another loop.
MOST_SERVERS = 64  # Servers that are stored for one daemon, which starts one for each user (R580).
MOST_EXITED = 256  # Servers that exited and are stored for one daemon.


# -- start and end ---------------------------------------------------------------------------------------------------


def with_server(daemon: Daemon, server: Server) -> Daemon:
    """Return the daemon with this server."""
    return replace(daemon, servers={**daemon.servers, server.pid: server})


def start(
    step: Step, at: float, pid: int, uid: int | None = None, state: ServerState | None = None, *, logged: bool = False
) -> None:
    """Add a server. An ended daemon has none: the report came too late. `logged` is whether its log reports the start.

    More than `MOST_SERVERS` are neither stored nor counted, because no daemon of NVIDIA has so many.
    """
    daemon = step.daemon
    if daemon.ended:
        return
    if pid in daemon.servers:
        if uid is not None:
            step.daemon = with_server(daemon, replace(daemon.servers[pid], uid=uid))
        return
    if len(daemon.servers) >= MOST_SERVERS:
        return
    # A daemon whose servers were known has started it since, and a start in its log is read at once.
    observed = daemon.connections.listed_at is not None and (daemon.log_followed or logged)
    daemon = with_server(daemon, Server(pid=pid, started_at=at, uid=uid, clients_known=observed))
    step.daemon = with_connections(daemon, server_exited_at=without(daemon.connections.server_exited_at, pid))
    step.report(at, EventName.SERVER_STARTED, server=pid)
    if state is not None:
        enter_state(step, at, pid, state)


def start_unless_exited(step: Step, at: float, pid: int) -> None:
    """Add a server that the daemon's log reports. A line that was read late does not restore an old one."""
    if pid not in step.daemon.servers and pid not in step.daemon.connections.server_exited_at:
        start(step, at, pid, logged=True)


def end(step: Step, at: float, pid: int, reason: DisconnectReason = DisconnectReason.SERVER_GONE) -> None:
    """Remove a server and its clients."""
    server = step.daemon.servers.get(pid)
    if server is None:
        return
    clients = [client.pid for client in step.daemon.clients.values() if client.server == pid]
    forced = server.shutdown_requested and reason is DisconnectReason.SERVER_GONE
    for client in clients:
        disconnect(step, at, client, DisconnectReason.SHUT_DOWN if forced else reason)
    daemon = replace(step.daemon, servers=without(step.daemon.servers, pid))
    exited_at = with_latest(daemon.connections.server_exited_at, pid, at, MOST_EXITED)
    step.daemon = with_connections(daemon, server_exited_at=exited_at)
    if not clients and reason is DisconnectReason.SERVER_GONE:
        step.daemon = _count_failed_start(step.daemon, at, server)
    step.report(at, EventName.SERVER_EXITED, server=pid)


def end_all(step: Step, at: float, reason: DisconnectReason) -> None:
    """Remove all servers and clients."""
    for pid in tuple(step.daemon.servers):
        end(step, at, pid, reason)


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


def report_crash_loop(step: Step) -> None:
    """Report a confirmed crash loop, once."""
    daemon, failed = step.daemon, step.daemon.connections.failed_starts
    if failed.reported or not failed.started_at or failed.last_exit_at is None:
        return
    daemon = with_connections(daemon, failed_starts=replace(failed, reported=True))
    step.daemon = with_totals(daemon, crash_loops=daemon.totals.crash_loops + 1)
    seconds = float(max(1, ceil(failed.last_exit_at - failed.started_at[0])))
    reason = Reason(ReasonCode.SERVERS_EXITED_EARLY, count=LOOP_STARTS, seconds=seconds)
    step.report(failed.last_exit_at, EventName.SERVER_CRASH_LOOP, reason=reason)


def enter_state(step: Step, at: float, pid: int, state: ServerState) -> None:
    """Change the state of a server. A new state is an event."""
    server = step.daemon.servers.get(pid)
    if server is None:
        return
    before = server.state
    to_reset = server.devices_to_reset if state is ServerState.FAULT else None
    server = replace(server, fault_suspected_at=None, state=state, devices_to_reset=to_reset)
    if before is state:
        step.daemon = with_server(step.daemon, server)
        return
    if state is ServerState.ACTIVE and before is not ServerState.FAULT:
        step.daemon = with_connections(step.daemon, failed_starts=FailedStarts())
    step.daemon = with_server(step.daemon, replace(server, state_since=at))
    step.report(at, EventName.SERVER_STATE, server=pid, state=state)


def ready(step: Step, at: float, pid: int) -> None:
    """Make a server active that is ready, as its log reports. Queued clients of its user, or all, connect.

    A server becomes ready once, after its start. So this line does not end a FAULT.
    """
    start_unless_exited(step, at, pid)
    server = step.daemon.servers.get(pid)
    if server is None:
        return
    queued = step.daemon.connections.queued.items()
    serves_all = step.daemon.serves_all_users
    step.daemon = dequeue(step.daemon, *(client for client, uid in queued if serves_all or uid == server.uid))
    if server.state is not ServerState.FAULT:
        enter_state(step, at, pid, ServerState.ACTIVE)


def status_read(step: Step, at: float, asked_at: float, pid: int, state: ServerState) -> None:
    """Apply the state of a server that the daemon reports.

    FAULT needs another indication, because the daemon reports it once for a server that has just exited (measured,
    R580): a fault log block, a second FAULT, or clients that it still lists. A reply to a query from before the log
    reported a fault, or its end, is out of date.
    """
    server = step.daemon.servers.get(pid)
    if server is None:
        return
    outdated = (server.state_since or at) > asked_at
    if state is not ServerState.FAULT:
        if not (outdated and server.state is ServerState.FAULT):
            enter_state(step, at, pid, state)
        return
    suspected_at = server.fault_suspected_at
    server = replace(server, fault_reported_at=at)
    is_new = server.state is not ServerState.FAULT and (not outdated or server.state is None)
    if is_new and suspected_at is None:
        server = replace(server, fault_suspected_at=at)
    step.daemon = with_server(step.daemon, server)
    if is_new and suspected_at is not None and at - suspected_at >= FRESH_SECONDS:
        enter_state(step, at, pid, ServerState.FAULT)


def confirm_fault(step: Step, at: float, pid: int) -> None:
    """Confirm a suspected FAULT of a server whose clients the daemon lists: the server runs."""
    server = step.daemon.servers.get(pid)
    if server is not None and server.fault_suspected_at is not None:
        enter_state(step, at, pid, ServerState.FAULT)


def listed(step: Step, at: float, asked_at: float, pids: tuple[int, ...]) -> None:
    """Add the servers that the daemon lists, and remove those that it does not list."""
    here, exited_at = frozenset(pids), step.daemon.connections.server_exited_at
    older = (each.pid for each in step.daemon.servers.values() if each.started_at < asked_at - FRESH_SECONDS)
    missing = [pid for pid in older if pid not in here]
    for pid in pids:
        if exited_at.get(pid, asked_at - 1) < asked_at:
            start(step, at, pid)
    for pid in missing:
        # A quitting daemon lists no server (R580), so a second empty list must confirm the first.
        since = step.daemon.servers[pid].missing_since
        if pids or (since is not None and at - since >= CONFIRMING_SECONDS):
            end(step, at, pid)
        else:
            step.daemon = with_server(step.daemon, replace(step.daemon.servers[pid], missing_since=since or at))
    for pid in pids:
        server = step.daemon.servers.get(pid)
        if server is not None and not (server.listed and server.missing_since is None):
            step.daemon = with_server(step.daemon, replace(server, listed=True, missing_since=None))
    step.daemon = with_connections(step.daemon, listed_at=asked_at)


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
    every = ((daemon, server) for daemon in node.daemons.values() for server in daemon.servers.values())
    found = [each for each in every if each[1].has_hidden_pids and serves_gpu(node, each[0], reading) is not False]
    return found[0] if len(found) == 1 else None


def hidden_pids_shown(step: Step, node: Node, pid: int, reading: GpuReading) -> None:
    """Connect the clients of a server that only NVML shows. Without one on any GPU, it disconnected."""
    step.daemon = with_server(step.daemon, replace(step.daemon.servers[pid], clients_known=True))
    known = {pid for each in node.daemons.values() for pid in (*each.clients, *each.connections.disconnected_at)}
    shown = {client for gpu in node.gpus.values() for client in gpu.mps_since}
    unlisted = (each for each in step.daemon.clients.values() if not each.contexts and each.listed_at is None)
    left = [each.pid for each in unlisted if each.server == pid and each.pid not in shown]
    for process in reading.mps_processes or ():
        if process.pid not in known:
            connect(step, reading.at, pid, process.pid)
    for client_pid in left:
        disconnect(step, reading.at, client_pid, DisconnectReason.EXIT)
