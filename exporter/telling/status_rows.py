"""The table of `status`: a row for each client and GPU, and for whoever is beside MPS."""

from collections.abc import Iterable, Mapping, Sequence

from exporter.model.daemon import Daemon, DaemonState
from exporter.model.node import Node
from exporter.model.observation import DaemonName
from exporter.model.server import Client, Server, ServerState
from exporter.parse.printable import printable
from exporter.telling.columns import Column, Row, aligned, cell, without
from exporter.telling.level import state_word
from exporter.telling.line import Line, Tone, said
from exporter.telling.short import cut, mebibytes
from exporter.telling.status_domains import Lettered, letters
from exporter.telling.who import who
from exporter.view import Memory, View, clients_of, gpu_name, memory

_COLUMNS = (
    Column(name="DAEMON", least=12, keep_end=True),
    Column(name="SERVER", right=True),
    Column(name="STATE"),
    Column(name="PID", right=True),
    Column(name="USER", least=6),
    Column(name="COMMAND", least=8),
    Column(name="WORKLOAD", least=10),
    Column(name="GPU", least=6),
    Column(name="MEMORY", right=True),
    Column(name="DOMAIN"),
)
_MAY_BE_LEFT_OUT = ("WORKLOAD", "DOMAIN")
_DISPENSABLE = ("SERVER", "DOMAIN", "USER", "WORKLOAD", "DAEMON", "GPU")
"""On a terminal that is too narrow, the one of least worth first."""
_LONGEST_WORKLOAD = 22

_TONES = {
    DaemonState.UP: Tone.WELL,
    DaemonState.STARTING: Tone.DOUBTFUL,
    ServerState.ACTIVE: Tone.WELL,
    ServerState.INITIALIZING: Tone.DOUBTFUL,
    "unknown": Tone.DOUBTFUL,
    "waiting": Tone.DOUBTFUL,
    "bypassing": Tone.DOUBTFUL,
}
"""Whatever else a state is, it is bad."""

Letters = Mapping[tuple[DaemonName, int], str]


def lines(node: Node, found: Sequence[Lettered], width: int | None = None) -> Sequence[Line]:
    """The table, its columns aligned; a sentence where there is nothing to show."""
    used, falls_with = memory(node), letters(found)
    rows = [row for daemon in View(node).daemons() for row in _daemon_rows(node, daemon, used, falls_with)]
    rows.extend(_bypassing_rows(node, used))
    if not rows:
        return [said("No MPS control daemon, and none expected.")]
    columns, told = without(_COLUMNS, list(_toned(rows)), _nothing_to_tell(rows))
    return aligned(columns, told, width, _DISPENSABLE)


def _daemon_rows(node: Node, daemon: Daemon, used: Memory, falls_with: Letters) -> Iterable[Sequence[str]]:
    state = state_word(daemon)
    servers = list(daemon.servers.values())
    if not servers:
        yield (printable(daemon.name), "-", state, "-", "-", "-", "-", "-", "-", "-")
    for server in servers:
        shown = state if daemon.state is not DaemonState.UP else server.state or "unknown"
        here = (printable(daemon.name), str(server.pid), shown)
        clients = clients_of(daemon, server)
        if not clients:
            yield (*here, "-", _user_of(node, server), "-", "-", "-", "-", "-")
        for client in clients:
            letter = falls_with.get((daemon.name, client.pid), "-")
            yield from ((*here, *row, letter) for row in _client_rows(node, client, used))
    for pid in sorted(daemon.waiting):
        yield (printable(daemon.name), "-", "waiting", str(pid), *_who(node, pid), "-", "-", "-")


def _user_of(node: Node, server: Server) -> str:
    return who(node, server.pid).user or ("-" if server.uid is None else str(server.uid))


def _client_rows(node: Node, client: Client, used: Memory) -> Iterable[Sequence[str]]:
    client_cells = (str(client.pid), *_who(node, client.pid))
    by_gpu = used.get(client.pid, {})
    if not by_gpu:
        yield (*client_cells, "-", "-")
    for gpu, amount in by_gpu.items():
        yield (*client_cells, gpu_name(node, gpu), mebibytes(amount))


def _bypassing_rows(node: Node, used: Memory) -> Iterable[Sequence[str]]:
    for uuid, gpu in node.gpus.items():
        for pid in gpu.bypassing:
            amount = used.get(pid, {}).get(uuid)
            shown = "-" if amount is None else mebibytes(amount)
            yield ("none", "-", "bypassing", str(pid), *_who(node, pid), gpu_name(node, uuid), shown, "-")


def _who(node: Node, pid: int) -> tuple[str, str, str]:
    known = who(node, pid)
    return known.user or "-", known.command or "-", cut(known.owner, _LONGEST_WORKLOAD) or "-"


def _nothing_to_tell(rows: Sequence[Sequence[str]]) -> Sequence[str]:
    """The columns in which that is so of every row: nobody but users own anything, or everybody falls alone."""
    cells = {column.name: {row[place] for row in rows} for place, column in enumerate(_COLUMNS)}
    return [name for name in _MAY_BE_LEFT_OUT if cells[name] == {"-"}]


def _toned(rows: Sequence[Sequence[str]]) -> Iterable[Row]:
    """Each state in its tone; what is as in the row above is faint."""
    above: Sequence[str] = ()
    for row in rows:
        daemon, server, state, *others = row
        again = Tone.FAINT if [daemon, server] == list(above[:2]) else Tone.PLAIN
        standing = _TONES.get(state, Tone.BAD)
        yield [cell(daemon, again), cell(server, again), cell(state, standing), *map(cell, others)]
        above = row
