"""Clients of a daemon: connect, disconnect, refused, waiting."""

from exporter.model.daemon import ClaimKind, Daemon
from exporter.model.event import Event, EventName
from exporter.model.observation import GpuUuid
from exporter.model.server import Client, DisconnectReason, RefusalReason
from exporter.model.values import replace
from exporter.state.transition import Transition, chain, for_each, increment, with_latest, without, without_events

FRESH_SECONDS = 0.5
"""A list may be older than a line of the log that was read before it; a change this young outweighs the list."""

CONFIRMING_SECONDS = 1.0
"""An empty list counts when a second one, this much later, says the same: a lone empty reply proves nothing (R580)."""

REMEMBERED_SECONDS = 5.0
"""How long a client that has left is remembered, so that late evidence does not bring it back."""

MOST_CLIENTS = 1024
"""How many clients of one daemon are known at a time, and how many are remembered; more than any daemon has."""

MOST_CONTEXTS = 64
"""How many contexts of one client are remembered; a server has fewer in all."""

MOST_QUEUED = 1024
"""How many queued clients are remembered for one daemon."""


def connect(daemon: Daemon, at: float, server: int, pid: int) -> Transition:
    """A client is accepted: a context of it is ACTIVE, or the daemon lists it.

    Beyond `MOST_CLIENTS` it is neither kept nor counted: what says so is no daemon of NVIDIA's.
    """
    known = daemon.clients.get(pid)
    if known is not None and known.server == server:
        return without_events(_with_client(daemon, replace(known, missing_since=None)))
    moved = without_events(daemon) if known is None else disconnect(daemon, at, pid, DisconnectReason.EXIT)
    return chain(moved, lambda daemon: _admit(daemon, at, server, pid))


def _admit(daemon: Daemon, at: float, server: int, pid: int) -> Transition:
    if len(daemon.clients) >= MOST_CLIENTS:
        return without_events(daemon)
    daemon = _with_client(daemon, Client(pid=pid, server=server, connected_at=at))
    daemon = replace(
        daemon,
        connections=replace(
            daemon.connections,
            disconnected_at=without(daemon.connections.disconnected_at, pid),
            recently_disconnected=without(daemon.connections.recently_disconnected, pid),
        ),
        totals=replace(daemon.totals, connected=daemon.totals.connected + 1),
    )
    event = Event(at=at, event=EventName.CLIENT_CONNECTED, daemon=daemon.name, server=server, pid=pid)
    return dequeue(daemon, pid), (event,)


def disconnect(daemon: Daemon, at: float, pid: int, reason: DisconnectReason) -> Transition:
    """A client has left; nothing where it was none, or had left already.

    If its log said before that it had left by itself, the end of its server or daemon is not the reason.
    """
    client = daemon.clients.get(pid)
    if client is None:
        return without_events(daemon)
    if daemon.claimed(ClaimKind.CLIENT_DISCONNECT, pid):
        reason = DisconnectReason.EXIT
    totals = replace(daemon.totals, disconnected=increment(daemon.totals.disconnected, reason))
    daemon = replace(
        daemon,
        clients=without(daemon.clients, pid),
        connections=replace(
            daemon.connections,
            disconnected_at=with_latest(daemon.connections.disconnected_at, pid, at, MOST_CLIENTS),
            recently_disconnected=with_latest(daemon.connections.recently_disconnected, pid, client, MOST_CLIENTS),
        ),
        totals=totals,
    )
    event = Event(
        at=at,
        event=EventName.CLIENT_DISCONNECTED,
        daemon=daemon.name,
        server=client.server,
        pid=pid,
        reason=reason,
    )
    return daemon, (event,)


def context_begun(daemon: Daemon, pid: int, context: int, gpu: GpuUuid | None = None) -> Daemon:
    """One more of a client's contexts is accepted, on this GPU where that was told. So it has not left."""
    client = daemon.clients.get(pid)
    if client is None or len(client.contexts | {context}) > MOST_CONTEXTS:
        return daemon
    gpus = client.gpus if client.contexts else frozenset()
    gpus = gpus if gpu is None else gpus | {gpu}
    client = replace(client, contexts=client.contexts | {context}, gpus=gpus)
    return _with_client(
        replace(
            daemon, connections=replace(daemon.connections, disconnects=without(daemon.connections.disconnects, pid))
        ),
        client,
    )


