"""MPS servers of a daemon: start, state, end, crash loops."""

from math import ceil

from exporter.model.daemon import Claim, ClaimKind, Daemon, FailedStarts
from exporter.model.event import Event, EventName
from exporter.model.node import Node
from exporter.model.observation import GpuReading
from exporter.model.reason import Reason, ReasonCode
from exporter.model.server import Client, DisconnectReason, Server, ServerState
from exporter.model.values import replace
from exporter.state import clients as state_clients
from exporter.state import gpus as state_gpus
from exporter.state.clients import CONFIRMING_SECONDS, FRESH_SECONDS, dequeue_user, disconnect_all
from exporter.state.gpus import served
from exporter.state.transition import Transition, chain, for_each, latest, without, without_events

VOLTA = 7
"""The major compute capability of Volta."""

BEFORE_VOLTA = 16

FROM_VOLTA = ((13000, 48), (13040, 60))
"""Client contexts per device up to each version of MPS. The last version is that of release 615 of the guide."""


def clients_limit(node: Node, daemon: Daemon, server: Server) -> int | None:
    """Return how many clients a server accepts.

    The configuration outweighs the server's own statement, and that the guide's number for the daemon's GPUs. None: the
    GPUs or the version are not known, or the guide has no number for them, or not the same for all GPUs.
    """
    stated = daemon.declared.clients_limit or server.clients_limit
    if stated is not None:
        return stated
    gpus = (gpu.reading for gpu in node.gpus.values() if served(daemon, gpu.reading))
    documented = {_documented(daemon, gpu) for gpu in gpus}
    return documented.pop() if len(documented) == 1 else None


def _documented(daemon: Daemon, gpu: GpuReading) -> int | None:
    major, _, _ = (gpu.compute_capability or "").partition(".")
    if not _is_number(major):
        return None
    if int(major) < VOLTA:
        return BEFORE_VOLTA
    version = _version(daemon, gpu)
    if version is None:
        return None
    return next((places for newest, places in FROM_VOLTA if version <= newest), None)


def _version(daemon: Daemon, gpu: GpuReading) -> int | None:
    """Return the version of MPS as its programs print it, 13010 for CUDA 13.1; else that of the driver's CUDA."""
    if daemon.runtime.version is not None:
        return int(daemon.runtime.version)
    major, _, minor = (gpu.cuda_version or "").partition(".")
    return 1000 * int(major) + 10 * int(minor) if _is_number(major) and _is_number(minor) else None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 4


MANY = 3
"""So many starts in a row that fail are a loop, where they are no further apart than `WITHIN_SECONDS` in all."""

WITHIN_SECONDS = 60.0

CEASED_SECONDS = 300.0
"""After this long without a start that fails, the next one begins another loop."""


def start_failed(daemon: Daemon, at: float, server: Server) -> Transition:
    """A server without clients has exited: an event, once, where it is one more of many that were never ready."""
    if not _failed(daemon, server):
        return without_events(daemon)
    last = daemon.connections.failed_starts
    if last.last_exit_at is None or at - last.last_exit_at > CEASED_SECONDS:
        last = FailedStarts()
    started_at = (*(each for each in last.started_at if at - each <= WITHIN_SECONDS), server.started_at)[-MANY:]
    daemon = replace(
        daemon,
        connections=replace(
            daemon.connections,
            failed_starts=FailedStarts(started_at=started_at, last_exit_at=at, reported=last.reported),
        ),
    )
    is_new = len(started_at) == MANY and not last.reported
    claim = Claim(kind=ClaimKind.CRASH_LOOP, pid=0, at=at)
    return without_events(
        replace(daemon, log=replace(daemon.log, claims={claim.key: claim, **daemon.log.claims})) if is_new else daemon
    )


