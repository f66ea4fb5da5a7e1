"""Looks once at everything that the preflight judges: as `status` does, and then closer."""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TypeVar

from exporter.clock import Clock
from exporter.config import Config, Switch
from exporter.core.gpus import NVML, serving_daemon
from exporter.doctor.checks.units import EXPORTER
from exporter.doctor.facts import (
    INITIAL_PID_NAMESPACE,
    Area,
    DaemonFacts,
    Facts,
    Identity,
    ProcessFacts,
    Programs,
    Unseen,
)
from exporter.doctor.readers.directories import read_directory
from exporter.doctor.readers.logs import read_logs, read_queue, read_rotations
from exporter.doctor.readers.patience import Patience
from exporter.doctor.readers.ports import read_holders
from exporter.doctor.readers.processes import MOST_PROCESSES, pid_namespaces, read_daemons, read_processes
from exporter.doctor.readers.programs import read_programs
from exporter.doctor.readers.units import read_units
from exporter.doctor.readers.watcher import read_watcher
from exporter.errors import ConfigError
from exporter.model.daemon import Daemon
from exporter.model.node import Node
from exporter.sources.directory import Directory
from exporter.sources.proc import Proc
from exporter.sources.systemctl import Systemctl
from exporter.web import WebSecurity

LOGROTATE = Path("/etc/logrotate.d")

_WITH_NVML = ("cuda-mps-exporter doctor --collect.nvml",)
_WHO_HANGS = ("ps -eo pid,stat,wchan:32,comm | awk '$2 ~ /D/'",)
_HUNG = "it did not answer in time: a process is stuck in the driver, or a file server is gone"
Value = TypeVar("Value")

