"""Clients of a daemon: connect, disconnect, refused, waiting."""

from collections.abc import Mapping

from exporter.model.daemon import ClaimKind, Daemon
from exporter.model.event import Event, EventName
from exporter.model.observation import GpuUuid
from exporter.model.server import Client, DisconnectReason, RefusalReason
from exporter.model.values import replace
from exporter.state.transition import Transition, chain, for_each, increment, with_latest, without

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


def connect(daemon: Daemon, at: float, server: int, pid: int) -> Transition:
    """Add a client: a context of it is ACTIVE, or the daemon lists it.

    Clients beyond `MOST_CLIENTS` are ignored: no real daemon reports them.
    """
    known = daemon.clients.get(pid)
    if known is not None and known.server == server:
        return _with_client(daemon, replace(known, missing_since=None)), ()
    moved = (daemon, ()) if known is None else disconnect(daemon, at, pid, DisconnectReason.EXIT)
    return chain(moved, lambda daemon: _add(daemon, at, server, pid))


def _add(daemon: Daemon, at: float, server: int, pid: int) -> Transition:
    if len(daemon.clients) >= MOST_CLIENTS:
        return daemon, ()
    connections = replace(
        daemon.connections,
        disconnected_at=without(daemon.connections.disconnected_at, pid),
        recently_disconnected=without(daemon.connections.recently_disconnected, pid),
    )
    totals = replace(daemon.totals, connected=daemon.totals.connected + 1)
    daemon = _with_client(daemon, Client(pid=pid, server=server, connected_at=at))
    daemon = replace(daemon, connections=connections, totals=totals)
    event = Event(at=at, event=EventName.CLIENT_CONNECTED, daemon=daemon.name, server=server, pid=pid)
    return dequeue(daemon, pid), (event,)


def disconnect(daemon: Daemon, at: float, pid: int, reason: DisconnectReason) -> Transition:
    """Remove a client, if it is known.

    If the log has reported before that the client exited, the end of its server or daemon is not the reason.
    """
    client = daemon.clients.get(pid)
    if client is None:
        return daemon, ()
    if daemon.claimed(ClaimKind.CLIENT_DISCONNECT, pid):
        reason = DisconnectReason.EXIT
    connections = replace(
        daemon.connections,
        disconnected_at=with_latest(daemon.connections.disconnected_at, pid, at, MOST_CLIENTS),
        recently_disconnected=with_latest(daemon.connections.recently_disconnected, pid, client, MOST_CLIENTS),
    )
    totals = replace(daemon.totals, disconnected=increment(daemon.totals.disconnected, reason))
    daemon = replace(daemon, clients=without(daemon.clients, pid), connections=connections, totals=totals)
    name = EventName.CLIENT_DISCONNECTED
    return daemon, (Event(at=at, event=name, daemon=daemon.name, server=client.server, pid=pid, reason=reason),)


def disconnect_all(daemon: Daemon, at: float, reason: DisconnectReason, server: int | None = None) -> Transition:
    """Disconnect all clients, or all clients of one server."""
    pids = [pid for pid, client in daemon.clients.items() if server in (None, client.server)]
    return for_each(daemon, pids, lambda daemon, pid: disconnect(daemon, at, pid, reason))


def add_context(daemon: Daemon, pid: int, context: int, gpu: GpuUuid | None = None) -> Daemon:
    """Add an accepted context of a client, and its GPU if the log reports it. So the client has not disconnected."""
    client = daemon.clients.get(pid)
    if client is None or len(client.contexts | {context}) > MAX_CONTEXTS:
        return daemon
    gpus = client.gpus if client.contexts else frozenset()
    gpus = gpus if gpu is None else gpus | {gpu}
    client = replace(client, contexts=client.contexts | {context}, gpus=gpus)
    connections = replace(daemon.connections, disconnects=without(daemon.connections.disconnects, pid))
    return _with_client(replace(daemon, connections=connections), client)


def apply_list(
    daemon: Daemon, at: float, asked_at: float, server: int, pids: tuple[int, ...], *, complete: bool
) -> Transition:
    """Connect the clients that the daemon lists. Disconnect those that a complete list does not contain."""
    known = daemon.servers.get(server)
    if complete and known is not None:
        daemon = replace(daemon, servers={**daemon.servers, server: replace(known, clients_known=True)})
    listed = frozenset(pids)
    new = [pid for pid in pids if daemon.connections.disconnected_at.get(pid, asked_at - 1) < asked_at]
    missing = [
        pid
        for pid, client in daemon.clients.items()
        if complete and client.server == server and pid not in listed and client.connected_at < asked_at - FRESH_SECONDS
    ]
    return chain(
        for_each(daemon, new, lambda daemon, pid: _add_listed(daemon, at, asked_at, server, pid)),
        lambda daemon: for_each(daemon, missing, lambda daemon, pid: _remove_missing(daemon, at, pid, alone=not pids)),
    )


