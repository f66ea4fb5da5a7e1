"""What templates cannot compute of a status document: bars of memory, boxes of failure domains, and facts in words."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from exporter.parse.printable import printable
from exporter.report.document import (
    ClientStatus,
    DaemonStatus,
    FailureDomainStatus,
    GpuProcess,
    GpuStatus,
    ServerStatus,
    StatusDocument,
)
from exporter.report.status_text import gpu_numbers
from exporter.report.text import counted, display_name, duration_text, mebibytes

MOST_SEGMENTS = 6
"""At most so many processes, those with the most memory, have a segment each; the others share one."""

HUES = 8
LEAST_LABELLED_PERCENT = 16.0
"""On a narrow screen, a segment of this width has room for a PID."""


def facts(daemon: DaemonStatus, document: StatusDocument) -> Iterable[str]:
    """Yield what identifies a daemon, and the limits of its next server."""
    if daemon.pid is not None:
        yield f"PID {daemon.pid}"
    if daemon.state_since is not None:
        yield f"{daemon.state} for {duration_text(document.at - daemon.state_since)}"
    if daemon.unit is not None:
        yield display_name(daemon.unit)
    yield "expected" if daemon.expected else "discovered, not expected"
    if daemon.active_thread_ratio not in (None, 1.0):
        yield f"next server: {_threads(daemon)}"
    if daemon.static_partitions:
        yield "static SM partitions"
    yield from (f"next server: {limit}" for limit in _memory_limits(daemon, document))


def counts(daemon: DaemonStatus) -> Iterable[str]:
    """Yield how often something went wrong."""
    if daemon.died:
        yield f"died {counted(daemon.died, 'time')}"
    if daemon.faults:
        yield f"{counted(daemon.faults, 'fault')}, which affected {counted(daemon.fault_affected, 'client')}"
    for reason, count in daemon.refused.items():
        if count:
            yield f"{counted(count, 'client')} refused ({reason})"


def limits(server: ServerStatus, document: StatusDocument) -> Iterable[str]:
    """Yield the limits of a server's clients."""
    if server.active_thread_ratio is not None:
        yield _threads(server)
    yield from _memory_limits(server, document)
    if server.low_priority:
        yield "priority below normal"


def _threads(limited: DaemonStatus | ServerStatus) -> str:
    return f"{100 * (limited.active_thread_ratio or 0.0):g} % of threads"


def _memory_limits(limited: DaemonStatus | ServerStatus, document: StatusDocument) -> Iterable[str]:
    numbers, limits_of = gpu_numbers(document), limited.pinned_memory_limit_bytes
    return (f"{mebibytes(limit)} on GPU {numbers.get(gpu, printable(gpu))}" for gpu, limit in limits_of.items())


def slots(server: ServerStatus) -> tuple[str, float | None]:
    """Return the number of clients, and how much of the slots they take, in percent; None if that is unknown."""
    number, limit = len(server.clients), server.clients_limit
    if not server.clients_known:
        return "clients unknown", None
    if limit is None:
        return counted(number, "client"), None
    return f"{number} of {limit} clients", min(100.0, round(100 * number / limit, 1)) if limit else None


Bridge = tuple[ClientStatus, int, int, int]
"""A client on several GPUs, with the number of columns before it, in its span, and after it."""

Box = tuple[FailureDomainStatus, Mapping[str, Sequence[ClientStatus]], Sequence[Bridge]]
"""A failure domain: for each GPU a column with the clients on it alone, and bridges between the GPUs."""


def boxes(document: StatusDocument) -> Iterable[Box]:
    """Yield the failure domains of several clients."""
    clients = [each for daemon in document.daemons for server in daemon.servers for each in server.clients]
    for domain in document.failure_domains:
        if len(domain.clients) > 1:
            within = sorted((each for each in clients if each.failure_domain == domain.name), key=lambda each: each.pid)
            spans = [(each, sorted(map(domain.gpus.index, each.gpus))) for each in within if len(each.gpus) > 1]
            columns = {gpu: [each for each in within if each.gpus == (gpu,)] for gpu in domain.gpus}
            last = len(domain.gpus) - 1
            yield domain, columns, [(each, at[0], at[-1] - at[0] + 1, last - at[-1]) for each, at in spans]


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A part of a bar of memory, in percent of its length.

    `label` is the text in the middle, empty if there is no room. `hue` distinguishes neighbours; a process that
    is on several GPUs has one.
    """

    part: str
    name: str
    process: GpuProcess | None
    amount: int
    begin: float
    width: float
    label: str
    hue: int


def segments(gpu: GpuStatus, hues: dict[int, int]) -> Sequence[Segment] | None:
    """Return the parts of the bar; None if the memory could not be read, or is that of MIG instances."""
    used, total = gpu.memory_used_bytes, gpu.memory_total_bytes
    if gpu.problem is not None or used is None or not total or gpu.mig_mode:
        return None
    found, begin = [], 0.0
    for part, name, process, amount in _parts(gpu, used):
        width = max(0.0, min(100.0 - begin, 100 * amount / total))
        pid = None if process is None else process.pid
        left, length = round(begin, 2), round(width, 2)
        found.append(
            Segment(
                part=part,
                name=name,
                process=process,
                amount=amount,
                begin=left,
                width=length,
                label=("?" if pid < 1 else str(pid)) if pid is not None and length >= LEAST_LABELLED_PERCENT else "",
                hue=0 if pid is None else hues.setdefault(pid, len(hues) % HUES),
            )
        )
        begin += width
    return found


def _parts(gpu: GpuStatus, used: int) -> Iterable[tuple[str, str, GpuProcess | None, int]]:
    """Yield the processes, those with the most memory first; then servers, and what belongs to no process."""
    held = [(each, each.memory_used_bytes) for each in gpu.processes if each.memory_used_bytes is not None]
    listed = [(each, amount) for each, amount in held if each.role != "server"]
    serving = [amount for each, amount in held if each.role == "server"]
    yield from ((each.role, "", each, amount) for each, amount in listed[:MOST_SEGMENTS])
    others = [amount for _, amount in listed[MOST_SEGMENTS:]]
    gathered = (
        ("more", f"{len(others)} more", sum(others)),
        ("server", counted(len(serving), "MPS server"), sum(serving)),
        ("driver", "driver", used - sum(amount for _, amount in held)),
    )
    yield from ((part, name, None, amount) for part, name, amount in gathered if amount > 0)