def crash_loop_confirmed(daemon: Daemon) -> Transition:
    """Another source shows that servers have ended: an event, once for each loop."""
    failed = daemon.connections.failed_starts
    if failed.reported or not failed.started_at or failed.last_exit_at is None:
        return without_events(daemon)
    daemon = replace(daemon, connections=replace(daemon.connections, failed_starts=replace(failed, reported=True)))
    return _told(daemon, failed.last_exit_at, failed.last_exit_at - failed.started_at[0])


def start_succeeded(daemon: Daemon) -> Daemon:
    """A server can start: what failed before is over."""
    return replace(daemon, connections=replace(daemon.connections, failed_starts=FailedStarts()))


def _failed(daemon: Daemon, server: Server) -> bool:
    """Whether the log saw it start, and never serve, though nobody wanted it to leave."""
    started_at = server.uid is not None and server.state in (None, ServerState.INITIALIZING)
    wanted = (
        server.shutdown_requested
        or daemon.lifecycle.quit_at is not None
        or daemon.lifecycle.quit_claimed_at is not None
    )
    return started_at and not wanted


def _told(daemon: Daemon, at: float, seconds: float) -> Transition:
    totals = replace(daemon.totals, crash_loops=daemon.totals.crash_loops + 1)
    reason = Reason(ReasonCode.SERVERS_EXITED_EARLY, count=MANY, seconds=float(max(1, ceil(seconds))))
    event = Event(at=at, event=EventName.SERVER_CRASH_LOOP, daemon=daemon.name, reason=reason)
    return replace(daemon, totals=totals), (event,)


def hidden_pids_listed(daemon: Daemon, server: int, nameless: bool) -> Daemon:
    """The daemon, or its server, speaks of clients without a name, or of none."""
    known = daemon.servers.get(server)
    if known is None or known.has_hidden_pids is nameless:
        return daemon
    return with_server(daemon, replace(known, has_hidden_pids=nameless))


def server_with_hidden_pids(node: Node, reading: GpuReading) -> tuple[Daemon, Server] | None:
    """The one server on this GPU that has such clients; None where there are several, or the GPU was not read."""
    if reading.problem is not None or reading.mig_mode or reading.mps_processes is None:
        return None
    found = [
        (daemon, server)
        for daemon in node.daemons.values()
        for server in daemon.servers.values()
        if server.has_hidden_pids and state_gpus.served(daemon, reading)
    ]
    return found[0] if len(found) == 1 else None


def hidden_pids_shown(node: Node, daemon: Daemon, server: int, reading: GpuReading) -> Transition:
    """NVML shows clients on a GPU: those that no daemon names are this server's, and leave when no GPU has them."""
    if server not in daemon.servers:
        return without_events(daemon)
    known = {pid for each in node.daemons.values() for pid in (*each.clients, *each.connections.disconnected_at)}
    arrived = [each.pid for each in reading.mps_processes or () if each.pid not in known]
    left = [
        client.pid
        for client in daemon.clients.values()
        if client.server == server and _is_nvmls_word(client) and not _is_shown(node, client.pid)
    ]
    return chain(
        for_each(daemon, arrived, lambda daemon, pid: state_clients.connect(daemon, reading.at, server, pid)),
        lambda daemon: for_each(
            daemon, left, lambda daemon, pid: state_clients.disconnect(daemon, reading.at, pid, DisconnectReason.EXIT)
        ),
    )


def _is_nvmls_word(client: Client) -> bool:
    """Whether neither the log nor a list has named it."""
    return not client.contexts and client.listed_at is None


def _is_shown(node: Node, pid: int) -> bool:
    return any(pid in gpu.mps_since for gpu in node.gpus.values())


MOST_SERVERS = 64
"""How many servers of one daemon are known at a time, one for each user (R580)."""

MOST_DEPARTED = 256
"""How many servers that have gone are remembered for one daemon."""