def _add_listed(daemon: Daemon, at: float, asked_at: float, server: int, pid: int) -> Transition:
    """Connect a client that the daemon itself lists. Any user can write the log (R580)."""
    daemon, events = connect(daemon, at, server, pid)
    client = daemon.clients.get(pid)
    return (daemon if client is None else _with_client(daemon, replace(client, listed_at=asked_at))), events


def _remove_missing(daemon: Daemon, at: float, pid: int, *, alone: bool) -> Transition:
    """Disconnect a client that is not in the list. If the list is empty, a second one must confirm it."""
    client = daemon.clients[pid]
    since = client.missing_since
    if not alone or (since is not None and at - since >= CONFIRMING_SECONDS):
        return disconnect(daemon, at, pid, DisconnectReason.EXIT)
    return _with_client(daemon, replace(client, missing_since=since or at)), ()


def refuse(daemon: Daemon, at: float, server: int, pid: int | None, reason: RefusalReason) -> Transition:
    """Count and report a refused client."""
    daemon = replace(daemon, totals=replace(daemon.totals, refused=increment(daemon.totals.refused, reason)))
    name = EventName.CLIENT_REFUSED
    event = Event(at=at, event=name, daemon=daemon.name, server=server, pid=pid, reason=reason)
    return (daemon if pid is None else dequeue(daemon, pid)), (event,)


def queue(daemon: Daemon, pid: int, uid: int) -> Daemon:
    """Add a client that waits for a server. That is ordinary: a server takes a moment to start."""
    queued = daemon.connections.queued
    if len(queued) >= MAX_QUEUED:
        return daemon
    return replace(daemon, connections=replace(daemon.connections, queued=with_queued(queued, pid, uid)))


def with_queued(queued: Mapping[int, int], pid: int, uid: int) -> Mapping[int, int]:
    """Return the UIDs of queued clients by PID, with another one. A daemon shows all hidden clients as PID 0.

    Each of these has a number of its own, which is no PID, so that several count as several.
    """
    return {**queued, pid or min(HIDDEN, *queued, 0) - 1: uid}


def forwarded(queued: Mapping[int, int], pid: int, uid: int) -> int:
    """Return the number of the queued client that the daemon forwards: of hidden ones, the user's oldest."""
    return pid or next((number for number, owner in queued.items() if number < HIDDEN and owner == uid), 0)


def forward(daemon: Daemon, pid: int, uid: int) -> Daemon:
    """Remove a client that the daemon forwards to its server."""
    return dequeue(daemon, forwarded(daemon.connections.queued, pid, uid))


def dequeue(daemon: Daemon, *pids: int) -> Daemon:
    """Remove clients that no longer wait for a server."""
    connections = daemon.connections
    if not any(pid in connections.queued for pid in pids):
        return daemon
    queued, waiting = without(connections.queued, *pids), connections.waiting.difference(pids)
    return replace(daemon, connections=replace(connections, queued=queued, waiting=waiting))


def dequeue_user(daemon: Daemon, uid: int) -> Daemon:
    """Remove the queued clients of a user: the server of this user is ready."""
    return dequeue(daemon, *(pid for pid, owner in daemon.connections.queued.items() if owner == uid))


def report_waiting(daemon: Daemon, at: float, server: int) -> Transition:
    """Report the queued clients: the current server stays until its last client has disconnected.

    If users do not take turns, it is an operator's command that waits for the clients.
    """
    if not daemon.users_take_turns:
        return daemon, ()
    connections, name = daemon.connections, EventName.CLIENT_WAITING
    waiting = [pid for pid in connections.queued if pid not in connections.waiting]
    events = tuple(
        Event(at=at, event=name, daemon=daemon.name, server=server, pid=0 if pid < HIDDEN else pid) for pid in waiting
    )
    return replace(daemon, connections=replace(connections, waiting=connections.waiting.union(waiting))), events


def _with_client(daemon: Daemon, client: Client) -> Daemon:
    return replace(daemon, clients={**daemon.clients, client.pid: client})
