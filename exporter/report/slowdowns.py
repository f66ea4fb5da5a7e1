"""Which clients are slowed down by their neighbours: a part of the document, sentences, and problems."""

from collections import Counter
from collections.abc import Iterable

from exporter.model.contention import Resource, Slowdown
from exporter.model.node import Node
from exporter.model.settings import ACTIVE_THREAD_PERCENTAGE
from exporter.parse.printable import printable
from exporter.report.document import ManualStep, NeighbourStatus, Sentence, SlowdownStatus
from exporter.report.document_parts import Severity
from exporter.report.finding import Finding
from exporter.report.problems import NodeProblem
from exporter.report.process_status import described, filled
from exporter.report.remedy import HOW_TO_END, command_to_end, command_to_set, known
from exporter.report.sharing_text import factor, process_name
from exporter.report.text import counted, listed, percent, with_error
from exporter.usage.capacity import LEAST_SHOWN, ClientUsage, GpuSharing
from exporter.usage.contention import starved
from exporter.view import View, gpu_name

MOST_NEIGHBOURS, MOST_USERS = 4, 2
"""At most so many others use the resource for which a client waits, and so many are named as users of bandwidth."""

_CAUSES = {
    Resource.MEMORY: "it waits for memory bandwidth",
    Resource.SMS: "it waits for SMs",
    Resource.OTHER: "others use up neither the SMs nor the memory bandwidth",
}

MOST_SLOWED = 5  # At most so many slowed clients have a line.
LEAST_APPARENT = 1.5  # A client that may have changed its own work has a line from this factor.


def slowdown_status(usage: ClientUsage) -> SlowdownStatus | None:
    """Return by how much a client is slowed down, if known. A lower bound has a text only if it is clearly above 1."""
    if (slowdown := usage.slowdown) is None:
        return None
    neighbours = tuple(NeighbourStatus(pid=pid, used_ratio=part) for pid, part in slowdown.neighbours[:MOST_NEIGHBOURS])
    factor_text = f"{'≥ ' if slowdown.at_least else ''}{factor(slowdown.ratio)}x"
    text = factor_text if usage.is_slowed or not slowdown.at_least else ""
    return filled(SlowdownStatus, slowdown, neighbours=neighbours, text=text)


def slowdown_sentences(node: Node, found: GpuSharing) -> Iterable[Sentence]:
    """Yield which clients of a GPU are slowed down, the most first, and whether its bandwidth is used up."""
    return (Sentence(text=text, severity=Severity.WARNING) for text in _sentences(node, found))


def _sentences(node: Node, found: GpuSharing) -> Iterable[str]:
    """Yield which clients are slowed down, the most first, by what and by whom, and that bandwidth is used up."""
    clients = {each.client.pid: each for each in found.clients}
    by_pid = {pid: each.slowdown for pid, each in clients.items() if each.slowdown}
    perhaps = {pid for pid, each in by_pid.items() if each.apparent > max(LEAST_APPARENT, each.ratio)}
    slowed = {pid: each for pid, each in by_pid.items() if clients[pid].is_slowed or pid in perhaps}
    order = sorted(slowed, key=lambda pid: (-slowed[pid].ratio, -slowed[pid].apparent))
    kinds = {pid: "slowed down" if clients[pid].is_slowed else "perhaps slowed down" for pid in order}
    for pid in order[:MOST_SLOWED]:
        yield f"{kinds[pid]}: {process_name(node, pid)} {_text(node, found, slowed[pid])}"
    for kind, count in Counter(kinds[pid] for pid in order[MOST_SLOWED:]).items():
        yield f"{kind}: {counted(count, 'more client')}"
    if found.bandwidth_is_full:
        uses_of = {pid: use for pid, each in clients.items() if (use := each.bandwidth)}
        parts = {pid: use for pid, use in uses_of.items() if use.part >= max(LEAST_SHOWN, 2 * use.error)}
        largest = sorted(parts, key=lambda pid: -parts[pid].part)[:MOST_USERS]
        uses = [f"{process_name(node, pid)} uses {with_error(*parts[pid])}" for pid in largest]
        who = listed(uses) if uses else "it is unknown which client uses most of it"
        used = percent(found.dram_bandwidth_ratio or 0.0)
        yield f"memory bandwidth: {used} is used, so clients may slow each other down; {who}"


