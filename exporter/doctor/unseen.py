"""What the preflight could not look at, and what would show it."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from exporter.config import Config
from exporter.core.gpus import NVML, serving_daemon
from exporter.doctor.facts import Area, DaemonFacts, DoorsFacts, ProcessFacts, Programs, Unseen
from exporter.doctor.words import AS_ROOT, ATTRIBUTION_AS_ROOT
from exporter.model.node import Node
from exporter.telling.problem_text import source_text

MOST_PROCESSES = 512
"""How many CUDA processes are looked into."""

_WHO_HANGS = ("ps -eo pid,stat,wchan:32,comm | awk '$2 ~ /D/'",)
_HUNG = "it did not answer in time: a process is stuck in the driver, or a file server is gone"


def cuda_processes(node: Node) -> Iterator[int]:
    """Who uses a GPU, or MPS, but for MPS' own processes."""
    readings = [gpu.reading for gpu in node.gpus.values()]
    beside = chain(*(gpu.strangers for gpu in node.gpus.values()))
    clients = chain(*((*daemon.connections.pending, *daemon.clients) for daemon in node.daemons.values()))
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
        if not gpu.judged and not gpu.reading.mig_mode and serving_daemon(node, gpu.reading) is not None
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
