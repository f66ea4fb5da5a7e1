"""Gather the facts once, and record what could not be examined."""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path

from exporter.clock import Clock
from exporter.collectors.pipe_dir import Directory
from exporter.collectors.proc import INITIAL_PID_NAMESPACE, Proc
from exporter.collectors.systemd import Systemctl
from exporter.config.settings import Attribution, Config
from exporter.doctor.check import AS_ROOT, ATTRIBUTION_AS_ROOT
from exporter.doctor.checks.daemons import EXPORTER
from exporter.doctor.facts import Area, Facts, Identity, NotExamined, cuda_processes, unread_logs
from exporter.doctor.readers import (
    HUNG,
    TimeLimit,
    pid_namespaces,
    read_daemons,
    read_directory,
    read_exporter,
    read_libcuda_probes,
    read_processes,
    read_programs,
    read_units,
)
from exporter.errors import ConfigError
from exporter.model.node import CollectorName, Node
from exporter.report.findings import lost_gpus
from exporter.report.reasons import reason_text, source_text
from exporter.state.devices import serving_daemon
from exporter.web.web_config import WebSecurity

MAX_PROCESSES = 512
"""How many CUDA processes are examined."""

_LIST_HUNG = ("ps -eo pid,stat,wchan:32,comm | awk '$2 ~ /D/'",)


def gather(
    config: Config, path: str, clock: Clock, *, collect: Callable[[Config], Node], config_problem: str | None
) -> Facts:
    """Return all facts.

    `path` is the PATH of programs. `collect` collects from the node once. `config_problem` is why the configuration is
    unusable.
    """
    proc, limit = Proc(config.constants.procfs, clock), TimeLimit(clock)
    web_problem = None
    try:
        if config.web_config_file is not None:
            WebSecurity(config.web_config_file)
    except ConfigError as error:
        web_problem = str(error)
    programs = read_programs(config, path, clock)
    node = collect(config)
    known = node.daemons.values()

    def names() -> Mapping[Identity, str]:
        found = ((Directory(Path(daemon.pipe_directory)).identity(), daemon.name) for daemon in known)
        return {identity: name for identity, name in found if identity is not None}

    def configured_logs() -> Mapping[str, Identity]:
        found = ((daemon.name, Directory(daemon.log_directory).identity()) for daemon in config.daemons)
        return {name: identity for name, identity in found if identity is not None}

    by_identity = limit.read(Area.DIRECTORIES, names) or {}
    processes_of_daemons = ((daemon.runtime.process, daemon.name) for daemon in known)
    by_pid = {process.pid: name for process, name in processes_of_daemons if process and process.pid}
    daemons = limit.read(Area.DAEMONS, lambda: read_daemons(by_identity, by_pid, proc)) or ()
    first = {daemon.name: daemon for daemon in reversed(daemons)}
    pids = tuple(islice(cuda_processes(node), MAX_PROCESSES))
    processes = limit.read(Area.PROCESSES, lambda: read_processes(pids, proc)) or {}
    every = [(daemon, first.get(daemon.name)) for daemon in known]
    directories = limit.read(Area.DIRECTORIES, lambda: {d.name: read_directory(d, run, proc) for d, run in every}) or {}
    of_daemons = chain.from_iterable((daemon.declared.unit, daemon.runtime.unit) for daemon in known)
    units = filter(None, (EXPORTER, *of_daemons, *(process.unit for process in processes.values())))
    private_tmp, unit_problem = read_units(units, Systemctl(clock, path=path))
    probes = None
    if config.attribution is Attribution.BPF:
        servers = chain(*(daemon.servers for daemon in known))
        probes = limit.read(Area.LAUNCHES, lambda: read_libcuda_probes((*pids, *servers), proc, clock))
    facts = Facts(
        config=config,
        node=node,
        config_problem=config_problem,
        web_problem=web_problem,
        programs=programs,
        daemons=daemons,
        configured_logs=limit.read(Area.DIRECTORIES, configured_logs) or {},
        processes=processes,
        directories=directories,
        private_tmp=private_tmp,
        exporter=read_exporter(config, proc, clock),
        libcuda_probes=probes,
        apart=pid_namespaces(os.getpid(), proc)[:1] not in ((), (INITIAL_PID_NAMESPACE,)),
    )
    lacking = [*not_examined(facts)]
    for area, reason in limit.problems.items():
        fix, commands = ("Find the process that hangs.", _LIST_HUNG) if reason == HUNG else ("", ())
        lacking.append(NotExamined(area=area, reason=reason, fix=fix, commands=commands))
    if unit_problem is not None:
        lacking.append(_needs_root(Area.UNITS, reason_text(unit_problem, "units")))
    return replace(facts, not_examined=tuple(lacking))


