"""Gathers all facts once."""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TypeVar

from exporter.clock import Clock
from exporter.collectors.child import Systemctl
from exporter.collectors.pipe_dir import Directory
from exporter.collectors.proc import Proc
from exporter.config.settings import Config
from exporter.doctor.checks.daemons import EXPORTER
from exporter.doctor.directory_readers import read_directory, read_logs, read_queue, read_rotations
from exporter.doctor.facts import INITIAL_PID_NAMESPACE, Area, Facts, Identity, ProcessFacts
from exporter.doctor.readers import (
    Patience,
    pid_namespaces,
    read_daemons,
    read_doors,
    read_holders,
    read_processes,
    read_programs,
    read_units,
    read_watcher,
)
from exporter.doctor.registry import (
    MOST_PROCESSES,
    cuda_processes,
    unseen_for_problems,
    unseen_of_doors,
    unseen_of_node,
    unseen_of_processes,
    unseen_where_reading_hangs,
)
from exporter.errors import ConfigError
from exporter.model.daemon import Daemon
from exporter.model.node import Node
from exporter.report.problem_text import problem_text
from exporter.web.web_config import WebSecurity

LOGROTATE = Path("/etc/logrotate.d")

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Where to look, beside what the configuration says: the PATH of programs, and logrotate's directory."""

    path: str
    logrotate: Path = LOGROTATE


def gather(
    config: Config, surroundings: Surroundings, clock: Clock, *, look: Callable[[Config], Node], problem: str | None
) -> Facts:
    """Everything, read once; `look` is the one look at the node, `problem` what is wrong with the configuration."""
    proc = Proc(config.constants.procfs, clock)
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
    pids = tuple(dict.fromkeys(chain(chain(*queues.values()), cuda_processes(node))))[:MOST_PROCESSES]
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
    doors = None
    if config.attribution.counts_launches:
        doors = patience.read(Area.DOORS, lambda: read_doors((*pids, *_servers(node)), proc, clock))
    problems = {
        Area.ROTATION: rotation_problem,
        Area.UNITS: None if unit_problem is None else problem_text(unit_problem, "units"),
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
        doors=doors,
        apart=pid_namespaces(os.getpid(), proc)[:1] not in ((), (INITIAL_PID_NAMESPACE,)),
        unseen=(
            *unseen_of_node(config, node, programs),
            *unseen_of_doors(doors),
            *unseen_of_processes(node, daemons, processes),
            *unseen_where_reading_hangs(patience.hung),
            *unseen_for_problems(problems),
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
    processes = ((daemon.runtime.process, name) for name, daemon in node.daemons.items())
    return {each.pid: name for each, name in processes if each is not None and each.pid is not None}


def _servers(node: Node) -> Iterator[int]:
    return chain(*(daemon.servers for daemon in node.daemons.values()))


def _unit_names(node: Node, processes: Mapping[int, ProcessFacts]) -> Iterator[str]:
    yield EXPORTER
    for daemon in node.daemons.values():
        yield from (each for each in (daemon.declared.unit, daemon.runtime.unit) if each is not None)
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
