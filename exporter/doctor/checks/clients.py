"""Checks of CUDA processes, namespaces and containers."""

import posixpath
from collections.abc import Iterator
from functools import partial

from exporter.collectors.proc import INITIAL_PID_NAMESPACE
from exporter.doctor.check import check, process_label, quoted, shown, without_private_tmp
from exporter.doctor.facts import TEMPORARY, Area, DaemonFacts, Facts, ProcessFacts, cuda_processes
from exporter.model.daemon import Daemon
from exporter.model.settings import PIPE_DIRECTORY
from exporter.parse.printable import printable
from exporter.parse.protocol3 import PROTOCOL
from exporter.report.finding import Finding
from exporter.report.problem import NodeProblem, Severity
from exporter.report.problems import Situation
from exporter.state.devices import serving_daemon
from exporter.view import gpu_name

_NEEDS = (Area.GPUS, Area.DAEMONS, Area.PROCESSES)


@check(NodeProblem.PROCESS_BYPASSING, *_NEEDS)
def process_bypassing(facts: Facts) -> Iterator[Finding]:
    """A CUDA process bypasses MPS, for one of several reasons."""
    for daemon, each, process, gpu in bypassing(facts):
        path, reaches = process.pipe_directory, _reaches(daemon, each, process)
        same = posixpath.normpath(path) == posixpath.normpath(each.process.pipe_directory)
        below = process.container is not None and _is_below(daemon, each, process)
        hidden = (same or below) and not reaches
        finding = partial(Finding, NodeProblem.PROCESS_BYPASSING, values={"gpu": gpu}, facts=(process_label(process),))
        if not hidden and not reaches:
            default = "" if process.variable(PIPE_DIRECTORY) is not None else " (the default)"
            yield finding(
                details=f"They use {shown(path)}{default}, the daemon has {shown(each.process.pipe_directory)}.",
                advice=f"Set it in the {_place_of_variables(process)}.",
                commands=(f"{PIPE_DIRECTORY}={quoted(daemon.pipe_directory)}",),
            )
        elif hidden and path.startswith(TEMPORARY) and process.container is None:
            yield finding(
                details=f"They have a private /tmp without the daemon's directory, {shown(path)}.",
                situation=Situation.PRIVATE_TMP,
                commands=(without_private_tmp(process.unit),) if process.unit else (),
            )
        elif hidden:
            directory = quoted(path)
            yield finding(
                details=f"In their container, {shown(path)} is not the daemon's directory, or is missing.",
                situation=Situation.CONTAINER_WITHOUT_DIRECTORY,
                commands=(f"docker run --ipc=host -v {directory}:{directory} -e {PIPE_DIRECTORY}={directory} IMAGE",),
            )
        if each.process.uid and process.uid not in (None, each.process.uid):
            yield finding(
                details=f"The daemon serves only its own user, UID {each.process.uid}.",
                situation=Situation.DAEMON_OF_ANOTHER_USER,
                commands=("systemctl enable --now nvidia-cuda-mps",),
            )
        elif reaches:
            yield finding(
                details="They have the daemon's directory: they started while no daemon ran.",
                advice="To make such a process fail instead, set the compute mode to EXCLUSIVE_PROCESS.",
            )


@check(Severity.WARNING, *_NEEDS)
def shared_memory_differs(facts: Facts) -> Iterator[Finding]:
    """A CUDA process has another /dev/shm than its daemon. It hangs when it connects, or is refused.

    Share the IPC namespace, or mount the daemon's /dev/shm. In a pod, set hostIPC: true.
    """
    for each, process in _connecting(facts):
        memories = each.process.shared_memory, process.shared_memory
        connected = process.pid in facts.node.daemons[each.name].clients
        if None not in memories and memories[0] != memories[1] and not connected:
            yield shared_memory_differs.finding(process_label(process), commands=("docker run --ipc=host IMAGE",))


@check(Severity.WARNING, *_NEEDS)
def pid_namespace_differs(facts: Facts) -> Iterator[Finding]:
    """A daemon does not see the PID of a client, and can neither name nor end it.

    The container of the daemon does not contain the client's PID namespace.

    Run the daemon in the host's PID namespace. In a pod, set hostPID: true. For NVIDIA's device plugin, set
    mps.enableHostPID.
    """
    for each, process in _connecting(facts):
        own = each.process.pid_namespaces[:1]
        if own and process.pid_namespaces and own[0] not in process.pid_namespaces:
            yield pid_namespace_differs.finding(f"{process_label(process)}, of {shown(each.name)}")


@check(Severity.INFO, Area.DAEMONS, Area.PROCESSES, Area.RIGHTS)
def exporter_pid_namespace(facts: Facts) -> Iterator[Finding]:
    """The exporter is not in the host's PID namespace. It knows no user, command or end of processes outside.

    Set hostPID: true in the pod. If all CUDA processes are in this container, and launches need not be counted,
    ignore this.
    """
    own = facts.exporter.pid_namespaces[:1]
    if not own or own[0] == INITIAL_PID_NAMESPACE:
        return
    unknown = len(set(cuda_processes(facts.node)) - set(facts.processes))
    hidden = tuple(shown(name) for name in facts.directories if facts.hidden(name))
    details = [f"Unknown processes on GPUs: {unknown}."] if unknown else []
    details += ["Whether a daemon runs is unknown."] if hidden else []
    yield exporter_pid_namespace.finding(
        *hidden,
        details=" ".join(details),
        commands=("docker run --pid=host IMAGE",),
        rated=Severity.WARNING if details else None,
    )


def bypassing(facts: Facts) -> Iterator[tuple[Daemon, DaemonFacts, ProcessFacts, str]]:
    """Yield the bypassing processes of known environment, with the daemon of the GPU and the GPU's name."""
    for gpu in facts.node.gpus.values():
        daemon = serving_daemon(facts.node, gpu.reading)
        running = facts.daemons_of(daemon.name) if daemon is not None else ()
        if daemon is None or not running or running[0].process.pipe is None:
            continue
        for pid in gpu.bypassing:
            process = facts.processes.get(pid)
            if process is not None and process.variables is not None:
                yield daemon, running[0], process, printable(gpu_name(facts.node, gpu.reading.gpu))


def _connecting(facts: Facts) -> Iterator[tuple[DaemonFacts, ProcessFacts]]:
    """Yield the processes that can reach a daemon, or are its clients."""
    for daemon, each in facts.running():
        yield from ((each, process) for process in facts.clients_of(daemon))
    for daemon, each, process, _ in bypassing(facts):
        if _reaches(daemon, each, process):
            yield each, process


def _reaches(daemon: Daemon, each: DaemonFacts, process: ProcessFacts) -> bool:
    """Return whether the process has the daemon's directory, or with protocol 3 one of a server or namespace in it."""
    return process.pipe is not None and (process.pipe == each.process.pipe or _is_below(daemon, each, process))


def _is_below(daemon: Daemon, each: DaemonFacts, process: ProcessFacts) -> bool:
    own, path = (posixpath.normpath(facts.pipe_directory) for facts in (each.process, process))
    return daemon.runtime.protocol == PROTOCOL and path.startswith(f"{own}/")


def _place_of_variables(process: ProcessFacts) -> str:
    if process.container is not None:
        return "container or pod"
    return "environment" if process.unit is None else f"unit {shown(process.unit)} (Environment=)"
