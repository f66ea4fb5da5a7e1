"""All checks, one examination by them, and what could not be examined."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain

from exporter.config.settings import Config
from exporter.doctor.checks import clients as checks_clients
from exporter.doctor.checks import daemons as checks_daemons
from exporter.doctor.checks import directories, exporter, gpus, limits
from exporter.doctor.facts import Area, DaemonFacts, DoorsFacts, Facts, ProcessFacts, Programs, Unseen
from exporter.doctor.finding import Check, Finding, Found, Report
from exporter.doctor.words import AS_ROOT, ATTRIBUTION_AS_ROOT
from exporter.model.node import Node
from exporter.report.problem_text import source_text
from exporter.state.gpus import NVML, serving_daemon

MOST_PROCESSES = 512
"""How many CUDA processes are looked into."""

_WHO_HANGS = ("ps -eo pid,stat,wchan:32,comm | awk '$2 ~ /D/'",)
_HUNG = "it did not answer in time: a process is stuck in the driver, or a file server is gone"


def cuda_processes(node: Node) -> Iterator[int]:
    """Who uses a GPU, or MPS, but for MPS' own processes."""
    readings = [gpu.reading for gpu in node.gpus.values()]
    beside = chain(*(gpu.bypassing_processes for gpu in node.gpus.values()))
    clients = chain(*((*daemon.connections.queued, *daemon.clients) for daemon in node.daemons.values()))
    listed = (each.pid for reading in readings for each in (reading.compute_processes or ()))
    servers = set(chain(*(daemon.servers for daemon in node.daemons.values())))
    return (pid for pid in dict.fromkeys((*beside, *clients, *listed)) if pid > 0 and pid not in servers)


def unseen_of_node(config: Config, node: Node, programs: Programs) -> Iterator[Unseen]:
    """What one look at the node could not see."""
    if programs.control is None or programs.problem is not None:
        yield Unseen(
            area=Area.PROGRAMS,
            why="daemons cannot be asked without nvidia-cuda-mps-control",
            told=True,
        )
    if not node.gpus and (NVML not in node.sources or node.sources[NVML].last.problem is not None):
        yield Unseen(area=Area.GPUS, why="NVML cannot be used", told=True)
    for name, area in (("finder", Area.DAEMONS), ("units", Area.UNITS)):
        source = node.sources.get(name)
        if source is not None and source.last.problem is not None:
            yield Unseen(area=area, why=source_text(name, source), mend="Look as root", commands=AS_ROOT)


def unseen_of_doors(doors: DoorsFacts | None) -> Iterator[Unseen]:
    """Whether launches could be counted, where that is wanted: the kernel lets nobody but root try."""
    if doors is not None and not doors.tried:
        why = "only root can try the kernel"
        yield Unseen(area=Area.DOORS, why=why, mend="Look as root", commands=ATTRIBUTION_AS_ROOT)


def unseen_of_processes(
    node: Node, daemons: tuple[DaemonFacts, ...], processes: Mapping[int, ProcessFacts]
) -> Iterator[Unseen]:
    """Whoever may not be looked into: what they look for, and which GPUs they may see, is in their environment."""
    looked_into = ((Area.DAEMONS, [each.process for each in daemons]), (Area.PROCESSES, processes.values()))
    for area, those in looked_into:
        closed = [each.pid for each in those if each.variables is None]
        if closed:
            why = f"the environment of {_some(closed)} may not be read"
            yield Unseen(area=area, why=why, mend="Look as root", commands=AS_ROOT)
    unjudged = [
        gpu
        for gpu in node.gpus.values()
        if not gpu.bypassing_known and not gpu.reading.mig_mode and serving_daemon(node, gpu.reading) is not None
    ]
    if unjudged:
        why = "who bypasses MPS cannot be told while a daemon does not say which servers it has"
        yield Unseen(area=Area.PROCESSES, why=why, told=True)
    if sum(1 for _ in cuda_processes(node)) > MOST_PROCESSES:
        why = f"there are more CUDA processes than the {MOST_PROCESSES} that are looked into"
        yield Unseen(
            area=Area.PROCESSES, why=why, mend="What is told of those that were looked into holds all the same"
        )


def unseen_where_reading_hangs(areas: Iterable[Area]) -> Iterator[Unseen]:
    """What was not told in time."""
    return (Unseen(area=area, why=_HUNG, mend="See who hangs", commands=_WHO_HANGS) for area in areas)


def unseen_for_problems(problems: Mapping[Area, str | None]) -> Iterator[Unseen]:
    """What a reader had a problem with."""
    return (
        Unseen(area=area, why=why, mend="Look as root", commands=AS_ROOT)
        for area, why in problems.items()
        if why is not None
    )


def _some(pids: list[int]) -> str:
    shown = ", ".join(map(str, pids[:5]))
    more = len(pids) - 5
    return f"PID {shown}" + (f" and {more} more" if more > 0 else "")


CHECKS: tuple[Check, ...] = (
    *exporter.CONFIGURATION_CHECKS,
    *checks_daemons.PROGRAMS_CHECKS,
    *gpus.CHECKS,
    *checks_daemons.CHECKS,
    *directories.CHECKS,
    *checks_daemons.UNITS_CHECKS,
    *checks_clients.CHECKS,
    *checks_clients.CONTAINERS_CHECKS,
    *limits.CHECKS,
    *exporter.WATCHDOG_CHECKS,
    *directories.LOGS_CHECKS,
    *exporter.RIGHTS_CHECKS,
    *exporter.ATTRIBUTION_CHECKS,
    *exporter.WEB_CHECKS,
)
"""In the order in which they are told, where they are as grave."""


def examine(facts: Facts) -> Report:
    """Everything that is wrong, worst first; what is well; and what could not be told."""
    findings = [finding for check in CHECKS for finding in _findings(check, facts)]
    found = {finding.check for finding in findings}
    unseen = {each.area for each in facts.unseen}
    others = [check for check in CHECKS if check not in found]
    return Report(
        findings=tuple(sorted(findings, key=lambda finding: -finding.found.severity)),
        ok=tuple(check for check in others if not unseen & set(check.needs)),
        unknown=tuple(check for check in others if unseen & set(check.needs)),
    )


def _findings(check: Check, facts: Facts) -> Iterator[Finding]:
    """Those of one check; the same of several processes or GPUs is one, with all of them in it."""
    where: dict[Found, dict[str, None]] = {}
    for found in check.find(facts):
        where.setdefault(replace(found, where=()), {}).update(dict.fromkeys(found.where))
    for found, places in where.items():
        yield Finding(check, replace(found, where=tuple(places)))
