"""Daemons that nothing reaches through their pipe directory, and uses of MPS without a known daemon."""

from collections.abc import Iterable

from exporter.model.daemon import Daemon
from exporter.model.node import CollectorName, Node
from exporter.model.values import replace
from exporter.parse.printable import printable
from exporter.parse.proc import MpsProgram, mps_program
from exporter.report.document import ManualStep
from exporter.report.finding import Finding
from exporter.report.problem import NodeProblem, Severity
from exporter.report.problems import DaemonProblem
from exporter.report.process_status import described
from exporter.report.remedy import clients_beside, commands_to_restart, commands_to_stop
from exporter.state.devices import serving_daemons, usable_gpus
from exporter.view import gpu_name
from exporter.watchdog.context import Policy

SETTLED_SECONDS = 10.0
"""After this time, the daemon of a client or a server is known, and one that has ended has no clients in NVML."""

OWN_DIRECTORY = "Start the daemon with a pipe directory that only this node has."


def unreachable(node: Node, at: float, daemon: Daemon, policy: Policy | None) -> Finding:
    """Return that the directory of a running daemon was removed, or is another daemon's."""
    taken = daemon.directory_taken
    commands = (commands_to_stop if taken else commands_to_restart)(node, daemon, policy)
    end = "End the daemon." if taken else "End the daemon, and start it again if it is still needed."
    return Finding(
        DaemonProblem.DAEMON_UNREACHABLE,
        at=at,
        since=daemon.lifecycle.state_since,
        daemon=daemon.name,
        values={"how": "is another daemon's" if taken else "was removed"},
        rated=Severity.CRITICAL if daemon.declared.expected else None,
        affected="new clients; connected ones continue",
        facts=facts_of_other_daemon(daemon),
        steps=(
            ManualStep(text="Change no file in the directory. Wait until its clients have ended."),
            ManualStep(text=end, commands=commands, ends=clients_beside(node, daemon) if commands else None),
            *((ManualStep(text=OWN_DIRECTORY),) if taken else ()),
        ),
    )


def facts_of_other_daemon(daemon: Daemon) -> tuple[str, ...]:
    """Return what shows that another daemon has the pipe directory. Only a file system of a network is shared."""
    directory = daemon.runtime.directory
    if directory is None or not daemon.directory_taken:
        return ()
    if directory.other is not None:
        return (f"PID {directory.other} is the other daemon, on this machine",)
    where = "the other daemon has ended, or nodes share the directory, and it runs on another node"
    if directory.is_on_network:
        where = f"nodes share the directory ({printable(directory.file_system or '')}): its daemon runs on another node"
    return where, f"the PID in the PID file is {directory.pid}", "no process of this machine listens on the socket"


def without_daemon(node: Node, at: float) -> Iterable[Finding]:
    """Yield the GPUs on which NVML lists clients or servers of MPS, although no daemon is known that may have them."""
    for uuid, reading in usable_gpus(node).items() if CollectorName.DISCOVERY in node.sources else ():
        daemons = serving_daemons(node, reading)
        if reading.problem is None and all(
            each.ended and _has_settled(each.lifecycle.state_since, at) for each in daemons
        ):
            since = dict(node.gpus[uuid].mps_since)
            for process in (node.processes.get(each.pid) for each in reading.compute_processes or ()):
                is_server = process and mps_program(process.executable, process.command) is MpsProgram.SERVER
                if process is not None and (is_server or process.pid in since):
                    since[process.pid] = process.started
            names = tuple(described(node, pid) for pid, began in sorted(since.items()) if _has_settled(began, at))
            if names:
                values = {"gpu": printable(gpu_name(node, uuid)), "processes": names[0]}
                yield Finding(NodeProblem.MPS_WITHOUT_DAEMON, at=at, values=values, facts=names)


def _has_settled(since: float | None, at: float) -> bool:
    return since is None or at - since >= SETTLED_SECONDS
