"""Sharing in `status`: of each GPU a few sentences, and, where it is known what they used, a row for each client."""

from collections.abc import Iterable, Sequence

from exporter.model.node import Node
from exporter.model.observation import GpuUuid
from exporter.report.status_view import StatusView
from exporter.telling.columns import Column, Row, aligned, cell, without
from exporter.telling.line import Line, faint, said
from exporter.telling.moment import lasting
from exporter.telling.problem_text import source_text
from exporter.telling.sharing_text import percent, sentences, used_text
from exporter.telling.short import cut, mebibytes
from exporter.telling.status_domains import by_index, gpus_text
from exporter.telling.who import who
from exporter.usage.capacity import ClientUsage, GpuSharing
from exporter.usage.launch_history import LIBCUDA_PROBES

MOST_ROWS = 8
"""So many clients of a GPU have a row each, those that used most."""

_COLUMNS = (
    Column(name="PID", right=True),
    Column(name="USER", least=6),
    Column(name="COMMAND", least=8),
    Column(name="WORKLOAD", least=10),
    Column(name="MAY USE", right=True),
    Column(name="USED", right=True),
    Column(name="METHOD"),
    Column(name="MEMORY", right=True),
    Column(name="SINCE", right=True),
)
_DISPENSABLE = ("SINCE", "WORKLOAD", "USER", "MAY USE", "METHOD", "MEMORY")
_WORKLOAD = [column.name for column in _COLUMNS].index("WORKLOAD")
_LONGEST_WORKLOAD = 22


def sharing(view: StatusView, width: int | None = None) -> Iterable[Line]:
    """Describe the sharing of each GPU that has MPS clients."""
    node = view.node
    found = {each.uuid: each.fitness for each in view.gpus if each.fitness is not None}
    for uuid in by_index(node, found):
        yield from _of_gpu(node, uuid, found[uuid], width)
    measured = [each for each in found.values() if each.gpm is not False]
    if measured and not any(each.shares for each in measured):
        yield said(faint(_why_unknown(node)))


def _of_gpu(node: Node, uuid: GpuUuid, found: GpuSharing, width: int | None) -> Iterable[Line]:
    first, *others = sentences(node, found)
    yield said(f"sharing of {gpus_text(node, [uuid])}: ", *first.pieces)
    yield from (said("  ", *each.pieces) for each in others)
    if found.shares:
        yield from _table(node, found, width)


def _why_unknown(node: Node) -> str:
    """How to have it known is told only where nobody tries: else why that fails, or that it takes its time."""
    doors = node.sources.get(LIBCUDA_PROBES)
    if doors is not None and doors.last.problem is not None:
        return f"SM time by client is not known: {source_text(LIBCUDA_PROBES, doors)}"
    if doors is not None or node.work is not None:
        return "SM time by client is not known yet"
    return "SM time by client is not known: start the exporter with --attribution=bpf"


def _table(node: Node, found: GpuSharing, width: int | None) -> Iterable[Line]:
    order = sorted(found.clients, key=_most_first)
    rows = [list(_row(node, each)) for each in order[:MOST_ROWS]]
    columns, cells = without(_COLUMNS, rows, _nothing_to_tell(found, rows))
    yield from aligned(columns, cells, width, _DISPENSABLE)
    if order[MOST_ROWS:]:
        yield said(faint(_rest(order[MOST_ROWS:])))


def _nothing_to_tell(found: GpuSharing, rows: Sequence[Row]) -> Sequence[str]:
    """The columns in which that is so of every row: one method has been told already."""
    methods = ["METHOD"] if len(found.methods) == 1 else []
    return methods if any(row[_WORKLOAD].text != "-" for row in rows) else [*methods, "WORKLOAD"]


def _row(node: Node, holding: ClientUsage) -> Row:
    known, used = who(node, holding.client.pid), holding.share
    texts = (
        known.pid,
        known.user,
        known.command,
        cut(known.owner, _LONGEST_WORKLOAD),
        "" if holding.threads is None else percent(holding.threads),
        "" if used is None else used_text(used),
        "" if used is None else used.method,
        "" if holding.memory is None else mebibytes(holding.memory),
        _about(node.at - holding.client.connected_at),
    )
    return [cell(text or "-") for text in texts]


def _about(seconds: float) -> str:
    """How long something took, to one unit."""
    return " ".join(lasting(max(0.0, seconds)).split()[:2])


def _rest(others: Sequence[ClientUsage]) -> str:
    held = mebibytes(sum(each.memory or 0 for each in others))
    used = percent(sum(each.share.sm for each in others if each.share is not None))
    return f"and {len(others)} more, who hold {held} and used {used} together"


def _most_first(holding: ClientUsage) -> tuple[float, int, int]:
    used = 0.0 if holding.share is None else holding.share.sm
    return -used, -(holding.memory or 0), holding.client.pid
