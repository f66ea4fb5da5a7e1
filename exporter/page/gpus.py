"""The GPUs: how each is shared, and by whom its memory is filled."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from exporter.core.fitness.fitness import Fitness, fitness
from exporter.core.gpus import NVML
from exporter.core.identity import used_bytes
from exporter.core.sharing import sharing_mode
from exporter.model.gpu import Gpu, SharingMode
from exporter.model.node import Node
from exporter.model.split import Share
from exporter.page.sight import Sight
from exporter.parse.printable import printable
from exporter.telling.level import Level
from exporter.telling.problem_text import problem_text
from exporter.telling.sharing_text import sentences, used_text
from exporter.telling.short import counted, mebibytes, short_gpu, short_name
from exporter.telling.troubles import Trouble, troubles
from exporter.telling.who import Who, who
from exporter.view import View, gpu_name

MOST_SEGMENTS = 6
"""So many processes have a segment each, those with most memory; the others have one together."""

HUES = 8
LEAST_LABELLED_PERCENT = 16.0
"""Of a narrow screen, this is as wide as a PID."""

_SHARING = {
    SharingMode.IDLE: ("idle", Level.UNKNOWN),
    SharingMode.EXCLUSIVE: ("one process, without MPS", Level.UNKNOWN),
    SharingMode.TIME_SLICING: ("time slicing, without MPS", Level.UNKNOWN),
    SharingMode.MPS: ("shared by MPS", Level.WELL),
    SharingMode.MIG: ("MIG", Level.UNKNOWN),
    SharingMode.MIXED: ("MPS, and processes beside it", Level.CARE),
    None: ("sharing not known", Level.UNKNOWN),
}


class Part(StrEnum):
    """What fills a segment."""

    CLIENT = "client"
    BYPASSING = "bypassing"
    SERVER = "server"
    OTHER = "other"
    MORE = "more"
    DRIVER = "driver"


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A part of a bar, in percent of its length, and whose it is; `hue` tells neighbours apart.

    `used` is what it used of the SMs lately, empty where that is not known.
    """

    part: Part
    name: str
    who: Who | None
    amount: str
    begin: float
    width: float
    used: str = ""
    hue: int = 0

    @property
    def label(self) -> str:
        """What is written on it: nothing where it is too narrow."""
        return self.who.pid if self.who is not None and self.width >= LEAST_LABELLED_PERCENT else ""

    @property
    def middle(self) -> float:
        """Where that is written."""
        return round(self.begin + self.width / 2, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCard:
    """A GPU. Where its memory could not be read, it is not `known` what fills it; `problem` says why.

    `shared` says in a few sentences how well it is shared.
    """

    name: str
    model: str
    uuid: str
    level: Level
    sharing: str
    busy: str
    problem: str | None
    filled: str
    free: str
    known: bool
    segments: tuple[Segment, ...]
    shared: tuple[str, ...]


Shares = Iterable[tuple[Part, str, int | None, int]]
"""Of what, its name where it is nobody's, whose (a PID), and how many bytes."""


def gpus(sight: Sight) -> tuple[GpuCard, ...]:
    """All of them; somebody who is on several has one colour."""
    hues: dict[int, int] = {}
    node, roles = sight.node, _roles(sight.node)
    found, ill = fitness(node), {each.gpu: each for each in troubles(node, sight.at, sight.orders)[::-1]}
    return tuple(_card(node, uuid, gpu, roles, hues, found.get(uuid), ill.get(uuid)) for uuid, gpu in node.gpus.items())


def _card(
    node: Node,
    uuid: str,
    gpu: Gpu,
    roles: Mapping[int, Part],
    hues: dict[int, int],
    found: Fitness | None,
    ill: Trouble | None,
) -> GpuCard:
    reading = gpu.reading
    sharing, level = _SHARING[sharing_mode(node, gpu)] if ill is None else (ill.word, ill.level)
    used, total = reading.memory_used_bytes, reading.memory_total_bytes
    known = reading.problem is None and used is not None and total is not None and total > 0
    return GpuCard(
        name=f"GPU {printable(gpu_name(node, uuid))}",
        model=short_name(reading.name),
        uuid=short_gpu(uuid),
        level=Level.CARE if reading.problem is not None else level,
        sharing="cannot be read" if reading.problem is not None else sharing,
        busy="" if reading.gpu_percent is None else f"{reading.gpu_percent} % of the time busy",
        problem=None if reading.problem is None else problem_text(reading.problem, NVML),
        filled=f"{mebibytes(used or 0)} of {mebibytes(total or 0)}" if known else "memory not known",
        free=f"{mebibytes(max(0, (total or 0) - (used or 0)))} free" if known else "",
        known=known,
        segments=(
            tuple(_segments(node, _shares(gpu, roles, used or 0), total or 1, hues, _used(found))) if known else ()
        ),
        shared=() if found is None else tuple(line.text for line in sentences(node, found)),
    )


def _used(found: Fitness | None) -> Mapping[int, Share]:
    """What clients, and those beside them, are known to have used of the SMs."""
    return {} if found is None else found.use.shares


def _roles(node: Node) -> Mapping[int, Part]:
    """What the processes that MPS knows are."""
    view = View(node)
    clients = {client.pid: Part.CLIENT for _, client in view.connected()}
    return {**clients, **{server.pid: Part.SERVER for _, server in view.servers()}}


def _shares(gpu: Gpu, roles: Mapping[int, Part], used: int) -> Shares:
    """Those with most memory first; then what is the servers', and what no process accounts for."""
    held, beside = used_bytes(gpu.reading), dict.fromkeys(gpu.bypassing, Part.BYPASSING)
    parts = {pid: beside.get(pid) or roles.get(pid, Part.OTHER) for pid in held}
    shown = sorted((pid for pid in held if parts[pid] is not Part.SERVER), key=lambda pid: (-held[pid], pid))
    largest, others = shown[:MOST_SEGMENTS], shown[MOST_SEGMENTS:]
    yield from ((parts[pid], "", pid, held[pid]) for pid in largest)
    serving = [amount for pid, amount in held.items() if parts[pid] is Part.SERVER]
    gathered = (
        (Part.MORE, f"{len(others)} more", sum(held[pid] for pid in others)),
        (Part.SERVER, counted(len(serving), "MPS server"), sum(serving)),
        (Part.DRIVER, "the driver's own", used - sum(held.values())),
    )
    yield from ((part, name, None, amount) for part, name, amount in gathered if amount > 0)


def _segments(
    node: Node, shares: Shares, total: int, hues: dict[int, int], used: Mapping[int, Share]
) -> Iterable[Segment]:
    begin = 0.0
    for part, name, pid, amount in shares:
        width = max(0.0, min(100.0 - begin, 100 * amount / total))
        whose = None if pid is None else who(node, pid)
        yield Segment(
            part=part,
            name=name if whose is None else whose.name,
            who=whose,
            amount=mebibytes(amount),
            begin=round(begin, 2),
            width=round(width, 2),
            used="" if pid is None or pid not in used else used_text(used[pid]),
            hue=0 if pid is None else hues.setdefault(pid, len(hues) % HUES),
        )
        begin += width
