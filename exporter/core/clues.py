"""What a fault's culprit may be told by: whom the log named, who left just before, or in reset, who had work."""

from collections.abc import Collection

from exporter.core import flights
from exporter.core.clients import MOST_CLIENTS
from exporter.model.claim import ClaimKind
from exporter.model.clues import Clues, Vanished
from exporter.model.daemon import Daemon
from exporter.model.incident import Incident
from exporter.model.node import Node
from exporter.model.replace import replace
from exporter.model.server import FaultBlock, Leaving
from exporter.parse.log_line import seconds_between

VANISHED_SECONDS = 0.5
"""Whoever left earlier than this before a fault has nothing to do with it."""

DOUBTED_SECONDS = 600.0
"""For how long after another source contradicted the log its lines are not enough to suspect a client."""


def known(node: Node, daemon: Daemon, incident: Incident, block: FaultBlock | None) -> Clues:
    """Who left just before, and who had work, is looked for while that can be; who leaves in reset, until the end."""
    clues = incident.clues
    left = [
        each
        for each in daemon.connections.disconnects.values()
        if each.server == incident.server and not each.doubtful and _was_there(node, daemon, each.pid)
    ]
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
    return replace(
        clues,
        vanished=tuple(each for pid, each in vanished.items() if pid not in daemon.clients),
        flights=flights.known(node, incident),
        log_in_doubt=_log_in_doubt(node, daemon, incident) or (clues.log_in_doubt and _is_restored(node, incident)),
    )


def _is_restored(node: Node, incident: Incident) -> bool:
    """Return whether an earlier run of the exporter found the incident: why it doubted the log is not known here."""
    return node.began_at is not None and incident.detected_at < node.began_at


def _was_there(node: Node, daemon: Daemon, pid: int) -> bool:
    """Return whether a client was ever shown by NVML or the daemon, or its end was observed.

    Its log alone may have been forged.
    """
    client = daemon.clients.get(pid) or daemon.connections.recently_disconnected.get(pid)
    listed = client is not None and client.listed_at is not None
    return (
        listed or pid in node.deaths or any(pid in gpu.mps_since or pid in gpu.mps_left for gpu in node.gpus.values())
    )


def _log_in_doubt(node: Node, daemon: Daemon, incident: Incident) -> bool:
    """Return whether the log may be forged: other sources contradict it, or lines of those who have left are missing.

    Any user can write lines into it, and take lines away from it (measured, R580).
    """
    if _are_spared(node, daemon, incident) or daemon.claimed(ClaimKind.FAULT, incident.server):
        # Another block, for which no evidence is left: one of the two may be forged.
        return True
    last = daemon.log.contradicted_at
    if last is not None and incident.detected_at - last <= DOUBTED_SECONDS:
        return True
    gone = [pid for pid in incident.affected if pid not in daemon.clients]
    told = [pid for pid in gone if pid in daemon.connections.disconnects]
    doubtful = any(each.doubtful and each.server == incident.server for each in daemon.connections.disconnects.values())
    return doubtful or (bool(told) and len(told) < len(gone))


def _are_spared(node: Node, daemon: Daemon, incident: Incident) -> bool:
    """Return whether clients of the server live on, on the fault's GPUs, that the log does not name.

    A fault hits all clients on its GPU (measured, R580). NVML shows which clients those are.
    """
    here = (node.gpus[uuid].mps_since for uuid in incident.gpus if uuid in node.gpus)
    before = {pid for shown in here for pid, since in shown.items() if since < incident.detected_at}
    left = (daemon.clients.get(pid) for pid in before.difference(incident.affected))
    return any(client is not None and client.server == incident.server for client in left)


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
        log_in_doubt=clues.log_in_doubt,
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
