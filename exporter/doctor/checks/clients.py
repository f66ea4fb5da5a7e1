"""Checks of CUDA processes, namespaces and containers."""

import posixpath
from collections.abc import Iterator

from exporter.collectors.proc import INITIAL_PID_NAMESPACE
from exporter.doctor.facts import TEMPORARY, Area, DaemonFacts, Facts, ProcessFacts, cuda_processes
from exporter.doctor.finding import (
    Occurrence,
    Severity,
    check,
    gpu_label,
    process_label,
    quoted,
    shown,
    without_private_tmp,
)
from exporter.model.daemon import Daemon
from exporter.model.settings import PIPE_DIRECTORY
from exporter.parse.protocol3 import PROTOCOL
from exporter.report.problem import NodeProblem
from exporter.state.devices import serving_daemon

_NEEDS = (Area.GPUS, Area.DAEMONS, Area.PROCESSES)


@check(Severity.ERROR, *_NEEDS)
def pipe_directory_differs(facts: Facts) -> Iterator[Occurrence]:
    """A CUDA process uses another pipe directory than its GPU's daemon. It bypasses MPS.

    Restart the process with the daemon's CUDA_MPS_PIPE_DIRECTORY.
    """
    for daemon, each, process, gpu in bypassing(facts):
        if _is_hidden(daemon, each, process) or _reaches(daemon, each, process):
            continue
        default = "" if process.variable(PIPE_DIRECTORY) is not None else " (the default)"
        yield Occurrence(
            (process_label(process),),
            detail=f"It uses {shown(process.pipe_directory)}{default}. The daemon of {gpu} has "
            f"{shown(each.process.pipe_directory)}.",
            fix=f"Set it in the {_place_of_variables(process)}.",
            commands=(f"{PIPE_DIRECTORY}={quoted(daemon.pipe_directory)}",),
        )


@check(Severity.ERROR, *_NEEDS, doc="docs/start.md")
def private_tmp(facts: Facts) -> Iterator[Occurrence]:
    """A CUDA process has a private /tmp without the daemon's directory. It bypasses MPS.

    Move the daemon to /run, or set PrivateTmp=no. To move it, set CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps for it
    and its clients.
    """
    for daemon, each, process, gpu in bypassing(facts):
        path = process.pipe_directory
        if _is_hidden(daemon, each, process) and path.startswith(TEMPORARY) and process.container is None:
            unit = "" if process.unit is None else f", {shown(process.unit)}"
            yield Occurrence(
                (f"{process_label(process)}{unit}",),
                detail=f"The daemon of {gpu} is in {shown(path)}.",
                commands=(without_private_tmp(process.unit),) if process.unit else (),
            )


@check(Severity.ERROR, *_NEEDS)
def container_without_directory(facts: Facts) -> Iterator[Occurrence]:
    """A container does not have the daemon's pipe directory. Its CUDA process bypasses MPS.

    Mount the pipe directory and /dev/shm into the container.
    """
    for daemon, each, process, gpu in bypassing(facts):
        path = process.pipe_directory
        if not _is_hidden(daemon, each, process) or (path.startswith(TEMPORARY) and process.container is None):
            continue
        directory = quoted(path)
        yield Occurrence(
            (f"{process_label(process)}, container {shown(process.container or 'unknown')[:12]}",),
            detail=f"There, {shown(path)} is not the directory of the daemon of {gpu}, or is missing.",
            commands=(f"docker run --ipc=host -v {directory}:{directory} -e {PIPE_DIRECTORY}={directory} IMAGE",),
        )


@check(NodeProblem.PROCESS_BYPASSING, *_NEEDS)
def process_bypassing(facts: Facts) -> Iterator[Occurrence]:
    """A CUDA process can reach the daemon, but bypasses MPS."""
    for daemon, each, process, gpu in bypassing(facts):
        if _reaches(daemon, each, process) and not _of_other_user(each, process):
            yield Occurrence(
                (process_label(process),),
                detail=f"On {gpu}, a process has the daemon's directory: it started while no daemon ran.",
                fix="To make such a process fail instead, set the compute mode to EXCLUSIVE_PROCESS.",
            )


