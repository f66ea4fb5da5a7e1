"""Clients that their neighbours slow down: as text, and as a problem of the node."""

from collections.abc import Iterable

from exporter.model.contention import Resource, Slowdown
from exporter.model.node import Node
from exporter.parse.printable import printable
from exporter.report.finding import Finding
from exporter.report.problem import NodeProblem
from exporter.report.text import counted, display_name, percent, pid_text
from exporter.usage.capacity import GpuSharing, gpu_sharing
from exporter.usage.contention import starved
from exporter.view import gpu_name

LEAST_SHOWN = 0.01
"""A smaller part of a resource is not mentioned."""

_WAITS = {
    Resource.MEMORY: "it waits for memory bandwidth",
    Resource.SMS: "it waits for SMs",
    Resource.OTHER: "neither the SMs nor the memory bandwidth is used up",
}


def starved_clients(node: Node, at: float) -> Iterable[Finding]:
    """Yield one problem for all starved clients of a GPU, with the one that is slowed down most."""
    by_gpu = {uuid: found for uuid, state in node.contention.items() if (found := starved(state, at))}
    sharing = gpu_sharing(node) if by_gpu else {}
    for uuid in filter(by_gpu.__contains__, sharing):
        slowed = {each.client.pid: each.slowdown for each in sharing[uuid].clients if each.slowdown is not None}
        pids = sorted(by_gpu[uuid].keys() & slowed.keys(), key=lambda pid: -slowed[pid].ratio)
        if pids:
            others = counted(len(pids) - 1, "more client is starved", "more clients are starved")
            yield Finding(
                NodeProblem.CLIENT_STARVED,
                at=at,
                since=by_gpu[uuid][pids[0]],
                gpu=uuid,
                client=pids[0],
                values={
                    "client": process_name(node, pids[0]),
                    "gpu": printable(gpu_name(node, uuid)),
                    "slowdown": f"its work {slowdown_text(node, sharing[uuid], slowed[pids[0]])}",
                },
                notes=(others,) if len(pids) > 1 else (),
            )


def factor(ratio: float) -> str:
    """Return a factor with two digits."""
    return f"{ratio:.1f}" if ratio < 10 else f"{ratio:.0f}"


def slowdown_text(node: Node, sharing: GpuSharing, found: Slowdown) -> str:
    """Return how much longer a client's work takes, for which resource it waits, and which other uses most of that.

    Without GPM the use of memory bandwidth is unknown, and so is the resource unless it is the SMs.
    """
    slower = f"takes {'at least ' if found.is_bound else ''}{factor(found.ratio)} times as long as on a quiet GPU"
    if found.resource is None:
        return slower
    is_other = found.resource is Resource.OTHER
    is_unknown = is_other and sharing.recent.dram is None
    why = "it is unknown for which resource it waits" if is_unknown else _WAITS[found.resource]
    largest = [(process_name(node, pid), percent(part)) for pid, part in found.neighbours[:1] if part >= LEAST_SHOWN]
    used = [
        f", while {who} uses {part} of the SMs" if is_other else f", of which {who} uses {part}"
        for who, part in largest
    ]
    return "".join((slower, "; ", why, *used))


def process_name(node: Node, pid: int) -> str:
    """Return a PID with the command of its process."""
    process = node.processes.get(pid)
    command = "" if process is None else display_name(process.command)
    return f"{pid_text(pid)} ({command})" if command else pid_text(pid)