def start(daemon: Daemon, at: float, pid: int, uid: int | None = None, state: ServerState | None = None) -> Transition:
    """A server is there; nothing new where it was known, nor where its daemon has gone: it was told of too late.

    Beyond `MOST_SERVERS` it is neither kept nor counted: what says so is no daemon of NVIDIA's.
    """
    if daemon.ended:
        return without_events(daemon)
    if pid in daemon.servers:
        known = daemon.servers[pid]
        return without_events(with_server(daemon, replace(known, uid=known.uid if uid is None else uid)))
    if len(daemon.servers) >= MOST_SERVERS:
        return without_events(daemon)
    daemon = with_server(daemon, Server(pid=pid, started_at=at, uid=uid))
    daemon = replace(
        daemon,
        connections=replace(daemon.connections, server_exited_at=without(daemon.connections.server_exited_at, pid)),
    )
    started = Event(at=at, event=EventName.SERVER_STARTED, daemon=daemon.name, server=pid)
    step: Transition = (daemon, (started,))
    return step if state is None else chain(step, lambda daemon: enter(daemon, at, pid, state))


def seen_alive(daemon: Daemon, at: float, pid: int) -> Transition:
    """A server writes as only a serving one does; a line read late does not bring back one that has gone."""
    if pid in daemon.servers or pid in daemon.connections.server_exited_at:
        return without_events(daemon)
    return start(daemon, at, pid)


def end(daemon: Daemon, at: float, pid: int, reason: DisconnectReason = DisconnectReason.SERVER_GONE) -> Transition:
    """A server has gone, and its clients with it; nothing where it was not known."""
    if pid not in daemon.servers:
        return without_events(daemon)
    server, served = daemon.servers[pid], any(client.server == pid for client in daemon.clients.values())
    exited = Event(at=at, event=EventName.SERVER_EXITED, daemon=daemon.name, server=pid)
    ended = chain(
        disconnect_all(daemon, at, reason, server=pid),
        lambda daemon: (
            replace(
                daemon,
                servers=without(daemon.servers, pid),
                connections=replace(
                    daemon.connections,
                    server_exited_at=latest(daemon.connections.server_exited_at, pid, at, MOST_DEPARTED),
                ),
            ),
            (exited,),
        ),
    )
    if served or reason is not DisconnectReason.SERVER_GONE:
        return ended
    return chain(ended, lambda daemon: start_failed(daemon, at, server))


def end_all(daemon: Daemon, at: float, reason: DisconnectReason) -> Transition:
    """All servers have gone."""
    return for_each(daemon, daemon.servers, lambda daemon, pid: end(daemon, at, pid, reason))


def ready(daemon: Daemon, at: float, pid: int) -> Transition:
    """The log says that a server is ready: the clients that wait for its user go on.

    A server becomes ready once, after its start. So this line does not end a FAULT.
    """
    return chain(
        seen_alive(daemon, at, pid),
        lambda daemon: without_events(_served(daemon, pid)),
        lambda daemon: without_events(daemon) if _in_fault(daemon, pid) else enter(daemon, at, pid, ServerState.ACTIVE),
    )


def _in_fault(daemon: Daemon, pid: int) -> bool:
    server = daemon.servers.get(pid)
    return server is not None and server.state is ServerState.FAULT


def _served(daemon: Daemon, pid: int) -> Daemon:
    server = daemon.servers.get(pid)
    return daemon if server is None or server.uid is None else dequeue_user(daemon, server.uid)


def request_shutdown(daemon: Daemon, pid: int) -> Daemon:
    """The daemon tries to shut a server down."""
    server = daemon.servers.get(pid)
    return daemon if server is None else with_server(daemon, replace(server, shutdown_requested=True))


