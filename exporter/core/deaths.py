"""Who has died lately, and how: by the exits of those who were watched, and by whom the kernel says it has killed."""

from exporter.core.step import latest
from exporter.model.death import Death
from exporter.model.node import Node
from exporter.model.observation import KernelRecord, ProcessExit
from exporter.model.replace import replace
from exporter.parse.kernel_log import parse_kernel_record, parse_oom_kill

REMEMBERED_SECONDS = 60.0
MOST_DEATHS = 4096

DYING_SECONDS = 10.0
"""How long a process that the kernel has killed may take to go: all of its memory is given back first."""


def exited(node: Node, seen: ProcessExit) -> Node:
    """A process that was watched has gone."""
    return _dead(
        node,
        Death(
            at=seen.at,
            pid=seen.pid,
            start_ticks=seen.start_ticks,
            process=node.processes.get(seen.pid),
            wait_status=seen.wait_status,
        ),
    )


def record_read(node: Node, seen: KernelRecord) -> Node:
    """The kernel tells whom it killed for want of memory; what others wrote into its log is not heard."""
    read = parse_kernel_record(seen.record)
    pid = parse_oom_kill(read.message) if read is not None and read.by_kernel else None
    if pid is None:
        return node
    process = node.processes.get(pid)
    start_ticks = None if process is None else process.start_ticks
    return _dead(node, Death(at=seen.at, pid=pid, start_ticks=start_ticks, process=process, out_of_memory=True))


def forget(node: Node) -> Node:
    """Let go of those who died long ago."""
    kept = {pid: death for pid, death in node.deaths.items() if node.at - death.at <= REMEMBERED_SECONDS}
    return node if len(kept) == len(node.deaths) else replace(node, deaths=kept)


def _dead(node: Node, death: Death) -> Node:
    earlier = node.deaths.get(death.pid)
    known = death if earlier is None or not _same(earlier, death) else _joined(earlier, death)
    return replace(node, deaths=latest(node.deaths, death.pid, known, MOST_DEATHS))


def _same(one: Death, other: Death) -> bool:
    """Whether two tell of one process: another may have had its PID before."""
    if one.start_ticks is not None and other.start_ticks is not None:
        return one.start_ticks == other.start_ticks
    return abs(one.at - other.at) <= DYING_SECONDS


def _joined(earlier: Death, death: Death) -> Death:
    """Each may know what the other does not."""
    return replace(
        earlier,
        at=min(earlier.at, death.at),
        start_ticks=death.start_ticks if earlier.start_ticks is None else earlier.start_ticks,
        process=earlier.process or death.process,
        wait_status=death.wait_status if earlier.wait_status is None else earlier.wait_status,
        out_of_memory=earlier.out_of_memory or death.out_of_memory,
    )
