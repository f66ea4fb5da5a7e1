"""The variables of the page's sections on GPUs: how each is shared, its memory by process, and the failure domains."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from types import SimpleNamespace

from exporter.model.gpu import Gpu, SharingMode
from exporter.model.node import CollectorName, Node
from exporter.model.usage import Share
from exporter.parse.printable import printable
from exporter.report.problem import FindingCode, Severity
from exporter.report.problems import PROBLEMS
from exporter.report.reasons import reason_text
from exporter.report.sharing_text import sentences, used_text
from exporter.report.status_view import (
    GpuView,
    NamedDomain,
    StatusView,
    by_index,
    gpus_text,
    process_label,
)
from exporter.report.text import counted, display_name, mebibytes, short_gpu
from exporter.state.failure_domains import gpus_of_clients
from exporter.state.gpus import used_bytes
from exporter.view import View, gpu_name

MOST_CHIPS = 6
MOST_BRIDGES = 4


def failure_domains(view: StatusView) -> SimpleNamespace:
    """Return the domains of several clients, each as a box, and how many clients are alone or in an unknown domain."""
    node, found = view.node, view.domains
    connected = sum(1 for _ in View(node).connected())
    return SimpleNamespace(
        boxes=tuple(_box(node, each) for each in found if len(each.domain.clients) > 1),
        alone=sum(len(each.domain.clients) == 1 for each in found),
        unknown=connected - sum(len(each.domain.clients) for each in found),
    )


def _box(node: Node, named: NamedDomain) -> SimpleNamespace:
    """Return clients that end together: in a column for each GPU those on it alone, and bridges between the GPUs.

    A bridge has the number of columns before it, in its span, and after it.
    """
    on = gpus_of_clients(node, named.daemon, sorted(named.domain.clients))
    order = by_index(node, named.domain.gpus)
    alone = {uuid: [pid for pid, gpus in on.items() if gpus == {uuid}] for uuid in order}
    joining = [(pid, sorted(order.index(gpu) for gpu in gpus)) for pid, gpus in on.items() if len(gpus) > 1]
    return SimpleNamespace(
        letter=named.letter,
        daemon=display_name(named.daemon.name),
        clients=counted(len(named.domain.clients), "client"),
        gpus=gpus_text(node, order),
        columns=tuple(
            SimpleNamespace(
                name=f"GPU {printable(gpu_name(node, uuid))}",
                chips=tuple(process_label(node, pid) for pid in pids[:MOST_CHIPS]),
                more=max(0, len(pids) - MOST_CHIPS),
            )
            for uuid, pids in alone.items()
        ),
        bridges=tuple(
            SimpleNamespace(
                process=process_label(node, pid),
                before=columns[0],
                span=columns[-1] - columns[0] + 1,
                after=len(order) - columns[-1] - 1,
                gpus=gpus_text(node, [order[column] for column in columns]),
            )
            for pid, columns in joining[:MOST_BRIDGES]
        ),
        more_bridges=max(0, len(joining) - MOST_BRIDGES),
        upper_bound=named.domain.upper_bound,
    )


MOST_SEGMENTS = 6
"""At most so many processes, those with the most memory, have a segment each; the others share one."""

HUES = 8
LEAST_LABELLED_PERCENT = 16.0
"""On a narrow screen, a segment of this width has room for a PID."""

_SHARING = {
    SharingMode.IDLE: ("idle", Severity.UNKNOWN),
    SharingMode.EXCLUSIVE: ("one process, without MPS", Severity.UNKNOWN),
    SharingMode.TIME_SLICING: ("time slicing, without MPS", Severity.UNKNOWN),
    SharingMode.MPS: ("shared by MPS", Severity.WELL),
    SharingMode.MIG: ("MIG", Severity.UNKNOWN),
    SharingMode.MIXED: ("MPS, and processes that bypass it", Severity.WARNING),
    None: ("sharing unknown", Severity.UNKNOWN),
}


class Part(StrEnum):
    """What fills a segment."""

    CLIENT = "client"
    BYPASSING = "bypassing"
    SERVER = "server"
    OTHER = "other"
    MORE = "more"
    DRIVER = "driver"


Shares = Iterable[tuple[Part, str, int | None, int]]
"""Kind, name if it has no process, PID, and bytes of each part."""


def gpus(view: StatusView) -> tuple[SimpleNamespace, ...]:
    """Return a card for each GPU. A process that is on several GPUs has one colour."""
    hues: dict[int, int] = {}
    connections = View(view.node)
    roles = {client.pid: Part.CLIENT for _, client in connections.connected()}
    roles |= {server.pid: Part.SERVER for _, server in connections.servers()}
    return tuple(_card(view.node, each, roles, hues) for each in view.gpus)


def _card(node: Node, shown: GpuView, roles: Mapping[int, Part], hues: dict[int, int]) -> SimpleNamespace:
    """Return a GPU. `known` is whether its memory could be read, and is not that of its MIG instances.

    `shared` describes how well it is shared, in a few sentences.
    """
    uuid, gpu, found = shown.uuid, shown.gpu, shown.sharing
    reading = gpu.reading
    sharing, severity = _SHARING[shown.mode]
    if shown.finding is not None:
        sharing, severity = shown.finding.definition.label, shown.finding.severity
    used_sms = {} if found is None else found.recent.shares
    used, total = reading.memory_used_bytes, reading.memory_total_bytes
    known = reading.problem is None and used is not None and total is not None and total > 0 and not reading.mig_mode
    unknown = "memory: see its MIG instances" if reading.mig_mode else "memory unknown"
    return SimpleNamespace(
        name=f"GPU {printable(gpu_name(node, uuid))}",
        model=display_name(reading.name),
        uuid=short_gpu(uuid),
        severity=PROBLEMS[FindingCode.GPU_UNREADABLE].severity if reading.problem is not None else severity,
        sharing="cannot be read" if reading.problem is not None else sharing,
        busy="" if reading.gpu_percent is None else f"{reading.gpu_percent} % of the time busy",
        problem=None if reading.problem is None else reason_text(reading.problem, CollectorName.NVML),
        filled=f"{mebibytes(used or 0)} of {mebibytes(total or 0)}" if known else unknown,
        free=f"{mebibytes(max(0, (total or 0) - (used or 0)))} free" if known else "",
        known=known,
        segments=(tuple(_segments(node, _shares(gpu, roles, used or 0), total or 1, hues, used_sms)) if known else ()),
        shared=tuple(line.text for line in sentences(node, found, shown.shares)),
    )


def _shares(gpu: Gpu, roles: Mapping[int, Part], used: int) -> Shares:
    """Yield the processes, those with the most memory first; then servers, and what belongs to no process."""
    held, bypassing = used_bytes(gpu.reading), dict.fromkeys(gpu.bypassing, Part.BYPASSING)
    parts = {pid: bypassing.get(pid) or roles.get(pid, Part.OTHER) for pid in held}
    shown = sorted((pid for pid in held if parts[pid] is not Part.SERVER), key=lambda pid: (-held[pid], pid))
    largest, others = shown[:MOST_SEGMENTS], shown[MOST_SEGMENTS:]
    yield from ((parts[pid], "", pid, held[pid]) for pid in largest)
    serving = [amount for pid, amount in held.items() if parts[pid] is Part.SERVER]
    gathered = (
        (Part.MORE, f"{len(others)} more", sum(held[pid] for pid in others)),
        (Part.SERVER, counted(len(serving), "MPS server"), sum(serving)),
        (Part.DRIVER, "driver", used - sum(held.values())),
    )
    yield from ((part, name, None, amount) for part, name, amount in gathered if amount > 0)


def _segments(
    node: Node, shares: Shares, total: int, hues: dict[int, int], used: Mapping[int, Share]
) -> Iterable[SimpleNamespace]:
    """Yield the parts of a bar, in percent of its length. `hue` distinguishes neighbours.

    `label` is the text at `middle`; empty if the segment is too narrow. `used` is the fraction of the SMs that the
    process used recently; empty if unknown.
    """
    begin = 0.0
    for part, name, pid, amount in shares:
        width = max(0.0, min(100.0 - begin, 100 * amount / total))
        process = None if pid is None else process_label(node, pid)
        left, length = round(begin, 2), round(width, 2)
        yield SimpleNamespace(
            part=part,
            name=name if process is None else process.name,
            process=process,
            amount=mebibytes(amount),
            begin=left,
            width=length,
            label=process.pid if process is not None and length >= LEAST_LABELLED_PERCENT else "",
            middle=round(left + length / 2, 2),
            used="" if pid is None or pid not in used else used_text(used[pid]),
            hue=0 if pid is None else hues.setdefault(pid, len(hues) % HUES),
        )
        begin += width
