"""Whom a daemon serves: one that is not root's its own user alone, whatever it says (NVIDIA's MPS guide).

So an ordinary user's daemon, or what poses as one, does not make anybody else's process its client.
"""

from collections.abc import Collection, Mapping

from exporter.core import block, clients, servers
from exporter.core.step import Step, chain, for_each, quiet, without
from exporter.core.translate import Pids
from exporter.model.daemon import Daemon
from exporter.model.observation import ProcessReading
from exporter.model.replace import replace
from exporter.model.server import DepartureReason


def heard(daemon: Daemon, at: float, pids: Pids) -> Step:
    """The daemon speaks in its own namespace's PIDs, or in this one's, where `pids` is None.

    Whom it named before that was known is somebody else here, or nobody: it is to be asked again.
    """
    if daemon.runtime.in_foreign_namespace is (pids is not None):
        return quiet(daemon)
    if pids is None:
        return quiet(replace(daemon, runtime=replace(daemon.runtime, in_foreign_namespace=False)))
    return servers.end_all(
        replace(
            daemon,
            runtime=replace(daemon.runtime, in_foreign_namespace=True),
            connections=replace(daemon.connections, listed_at=None),
        ),
        at,
        DepartureReason.EXIT,
    )


def only_user(daemon: Daemon) -> int | None:
    """The UID of the one user that it may serve; None where that is anybody, or not known.

    In a PID namespace of its own it can name nobody outside, and a container's users have several UIDs here.
    """
    uid = None if daemon.runtime.process is None or daemon.runtime.in_foreign_namespace else daemon.runtime.process.uid
    return uid or None


def named(daemon: Daemon) -> set[int]:
    """Whoever the daemon says has to do with it: servers, clients, and whom its faults hit."""
    hit = (pid for server in daemon.servers.values() for pid in block.named(server))
    here = (daemon.servers, daemon.clients, daemon.connections.pending)
    gone = (daemon.connections.departed, daemon.connections.departed_servers, daemon.connections.disconnects)
    return set().union(hit, *here, *gone)


def of_others(daemon: Daemon, pids: Collection[int], processes: Mapping[int, ProcessReading]) -> frozenset[int]:
    """Those of these who are known to be somebody else's than the one user's that it may serve."""
    uid = only_user(daemon)
    if uid is None:
        return frozenset()
    return frozenset(pid for pid in pids if pid in processes and processes[pid].uid not in (None, uid))


def served(step: Step, at: float, processes: Mapping[int, ProcessReading]) -> Step:
    """The daemon without those who are known to be somebody else's: they leave, and are not remembered as its own."""
    daemon = step[0]
    if only_user(daemon) is None:
        return step
    others = sorted(of_others(daemon, named(daemon), processes))
    return chain(step, lambda daemon: for_each(daemon, others, lambda daemon, pid: _disown(daemon, at, pid)))


def _disown(daemon: Daemon, at: float, pid: int) -> Step:
    daemon, events = chain(
        servers.end(clients.dequeue(daemon, pid), at, pid),
        lambda daemon: clients.disconnect(daemon, at, pid, DepartureReason.EXIT),
    )
    daemon = replace(
        daemon,
        connections=replace(
            daemon.connections,
            departed=without(daemon.connections.departed, pid),
            departed_servers=without(daemon.connections.departed_servers, pid),
            disconnects=without(daemon.connections.disconnects, pid),
            recently_disconnected=without(daemon.connections.recently_disconnected, pid),
        ),
        servers={each: block.without(server, pid) for each, server in daemon.servers.items()},
    )
    return daemon, events
