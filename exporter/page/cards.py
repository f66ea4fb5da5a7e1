"""The variables of the page's sections on the node as a whole: headline, faults, daemons, watchdog and collectors."""

from collections.abc import Iterable, Mapping
from types import SimpleNamespace

from exporter.model.incident import Incident
from exporter.model.node import Node
from exporter.model.observation import GpuUuid
from exporter.model.reason import LOG_BLOCKED
from exporter.model.server import ServerState
from exporter.model.settings import Mode
from exporter.model.watchdog import WatchdogPhase, WatchdogState
from exporter.parse.printable import printable
from exporter.report.incident_text import (
    affected_clients,
    affected_count,
    client_text,
    incident_state,
    kind_and_server,
    verdict,
    xid_text,
)
from exporter.report.problem import Severity
from exporter.report.problems import of_phase
from exporter.report.reasons import log_text, texts_of
from exporter.report.remedy import address_of, command_to_end_server, command_to_kill
from exporter.report.status_text import counts_text
from exporter.report.status_view import DaemonView, ServerView, StatusView
from exporter.report.text import code_text, counted, display_name, duration_text, local_time, mebibytes
from exporter.view import gpu_name
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
    found = view.findings[:1] if view.stalled else view.findings
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
    if server.active_thread_percentage is not None:
        limits.insert(0, f"{server.active_thread_percentage:g} % of threads")
    if server.client_priority:
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


def _memory_limits(node: Node, limits: Mapping[int, tuple[GpuUuid, int]]) -> Iterable[str]:
    return (f"{mebibytes(limit)} on GPU {printable(gpu_name(node, gpu))}" for gpu, limit in limits.values())


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
            name=printable(each.name),
            severity=Severity.WARNING if each.text else Severity.WELL,
            state=each.text or "works",
            age="never" if each.last_success is None else f"{duration_text(view.at - each.last_success)} ago",
            took=duration_text(each.seconds),
        )
        for each in view.collectors
    ]
    for shown in view.daemons:
        for file, known in sorted(shown.daemon.log.problems.items()):
            blocked = known is None and shown.daemon.log.own_commands.blocked_since is not None
            problem = LOG_BLOCKED if blocked else known
            if problem is not None:
                name, state = f"{printable(file)} of {printable(shown.daemon.name)}", log_text(file, problem)
                rows.append(SimpleNamespace(name=name, severity=Severity.WARNING, state=state, age="", took=""))
    return tuple(rows)
