"""Who pays for what a process does."""

from exporter.core.workloads import owners_of
from exporter.model.ledger import Payer, Purse
from exporter.model.node import Node
from exporter.model.observation import ProcessReading


def payer_of(node: Node, pid: int, *, at: float | None = None) -> Payer:
    """Who pays for what a process did `at` that time, by default now; one that has just gone is still known.

    A server is nobody's, whoever it serves.
    """
    if any(pid in daemon.servers for daemon in node.daemons.values()):
        return Purse.SERVER
    owners = owners_of(_process(node, pid, node.at if at is None else at))
    return next(iter(owners.values()), Purse.UNATTRIBUTED)


def _process(node: Node, pid: int, at: float) -> ProcessReading | None:
    """The process that had this PID then: it may have ended since, and the PID may be another's."""
    process, death = node.processes.get(pid), node.deaths.get(pid)
    if death is not None and death.process is not None and (process is None or process.started > at):
        return death.process
    return process