@check(Severity.ERROR, *_NEEDS)
def daemon_of_another_user(facts: Facts) -> Iterator[Occurrence]:
    """A daemon serves only its own user, not that of a CUDA process. The process bypasses MPS.

    Run the daemon as root, if several users share the GPU.
    """
    for _, each, process, gpu in bypassing(facts):
        if _of_other_user(each, process):
            yield Occurrence(
                (process_label(process),),
                detail=f"The daemon of {gpu} runs as UID {each.process.uid}.",
                commands=("systemctl enable --now nvidia-cuda-mps",),
            )


@check(Severity.WARNING, *_NEEDS)
def shared_memory_differs(facts: Facts) -> Iterator[Occurrence]:
    """A CUDA process has another /dev/shm than its daemon. It hangs when it connects, or is refused.

    Share the IPC namespace, or mount the daemon's /dev/shm. In a pod, set hostIPC: true.
    """
    for each, process in _connecting(facts):
        memories = each.process.shared_memory, process.shared_memory
        connected = process.pid in facts.node.daemons[each.name].clients
        if None not in memories and memories[0] != memories[1] and not connected:
            yield Occurrence((process_label(process),), commands=("docker run --ipc=host IMAGE",))


@check(Severity.WARNING, *_NEEDS)
def pid_namespace_differs(facts: Facts) -> Iterator[Occurrence]:
    """A daemon does not see the PID of a client. Its container does not contain the client's PID namespace.

    Run the daemon in the host's PID namespace. In a pod, set hostPID: true. For NVIDIA's device plugin, set
    mps.enableHostPID.
    """
    for each, process in _connecting(facts):
        own = each.process.pid_namespaces[:1]
        if own and process.pid_namespaces and own[0] not in process.pid_namespaces:
            yield Occurrence(
                (f"{process_label(process)}, of {shown(each.name)}",),
                detail="The daemon can neither name nor end such a client.",
            )


@check(Severity.ADVICE, Area.DAEMONS, Area.PROCESSES, Area.RIGHTS)
def exporter_pid_namespace(facts: Facts) -> Iterator[Occurrence]:
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
    yield Occurrence(
        hidden,
        detail=" ".join(details),
        commands=("docker run --pid=host IMAGE",),
        severity=Severity.WARNING if details else None,
    )


def bypassing(facts: Facts) -> Iterator[tuple[Daemon, DaemonFacts, ProcessFacts, str]]:
    """Yield the bypassing processes of known environment, with the daemon of the GPU and the GPU's label."""
    for gpu in facts.node.gpus.values():
        daemon = serving_daemon(facts.node, gpu.reading)
        running = facts.daemons_of(daemon.name) if daemon is not None else ()
        if daemon is None or not running or running[0].process.pipe is None:
            continue
        for pid in gpu.bypassing:
            process = facts.processes.get(pid)
            if process is not None and process.variables is not None:
                yield daemon, running[0], process, gpu_label(gpu)


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


def _is_hidden(daemon: Daemon, each: DaemonFacts, process: ProcessFacts) -> bool:
    """Return whether the process has the daemon's path, but another directory there, or none."""
    same = posixpath.normpath(process.pipe_directory) == posixpath.normpath(each.process.pipe_directory)
    below = process.container is not None and _is_below(daemon, each, process)
    return (same or below) and not _reaches(daemon, each, process)


def _is_below(daemon: Daemon, each: DaemonFacts, process: ProcessFacts) -> bool:
    own, path = (posixpath.normpath(facts.pipe_directory) for facts in (each.process, process))
    return daemon.runtime.protocol == PROTOCOL and path.startswith(f"{own}/")


def _of_other_user(each: DaemonFacts, process: ProcessFacts) -> bool:
    """Return whether the daemon serves only one ordinary user, and the process belongs to another one."""
    return bool(each.process.uid) and process.uid not in (None, each.process.uid)


def _place_of_variables(process: ProcessFacts) -> str:
    if process.container is not None:
        return "container or pod"
    return "environment" if process.unit is None else f"unit {shown(process.unit)} (Environment=)"
