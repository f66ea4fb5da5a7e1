"""Decides whether a daemon ended with its Slurm job or pod: that is no loss.

The end of the daemon alone shows nothing. It also ends its clients, and with them perhaps the script that started them,
the container or the job. So the end of the job or pod must have been seen before the daemon's end, or beside it in a
way that the daemon's end cannot cause. In all other cases, and if anything is unsure, the daemon was lost.

The processes of a job or pod belong to one tenant. By ending them, it can hide the end of its own daemon only.
"""

from collections.abc import Collection

from exporter.model.daemon import Daemon
from exporter.model.identity import WorkloadProcess, WorkloadRole
from exporter.model.incident import Death
from exporter.model.node import Node
from exporter.model.observation import DaemonProcess
from exporter.state.processes import cgroup_of

BESIDE_SECONDS = 0.25
"""Ends within this time are beside each other: they are read in any order. The kubelet and slurmstepd end processes one
after another. With a longer time, the end of a job because of its daemon could look like the cause."""

SANDBOX_SECONDS = 5.0
"""After the last container of a pod, its sandbox may take this long to end. If a container restarts, it remains."""

_FROM_OUTSIDE = (9, 15)
"""SIGKILL and SIGTERM: slurmstepd, container runtimes and the kernel (for a PID namespace) end processes with them."""


def processes_of(daemon: Daemon) -> Collection[WorkloadProcess]:
    """Return the processes that show the end of the job or pod of a daemon that runs, or that has just ended."""
    process, ended_at = daemon.runtime.last_process, daemon.lifecycle.unexplained_end_at
    if process is None or daemon.declared.expected or (daemon.runtime.process is None and ended_at is None):
        return ()
    return process.peers


def has_ended(node: Node, daemon: Daemon) -> bool | None:
    """Return whether a daemon that ended did so with its job or pod; None if that may still become known."""
    process, ended_at = daemon.runtime.last_process, daemon.lifecycle.unexplained_end_at
    if process is None or ended_at is None or not processes_of(daemon):
        return False
    own = _death(node, process.pid, process.start_ticks)
    killed = own is not None and own.wait_status is not None
    if (own is not None and killed and not _is_from_outside(own)) or _has_lost_others(node, daemon, process):
        return False
    if node.at - ended_at <= BESIDE_SECONDS:
        return None

    idle = not daemon.runtime.foreground and not daemon.lifecycle.clients_at_end
    in_pod = cgroup_of(process).pod_uid is not None

    def is_independent(death: Death) -> bool:
        seconds = ended_at - death.at
        if seconds > BESIDE_SECONDS:
            # A daemon may crash long after another container that had nothing more to do.
            return killed or not in_pod or _is_from_outside(death)
        return seconds >= -BESIDE_SECONDS and (idle or _is_from_outside(death))

    deaths = {each: _death(node, each.pid, each.start_ticks) for each in process.peers}
    known = {each: death for each, death in deaths.items() if death is not None or _is_running(node, each)}
    first = {each: death for each, death in known.items() if each.role is not WorkloadRole.SANDBOX}
    if not first or not all(death is not None and is_independent(death) for death in first.values()):
        return False
    sandboxes = [death for each, death in known.items() if each.role is WorkloadRole.SANDBOX]
    if not sandboxes:
        return any(each.role is WorkloadRole.TASK for each in first)
    if all(death is not None and death.at - ended_at <= SANDBOX_SECONDS for death in sandboxes):
        return True
    return None if node.at - ended_at <= SANDBOX_SECONDS else False


def _has_lost_others(node: Node, daemon: Daemon, process: DaemonProcess) -> bool:
    """Return whether a client may have been lost that is not in the job or pod of the daemon."""
    if daemon.lifecycle.clients_at_end is None:
        return True
    deaths = {pid: death.process for pid, death in node.deaths.items()}
    clients = (node.processes.get(pid) or deaths.get(pid) for pid in daemon.lifecycle.clients_at_end)
    return any(cgroup_of(client).job_or_pod != cgroup_of(process).job_or_pod for client in clients)


def _death(node: Node, pid: int | None, start_ticks: int | None) -> Death | None:
    death = node.deaths.get(pid or 0)
    return death if death is not None and death.start_ticks == start_ticks else None


def _is_running(node: Node, process: WorkloadProcess) -> bool:
    known = node.processes.get(process.pid)
    return known is not None and known.start_ticks == process.start_ticks


def _is_from_outside(death: Death) -> bool:
    """Return whether another process ended it. A lack of memory is the process's own, and a code can mean anything."""
    return not death.out_of_memory and death.wait_status is not None and death.wait_status & 0x7F in _FROM_OUTSIDE
