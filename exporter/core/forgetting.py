"""What is let go of, so that what is remembered does not grow for ever."""

from collections.abc import Mapping

from exporter.core import accounts, agenda, clients, deaths, leavings, process_states, units, workloads
from exporter.model.daemon import Daemon
from exporter.model.node import Node
from exporter.model.replace import replace

REMEMBERED_QUESTIONS_SECONDS = 7200.0
"""How long it is remembered when a question was asked; longer than any question's period."""

REMEMBERED_SERVERS_SECONDS = 60.0
"""How long a server that has gone is remembered, so that a log line read late does not bring it back."""


def forget(node: Node) -> Node:
    """Let go of what no longer matters. While NVML shows a client that has left, it is remembered, and no stranger."""
    shown = {each.pid for gpu in node.gpus.values() for each in gpu.reading.compute_processes or ()}
    daemons = {
        name: _forget_daemon(daemon, node.at, shown)
        for name, daemon in node.daemons.items()
        if not daemon.forgettable(node.at)
    }
    wanted = agenda.watched(node)
    processes = {pid: process for pid, process in node.processes.items() if pid in wanted}
    node = deaths.forget(replace(node, daemons=daemons, processes=processes))
    node = process_states.forget(node, agenda.states_wanted(node))
    return accounts.forget(_forget_pods(units.forget(node)))


def _forget_pods(node: Node) -> Node:
    if not node.pods:
        return node
    present = workloads.pods(node)
    return replace(node, pods={uid: pod for uid, pod in node.pods.items() if uid in present})


def _forget_daemon(daemon: Daemon, at: float, shown: set[int]) -> Daemon:
    daemon = replace(
        daemon,
        connections=replace(
            daemon.connections,
            departed=_kept(daemon.connections.departed, at - clients.REMEMBERED_SECONDS, shown),
            departed_servers=_kept(daemon.connections.departed_servers, at - REMEMBERED_SERVERS_SECONDS, shown),
        ),
        commands=replace(
            daemon.commands,
            asked_at={
                command: when
                for command, when in daemon.commands.asked_at.items()
                if at - when < REMEMBERED_QUESTIONS_SECONDS
            },
        ),
    )
    return leavings.forget(daemon, at)


def _kept(departed: Mapping[int, float], since: float, shown: set[int]) -> Mapping[int, float]:
    return {pid: at for pid, at in departed.items() if at >= since or pid in shown}
