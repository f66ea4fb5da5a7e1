"""Servers: which there are, and in what state."""

from exporter.core import crash_loop
from exporter.core.clients import CONFIRMING_SECONDS, FRESH_SECONDS, dequeue_user, disconnect_all
from exporter.core.step import Step, chain, for_each, latest, quiet, without
from exporter.model.daemon import Daemon
from exporter.model.event import Event, EventName
from exporter.model.replace import replace
from exporter.model.server import DepartureReason, Server, ServerState

MOST_SERVERS = 64
"""How many servers of one daemon are known at a time, one for each user (R580)."""

MOST_DEPARTED = 256
"""How many servers that have gone are remembered for one daemon."""


def start(daemon: Daemon, at: float, pid: int, uid: int | None = None, state: ServerState | None = None) -> Step:
    """A server is there; nothing new where it was known, nor where its daemon has gone: it was told of too late.

    Beyond `MOST_SERVERS` it is neither kept nor counted: what says so is no daemon of NVIDIA's.
    """
    if daemon.gone:
        return quiet(daemon)
    if pid in daemon.servers:
        known = daemon.servers[pid]
        return quiet(with_server(daemon, replace(known, uid=known.uid if uid is None else uid)))
    if len(daemon.servers) >= MOST_SERVERS:
        return quiet(daemon)
    daemon = with_server(daemon, Server(pid=pid, started_at=at, uid=uid))
    daemon = replace(
        daemon,
        connections=replace(daemon.connections, departed_servers=without(daemon.connections.departed_servers, pid)),
    )
    started = Event(at=at, event=EventName.SERVER_STARTED, daemon=daemon.name, server=pid)
    step: Step = (daemon, (started,))
    return step if state is None else chain(step, lambda daemon: enter(daemon, at, pid, state))


def seen_alive(daemon: Daemon, at: float, pid: int) -> Step:
    """A server writes as only a serving one does; a line read late does not bring back one that has gone."""
    if pid in daemon.servers or pid in daemon.connections.departed_servers:
        return quiet(daemon)
    return start(daemon, at, pid)


def end(daemon: Daemon, at: float, pid: int, reason: DepartureReason = DepartureReason.SERVER_GONE) -> Step:
    """A server has gone, and its clients with it; nothing where it was not known."""
    if pid not in daemon.servers:
        return quiet(daemon)
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
                    departed_servers=latest(daemon.connections.departed_servers, pid, at, MOST_DEPARTED),
                ),
            ),
            (exited,),
        ),
    )
    if served or reason is not DepartureReason.SERVER_GONE:
        return ended
    return chain(ended, lambda daemon: crash_loop.exited(daemon, at, server))


def end_all(daemon: Daemon, at: float, reason: DepartureReason) -> Step:
    """All servers have gone."""
    return for_each(daemon, daemon.servers, lambda daemon, pid: end(daemon, at, pid, reason))


def ready(daemon: Daemon, at: float, pid: int) -> Step:
    """The log says that a server is ready: the clients that wait for its user go on.

    A server becomes ready once, after its start. So this line does not end a FAULT.
    """
    return chain(
        seen_alive(daemon, at, pid),
        lambda daemon: quiet(_served(daemon, pid)),
        lambda daemon: quiet(daemon) if _in_fault(daemon, pid) else enter(daemon, at, pid, ServerState.ACTIVE),
    )


def _in_fault(daemon: Daemon, pid: int) -> bool:
    server = daemon.servers.get(pid)
    return server is not None and server.state is ServerState.FAULT


def _served(daemon: Daemon, pid: int) -> Daemon:
    server = daemon.servers.get(pid)
    return daemon if server is None or server.uid is None else dequeue_user(daemon, server.uid)


def told_to_leave(daemon: Daemon, pid: int) -> Daemon:
    """The daemon tries to shut a server down."""
    server = daemon.servers.get(pid)
    return daemon if server is None else with_server(daemon, replace(server, told_to_leave=True))


def enter(daemon: Daemon, at: float, pid: int, state: ServerState) -> Step:
    """A server is in a state; an event where it was in another, nothing where it has gone."""
    if pid not in daemon.servers:
        return quiet(daemon)
    server = replace(daemon.servers[pid], fault_suspected_at=None)
    if state is not ServerState.FAULT:
        server = replace(server, devices_to_reset=None)
    if server.state is state:
        return quiet(with_server(daemon, server))
    if state is ServerState.ACTIVE and server.state is not ServerState.FAULT:
        daemon = crash_loop.got_ready(daemon)
    daemon = with_server(daemon, replace(server, state=state, state_since=at))
    return daemon, (Event(at=at, event=EventName.SERVER_STATE, daemon=daemon.name, server=pid, state=state),)


def listed(daemon: Daemon, at: float, asked_at: float, pids: tuple[int, ...]) -> Step:
    """The daemon lists its servers: meet those that are new, part with those that are missing."""
    here = frozenset(pids)
    arrived = [pid for pid in pids if daemon.connections.departed_servers.get(pid, asked_at - 1) < asked_at]
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
        lambda daemon: quiet(
            replace(known := _present(daemon, pids), connections=replace(known.connections, listed_at=asked_at))
        ),
    )


def _missing(daemon: Daemon, at: float, pid: int, *, alone: bool) -> Step:
    """A server is not in the list; an empty list must say so twice, since a quitting daemon gives it too (R580)."""
    server = daemon.servers[pid]
    since = server.missing_since
    if not alone or (since is not None and at - since >= CONFIRMING_SECONDS):
        return end(daemon, at, pid)
    return quiet(with_server(daemon, replace(server, missing_since=since or at)))


def _present(daemon: Daemon, pids: tuple[int, ...]) -> Daemon:
    for pid in pids:
        server = daemon.servers.get(pid)
        if server is not None and not (server.listed and server.missing_since is None):
            daemon = with_server(daemon, replace(server, listed=True, missing_since=None))
    return daemon


def status_told(daemon: Daemon, at: float, asked_at: float, pid: int, state: ServerState) -> Step:
    """The daemon tells a server's state.

    FAULT needs a second witness, since a server that has just left is called so once (measured, R580): the log's
    block, another FAULT, or clients that it still lists. What was asked before the log told of a fault, or of its end,
    is older.
    """
    server = daemon.servers.get(pid)
    if server is None:
        return quiet(daemon)
    if state is not ServerState.FAULT:
        overtaken = server.state is ServerState.FAULT and (server.state_since or at) > asked_at
        return quiet(daemon) if overtaken else enter(daemon, at, pid, state)
    server = replace(server, fault_told_at=at)
    daemon = with_server(daemon, server)
    overtaken = server.state is not None and (server.state_since or at) > asked_at
    if server.state is ServerState.FAULT or overtaken:
        return quiet(daemon)
    suspected_at = server.fault_suspected_at
    if suspected_at is not None and at - suspected_at >= FRESH_SECONDS:
        return enter(daemon, at, pid, ServerState.FAULT)
    return quiet(with_server(daemon, replace(server, fault_suspected_at=suspected_at or at)))


def clients_listed(daemon: Daemon, at: float, pid: int, clients: tuple[int, ...]) -> Step:
    """The daemon lists clients of a server: it lives, so a FAULT that was told of it is one."""
    server = daemon.servers.get(pid)
    if server is None or server.fault_suspected_at is None or not clients:
        return quiet(daemon)
    return enter(daemon, at, pid, ServerState.FAULT)


def with_server(daemon: Daemon, server: Server) -> Daemon:
    """The daemon with this server as it is now."""
    return replace(daemon, servers={**daemon.servers, server.pid: server})
