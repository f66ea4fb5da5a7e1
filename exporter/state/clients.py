"""Clients of a daemon: connect, disconnect, refused, waiting."""

from exporter.model.daemon import ClaimKind, Daemon, with_connections, with_totals
from exporter.model.event import EventName
from exporter.model.observation import GpuUuid
from exporter.model.server import Client, DisconnectReason, RefusalReason
from exporter.model.settings import DEFAULT_PROTOCOL
from exporter.model.values import replace
from exporter.state.step import Step, increment, with_latest, without

FRESH_SECONDS = 0.5
"""A list may be older than a log line that was read before it. A change this recent overrides the list."""

CONFIRMING_SECONDS = 1.0
"""An empty list counts if a second one, this much later, is also empty: one empty reply proves nothing (R580)."""

REMEMBERED_SECONDS = 5.0
"""How long a disconnected client is remembered, so that late evidence does not connect it again."""

MOST_CLIENTS = 1024
"""How many clients of one daemon are known, and how many disconnected ones are remembered; no daemon has more."""

MAX_CONTEXTS = 64
"""How many contexts of one client are remembered; a whole server has fewer."""

MAX_QUEUED = 1024
"""How many queued clients of one daemon are remembered."""

HIDDEN = -(1 << 40)
"""Numbers below stand for queued clients with a hidden PID. PIDs of other namespaces are negative, but larger."""


def connect(step: Step, at: float, server: int, pid: int) -> None:
    """Add a client: a context of it is ACTIVE, or the daemon lists it.

    Clients beyond `MOST_CLIENTS` are ignored: no real daemon reports them.
    """
    known = step.daemon.clients.get(pid)
    if known is not None and known.server == server:
        step.daemon = _with_client(step.daemon, replace(known, missing_since=None))
        return
    disconnect(step, at, pid, DisconnectReason.EXIT)
    daemon = step.daemon
    if len(daemon.clients) >= MOST_CLIENTS:
        return
    daemon = _with_client(daemon, Client(pid=pid, server=server, connected_at=at))
    daemon = with_connections(
        daemon,
        disconnected_at=without(daemon.connections.disconnected_at, pid),
        recently_disconnected=without(daemon.connections.recently_disconnected, pid),
    )
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
    if daemon.claimed(ClaimKind.CLIENT_DISCONNECT, pid):
        reason = DisconnectReason.EXIT
    connections = daemon.connections
    daemon = with_connections(
        replace(daemon, clients=without(daemon.clients, pid)),
        disconnected_at=with_latest(connections.disconnected_at, pid, at, MOST_CLIENTS),
        recently_disconnected=with_latest(connections.recently_disconnected, pid, client, MOST_CLIENTS),
    )
    step.daemon = with_totals(daemon, disconnected=increment(daemon.totals.disconnected, reason))
    step.report(at, EventName.CLIENT_DISCONNECTED, server=client.server, pid=pid, reason=reason)


def add_context(daemon: Daemon, pid: int, context: int, gpu: GpuUuid | None = None) -> Daemon:
    """Add an accepted context of a client, and its GPU if the log reports it. So the client has not disconnected."""
    client = daemon.clients.get(pid)
    if client is None or len(client.contexts | {context}) > MAX_CONTEXTS:
        return daemon
    gpus = client.gpus if client.contexts else frozenset()
    gpus = gpus if gpu is None else gpus | {gpu}
    client = replace(client, contexts=client.contexts | {context}, gpus=gpus)
    daemon = with_connections(daemon, disconnects=without(daemon.connections.disconnects, pid))
    return _with_client(daemon, client)


def apply_list(step: Step, at: float, asked_at: float, server: int, pids: tuple[int, ...], *, complete: bool) -> None:
    """Connect the clients that the daemon lists. Disconnect those that a complete list does not contain.

    The daemon itself lists a client, but any user can write the log (R580). So the time of the list is stored.
    """
    daemon, listed = step.daemon, frozenset(pids)
    if complete and server in daemon.servers:
        known = replace(daemon.servers[server], clients_known=True)
        step.daemon = replace(daemon, servers={**daemon.servers, server: known})
    missing = [
        pid
        for pid, client in daemon.clients.items()
        if complete and client.server == server and pid not in listed and client.connected_at < asked_at - FRESH_SECONDS
    ]
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
    queued, waiting = without(connections.queued, *pids), connections.waiting.difference(pids)
    return with_connections(daemon, queued=queued, waiting=waiting)


def report_waiting(step: Step, at: float, server: int) -> None:
    """Report the queued clients: the current server stays until its last client has disconnected.

    If users do not take turns, it is an operator's command that waits for the clients. With protocol 3, each user has a
    server.
    """
    if step.daemon.serves_all_users or step.daemon.runtime.protocol not in (None, DEFAULT_PROTOCOL):
        return
    connections = step.daemon.connections
    waiting = [pid for pid in connections.queued if pid not in connections.waiting]
    step.daemon = with_connections(step.daemon, waiting=connections.waiting.union(waiting))
    for pid in waiting:
        step.report(at, EventName.CLIENT_WAITING, server=server, pid=0 if pid < HIDDEN else pid)


def last_known(daemon: Daemon, pid: int) -> Client | None:
    """Return a client, even if its process ended before the log reported it."""
    return daemon.clients.get(pid) or daemon.connections.recently_disconnected.get(pid)


def _with_client(daemon: Daemon, client: Client) -> Daemon:
    return replace(daemon, clients={**daemon.clients, client.pid: client})
