"""The texts of the page's sections on the node as a whole: headline, daemons, watchdog and collectors."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from exporter.model.daemon import Daemon
from exporter.model.node import Node
from exporter.model.observation import GpuUuid
from exporter.model.reason import LOG_BLOCKED
from exporter.model.server import ServerState
from exporter.model.settings import Mode
from exporter.model.watchdog import WatchdogPhase, WatchdogState
from exporter.parse.printable import printable
from exporter.report.finding import Finding
from exporter.report.problem import Severity
from exporter.report.problems import of_phase
from exporter.report.reasons import log_text
from exporter.report.status_text import counts_text
from exporter.report.status_view import ClientView, DaemonView, ProcessLabel, ServerView, StatusView
from exporter.report.text import code_text, counted, display_name, duration_text, mebibytes
from exporter.view import gpu_name
from exporter.watchdog import restart

_SERVER_SEVERITIES = {
    ServerState.ACTIVE: Severity.WELL,
    ServerState.FAULT: Severity.CRITICAL,
    None: Severity.UNKNOWN,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """The most urgent problem; `finding` is None if there is none. `also` are the others."""

    severity: Severity
    word: str
    sentence: str
    finding: Finding | None
    also: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRow:
    """A client: its identity, memory, GPUs and failure domain, and for how long it has been connected."""

    process: ProcessLabel
    memory: str
    gpus: str
    letter: str
    connected: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCard:
    """A server, with a `name` if its protocol is 3.

    `share` is how much of its client slots is taken, 0 to 100; None if the limit is unknown.
    """

    pid: int
    name: str | None
    severity: Severity
    state: str
    user: str
    clients: str
    share: float | None
    limits: tuple[str, ...]
    up_for: str
    rows: tuple[ClientRow, ...]

    @property
    def has_workloads(self) -> bool:
        """Whether any client has a workload other than its user."""
        return any(row.process.workload for row in self.rows)

    @property
    def has_domains(self) -> bool:
        """Whether any client is in a failure domain with others."""
        return any(row.letter for row in self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonCard:
    """A daemon. `facts` identify it, `problems` and their indications, `counts` what has gone wrong so far."""

    name: str
    severity: Severity
    state: str
    facts: tuple[str, ...]
    problems: tuple[str, ...]
    counts: tuple[str, ...]
    waiting: tuple[ProcessLabel, ...]
    servers: tuple[ServerCard, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchRow:
    """What the watchdog does for one daemon. `next` is its next action, or the one that it would take."""

    daemon: str
    mode: str
    severity: Severity
    state: str
    next: str
    failed: str
    restarts: str
    counts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchdogCards:
    """The watchdog: `exists` is False if none runs; `rows` is empty if no daemon is expected."""

    exists: bool
    rows: tuple[WatchRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorRow:
    """A collector, or a log file that is to be followed. `age` is the age of its data."""

    name: str
    severity: Severity
    state: str
    age: str
    took: str


def headline(view: StatusView) -> Headline:
    """Return what is at the top. If the exporter is stalled, no other finding is current."""
    found = view.findings[:1] if view.stalled else view.findings
    text = counts_text(view.node) if view.daemons else "no MPS control daemon runs here, and none is expected"
    return Headline(
        severity=view.severity,
        word=_capitalized(view.severity.words),
        sentence=f"{_capitalized(found[0].text if found else text)}.",
        finding=found[0] if found else None,
        also=found[1:],
    )


def daemons(view: StatusView) -> tuple[DaemonCard, ...]:
    """Return a card for each daemon."""
    return tuple(_daemon(view, each) for each in view.daemons)


def watchdog(view: StatusView) -> WatchdogCards:
    """Return what the watchdog does for each expected daemon."""
    exists = view.policy is not None
    return WatchdogCards(
        exists=exists,
        rows=tuple(_watch(view, each) for each in view.daemons if each.daemon.declared.expected) if exists else (),
    )


def collectors(view: StatusView) -> tuple[CollectorRow, ...]:
    """Return the collectors by name, then the log files that are not followed."""
    rows = (
        CollectorRow(
            name=printable(each.name),
            severity=Severity.WARNING if each.text else Severity.WELL,
            state=each.text or "works",
            age="never" if each.last_success is None else f"{duration_text(view.at - each.last_success)} ago",
            took=duration_text(each.seconds),
        )
        for each in view.collectors
    )
    return (*rows, *_logs(view))


def _capitalized(text: str) -> str:
    return text[0].upper() + text[1:]


def _daemon(view: StatusView, shown: DaemonView) -> DaemonCard:
    return DaemonCard(
        name=printable(shown.daemon.name),
        severity=shown.severity,
        state=shown.label,
        facts=tuple(_facts(view, shown)),
        problems=tuple(_problems(shown)),
        counts=tuple(_counts(shown.daemon)),
        waiting=tuple(shown.waiting.values()),
        servers=tuple(_server(view, each) for each in shown.servers),
    )


def _problems(shown: DaemonView) -> Iterable[str]:
    """Its problems, and the evidence for them."""
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


def _counts(daemon: Daemon) -> Iterable[str]:
    losses, refused = sum(daemon.totals.losses.values()), daemon.totals.refused
    if losses:
        yield f"died {counted(losses, 'time')}"
    if daemon.totals.faults:
        yield f"{counted(daemon.totals.faults, 'fault')}, which hit {counted(daemon.totals.fault_affected, 'client')}"
    for reason, count in refused.items():
        if count:
            yield f"{counted(count, 'client')} refused ({reason})"


def _server(view: StatusView, shown: ServerView) -> ServerCard:
    server, limit, clients = shown.server, shown.clients_limit, len(shown.clients)
    state = server.state or "unknown"
    severity = _SERVER_SEVERITIES.get(server.state, Severity.WARNING)
    return ServerCard(
        pid=server.pid,
        name=None if server.name is None else printable(server.name),
        severity=severity if shown.answering else Severity.UNKNOWN,
        state=state if shown.answering else f"unknown; last {state}",
        user=shown.user,
        clients=_clients(clients, limit) if server.clients_known else "clients unknown",
        share=None if not limit or not server.clients_known else min(100.0, round(100 * clients / limit, 1)),
        limits=tuple(_limits(view.node, shown)),
        up_for=duration_text(view.at - shown.started_at),
        rows=tuple(_row(view, each) for each in shown.clients),
    )


def _clients(number: int, limit: int | None) -> str:
    return counted(number, "client") if limit is None else f"{number} of {limit} clients"


def _limits(node: Node, shown: ServerView) -> Iterable[str]:
    if shown.server.active_thread_percentage is not None:
        yield f"{shown.server.active_thread_percentage:g} % of threads"
    yield from _memory_limits(node, shown.memory_limits)
    if shown.server.client_priority:
        yield "priority below normal"


def _memory_limits(node: Node, limits: Mapping[int, tuple[GpuUuid, int]]) -> Iterable[str]:
    return (f"{mebibytes(limit)} on GPU {printable(gpu_name(node, gpu))}" for gpu, limit in limits.values())


def _row(view: StatusView, shown: ClientView) -> ClientRow:
    return ClientRow(
        process=shown.label,
        memory=mebibytes(sum(shown.memory.values())) if shown.memory else "",
        gpus=", ".join(printable(gpu_name(view.node, gpu)) for gpu in shown.memory),
        letter=shown.letter,
        connected=duration_text(view.at - shown.client.connected_at),
    )


def _watch(view: StatusView, shown: DaemonView) -> WatchRow:
    """Return the row; an idle watchdog is not a good sign for a daemon that is not well."""
    watch, summary = shown.watch or WatchdogState(), shown.watchdog
    state, idle = of_phase(watch.phase), watch.phase is WatchdogPhase.IDLE
    left = 0 if view.policy is None else restart.restarts_left(watch, view.policy.thresholds, view.at)
    return WatchRow(
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


def _logs(view: StatusView) -> Iterable[CollectorRow]:
    for shown in view.daemons:
        for file, known in sorted(shown.daemon.log.problems.items()):
            blocked = known is None and shown.daemon.log.own_commands.blocked_since is not None
            problem = LOG_BLOCKED if blocked else known
            if problem is not None:
                name = f"{printable(file)} of {printable(shown.daemon.name)}"
                yield CollectorRow(name=name, severity=Severity.WARNING, state=log_text(file, problem), age="", took="")