def not_examined(facts: Facts) -> Iterator[NotExamined]:
    """Yield what these facts lack."""
    node, programs, probes = facts.node, facts.programs, facts.libcuda_probes
    if programs.control is None or programs.problem is not None:
        reason = "daemons cannot be queried without nvidia-cuda-mps-control"
        yield NotExamined(area=Area.PROGRAMS, reason=reason, reported=True)
    if any(lost_gpus(node)) or any(gpu.reading.problem is not None for gpu in node.gpus.values()):
        yield NotExamined(area=Area.GPUS, reason="NVML returns an error for a GPU", reported=True)
    elif not node.gpus and (
        CollectorName.NVML not in node.sources or node.sources[CollectorName.NVML].last.problem is not None
    ):
        yield NotExamined(area=Area.GPUS, reason="NVML does not work", reported=True)
    for daemon, _ in facts.running():
        reported = daemon.runtime.log_is_lost or bool(unread_logs(daemon))
        if reported or not daemon.log.problems:
            reason = f"that of {daemon.name} was not read"
            yield NotExamined(area=Area.LOGS, reason=reason, commands=AS_ROOT, reported=reported)
    unread = "; ".join(directory.problem for directory in facts.directories.values() if directory.problem)
    if unread:
        yield _needs_root(Area.DIRECTORIES, unread)
    for name, area in ((CollectorName.DISCOVERY, Area.DAEMONS), ("units", Area.UNITS)):
        source = node.sources.get(name)
        if source is not None and source.last.problem is not None:
            yield _needs_root(area, source_text(name, source))
    if facts.exporter.unanswering is not None:
        reason = f"{facts.config.runtime_directory} cannot be opened ({facts.exporter.unanswering})"
        yield _needs_root(Area.RIGHTS, f"{reason}, so the report has the rights of this command")
    if probes is not None and not probes.tried:
        yield NotExamined(area=Area.LAUNCHES, reason="only root can test the kernel", commands=ATTRIBUTION_AS_ROOT)
    of_daemons = [each.process for each in facts.daemons]
    for area, processes in ((Area.DAEMONS, of_daemons), (Area.PROCESSES, facts.processes.values())):
        unreadable = [str(process.pid) for process in processes if process.variables is None]
        if unreadable:
            more = f" and {len(unreadable) - 5} more" if len(unreadable) > 5 else ""
            yield _needs_root(area, f"the environment of PID {', '.join(unreadable[:5])}{more} cannot be read")
    if any(
        not gpu.bypassing_known and not gpu.reading.mig_mode and serving_daemon(node, gpu.reading) is not None
        for gpu in node.gpus.values()
    ):
        reason = "bypassing processes are unknown while a daemon does not list its servers"
        yield NotExamined(area=Area.PROCESSES, reason=reason, reported=True)
    if sum(1 for _ in cuda_processes(node)) > MAX_PROCESSES:
        reason = f"there are more than {MAX_PROCESSES} CUDA processes"
        yield NotExamined(
            area=Area.PROCESSES, reason=reason, fix="The findings are valid for those that were examined."
        )


def _needs_root(area: Area, reason: str) -> NotExamined:
    return NotExamined(area=area, reason=reason, commands=AS_ROOT)