def _text(node: Node, sharing: GpuSharing, slowdown: Slowdown) -> str:
    """Return how much longer a client's work takes, for which resource it waits, and which other uses most of that.

    Without GPM the use of memory bandwidth is unknown, and so is the resource unless it is the SMs. Another client is
    not named if it may have used nothing of it.
    """
    is_other = slowdown.resource is Resource.OTHER
    ratio = slowdown.apparent if is_other else slowdown.ratio
    least = "at least " if slowdown.at_least and ratio == slowdown.ratio else ""
    slower = f"takes {least}{factor(ratio)} times as long as on a quiet GPU"
    if slowdown.resource is None:
        return slower
    is_unknown = is_other and sharing.dram_bandwidth_ratio is None
    why = "it is unknown for which resource it waits" if is_unknown else _CAUSES[slowdown.resource]
    if neighbour := sharing.main_neighbour(slowdown):
        pid, part, error = neighbour
        why += f", of which {process_name(node, pid)} uses {percent(part, error)}"
    if is_other:
        why += ", so this can also be a change of its own work"
    return f"{slower}; {why}"


def starved_clients(view: View, at: float) -> Iterable[Finding]:
    """Yield one problem for all starved clients of a GPU, with the one that is slowed down most."""
    node = view.node
    by_gpu = {uuid: found for uuid, state in node.contention.items() if (found := starved(state, at))}
    sharing = view.sharing if by_gpu else {}
    for uuid in filter(by_gpu.__contains__, sharing):
        slowed = {each.client.pid: each.slowdown for each in sharing[uuid].clients if each.slowdown is not None}
        pids = sorted(by_gpu[uuid].keys() & slowed.keys(), key=lambda pid: -slowed[pid].ratio)
        if pids:
            others = counted(len(pids) - 1, "more client is starved", "more clients are starved")
            yield Finding(
                NodeProblem.CLIENT_STARVED,
                since=by_gpu[uuid][pids[0]],
                gpu=uuid,
                client=pids[0],
                values={
                    "client": process_name(node, pids[0]),
                    "gpu": printable(gpu_name(node, uuid)),
                    **({} if slowed[pids[0]].resource is Resource.OTHER else {"neighbours": "neighbours"}),
                    "slowdown": f"its work {_text(node, sharing[uuid], slowed[pids[0]])}",
                },
                notes=(others,) if len(pids) > 1 else (),
                affected=counted(len(pids), "client"),
                affected_names=tuple(described(node, pid) for pid in pids),
                steps=tuple(_steps(node, sharing[uuid], slowed[pids[0]])),
            )


def _steps(node: Node, sharing: GpuSharing, slowdown: Slowdown) -> Iterable[ManualStep]:
    """Yield what helps against a lack of the resource for which a client waits, the least harmful first.

    The owners decide. Beside a client that streams memory, a decoder needed 10.4 times as long as alone, and 2.0 times
    if that one was limited to half the threads (H200, R580).
    """
    text, neighbour = NodeProblem.CLIENT_STARVED.definition.remedy, sharing.main_neighbour(slowdown)
    if neighbour is None:
        yield ManualStep(text=f"{text} No neighbour is known to be the cause: do not limit or move one.")
        return
    name, kill = described(node, neighbour[0]), known(command_to_end(node, neighbour[0]))
    text = f"{text} Ask its owner to start {name} again with fewer threads, such as half."
    yield ManualStep(text=text, commands=known(command_to_set(ACTIVE_THREAD_PERCENTAGE, "50")))
    if slowdown.resource is Resource.MEMORY:
        text = f"If that does not help, start {name} on another GPU. {HOW_TO_END}"
        yield ManualStep(text=text, commands=kill, ends=len(kill) or None)
