"""Reads who CUDA processes and control daemons are, and where they look for each other."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from exporter.doctor.facts import DaemonFacts, Identity, ProcessFacts
from exporter.model.observation import ProcessReading
from exporter.model.variables import (
    ACTIVE_THREAD_PERCENTAGE,
    DEFAULT_PIPE_DIRECTORY,
    LOG_DIRECTORY,
    PINNED_MEMORY_LIMIT,
    PIPE_DIRECTORY,
    VISIBLE_DEVICES,
)
from exporter.parse.cgroup import parse_cgroup
from exporter.parse.proc import max_open_files
from exporter.sources.control_daemons import ControlDaemon, ControlDaemons
from exporter.sources.directory import Directory, Root
from exporter.sources.proc import Proc

_VARIABLES = (PIPE_DIRECTORY, LOG_DIRECTORY, VISIBLE_DEVICES, ACTIVE_THREAD_PERCENTAGE, PINNED_MEMORY_LIMIT)
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 (where MPS meets its clients, not a place to write)
_DELETED = " (deleted)"
_MOST_NAMESPACES = 8


def read_processes(pids: Iterable[int], proc: Proc) -> Mapping[int, ProcessFacts]:
    """Those of these processes that there are."""
    read = ((pid, proc.facts(pid)) for pid in pids)
    return {pid: read_process(reading, proc) for pid, reading in read if reading is not None}


def read_process(reading: ProcessReading, proc: Proc) -> ProcessFacts:
    """Who a process is, and what it has to do with MPS; nothing else of its environment is kept."""
    pid, root = reading.pid, Root(proc, reading.pid, reading.start_ticks)
    variables = proc.variables(pid, _VARIABLES)
    owner = parse_cgroup(reading.cgroup or "")
    pipe = (variables or {}).get(PIPE_DIRECTORY) or DEFAULT_PIPE_DIRECTORY
    return ProcessFacts(
        pid=pid,
        uid=reading.uid,
        user=reading.user,
        command=reading.command,
        unit=owner.unit,
        container=owner.container or owner.pod_uid,
        variables=variables,
        pipe=None if variables is None else _identity(pipe, root),
        shared_memory=_identity(str(_SHARED_MEMORY), root),
        pid_namespaces=pid_namespaces(pid, proc),
    )


def read_daemons(names: Mapping[Identity, str], pids: Mapping[int, str], proc: Proc) -> tuple[DaemonFacts, ...]:
    """The control daemons that run in these directories, or are known by their PIDs, with what they are called."""
    found: list[DaemonFacts] = []
    for daemon in ControlDaemons(proc).all():
        process = read_process(daemon.facts, proc)
        name = pids.get(daemon.pid) or (None if process.pipe is None else names.get(process.pipe))
        if name is not None:
            found.append(_daemon(name, daemon, process, proc))
    return tuple(found)


def pid_namespaces(pid: int, proc: Proc) -> tuple[int, ...]:
    """The inodes of a process's PID namespace, and of those around it, as far as they may be seen."""
    found: list[int] = []
    for above in range(min(len(proc.namespaced_pids(pid)), _MOST_NAMESPACES)):
        namespace = proc.pid_namespace(pid, above)
        if namespace is None:
            break
        found.append(namespace)
    return tuple(found)


def _daemon(name: str, daemon: ControlDaemon, process: ProcessFacts, proc: Proc) -> DaemonFacts:
    root = Root(proc, daemon.pid, daemon.facts.start_ticks)
    logs = (process.variables or {}).get(LOG_DIRECTORY)
    return DaemonFacts(
        name=name,
        process=process,
        own_pid=daemon.own_pid,
        arguments=daemon.arguments,
        replaced=(proc.program(daemon.pid) or "").endswith(_DELETED),
        open_files=max_open_files(proc.text(daemon.pid, "limits") or ""),
        logs=None if logs is None else _identity(logs, root),
    )


def _identity(path: str, root: Root) -> Identity | None:
    """Which directory a path is, from where a process stands."""
    return Directory(Path(path), root).identity() if path.startswith("/") and "\0" not in path else None