def enter(daemon: Daemon, at: float, pid: int, state: ServerState) -> Transition:
    """A server is in a state; an event where it was in another, nothing where it has gone."""
    if pid not in daemon.servers:
        return without_events(daemon)
    server = replace(daemon.servers[pid], fault_suspected_at=None)
    if state is not ServerState.FAULT:
        server = replace(server, devices_to_reset=None)
    if server.state is state:
        return without_events(with_server(daemon, server))
    if state is ServerState.ACTIVE and server.state is not ServerState.FAULT:
        daemon = start_succeeded(daemon)
    daemon = with_server(daemon, replace(server, state=state, state_since=at))
    return daemon, (Event(at=at, event=EventName.SERVER_STATE, daemon=daemon.name, server=pid, state=state),)


def listed(daemon: Daemon, at: float, asked_at: float, pids: tuple[int, ...]) -> Transition:
    """The daemon lists its servers: meet those that are new, part with those that are missing."""
    here = frozenset(pids)
    arrived = [pid for pid in pids if daemon.connections.server_exited_at.get(pid, asked_at - 1) < asked_at]
    missing = [
        server.pid
        for server in daemon.servers.values()
        if server.pid not in here and server.started_at < asked_at - FRESH_SECONDS
    ]
    step = chain(
        for_each(daemon, arrived, lambda daemon, pid: start(daemon, at, pid)),
        lambda daemon: for_each(daemon, missing, lambda daemon, pid: _missing(daemon, at, pid, alone=not pids)),
    )
    return chain(
        step,
        lambda daemon: _all_listed(_present(daemon, pids), asked_at),
    )


def _missing(daemon: Daemon, at: float, pid: int, *, alone: bool) -> Transition:
    """A server is not in the list; an empty list must say so twice, since a quitting daemon gives it too (R580)."""
    server = daemon.servers[pid]
    since = server.missing_since
    if not alone or (since is not None and at - since >= CONFIRMING_SECONDS):
        return end(daemon, at, pid)
    return without_events(with_server(daemon, replace(server, missing_since=since or at)))


def _all_listed(daemon: Daemon, asked_at: float) -> Transition:
    return without_events(replace(daemon, connections=replace(daemon.connections, listed_at=asked_at)))


def _present(daemon: Daemon, pids: tuple[int, ...]) -> Daemon:
    for pid in pids:
        server = daemon.servers.get(pid)
        if server is not None and not (server.listed and server.missing_since is None):
            daemon = with_server(daemon, replace(server, listed=True, missing_since=None))
    return daemon


def status_told(daemon: Daemon, at: float, asked_at: float, pid: int, state: ServerState) -> Transition:
    """The daemon tells a server's state.

    FAULT needs a second witness, since a server that has just left is called so once (measured, R580): the log's
    block, another FAULT, or clients that it still lists. What was asked before the log told of a fault, or of its end,
    is older.
    """
    server = daemon.servers.get(pid)
    if server is None:
        return without_events(daemon)
    if state is not ServerState.FAULT:
        overtaken = server.state is ServerState.FAULT and (server.state_since or at) > asked_at
        return without_events(daemon) if overtaken else enter(daemon, at, pid, state)
    server = replace(server, fault_reported_at=at)
    daemon = with_server(daemon, server)
    overtaken = server.state is not None and (server.state_since or at) > asked_at
    if server.state is ServerState.FAULT or overtaken:
        return without_events(daemon)
    suspected_at = server.fault_suspected_at
    if suspected_at is not None and at - suspected_at >= FRESH_SECONDS:
        return enter(daemon, at, pid, ServerState.FAULT)
    return without_events(with_server(daemon, replace(server, fault_suspected_at=suspected_at or at)))


def clients_listed(daemon: Daemon, at: float, pid: int, clients: tuple[int, ...]) -> Transition:
    """The daemon lists clients of a server: it lives, so a FAULT that was told of it is one."""
    server = daemon.servers.get(pid)
    if server is None or server.fault_suspected_at is None or not clients:
        return without_events(daemon)
    return enter(daemon, at, pid, ServerState.FAULT)


def with_server(daemon: Daemon, server: Server) -> Daemon:
    """The daemon with this server as it is now."""
    return replace(daemon, servers={**daemon.servers, server.pid: server})
