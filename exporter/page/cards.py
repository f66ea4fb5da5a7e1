"""The variables of the page's sections: headline, faults, daemons, watchdog, collectors, GPUs and failure domains."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from types import SimpleNamespace

from exporter.model.gpu import Gpu, SharingMode
from exporter.model.incident import Incident
from exporter.model.node import CollectorName, Node
from exporter.model.observation import GpuUuid
from exporter.model.reason import LOG_BLOCKED
from exporter.model.server import ServerState
from exporter.model.settings import Mode
from exporter.model.usage import Share
from exporter.model.watchdog import WatchdogPhase, WatchdogState
from exporter.parse.printable import printable
from exporter.report.incident_text import (
    address_texts,
    affected_clients,
    affected_count,
    client_text,
    incident_state,
    kind_and_server,
    verdict,
    xid_text,
)
from exporter.report.problem import NodeProblem, Severity
from exporter.report.problems import of_phase
from exporter.report.reasons import log_text, reason_text, source_text, texts_of
from exporter.report.remedy import address_of, command_to_end_server, command_to_kill
from exporter.report.sharing_text import sentences, used_text
from exporter.report.status_text import counts_text
from exporter.report.status_view import (
    DaemonView,
    GpuView,
    NamedDomain,
    ServerView,
    StatusView,
    by_index,
    gpus_text,
    process_label,
)
from exporter.report.text import code_text, counted, display_name, duration_text, local_time, mebibytes, short_gpu
from exporter.state.failure_domains import gpus_of_clients
from exporter.state.gpus import used_bytes
from exporter.view import View, gpu_name
from exporter.watchdog import restart

MOST_PAST = 10
MOST_NAMED = 8
MOST_SUSPECTS = 5

_SERVER_SEVERITIES = {
    ServerState.ACTIVE: Severity.WELL,
    ServerState.FAULT: Severity.CRITICAL,
    None: Severity.UNKNOWN,
}


def headline(view: StatusView) -> SimpleNamespace:
    """Return the most urgent finding and the others. If the exporter is stalled, no other finding is current."""
    found = view.findings[:1] if view.stalled_seconds is not None else view.findings
    text = counts_text(view.node) if view.daemons else "no MPS control daemon runs here, and none is expected"
    return SimpleNamespace(
        severity=view.severity,
        word=_capitalized(view.severity.words),
        sentence=f"{_capitalized(found[0].text if found else text)}.",
        finding=found[0] if found else None,
        also=found[1:],
    )


def _capitalized(text: str) -> str:
    return text[0].upper() + text[1:]


def faults(view: StatusView) -> SimpleNamespace:
    """Return open faults, and the last past ones, the newest first; `older` ones are only counted."""
    past = [each for each in view.incidents if not each.open]
    return SimpleNamespace(
        open=tuple(_fault(view, each) for each in view.incidents if each.open),
        past=tuple(_fault(view, each) for each in past[:MOST_PAST]),
        older=max(0, len(past) - MOST_PAST),
    )


def _fault(view: StatusView, incident: Incident) -> SimpleNamespace:
    """Return a fault. `stuck` is the command that ends a server that no client blocks and that does not recover."""
    refused, stuck = incident.refused_count, None
    address = address_of(view.node, incident.daemon, view.policy) if incident.open else None
    if incident.open and incident.stuck:
        stuck = command_to_end_server(incident.server, address)
    return SimpleNamespace(
        id=printable(incident.id),
        what=kind_and_server(incident),
        state=incident_state(incident, view.at),
        began=local_time(incident.started_at),
        ago=f"{duration_text(view.at - incident.started_at)} ago",
        affected=affected_count(incident),
        clients=tuple(affected_clients(incident, MOST_NAMED)),
        verdict=verdict(incident),
        suspects=tuple(
            SimpleNamespace(
                client=client_text(each.client),
                confidence=f"{each.confidence:.2f}",
                indications=texts_of(each.indications),
            )
            for each in incident.suspects[:MOST_SUSPECTS]
        ),
        blockers=tuple(
            SimpleNamespace(
                client=client_text(incident.details_of(pid)),
                duration=duration_text(view.at - delay.since),
                command=command_to_kill(incident.details_of(pid), address),
            )
            for pid, delay in list(incident.blockers.items())[:MOST_NAMED]
        ),
        more_blockers=max(0, len(incident.blockers) - MOST_NAMED),
        stuck=stuck,
        refused=f"{counted(refused, 'new client')} refused in the meantime" if refused else "",
        address=tuple(address_texts(incident)),
        xids=tuple(xid_text(xid) for xid in incident.xids[:MOST_NAMED]),
    )


def daemons(view: StatusView) -> tuple[SimpleNamespace, ...]:
    """Return each daemon: its identity (`facts`), its problems with the evidence, and counts of what went wrong."""
    return tuple(
        SimpleNamespace(
            name=printable(shown.daemon.name),
            severity=shown.severity,
            state=shown.label,
            facts=tuple(_facts(view, shown)),
            problems=tuple(_problems(shown)),
            counts=tuple(_counts(shown)),
            waiting=tuple(shown.waiting.values()),
            servers=tuple(_server(view, each) for each in shown.servers),
        )
        for shown in view.daemons
    )


def _problems(shown: DaemonView) -> Iterable[str]:
    yield from (each.text for each in shown.findings)
    if shown.watchdog is not None and shown.watchdog.problem and shown.watchdog.indications:
        yield f"Indications: {shown.watchdog.indications}"


def _facts(view: StatusView, shown: DaemonView) -> Iterable[str]:
    daemon = shown.daemon
    if daemon.runtime.process is not None and daemon.runtime.process.pid is not None:
        yield f"PID {daemon.runtime.process.pid}"
    if daemon.state is not None and daemon.lifecycle.state_since is not None:
        yield f"{daemon.state} for {duration_text(view.at - daemon.lifecycle.state_since)}"
    unit = daemon.runtime.unit or daemon.declared.unit
    if unit is not None:
        yield display_name(unit)
    yield "expected" if daemon.declared.expected else "discovered, not expected"
    share = daemon.default_limits.active_thread_percentage
    if share is not None and share != 100 and not daemon.has_static_partitions:
        yield f"next server: {share:g} % of threads"
    if daemon.has_static_partitions:
        yield "static SM partitions"
    yield from (f"next server: {limit}" for limit in _memory_limits(view.node, shown.memory_limits))


def _counts(shown: DaemonView) -> Iterable[str]:
    totals = shown.daemon.totals
    losses = sum(totals.losses.values())
    if losses:
        yield f"died {counted(losses, 'time')}"
    if totals.faults:
        yield f"{counted(totals.faults, 'fault')}, which hit {counted(totals.fault_affected, 'client')}"
    for reason, count in totals.refused.items():
        if count:
            yield f"{counted(count, 'client')} refused ({reason})"


def _server(view: StatusView, shown: ServerView) -> SimpleNamespace:
    """Return a server. `share` is how much of its client slots is taken, 0 to 100; None if the limit is unknown."""
    server, limit, clients = shown.server, shown.clients_limit, len(shown.clients)
    state = server.state or "unknown"
    severity = _SERVER_SEVERITIES.get(server.state, Severity.WARNING)
    number = counted(clients, "client") if limit is None else f"{clients} of {limit} clients"
    limits = [*_memory_limits(view.node, shown.memory_limits)]
    if server.limits.active_thread_percentage is not None:
        limits.insert(0, f"{server.limits.active_thread_percentage:g} % of threads")
    if server.limits.client_priority:
        limits.append("priority below normal")
    return SimpleNamespace(
        pid=server.pid,
        name=None if server.name is None else printable(server.name),
        severity=severity if shown.answering else Severity.UNKNOWN,
        state=state if shown.answering else f"unknown; last {state}",
        user=shown.user,
        clients=number if server.clients_known else "clients unknown",
        share=None if not limit or not server.clients_known else min(100.0, round(100 * clients / limit, 1)),
        limits=tuple(limits),
        up_for=duration_text(view.at - shown.started_at),
        has_workloads=any(each.label.workload for each in shown.clients),
        has_domains=any(each.letter for each in shown.clients),
        rows=tuple(
            SimpleNamespace(
                process=each.label,
                memory=mebibytes(sum(each.memory.values())) if each.memory else "",
                gpus=", ".join(printable(gpu_name(view.node, gpu)) for gpu in each.memory),
                letter=each.letter,
                connected=duration_text(view.at - each.client.connected_at),
            )
            for each in shown.clients
        ),
    )


def _memory_limits(node: Node, limits: Iterable[tuple[GpuUuid, int]]) -> Iterable[str]:
    return (f"{mebibytes(limit)} on GPU {printable(gpu_name(node, gpu))}" for gpu, limit in limits)


def watchdog(view: StatusView) -> SimpleNamespace:
    """Return what the watchdog does for each expected daemon; `exists` is False if none runs."""
    expected = [each for each in view.daemons if each.daemon.declared.expected]
    exists = view.policy is not None
    return SimpleNamespace(exists=exists, rows=tuple(_watch(view, each) for each in expected) if exists else ())


def _watch(view: StatusView, shown: DaemonView) -> SimpleNamespace:
    """Return a daemon's row; an idle watchdog is not a good sign for a daemon that is not well.

    `next` is the next action, or the one that the watchdog would take.
    """
    watch, summary = shown.watch or WatchdogState(), shown.watchdog
    state, idle = of_phase(watch.phase), watch.phase is WatchdogPhase.IDLE
    left = 0 if view.policy is None else restart.restarts_left(watch, view.policy.thresholds, view.at)
    return SimpleNamespace(
        daemon=printable(shown.daemon.name),
        mode="acts" if shown.mode is Mode.ACT else "observes",
        severity=Severity.UNKNOWN if idle and shown.severity is not Severity.WELL else state.severity,
        state="idle" if idle else state.label,
        next="" if summary is None else summary.action or "",
        failed="" if summary is None else summary.error or "",
        restarts=f"{counted(left, 'restart')} left",
        counts=tuple(
            f"{code_text(each.kind)} ({each.reason}): {each.count} {code_text(each.result)}"
            for each in watch.action_counts
        ),
    )


def collectors(view: StatusView) -> tuple[SimpleNamespace, ...]:
    """Return the collectors by name, then the log files that are not followed. `age` is the age of the data."""
    rows = [
        SimpleNamespace(
            name=printable(name),
            severity=Severity.WARNING if source.problems else Severity.WELL,
            state=source_text(name, source) or "works",
            age="never" if source.last_success is None else f"{duration_text(view.at - source.last_success)} ago",
            took=duration_text(source.last.seconds),
        )
        for name, source in sorted(view.node.sources.items())
    ]
    for shown in view.daemons:
        for file, known in sorted(shown.daemon.log.problems.items()):
            blocked = known is None and shown.daemon.log.own_commands.blocked_since is not None
            problem = LOG_BLOCKED if blocked else known
            if problem is not None:
                name, state = f"{printable(file)} of {printable(shown.daemon.name)}", log_text(file, problem)
                rows.append(SimpleNamespace(name=name, severity=Severity.WARNING, state=state, age="", took=""))
    return tuple(rows)


MOST_CHIPS = 6
MOST_BRIDGES = 4


def failure_domains(view: StatusView) -> SimpleNamespace:
    """Return the domains of several clients, each as a box, and how many clients are alone or in an unknown domain."""
    node, found = view.node, view.domains
    connected = sum(1 for _ in View(node).connected())
    return SimpleNamespace(
        boxes=tuple(_box(node, each) for each in found if len(each.domain.clients) > 1),
        alone=sum(len(each.domain.clients) == 1 for each in found),
        unknown=connected - sum(len(each.domain.clients) for each in found),
    )


def _box(node: Node, named: NamedDomain) -> SimpleNamespace:
    """Return clients that end together: in a column for each GPU those on it alone, and bridges between the GPUs.

    A bridge has the number of columns before it, in its span, and after it.
    """
    on = gpus_of_clients(node, named.daemon, sorted(named.domain.clients))
    order = by_index(node, named.domain.gpus)
    alone = {uuid: [pid for pid, gpus in on.items() if gpus == {uuid}] for uuid in order}
    joining = [(pid, sorted(order.index(gpu) for gpu in gpus)) for pid, gpus in on.items() if len(gpus) > 1]
    return SimpleNamespace(
        letter=named.letter,
        daemon=display_name(named.daemon.name),
        clients=counted(len(named.domain.clients), "client"),
        gpus=gpus_text(node, order),
        columns=tuple(
            SimpleNamespace(
                name=f"GPU {printable(gpu_name(node, uuid))}",
                chips=tuple(process_label(node, pid) for pid in pids[:MOST_CHIPS]),
                more=max(0, len(pids) - MOST_CHIPS),
            )
            for uuid, pids in alone.items()
        ),
        bridges=tuple(
            SimpleNamespace(
                process=process_label(node, pid),
                before=columns[0],
                span=columns[-1] - columns[0] + 1,
                after=len(order) - columns[-1] - 1,
                gpus=gpus_text(node, [order[column] for column in columns]),
            )
            for pid, columns in joining[:MOST_BRIDGES]
        ),
        more_bridges=max(0, len(joining) - MOST_BRIDGES),
        upper_bound=named.domain.upper_bound,
    )


MOST_SEGMENTS = 6
"""At most so many processes, those with the most memory, have a segment each; the others share one."""

HUES = 8
LEAST_LABELLED_PERCENT = 16.0
"""On a narrow screen, a segment of this width has room for a PID."""

_SHARING = {
    SharingMode.IDLE: ("idle", Severity.UNKNOWN),
    SharingMode.EXCLUSIVE: ("one process, without MPS", Severity.UNKNOWN),
    SharingMode.TIME_SLICING: ("time slicing, without MPS", Severity.UNKNOWN),
    SharingMode.MPS: ("shared by MPS", Severity.WELL),
    SharingMode.MIG: ("MIG", Severity.UNKNOWN),
    SharingMode.MIXED: ("MPS, and processes that bypass it", Severity.WARNING),
    None: ("sharing unknown", Severity.UNKNOWN),
}


class Part(StrEnum):
    """What fills a segment."""

    CLIENT = "client"
    BYPASSING = "bypassing"
    SERVER = "server"
    OTHER = "other"
    MORE = "more"
    DRIVER = "driver"


Shares = Iterable[tuple[Part, str, int | None, int]]
"""Kind, name if it has no process, PID, and bytes of each part."""


def gpus(view: StatusView) -> tuple[SimpleNamespace, ...]:
    """Return a card for each GPU. A process that is on several GPUs has one colour."""
    hues: dict[int, int] = {}
    connections = View(view.node)
    roles = {client.pid: Part.CLIENT for _, client in connections.connected()}
    roles |= {server.pid: Part.SERVER for _, server in connections.servers()}
    return tuple(_card(view.node, each, roles, hues) for each in view.gpus)


def _card(node: Node, shown: GpuView, roles: Mapping[int, Part], hues: dict[int, int]) -> SimpleNamespace:
    """Return a GPU. `known` is whether its memory could be read, and is not that of its MIG instances.

    `shared` describes how well it is shared, in a few sentences.
    """
    uuid, gpu, found = shown.uuid, shown.gpu, shown.sharing
    reading = gpu.reading
    sharing, severity = _SHARING[shown.mode]
    if shown.finding is not None:
        sharing, severity = shown.finding.definition.label, shown.finding.severity
    used_sms = {} if found is None else found.recent.shares
    used, total = reading.memory_used_bytes, reading.memory_total_bytes
    known = reading.problem is None and used is not None and total is not None and total > 0 and not reading.mig_mode
    unknown = "memory: see its MIG instances" if reading.mig_mode else "memory unknown"
    return SimpleNamespace(
        name=f"GPU {printable(gpu_name(node, uuid))}",
        model=display_name(reading.name),
        uuid=short_gpu(uuid),
        severity=NodeProblem.GPU_UNREADABLE.definition.severity if reading.problem is not None else severity,
        sharing="cannot be read" if reading.problem is not None else sharing,
        busy="" if reading.gpu_percent is None else f"{reading.gpu_percent} % of the time busy",
        problem=None if reading.problem is None else reason_text(reading.problem, CollectorName.NVML),
        filled=f"{mebibytes(used or 0)} of {mebibytes(total or 0)}" if known else unknown,
        free=f"{mebibytes(max(0, (total or 0) - (used or 0)))} free" if known else "",
        known=known,
        segments=(tuple(_segments(node, _shares(gpu, roles, used or 0), total or 1, hues, used_sms)) if known else ()),
        shared=tuple(line.text for line in sentences(node, found, shown.shares)),
    )


def _shares(gpu: Gpu, roles: Mapping[int, Part], used: int) -> Shares:
    """Yield the processes, those with the most memory first; then servers, and what belongs to no process."""
    held, bypassing = used_bytes(gpu.reading), dict.fromkeys(gpu.bypassing, Part.BYPASSING)
    parts = {pid: bypassing.get(pid) or roles.get(pid, Part.OTHER) for pid in held}
    shown = sorted((pid for pid in held if parts[pid] is not Part.SERVER), key=lambda pid: (-held[pid], pid))
    largest, others = shown[:MOST_SEGMENTS], shown[MOST_SEGMENTS:]
    yield from ((parts[pid], "", pid, held[pid]) for pid in largest)
    serving = [amount for pid, amount in held.items() if parts[pid] is Part.SERVER]
    gathered = (
        (Part.MORE, f"{len(others)} more", sum(held[pid] for pid in others)),
        (Part.SERVER, counted(len(serving), "MPS server"), sum(serving)),
        (Part.DRIVER, "driver", used - sum(held.values())),
    )
    yield from ((part, name, None, amount) for part, name, amount in gathered if amount > 0)


def _segments(
    node: Node, shares: Shares, total: int, hues: dict[int, int], used: Mapping[int, Share]
) -> Iterable[SimpleNamespace]:
    """Yield the parts of a bar, in percent of its length. `hue` distinguishes neighbours.

    `label` is the text at `middle`; empty if the segment is too narrow. `used` is the fraction of the SMs that the
    process used recently; empty if unknown.
    """
    begin = 0.0
    for part, name, pid, amount in shares:
        width = max(0.0, min(100.0 - begin, 100 * amount / total))
        process = None if pid is None else process_label(node, pid)
        left, length = round(begin, 2), round(width, 2)
        yield SimpleNamespace(
            part=part,
            name=name if process is None else process.name,
            process=process,
            amount=mebibytes(amount),
            begin=left,
            width=length,
            label=process.pid if process is not None and length >= LEAST_LABELLED_PERCENT else "",
            middle=round(left + length / 2, 2),
            used="" if pid is None or pid not in used else used_text(used[pid]),
            hue=0 if pid is None else hues.setdefault(pid, len(hues) % HUES),
        )
        begin += width
