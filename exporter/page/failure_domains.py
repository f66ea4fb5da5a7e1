"""Failure domains: who would fall together, on which GPUs, and who joins these."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from exporter.core.domains import places
from exporter.model.node import Node
from exporter.page.sight import Sight
from exporter.parse.printable import printable
from exporter.telling.short import counted, short_name
from exporter.telling.status_domains import Lettered, by_index, gpus_text, lettered
from exporter.telling.who import Who, who
from exporter.view import View, gpu_name

MOST_CHIPS = 6
MOST_BRIDGES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A GPU of a domain: the clients that are on it alone, the first few by name."""

    name: str
    chips: tuple[Who, ...]
    more: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bridge:
    """A client on several GPUs, which joins them: how many columns lie before it, beneath it, and after it."""

    who: Who
    before: int
    beneath: int
    after: int
    gpus: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainBox:
    """Clients that fall together."""

    letter: str
    daemon: str
    clients: str
    gpus: str
    columns: tuple[Column, ...]
    bridges: tuple[Bridge, ...]
    more_bridges: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureDomains:
    """Those of several clients, each as a box; how many fall alone; of how many it is not known with whom they do."""

    boxes: tuple[DomainBox, ...]
    alone: int
    unknown: int


def failure_domains(sight: Sight) -> FailureDomains:
    """Of all daemons."""
    node, found = sight.node, lettered(sight.node)
    connected = sum(1 for _ in View(node).connected())
    return FailureDomains(
        boxes=tuple(_box(node, each) for each in found if len(each.domain.clients) > 1),
        alone=sum(len(each.domain.clients) == 1 for each in found),
        unknown=connected - sum(len(each.domain.clients) for each in found),
    )


def _box(node: Node, told: Lettered) -> DomainBox:
    on = places(node, told.daemon, sorted(told.domain.clients))
    order = by_index(node, told.domain.gpus)
    joining = [(pid, sorted(order.index(gpu) for gpu in gpus)) for pid, gpus in on.items() if len(gpus) > 1]
    return DomainBox(
        letter=told.letter,
        daemon=short_name(told.daemon.name),
        clients=counted(len(told.domain.clients), "client"),
        gpus=gpus_text(node, order),
        columns=tuple(_column(node, uuid, [pid for pid, gpus in on.items() if gpus == {uuid}]) for uuid in order),
        bridges=tuple(_bridges(node, order, joining[:MOST_BRIDGES])),
        more_bridges=max(0, len(joining) - MOST_BRIDGES),
    )


def _column(node: Node, uuid: str, pids: Sequence[int]) -> Column:
    return Column(
        name=f"GPU {printable(gpu_name(node, uuid))}",
        chips=tuple(who(node, pid) for pid in pids[:MOST_CHIPS]),
        more=max(0, len(pids) - MOST_CHIPS),
    )


def _bridges(node: Node, order: Sequence[str], joining: Sequence[tuple[int, Sequence[int]]]) -> Iterable[Bridge]:
    for pid, columns in joining:
        first, last = columns[0], columns[-1]
        yield Bridge(
            who=who(node, pid),
            before=first,
            beneath=last - first + 1,
            after=len(order) - last - 1,
            gpus=gpus_text(node, [order[column] for column in columns]),
        )
