"""What a fault's culprit may be told by: whom the log named, who left just before, or in reset, who had work."""

from collections.abc import Collection

from exporter.core import flights
from exporter.core.clients import MOST_CLIENTS
from exporter.model.clues import Clues, Vanished
from exporter.model.daemon import Daemon
from exporter.model.incident import Incident
from exporter.model.node import Node
from exporter.model.replace import replace
from exporter.model.server import FaultBlock, Leaving
from exporter.parse.log_line import seconds_between

VANISHED_SECONDS = 0.5
"""Whoever left earlier than this before a fault has nothing to do with it."""


def known(node: Node, daemon: Daemon, incident: Incident, block: FaultBlock | None) -> Clues:
    """Who left just before, and who had work, is looked for while that can be; who leaves in reset, until the end."""
    clues = incident.clues
    left = [each for each in daemon.leavings.values() if each.server == incident.server]
    in_reset = [each.pid for each in left if each.in_reset and each.at >= incident.detected_at]
    clues = replace(
        clues,
        named=clues.named if block is None or block.named is None else block.named,
        in_reset=tuple(dict.fromkeys((*clues.in_reset, *in_reset)))[:MOST_CLIENTS],
    )
    if incident.settled:
        return clues
    vanished = {each.pid: each for each in clues.vanished}
    for leaving in left:
        before = _lead(leaving, incident)
        if leaving.pid not in incident.affected and 0 <= before <= VANISHED_SECONDS:
            vanished[leaving.pid] = _vanished(node, leaving, before)
    return replace(clues, vanished=tuple(vanished.values()), flights=flights.known(node, incident))


def pids(clues: Clues) -> frozenset[int]:
    """All of whom they tell."""
    named = () if clues.named is None else (clues.named,)
    return frozenset((*named, *clues.in_reset, *(each.pid for each in clues.vanished)))


def without(clues: Clues, others: Collection[int]) -> Clues:
    """What they tell of everybody else."""
    return Clues(
        named=None if clues.named in others else clues.named,
        in_reset=tuple(pid for pid in clues.in_reset if pid not in others),
        vanished=tuple(each for each in clues.vanished if each.pid not in others),
        flights=tuple(each for each in clues.flights if each.pid not in others),
    )


def _lead(leaving: Leaving, incident: Incident) -> float:
    """How many seconds before the fault a client left: by the log's own time, else by ours."""
    if incident.block_stamp is None or not leaving.stamp:
        return incident.detected_at - leaving.at
    return seconds_between(leaving.stamp, incident.block_stamp)


def _vanished(node: Node, leaving: Leaving, before: float) -> Vanished:
    death = node.deaths.get(leaving.pid)
    return Vanished(
        pid=leaving.pid,
        seconds_before=before,
        terminated=leaving.terminated,
        wait_status=None if death is None else death.wait_status,
        out_of_memory=death is not None and death.out_of_memory,
    )
