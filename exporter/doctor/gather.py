"""Gather the facts once, record what could not be examined, and run the checks on them."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import TypeVar

from exporter.clock import Clock
from exporter.collectors.pipe_dir import Directory
from exporter.collectors.proc import INITIAL_PID_NAMESPACE, Proc
from exporter.collectors.units import Systemctl
from exporter.config.settings import Attribution, Config
from exporter.doctor.checks import clients, daemons, directories, exporter, gpus, limits
from exporter.doctor.checks.daemons import EXPORTER
from exporter.doctor.directory_readers import read_directory, read_logs, read_rotations
from exporter.doctor.facts import Area, DaemonFacts, Facts, Identity, NotExamined
from exporter.doctor.finding import Check, Finding, Occurrence, Report
from exporter.doctor.formatting import AS_ROOT, ATTRIBUTION_AS_ROOT
from exporter.doctor.readers import (
    TimeLimit,
    pid_namespaces,
    read_daemons,
    read_exporter,
    read_libcuda_probes,
    read_listeners,
    read_processes,
    read_programs,
    read_units,
    read_xids,
)
from exporter.errors import ConfigError
from exporter.model.daemon import Daemon
from exporter.model.node import Node
from exporter.report.findings import lost_gpus
from exporter.report.problem_text import problem_text, source_text
from exporter.state.gpus import NVML, serving_daemon
from exporter.web.web_config import WebSecurity

Value = TypeVar("Value")

LOGROTATE = Path("/etc/logrotate.d")

MAX_PROCESSES = 512
"""How many CUDA processes are examined."""

_HUNG = "it did not answer in time: a process is stuck in the driver, or a file server does not respond"
_NOT_TRIED = "other readings took too long"
_LIST_HUNG = ("ps -eo pid,stat,wchan:32,comm | awk '$2 ~ /D/'",)


def gather(
    config: Config, path: str, clock: Clock, *, collect: Callable[[Config], Node], config_problem: str | None
) -> Facts:
    """Return all facts.

    `path` is the PATH of programs. `collect` collects from the node once. `config_problem` is why the configuration is
    unusable.
    """
    proc = Proc(config.constants.procfs, clock)
    limit = TimeLimit(clock)
    programs = read_programs(config, path, clock)
    node = collect(config)
    read = limit.read
    found = read(Area.DIRECTORIES, lambda: _identities((d.name, d.pipe_directory) for d in node.daemons.values()))
    names = {identity: name for name, identity in (found or {}).items()}
    daemons = read(Area.DAEMONS, lambda: read_daemons(names, _daemon_pids(node), proc)) or ()
    first = {each.name: each for each in reversed(daemons)}

    def of_running(reader: Callable[[Daemon, DaemonFacts, Proc], Value]) -> Mapping[str, Value]:
        return {name: reader(daemon, first[name], proc) for name, daemon in node.daemons.items() if name in first}

    pids = tuple(islice(cuda_processes(node), MAX_PROCESSES))
    processes = read(Area.PROCESSES, lambda: read_processes(pids, proc)) or {}
    every = ((daemon, first.get(name)) for name, daemon in node.daemons.items())
    directories = read(Area.DIRECTORIES, lambda: {d.name: read_directory(d, each, proc) for d, each in every}) or {}
    logs = read(Area.LOGS, lambda: of_running(read_logs)) or {}
    configured_logs = read(Area.LOGS, lambda: _identities((d.name, d.log_directory) for d in config.daemons)) or {}
    rotations, rotation_problem = read_rotations(tuple(chain(*logs.values())), LOGROTATE)
    of_daemons = chain.from_iterable((d.declared.unit, d.runtime.unit) for d in node.daemons.values())
    unit_names = filter(None, (EXPORTER, *of_daemons, *(each.unit for each in processes.values())))
    private_tmp, unit_problem = read_units(unit_names, Systemctl(clock, path=path))
    exporter = read_exporter(config, proc, clock)
    listeners, port_problem = read_listeners(config, exporter, proc)
    probes = None
    if config.attribution is Attribution.BPF:
        servers = chain(*(daemon.servers for daemon in node.daemons.values()))
        probes = read(Area.LAUNCHES, lambda: read_libcuda_probes((*pids, *servers), proc, clock))
    facts = Facts(
        config=config,
        node=node,
        config_problem=config_problem,
        web_problem=_web_problem(config),
        programs=programs,
        kernel_module=_module_version(proc),
        daemons=daemons,
        processes=processes,
        directories=directories,
        logs=logs,
        configured_logs=configured_logs,
        rotations=rotations,
        private_tmp=private_tmp,
        xids=read_xids(node, config.constants.kmsg),
        exporter=exporter,
        listeners=listeners,
        libcuda_probes=probes,
        apart=pid_namespaces(os.getpid(), proc)[:1] not in ((), (INITIAL_PID_NAMESPACE,)),
    )
    problems = {
        Area.ROTATION: rotation_problem,
        Area.UNITS: None if unit_problem is None else problem_text(unit_problem, "units"),
        Area.PORTS: port_problem,
        Area.DIRECTORIES: "; ".join(each.problem for each in directories.values() if each.problem) or None,
    }
    hung = (
        NotExamined(area=each, reason=_HUNG, fix="Find the process that hangs.", commands=_LIST_HUNG)
        for each in limit.hung
    )
    late = (NotExamined(area=each, reason=_NOT_TRIED) for each in limit.not_tried)
    failed = (_needs_root(area, problem) for area, problem in problems.items() if problem is not None)
    return replace(facts, not_examined=(*not_examined(facts), *hung, *late, *failed))


def cuda_processes(node: Node) -> Iterator[int]:
    """Yield the PIDs that use a GPU or MPS, except those of MPS itself."""
    listed = (each.pid for gpu in node.gpus.values() for each in gpu.reading.compute_processes or ())
    bypassing = chain(*(gpu.bypassing_processes for gpu in node.gpus.values()))
    clients = chain(*((*daemon.connections.queued, *daemon.clients) for daemon in node.daemons.values()))
    servers = set(chain(*(daemon.servers for daemon in node.daemons.values())))
    return (pid for pid in dict.fromkeys((*bypassing, *clients, *listed)) if pid > 0 and pid not in servers)


def not_examined(facts: Facts) -> Iterator[NotExamined]:
    """Yield what these facts lack."""
    node, programs, probes = facts.node, facts.programs, facts.libcuda_probes
    if programs.control is None or programs.problem is not None:
        reason = "daemons cannot be queried without nvidia-cuda-mps-control"
        yield NotExamined(area=Area.PROGRAMS, reason=reason, reported=True)
    if any(lost_gpus(node)) or any(gpu.reading.problem is not None for gpu in node.gpus.values()):
        yield NotExamined(area=Area.GPUS, reason="NVML returns an error for a GPU", reported=True)
    elif not node.gpus and (NVML not in node.sources or node.sources[NVML].last.problem is not None):
        yield NotExamined(area=Area.GPUS, reason="NVML does not work", reported=True)
    for daemon, _ in facts.running():
        problems = [log.problem for log in facts.logs.get(daemon.name, ())]
        reported = daemon.runtime.log_is_lost or any(problems)
        if reported or not (problems or daemon.in_journal):
            reason = f"that of {daemon.name} was not read"
            yield NotExamined(area=Area.LOGS, reason=reason, commands=AS_ROOT, reported=reported)
    for name, area in (("finder", Area.DAEMONS), ("units", Area.UNITS)):
        source = node.sources.get(name)
        if source is not None and source.last.problem is not None:
            yield _needs_root(area, source_text(name, source))
    if probes is not None and not probes.tried:
        yield NotExamined(area=Area.LAUNCHES, reason="only root can test the kernel", commands=ATTRIBUTION_AS_ROOT)
    yield from _not_examined_processes(facts)


def _not_examined_processes(facts: Facts) -> Iterator[NotExamined]:
    of_daemons = [each.process for each in facts.daemons]
    for area, processes in ((Area.DAEMONS, of_daemons), (Area.PROCESSES, facts.processes.values())):
        unreadable = [str(each.pid) for each in processes if each.variables is None]
        if unreadable:
            more = f" and {len(unreadable) - 5} more" if len(unreadable) > 5 else ""
            yield _needs_root(area, f"the environment of PID {', '.join(unreadable[:5])}{more} cannot be read")
    if any(
        not gpu.bypassing_known and not gpu.reading.mig_mode and serving_daemon(facts.node, gpu.reading) is not None
        for gpu in facts.node.gpus.values()
    ):
        reason = "bypassing processes are unknown while a daemon does not list its servers"
        yield NotExamined(area=Area.PROCESSES, reason=reason, reported=True)
    if sum(1 for _ in cuda_processes(facts.node)) > MAX_PROCESSES:
        reason = f"there are more than {MAX_PROCESSES} CUDA processes"
        yield NotExamined(
            area=Area.PROCESSES, reason=reason, fix="The findings are valid for those that were examined."
        )


def _needs_root(area: Area, reason: str) -> NotExamined:
    return NotExamined(area=area, reason=reason, commands=AS_ROOT)


def _identities(paths: Iterable[tuple[str, str | Path]]) -> Mapping[str, Identity]:
    """Return the identities of those of these directories that exist, by name."""
    found = ((name, Directory(Path(path)).identity()) for name, path in paths)
    return {name: identity for name, identity in found if identity is not None}


def _daemon_pids(node: Node) -> Mapping[int, str]:
    processes = ((daemon.runtime.process, name) for name, daemon in node.daemons.items())
    return {each.pid: name for each, name in processes if each is not None and each.pid is not None}


def _web_problem(config: Config) -> str | None:
    try:
        if config.web_config_file is not None:
            WebSecurity(config.web_config_file)
    except ConfigError as error:
        return str(error)
    return None


def _module_version(proc: Proc) -> str | None:
    """Return the version in the first line: `NVRM version: … Kernel Module  580.159.04  …`."""
    words = (proc.driver() or "").partition("\n")[0].split()
    return next((word for word in words if word.replace(".", "").isdecimal() and "." in word), None)


CHECKS: tuple[Check, ...] = tuple(
    value
    for module in (daemons, gpus, directories, clients, limits, exporter)
    for value in vars(module).values()
    if isinstance(value, Check)
)
"""In the order of their definitions. Findings of one severity are reported in this order."""


def examine(facts: Facts) -> Report:
    """Return the findings, worst first, the checks that found nothing, and those that lack facts."""
    findings = [finding for check in CHECKS for finding in _findings(check, facts)]
    found = {finding.check.id for finding in findings}
    not_examined = {each.area for each in facts.not_examined}
    others = [check for check in CHECKS if check.id not in found]
    return Report(
        findings=tuple(sorted(findings, key=lambda finding: -finding.severity)),
        ok=tuple(check for check in others if not not_examined & set(check.needs)),
        unknown=tuple(check for check in others if not_examined & set(check.needs)),
    )


def _findings(check: Check, facts: Facts) -> Iterator[Finding]:
    """Yield a finding for all occurrences that differ only in their places."""
    where: dict[Occurrence, dict[str, None]] = {}
    for each in check.find(facts):
        where.setdefault(replace(each, where=()), {}).update(dict.fromkeys(each.where))
    for each, places in where.items():
        yield Finding(
            check=check,
            severity=each.severity or check.severity,
            what=" ".join(filter(None, (check.meaning, each.detail))),
            where=tuple(places),
            fix=" ".join(filter(None, (check.fix, each.fix))),
            commands=each.commands,
        )
