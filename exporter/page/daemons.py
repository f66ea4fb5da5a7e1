"""The control daemons, their servers, and the clients of each."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from exporter.core.client_slots import clients_limit
from exporter.core.devices import by_its_ordinals
from exporter.model.daemon import Daemon, DaemonState
from exporter.model.node import Node
from exporter.model.observation import DaemonName
from exporter.model.server import Client, Server, ServerState
from exporter.page.sight import Sight
from exporter.parse.printable import printable
from exporter.telling.level import Level
from exporter.telling.moment import lasting
from exporter.telling.short import counted, mebibytes, short_name
from exporter.telling.status_domains import lettered, letters
from exporter.telling.troubles import Trouble, standing, troubles
from exporter.telling.watchdog_text import account
from exporter.telling.who import Who, who
from exporter.view import Memory, View, clients_of, gpu_name, memory

Letters = Mapping[tuple[DaemonName, int], str]

_SERVER_LEVELS = {ServerState.ACTIVE: Level.WELL, ServerState.FAULT: Level.GRAVE, None: Level.UNKNOWN}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRow:
    """A client: who it is, its memory and the GPUs it is on, the letter of its failure domain, since when it is."""

    who: Who
    memory: str
    gpus: str
    letter: str
    connected: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCard:
    """A server. `share` is how much of its places is taken, 0 to 100, None where it is not known how many it has."""

    pid: int
    level: Level
    state: str
    user: str
    clients: str
    share: float | None
    limits: tuple[str, ...]
    up_for: str
    rows: tuple[ClientRow, ...]

    @property
    def owned(self) -> bool:
        """Whether any client has an owner beside its user."""
        return any(row.who.owner for row in self.rows)

    @property
    def lettered(self) -> bool:
        """Whether any client would take another one along."""
        return any(row.letter for row in self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonCard:
    """A daemon. `facts` say which it is, `matters` what is wrong with it now, `counts` what has gone wrong so far."""

    name: str
    level: Level
    state: str
    facts: tuple[str, ...]
    matters: tuple[str, ...]
    counts: tuple[str, ...]
    waiting: tuple[Who, ...]
    servers: tuple[ServerCard, ...]


def daemons(sight: Sight) -> tuple[DaemonCard, ...]:
    """All that there is to tell of."""
    used, falls_with = memory(sight.node), letters(lettered(sight.node))
    found = troubles(sight.node, sight.at, sight.orders)
    return tuple(_card(sight, daemon, used, falls_with, found) for daemon in View(sight.node).daemons())


def _card(sight: Sight, daemon: Daemon, used: Memory, falls_with: Letters, found: Sequence[Trouble]) -> DaemonCard:
    """Its tone and its text come from what was found, as the headline's do."""
    node = sight.node
    level, word = standing(daemon, found)
    return DaemonCard(
        name=printable(daemon.name),
        level=level,
        state=word,
        facts=tuple(_facts(sight, daemon)),
        matters=tuple(_matters(node, daemon, found)),
        counts=tuple(_counts(daemon)),
        waiting=tuple(who(node, pid) for pid in sorted(daemon.waiting)),
        servers=tuple(_server(sight, daemon, each, used, falls_with) for each in daemon.servers.values()),
    )


def _matters(node: Node, daemon: Daemon, found: Iterable[Trouble]) -> Iterable[str]:
    """What was found of it, and by whose word."""
    name = f"daemon {printable(daemon.name)}: "
    yield from (each.what.removeprefix(name) for each in found if each.daemon == daemon.name)
    known = account(node, daemon)
    if known is not None and known.ill and known.indications:
        yield f"Indications: {known.indications}"


def _facts(sight: Sight, daemon: Daemon) -> Iterable[str]:
    if daemon.process is not None and daemon.process.pid is not None:
        yield f"PID {daemon.process.pid}"
    if daemon.state is not None and daemon.state_since is not None:
        yield f"{daemon.state} for {lasting(sight.at - daemon.state_since)}"
    unit = daemon.unit or daemon.named_unit
    if unit is not None:
        yield short_name(unit)
    yield "expected" if daemon.expected else "found running; nobody expects it"
    yield from (f"next server: {limit}" for limit in _default_limits(sight.node, daemon))


def _counts(daemon: Daemon) -> Iterable[str]:
    losses, refused = sum(daemon.totals.losses.values()), daemon.totals.refused
    if losses:
        yield f"lost {counted(losses, 'time')}"
    if daemon.totals.faults:
        yield f"{counted(daemon.totals.faults, 'fault')}, which hit {counted(daemon.totals.fault_affected, 'client')}"
    for reason, count in refused.items():
        if count:
            yield f"{counted(count, 'client')} refused ({reason})"


def _server(sight: Sight, daemon: Daemon, server: Server, used: Memory, falls_with: Letters) -> ServerCard:
    node, clients = sight.node, clients_of(daemon, server)
    limit = clients_limit(node, daemon, server)
    process = node.processes.get(server.pid)
    since = server.started_at if process is None else process.started
    answering = daemon.state is DaemonState.UP
    return ServerCard(
        pid=server.pid,
        level=_SERVER_LEVELS.get(server.state, Level.CARE) if answering else Level.UNKNOWN,
        state=(server.state or "unknown") if answering else f"unknown; last {server.state or 'unknown'}",
        user=who(node, server.pid).user or ("" if server.uid is None else str(server.uid)),
        clients=counted(len(clients), "client") if limit is None else f"{len(clients)} of {limit} clients",
        share=None if not limit else min(100.0, round(100 * len(clients) / limit, 1)),
        limits=tuple(_limits(node, daemon, server)),
        up_for=lasting(sight.at - since),
        rows=tuple(_row(sight, daemon, client, used, falls_with) for client in clients),
    )


def _limits(node: Node, daemon: Daemon, server: Server) -> Iterable[str]:
    if server.active_thread_percentage is not None:
        yield f"{server.active_thread_percentage:g} % of threads"
    yield from _memory_limits(node, daemon, server.pinned_memory_limits)
    if server.client_priority:
        yield "priority below normal"


def _default_limits(node: Node, daemon: Daemon) -> Iterable[str]:
    share = daemon.default_active_thread_percentage
    if share is not None and share != 100:
        yield f"{share:g} % of threads"
    yield from _memory_limits(node, daemon, daemon.default_pinned_memory_limits)


def _memory_limits(node: Node, daemon: Daemon, limits: Mapping[int, int]) -> Iterable[str]:
    gpus = by_its_ordinals(node, daemon)
    for device, limit in sorted(limits.items()):
        if device in gpus:
            yield f"{mebibytes(limit)} on GPU {printable(gpu_name(node, gpus[device]))}"


def _row(sight: Sight, daemon: Daemon, client: Client, used: Memory, falls_with: Letters) -> ClientRow:
    held = used.get(client.pid, {})
    return ClientRow(
        who=who(sight.node, client.pid),
        memory=mebibytes(sum(held.values())) if held else "",
        gpus=", ".join(printable(gpu_name(sight.node, gpu)) for gpu in held),
        letter=falls_with.get((daemon.name, client.pid), ""),
        connected=lasting(sight.at - client.connected_at),
    )
