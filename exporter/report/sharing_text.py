"""How the clients of a GPU share it, as sentences."""

from collections.abc import Collection, Iterable, Mapping

from exporter.model.node import CollectorName, Node
from exporter.model.usage import Method
from exporter.report.document import Sentence
from exporter.report.document_parts import Severity
from exporter.report.reasons import source_text
from exporter.report.text import counted, listed, mebibytes, percent, process_text, with_error
from exporter.usage.capacity import COUNTED, LEAST_SHOWN, Bound, GpuSharing
from exporter.usage.last_minute import fresh_splits

MOST_NAMED = 4
"""At most so many processes are named in one sentence."""

BOUNDS = {"memory": "memory", "sm": "SM time", "slots": "client slots", "contention": "contention"}
METHODS: Mapping[str, str] = {
    Method.MEASURED: "measured",
    Method.FLIGHT: "estimated by time in flight",
    Method.LAUNCHES: "estimated by launches",
}


def attribution_problem(node: Node, sharing: Collection[GpuSharing]) -> str | None:
    """Return why no client's SM time is known; None if that of any client is, or if there are no clients."""
    if not sharing or any(each.methods for each in sharing):
        return None
    probes = node.sources.get(CollectorName.LIBCUDA_PROBES)
    if probes is not None and probes.last.problem is not None:
        return f"SM time by client is not known: {source_text(CollectorName.LIBCUDA_PROBES, probes)}"
    if probes is not None or node.work is not None:
        why = ": each client may have used nothing, or all of it" if fresh_splits(node) else " yet"
        return f"SM time by client is not known{why}"
    return "SM time by client is not known: start the exporter with --attribution=bpf"


def sentences(node: Node, found: GpuSharing) -> Iterable[Sentence]:
    """Yield how the MPS clients of a GPU share it.

    First are the clients with their use and the headroom, then limits and unusual processes.
    """
    for text in (*_use(found), *_processes(node, found)):
        yield Sentence(text=text, severity=Severity.WELL)


def _use(found: GpuSharing) -> Iterable[str]:
    yield _clients(found)
    if (gain := found.sharing_gain_ratio) is not None and len(found.clients) > 1:
        yield f"sharing gain: its clients together did as much as {factor(gain)} clients, each alone on the GPU"
    yield _headroom(found)
    if limits := reserved(found):
        yield f"limits: its clients together may use {listed(limits)}"


def _clients(found: GpuSharing) -> str:
    held, total = found.clients_memory_bytes, found.memory_total_bytes
    verb = "holds" if len(found.clients) == 1 else "hold"
    memory = f" {verb} {percent(held / total)} of its memory" if held and total else ""
    if found.clients_sm_ratio is not None:
        methods, unattributed = listed([METHODS[method] for method in found.methods]), found.unattributed_ratio or 0.0
        unknown = f"; another {percent(unattributed)} is unattributed" if unattributed >= LEAST_SHOWN else ""
        part = percent(found.clients_sm_ratio, found.clients_sm_error_ratio or 0.0)
        use = f"{' and' if memory else ''} used {part} of its SMs {_recently(found)} ({methods}{unknown})"
    elif found.sm_utilization_ratio is not None:
        use = f"; its SMs were {percent(found.sm_utilization_ratio)} busy {_recently(found)}"
    else:
        use = "; its SM time is unknown"
    return f"{counted(len(found.clients), 'client')}{memory}{use}"


def _recently(found: GpuSharing) -> str:
    return "recently" if found.seconds is None else f"in the last {found.seconds:.0f} s"


def _headroom(found: GpuSharing) -> str:
    by, fits = found.headroom.by_resource, found.headroom.clients
    if not by:
        return "it is unknown how many more clients fit"
    known = [f"{by[bound]} by {BOUNDS[bound]}" for bound in sorted(by, key=lambda bound: by[bound])]
    names = {**BOUNDS, Bound.MEMORY: "memory, which the GPU and the system share"} if found.unified_memory else BOUNDS
    unknown = [f"unknown by {names[bound]}" for bound in Bound if bound not in by and bound in COUNTED]
    bounds = ", ".join((*known, *unknown))
    if fits is None:
        return f"room for an unknown number of clients like these: {bounds}"
    return f"room for {counted(fits, 'more client')} like these, the smallest of: {bounds}"


def reserved(found: GpuSharing) -> tuple[str, ...]:
    """Return what the limits reserve; nothing if every client may use all threads, and none has a memory limit."""
    threads, memory, sms, limits = found.threads_at_most, found.memory_at_most, found.sms, list[str]()
    if threads is not None and threads < len(found.clients):
        text = f"{percent(threads)} of its threads" if sms is None else f"{round(threads * sms)} of its {sms} SMs"
        limits.append(f"at most {text}" if found.threads_committed_ratio is None else text)
    if memory is not None:
        text = f"{percent(memory)} of its memory"
        limits.append(f"at most {text}" if found.memory_committed_ratio is None else text)
    return tuple(limits)


def _processes(node: Node, found: GpuSharing) -> Iterable[str]:
    if found.bypassing:
        uses = [
            f"{process_name(node, pid)} used {with_error(use.sm, use.error)}" for pid, use in found.bypassing.items()
        ]
        yield f"without MPS: {listed(uses, MOST_NAMED)} of its SMs"
    if (departed := found.departed_sm_ratio or 0.0) >= LEAST_SHOWN:
        used = percent(departed, found.others_sm_error_ratio)
        yield f"exited processes used another {used} of its SMs {_recently(found)}"
    if names := [process_name(node, each.client.pid) for each in found.clients if each.watched is False]:
        yield f"not measured: launches of {listed(names, MOST_NAMED)} cannot be counted"
    if found.idle:
        held = mebibytes(sum(each.memory_used_bytes or 0 for each in found.clients if each.client.pid in found.idle))
        count = counted(len(found.idle), "client holds", "clients hold")
        yield f"idle: {count} {held}, and used under 1 % of its SMs {_recently(found)}"
    if found.over_limit:
        uses = [
            f"{process_name(node, each.client.pid)} holds {mebibytes(each.memory_used_bytes or 0)}"
            f" of the {mebibytes(each.memory_limit_bytes or 0)} allowed"
            for each in found.clients
            if each.is_over_limit
        ]
        yield f"over the memory limit: {listed(uses, MOST_NAMED)}"


def factor(ratio: float) -> str:
    """Return a factor with two digits."""
    return f"{ratio:.1f}" if ratio < 10 else f"{ratio:.0f}"


def process_name(node: Node, pid: int) -> str:
    """Return a PID with the command of its process."""
    process = node.processes.get(pid)
    return process_text(pid, None if process is None else process.command, None)
