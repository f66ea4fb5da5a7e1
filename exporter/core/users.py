"""Whom a daemon serves: one that is not root's its own user alone, whatever it says (NVIDIA's MPS guide).

So an ordinary user's daemon, or what poses as one, does not make anybody else's process its client.
"""

from collections.abc import Mapping
from dataclasses import replace

from exporter.core import clients, servers
from exporter.core.step import Step, chain, for_each, without
from exporter.core.translate import Pids
from exporter.model.daemon import Daemon
from exporter.model.observation import ProcessReading
from exporter.model.server import DepartureReason


def heard(daemon: Daemon, pids: Pids) -> Daemon:
    """The daemon speaks in its own namespace's PIDs, or in this one's, where `pids` is None."""
    return daemon if daemon.elsewhere is (pids is not None) else replace(daemon, elsewhere=pids is not None)


def only_user(daemon: Daemon) -> int | None:
    """The UID of the one user that it may serve; None where that is anybody, or not known.

    In a PID namespace of its own it can name nobody outside, and a container's users have several UIDs here.
    """
    uid = None if daemon.process is None or daemon.elsewhere else daemon.process.uid
    return uid or None


def served(step: Step, at: float, processes: Mapping[int, ProcessReading]) -> Step:
    """The daemon without those who are known to be somebody else's: they leave, and are not remembered as its own."""
    daemon = step[0]
    uid = only_user(daemon)
    if uid is None:
        return step
    named = {*daemon.servers, *daemon.clients, *daemon.pending, *daemon.departed, *daemon.departed_servers}
    others = [pid for pid in sorted(named & processes.keys()) if processes[pid].uid not in (None, uid)]
    return chain(step, lambda daemon: for_each(daemon, others, lambda daemon, pid: _disown(daemon, at, pid)))


def _disown(daemon: Daemon, at: float, pid: int) -> Step:
    daemon, events = chain(
        servers.end(clients.dequeue(daemon, pid), at, pid),
        lambda daemon: clients.disconnect(daemon, at, pid, DepartureReason.EXIT),
    )
    departed, departed_servers = without(daemon.departed, pid), without(daemon.departed_servers, pid)
    return replace(daemon, departed=departed, departed_servers=departed_servers), events