def disconnect_all(daemon: Daemon, at: float, reason: DisconnectReason, server: int | None = None) -> Transition:
    """All clients have left, or all of one server."""
    leaving = [pid for pid, client in daemon.clients.items() if server in (None, client.server)]
    return for_each(daemon, leaving, lambda daemon, pid: disconnect(daemon, at, pid, reason))


def listed(
    daemon: Daemon, at: float, asked_at: float, server: int, pids: tuple[int, ...], *, whole: bool
) -> Transition:
    """The daemon lists a server's clients: meet those that are new; part with those that a whole list has not."""
    here = frozenset(pids)
    arrived = [pid for pid in pids if daemon.connections.disconnected_at.get(pid, asked_at - 1) < asked_at]
    missing = [
        client.pid
        for client in daemon.clients.values()
        if whole
        and client.server == server
        and client.pid not in here
        and client.connected_at < asked_at - FRESH_SECONDS
    ]
    return chain(
        for_each(daemon, arrived, lambda daemon, pid: _told_of(connect(daemon, at, server, pid), asked_at, pid)),
        lambda daemon: for_each(daemon, missing, lambda daemon, pid: _missing(daemon, at, pid, alone=not pids)),
    )


def _told_of(step: Transition, asked_at: float, pid: int) -> Transition:
    """A client that the daemon itself has named: its log, into which everybody may write (R580), is one witness."""
    daemon, events = step
    client = daemon.clients.get(pid)
    return step if client is None else (_with_client(daemon, replace(client, listed_at=asked_at)), events)


def _missing(daemon: Daemon, at: float, pid: int, *, alone: bool) -> Transition:
    """A client is not in the list; an empty list must say so twice."""
    client = daemon.clients[pid]
    since = client.missing_since
    if not alone or (since is not None and at - since >= CONFIRMING_SECONDS):
        return disconnect(daemon, at, pid, DisconnectReason.EXIT)
    return without_events(_with_client(daemon, replace(client, missing_since=since or at)))


def refuse(daemon: Daemon, at: float, server: int, pid: int | None, reason: RefusalReason) -> Transition:
    """A new client was turned away."""
    totals = replace(daemon.totals, refused=increment(daemon.totals.refused, reason))
    daemon = replace(daemon, totals=totals)
    event = Event(
        at=at,
        event=EventName.CLIENT_REFUSED,
        daemon=daemon.name,
        server=server,
        pid=pid,
        reason=reason,
    )
    return (daemon if pid is None else dequeue(daemon, pid)), (event,)


def queue(daemon: Daemon, pid: int, uid: int) -> Daemon:
    """A client is told to wait. That alone is ordinary: a server takes a moment to start."""
    if len(daemon.connections.queued) >= MOST_QUEUED:
        return daemon
    return replace(daemon, connections=replace(daemon.connections, queued={**daemon.connections.queued, pid: uid}))


def dequeue(daemon: Daemon, pid: int) -> Daemon:
    """A client no longer waits."""
    if pid not in daemon.connections.queued:
        return daemon
    return replace(
        daemon,
        connections=replace(
            daemon.connections,
            queued=without(daemon.connections.queued, pid),
            waiting=daemon.connections.waiting - {pid},
        ),
    )


def dequeue_user(daemon: Daemon, uid: int) -> Daemon:
    """The server of this user is ready: whoever of them waited goes on."""
    served = [pid for pid, owner in daemon.connections.queued.items() if owner == uid]
    return replace(
        daemon,
        connections=replace(
            daemon.connections,
            queued=without(daemon.connections.queued, *served),
            waiting=daemon.connections.waiting - set(served),
        ),
    )


def wait_for_turn(daemon: Daemon, at: float, server: int) -> Transition:
    """The present server stays, so whoever is queued waits until its last client has left."""
    waiting = [pid for pid in daemon.connections.queued if pid not in daemon.connections.waiting]
    events = tuple(
        Event(at=at, event=EventName.CLIENT_WAITING, daemon=daemon.name, server=server, pid=pid) for pid in waiting
    )
    return replace(
        daemon, connections=replace(daemon.connections, waiting=daemon.connections.waiting | set(waiting))
    ), events


def _with_client(daemon: Daemon, client: Client) -> Daemon:
    return replace(daemon, clients={**daemon.clients, client.pid: client})
