"""Failure domains in `status`: a letter for each, and in words what joins GPUs that could stand apart."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase

from exporter.core.domains import Domain, domains, places
from exporter.model.daemon import Daemon
from exporter.model.node import Node
from exporter.model.observation import DaemonName
from exporter.parse.printable import printable
from exporter.telling.line import Line, said
from exporter.telling.short import listed
from exporter.telling.who import who
from exporter.view import View, gpu_name

MOST_NAMED = 4
"""So many of those who join GPUs are named."""


@dataclass(frozen=True, slots=True)
class Lettered:
    """A domain, and what it is called in one showing."""

    letter: str
    daemon: Daemon
    domain: Domain


def letters(found: Sequence[Lettered]) -> Mapping[tuple[DaemonName, int], str]:
    """The letter of each client's domain; empty where nobody would take anybody along."""
    if all(len(each.domain.clients) == 1 for each in found):
        return {}
    return {(each.daemon.name, pid): each.letter for each in found for pid in each.domain.clients}


def lettered(node: Node) -> Sequence[Lettered]:
    """All domains, in the order of their daemons, servers and eldest PIDs."""
    found = (
        (daemon, domain)
        for daemon in View(node).daemons()
        for here in domains(node, daemon).values()
        for domain in sorted(here, key=lambda each: min(each.clients))
    )
    return [Lettered(_letter(number), daemon, domain) for number, (daemon, domain) in enumerate(found)]


def joined(node: Node, found: Sequence[Lettered]) -> Iterable[Line]:
    """Of each domain of several clients on several GPUs: who joins these, and what would keep them apart."""
    for each in found:
        if len(each.domain.gpus) > 1 and len(each.domain.clients) > 1:
            clients, gpus = len(each.domain.clients), gpus_text(node, each.domain.gpus)
            yield said(
                f"domain {each.letter}: {clients} clients on {gpus} fall together: a fatal fault of one ends all"
            )
            advice = "a daemon for each GPU keeps them apart; a client then has one GPU"
            yield said(f"  joined by {_bridges(node, each)}; {advice}")


def _bridges(node: Node, told: Lettered) -> str:
    found = places(node, told.daemon, sorted(told.domain.clients))
    bridges = [f"{_who(node, pid)} on {gpus_text(node, gpus)}" for pid, gpus in found.items() if len(gpus) > 1]
    more = [f"{len(bridges) - MOST_NAMED} more"] if len(bridges) > MOST_NAMED else []
    return listed([*bridges[:MOST_NAMED], *more])


def _who(node: Node, pid: int) -> str:
    command = who(node, pid).command
    return f"{pid} ({command})" if command else str(pid)


def by_index(node: Node, uuids: Iterable[str]) -> Sequence[str]:
    """GPUs in the order of their indices."""
    return sorted(uuids, key=lambda uuid: (len(gpu_name(node, uuid)), gpu_name(node, uuid)))


def gpus_text(node: Node, uuids: Iterable[str]) -> str:
    """Which GPUs: `GPU 0`, `GPUs 0 and 1`."""
    names = [printable(gpu_name(node, uuid)) for uuid in by_index(node, uuids)]
    return f"GPU{'s' if len(names) > 1 else ''} {listed(names)}"


def _letter(number: int) -> str:
    """A to Z, then AA and on."""
    rest, last = divmod(number, len(ascii_uppercase))
    return (_letter(rest - 1) if rest else "") + ascii_uppercase[last]