_AS_ROOT = ("sudo cuda-mps-exporter doctor",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Where to look, beside what the configuration says: the PATH of programs, and logrotate's directory."""

    path: str
    logrotate: Path = LOGROTATE


def gather(
    config: Config, surroundings: Surroundings, clock: Clock, *, look: Callable[[Config], Node], problem: str | None
) -> Facts:
    """Everything, read once; `look` is the one look at the node, `problem` what is wrong with the configuration."""
    proc = Proc(config.proc, clock)
    programs = read_programs(config, surroundings.path, clock)
    node = look(config)
    patience = Patience()
    names = patience.read(Area.DIRECTORIES, lambda: _names(node)) or {}
    daemons = patience.read(Area.DAEMONS, lambda: read_daemons(names, _pids(node), proc)) or ()
    of = {name: tuple(each for each in daemons if each.name == name) for name in node.daemons}
    running = {name: node.daemons[name] for name, each in of.items() if each}
    queues = (
        patience.read(Area.LOGS, lambda: _of_each(running, lambda each: read_queue(each, of[each.name], proc))) or {}
    )
    pids = tuple(dict.fromkeys(chain(chain(*queues.values()), _cuda_processes(node))))[:MOST_PROCESSES]
    processes = patience.read(Area.PROCESSES, lambda: read_processes(pids, proc)) or {}
    directories = (
        patience.read(
            Area.DIRECTORIES, lambda: _of_each(node.daemons, lambda each: read_directory(each, of[each.name], proc))
        )
        or {}
    )
    logs = patience.read(Area.LOGS, lambda: _of_each(running, lambda each: read_logs(each, of[each.name], proc))) or {}
    configured = patience.read(Area.LOGS, lambda: _configured_logs(config)) or {}
    rotations, rotation_problem = read_rotations(tuple(chain(*logs.values())), surroundings.logrotate)
    units, unit_problem = read_units(_unit_names(node, processes), Systemctl(clock, path=surroundings.path))
    watcher = read_watcher(config, proc, clock)
    holders, port_problem = read_holders(config, watcher, proc)
    problems = {
        Area.ROTATION: rotation_problem,
        Area.UNITS: unit_problem,
        Area.PORTS: port_problem,
        Area.DIRECTORIES: "; ".join(each.problem for each in directories.values() if each.problem) or None,
    }
    return Facts(
        config=config,
        node=node,
        config_problem=problem,
        web_problem=_web_problem(config),
        programs=programs,
        kernel_module=_module(proc),
        daemons=daemons,
        processes=processes,
        directories=directories,
        logs=logs,
        configured_logs=configured,
        rotations=rotations,
        waiting={name: _alive(queue, processes) for name, queue in queues.items()},
        units=units,
        watcher=watcher,
        holders=holders,
        apart=pid_namespaces(os.getpid(), proc)[:1] not in ((), (INITIAL_PID_NAMESPACE,)),
        unseen=(
            *_unseen_of_node(config, node, programs),
            *_unseen_of_processes(node, daemons, processes),
            *(Unseen(area=area, why=_HUNG, mend="See who hangs", commands=_WHO_HANGS) for area in patience.hung),
            *(
                Unseen(area=area, why=why, mend="Look as root", commands=_AS_ROOT)
                for area, why in problems.items()
                if why is not None
            ),
        ),
    )


def _of_each(daemons: Mapping[str, Daemon], read: Callable[[Daemon], Value]) -> Mapping[str, Value]:
    return {name: read(daemon) for name, daemon in daemons.items()}


def _alive(queue: Mapping[int, int], processes: Mapping[int, ProcessFacts]) -> tuple[int, ...]:
    """Those of whom the log spoke: they live, and are still that user's."""
    return tuple(pid for pid, uid in queue.items() if pid in processes and processes[pid].uid == uid)


def _names(node: Node) -> Mapping[Identity, str]:
    """Which daemon is in which directory, by their paths here."""
    known = ((Directory(Path(daemon.pipe_directory)).identity(), name) for name, daemon in node.daemons.items())
    return {identity: name for identity, name in known if identity is not None}


def _configured_logs(config: Config) -> Mapping[str, Identity]:
    known = ((daemon.name, Directory(Path(daemon.log_directory)).identity()) for daemon in config.daemons)
    return {name: identity for name, identity in known if identity is not None}


def _pids(node: Node) -> Mapping[int, str]:
    processes = ((daemon.process, name) for name, daemon in node.daemons.items())
    return {each.pid: name for each, name in processes if each is not None and each.pid is not None}


def _cuda_processes(node: Node) -> Iterator[int]:
    """Who uses a GPU, or MPS, but for MPS' own processes."""
    readings = [gpu.reading for gpu in node.gpus.values()]
    beside = chain(*(gpu.strangers for gpu in node.gpus.values()))
    clients = chain(*((*daemon.pending, *daemon.clients) for daemon in node.daemons.values()))
    listed = (each.pid for reading in readings for each in (reading.compute_processes or ()))
    servers = set(chain(*(daemon.servers for daemon in node.daemons.values())))
    return (pid for pid in dict.fromkeys((*beside, *clients, *listed)) if pid > 0 and pid not in servers)


def _unit_names(node: Node, processes: Mapping[int, ProcessFacts]) -> Iterator[str]:
    yield EXPORTER
    for daemon in node.daemons.values():
        yield from (each for each in (daemon.named_unit, daemon.unit) if each is not None)
    yield from (each.unit for each in processes.values() if each.unit is not None)


def _web_problem(config: Config) -> str | None:
    if config.web_config_file is None:
        return None
    try:
        WebSecurity.load(config.web_config_file)
    except ConfigError as error:
        return str(error)
    return None


def _module(proc: Proc) -> str | None:
    """The version of the kernel's module, from its first line: `NVRM version: … Kernel Module  580.159.04  …`."""
    said = proc.driver()
    words = [] if said is None else said.partition("\n")[0].split()
    return next((word for word in words if word.replace(".", "").isdecimal() and "." in word), None)


def _unseen_of_node(config: Config, node: Node, programs: Programs) -> Iterator[Unseen]:
    """What one look at the node could not see."""
    if programs.control is None or programs.problem is not None:
        yield Unseen(
            area=Area.PROGRAMS,
            why="daemons cannot be asked without nvidia-cuda-mps-control",
            told=True,
        )
    if config.collect.nvml is Switch.OFF:
        yield Unseen(area=Area.GPUS, why="collect.nvml is off", mend="Turn it on for this look", commands=_WITH_NVML)
    elif not node.gpus and (NVML not in node.sources or node.sources[NVML].last.problem is not None):
        yield Unseen(area=Area.GPUS, why="NVML cannot be used", told=True)
    for name, area in (("finder", Area.DAEMONS), ("units", Area.UNITS)):
        source = node.sources.get(name)
        if source is not None and source.last.problem is not None:
            yield Unseen(area=area, why=source.last.problem, mend="Look as root", commands=_AS_ROOT)


def _unseen_of_processes(
    node: Node, daemons: tuple[DaemonFacts, ...], processes: Mapping[int, ProcessFacts]
) -> Iterator[Unseen]:
    """Whoever may not be looked into: what they look for, and which GPUs they may see, is in their environment."""
    closed = [each.process.pid for each in daemons if each.process.variables is None]
    if closed:
        why = f"the environment of {_some(closed)} may not be read"
        yield Unseen(area=Area.DAEMONS, why=why, mend="Look as root", commands=_AS_ROOT)
    closed = [pid for pid, each in processes.items() if each.variables is None]
    if closed:
        why = f"the environment of {_some(closed)} may not be read"
        yield Unseen(area=Area.PROCESSES, why=why, mend="Look as root", commands=_AS_ROOT)
    unjudged = [
        gpu
        for gpu in node.gpus.values()
        if not gpu.judged and not gpu.reading.mig_mode and serving_daemon(node, gpu.reading) is not None
    ]
    if unjudged:
        why = "who runs beside MPS cannot be told while a daemon does not say which servers it has"
        yield Unseen(area=Area.PROCESSES, why=why, told=True)
    if sum(1 for _ in _cuda_processes(node)) > MOST_PROCESSES:
        why = f"there are more CUDA processes than the {MOST_PROCESSES} that are looked into"
        yield Unseen(
            area=Area.PROCESSES, why=why, mend="What is told of those that were looked into holds all the same"
        )


def _some(pids: list[int]) -> str:
    shown = ", ".join(map(str, pids[:5]))
    more = len(pids) - 5
    return f"PID {shown}" + (f" and {more} more" if more > 0 else "")
