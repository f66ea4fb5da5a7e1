"""The table of `status`: a row for each client and GPU, and for whoever is beside MPS."""

from collections.abc import Iterable, Sequence

from exporter.model.daemon import DaemonState
from exporter.model.node import Node
from exporter.model.server import ServerState
from exporter.parse.printable import printable
from exporter.report.finding import state_word
from exporter.report.status_view import ClientView, DaemonView, StatusView
from exporter.telling.columns import Column, Row, aligned, cell, without
from exporter.telling.line import Line, Tone, said
from exporter.telling.short import cut, mebibytes
from exporter.telling.who import Who, who
from exporter.view import gpu_name

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


def lines(view: StatusView, width: int | None = None) -> Sequence[Line]:
    """Return the table, its columns aligned; a sentence if there is nothing to show."""
    rows = [row for daemon in view.daemons for row in _daemon_rows(view.node, daemon)]
    rows.extend(_bypassing_rows(view))
    if not rows:
        return [said("No MPS control daemon, and none expected.")]
    columns, told = without(_COLUMNS, list(_toned(rows)), _nothing_to_tell(rows))
    return aligned(columns, told, width, _DISPENSABLE)


def _daemon_rows(node: Node, shown: DaemonView) -> Iterable[Sequence[str]]:
    name, state = printable(shown.daemon.name), state_word(shown.daemon)
    if not shown.servers:
        yield (name, "-", state, "-", "-", "-", "-", "-", "-", "-")
    for server in shown.servers:
        here = (name, str(server.server.pid), (server.server.state or "unknown") if server.answering else state)
        if not server.clients:
            yield (*here, "-", server.user or "-", "-", "-", "-", "-", "-")
        for client in server.clients:
            yield from ((*here, *row, client.letter or "-") for row in _client_rows(node, client))
    for pid, waiting in shown.waiting.items():
        yield (name, "-", "waiting", str(pid), *_words(waiting), "-", "-", "-")


def _client_rows(node: Node, shown: ClientView) -> Iterable[Sequence[str]]:
    cells = (str(shown.client.pid), *_words(shown.who))
    if not shown.memory:
        yield (*cells, "-", "-")
    for gpu, amount in shown.memory.items():
        yield (*cells, gpu_name(node, gpu), mebibytes(amount))


def _bypassing_rows(view: StatusView) -> Iterable[Sequence[str]]:
    for gpu in view.gpus:
        for pid, amount in gpu.bypassing.items():
            memory = "-" if amount is None else mebibytes(amount)
            words = _words(who(view.node, pid))
            yield ("none", "-", "bypassing", str(pid), *words, gpu_name(view.node, gpu.uuid), memory, "-")


def _words(known: Who) -> tuple[str, str, str]:
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
