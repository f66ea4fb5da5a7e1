"""One observation at a time: what is known after it, and what happened."""

from collections.abc import Callable, Iterable, Iterator

from exporter.core import (
    accounts,
    claims,
    clients,
    deaths,
    gpus,
    incident_events,
    incidents,
    life,
    log,
    log_files,
    logged_commands,
    nameless,
    naming,
    process_states,
    replies,
    servers,
    sightings,
    silence,
    units,
    users,
    witnesses,
    xids,
)
from exporter.core.forgetting import forget
from exporter.core.gpus import NVML
from exporter.core.step import Step, chain, quiet
from exporter.core.watchdog import results
from exporter.model.action import ActionDone, Resumed
from exporter.model.daemon import Daemon, DaemonState, Declaration
from exporter.model.event import Event
from exporter.model.launches import GpuUse, WorkReading
from exporter.model.named_by import NamedBy
from exporter.model.node import Node, Source
from exporter.model.observation import (
    ControlReply,
    DaemonFound,
    DaemonProcess,
    GpuEvent,
    GpuReading,
    KernelRecord,
    LogFile,
    LogGap,
    LogLine,
    LogUnrecognized,
    Observation,
    PodFound,
    ProcessExit,
    ProcessReading,
    SourceReading,
)
from exporter.model.problem import joined
from exporter.model.replace import replace
from exporter.model.server import DepartureReason
from exporter.model.witnesses import ControlSocket, ProcessState, SessionHolder, UnitState
from exporter.usage import accounting, attribution, launch_history

Told = tuple[Node, tuple[Event, ...]]

LOGS = "log"
"""The source that follows the logs has this name."""


def fold(node: Node, seen: Observation) -> Told:
    """Take in one observation."""
    last = node
    before = xids.settle(_at(node, seen.at))
    node, explained = _explained(before)
    asked = node
    node, told = _take(node, seen)
    node, decided = _claims_decided(asked, node, seen)
    events = explained + told + decided
    node, faults = incidents.follow(last, accounts.account(before, node, events), events)
    node, unclaimed = sightings.settle(node)
    node = attribution.attribute(node, seen)
    return accounting.account(last, node, seen, events), events + faults + unclaimed


def fold_all(node: Node, observations: Iterable[Observation]) -> Iterator[Told]:
    """Take in observations one by one, and last of all settle what was still open when they ended."""
    for seen in observations:
        node, events = fold(node, seen)
        yield node, events
    last = node
    node = xids.settle(node, force=True)
    node, explained = _every_daemon(
        node, lambda daemon: life.explain(daemon, node.at, unit=units.ran(node, daemon), force=True)
    )
    node, decided = _every_daemon(node, lambda daemon: claims.settle(node, daemon, force=True))
    explained += decided
    node, faults = incidents.follow(last, node, explained, force=True)
    node, unclaimed = sightings.settle(node, force=True)
    yield node, explained + faults + unclaimed + incident_events.still_open(node)


def _claims_decided(before: Node, node: Node, seen: Observation) -> Told:
    """Decide what the logs claim: what a line claims at once, and all of it after every other observation."""
    if not any(daemon.log.claims for daemon in node.daemons.values()):
        return node, ()
    fresh = isinstance(seen, LogLine)
    return _every_daemon(
        node,
        lambda daemon: claims.settle(node, daemon, before=before.daemons.get(daemon.name) if fresh else None),
    )


def _at(node: Node, at: float) -> Node:
    """The node as it is at this time; the lines of one look all have the same, and there may be thousands."""
    began_at = at if node.began_at is None else node.began_at
    return node if at <= node.at else replace(node, at=at, began_at=began_at)


def _explained(node: Node) -> Told:
    """Settle what only time can: why a daemon has gone, and that a start has taken too long."""
    open_ends = (
        each.lifecycle.gone_at is not None or each.state is DaemonState.STARTING for each in node.daemons.values()
    )
    if not any(open_ends):
        return node, ()
    return _every_daemon(
        node,
        lambda daemon: chain(
            silence.start_overdue(daemon, node.at),
            lambda daemon: life.explain(daemon, node.at, unit=units.ran(node, daemon)),
        ),
    )


def _take(node: Node, seen: Observation) -> Told:
    match seen:
        case LogLine():
            return _heard(node, seen, lambda daemon: chain(logged_commands.line_read(daemon, seen), _with_line(seen)))
        case ControlReply():
            return _silence_settled(_reply_read(node, seen), seen.at)
        case LogFile():
            if not seen.followed and seen.daemon not in node.daemons:
                return node, ()
            return _daemon(node, seen.daemon, lambda daemon: quiet(log_files.file_read(daemon, seen)))
        case LogGap():
            return _daemon(node, seen.daemon, lambda daemon: quiet(_with_gap(daemon, seen)))
        case LogUnrecognized():
            return _daemon(node, seen.daemon, lambda daemon: quiet(log.lines_unrecognized(daemon, seen)))
        case DaemonFound():
            return naming.daemon_found(node, seen), ()
        case DaemonProcess():
            if seen.same_as is not None:
                return naming.doubled(node, seen.daemon, seen.same_as), ()
            return _daemon(
                node,
                seen.daemon,
                lambda daemon: life.process_read(replace(daemon, runtime=replace(daemon.runtime, same_as=None)), seen),
            )
        case GpuReading():
            node, events = gpus.gpu_read(node, seen)
            node, met = _clients_shown(node, seen)
            return forget(xids.gpu_read(node, seen)), events + met
        case WorkReading():
            return launch_history.with_reading(node, seen), ()
        case GpuUse():
            return node, ()
        case ProcessReading():
            return _process_read(node, seen)
        case ProcessExit():
            return _process_exited(node, seen)
        case PodFound():
            return replace(node, pods={**node.pods, seen.uid: seen}), ()
        case SourceReading():
            return _source_looked(forget(_source_read(node, seen)), seen)
        case GpuEvent():
            return xids.event_read(node, seen), ()
        case ProcessState() | UnitState() | ControlSocket() | SessionHolder():
            return _silence_settled((witnesses.witness_read(node, seen), ()), seen.at)
        case ActionDone():
            return results.done(node, seen), ()
        case Resumed():
            return results.resumed(node, seen)
        case KernelRecord():
            return deaths.record_read(xids.record_read(node, seen), seen), ()


def _reply_read(node: Node, seen: ControlReply) -> Told:
    return _heard(
        node,
        seen,
        lambda daemon: chain(
            replies.reply_read(daemon, seen), lambda daemon: quiet(logged_commands.reply_read(daemon, seen))
        ),
    )


def _with_line(seen: LogLine) -> Callable[[Daemon], Step]:
    return lambda daemon: log.line_read(daemon, seen)


def _with_gap(daemon: Daemon, seen: LogGap) -> Daemon:
    return logged_commands.gap_read(log_files.gap_read(daemon, seen), seen)


def _heard(node: Node, seen: LogLine | ControlReply, take: Callable[[Daemon], Step]) -> Told:
    return _daemon(node, seen.daemon, lambda daemon: chain(users.heard(daemon, seen.at, seen.pids), take))


def _silence_settled(told: Told, at: float) -> Told:
    """Whatever tells of a daemon may be the second witness of its silence."""
    node, events = told
    node, settled = _every_daemon(node, lambda daemon: silence.settle(node, daemon, at))
    return node, events + settled


def _daemon(node: Node, name: str, take: Callable[[Daemon], Step]) -> Told:
    known = node.daemons.get(name)
    known = known or Daemon(
        name=name, pipe_directory=name, log_directory="", declared=Declaration(by=NamedBy.DISCOVERED)
    )
    step = take(
        replace(known, declared=replace(known.declared, heard_at=node.at))
        if known.discovered and known.declared.heard_at != node.at
        else known
    )
    daemon, events = users.served(step, node.at, node.processes)
    return replace(node, daemons={**node.daemons, name: daemon}), events


def _clients_shown(node: Node, seen: GpuReading) -> Told:
    found = nameless.server_on(node, seen)
    if found is None:
        return node, ()
    daemon, server = found
    return _daemon(node, daemon.name, lambda daemon: nameless.shown(node, daemon, server.pid, seen))


def _every_daemon(node: Node, take: Callable[[Daemon], Step]) -> Told:
    taken = {name: take(daemon) for name, daemon in node.daemons.items()}
    if all(daemon is node.daemons[name] for name, (daemon, _) in taken.items()):
        return node, ()
    events = tuple(event for _, told in taken.values() for event in told)
    return replace(node, daemons={name: daemon for name, (daemon, _) in taken.items()}), events


def _process_read(node: Node, seen: ProcessReading) -> Told:
    """A PID with another start time is another process: whoever had it before has left."""
    known = node.processes.get(seen.pid)
    events: tuple[Event, ...] = ()
    if known is not None and known.start_ticks != seen.start_ticks:
        node, events = _process_exited(node, ProcessExit(at=seen.at, pid=seen.pid, start_ticks=known.start_ticks))
    node = replace(node, processes={**node.processes, seen.pid: seen})
    node, disowned = _every_daemon(node, lambda daemon: users.served(quiet(daemon), seen.at, {seen.pid: seen}))
    return node, events + disowned


def _process_exited(node: Node, seen: ProcessExit) -> Told:
    known = node.processes.get(seen.pid)
    if known is not None and known.start_ticks != seen.start_ticks:
        return node, ()
    node = process_states.exited(deaths.exited(node, seen), seen)
    processes = {pid: process for pid, process in node.processes.items() if pid != seen.pid}
    return _every_daemon(replace(node, processes=processes), lambda daemon: _member_exited(daemon, seen))


def _member_exited(daemon: Daemon, seen: ProcessExit) -> Step:
    process = daemon.runtime.process
    if process is not None and (process.pid, process.start_ticks) == (seen.pid, seen.start_ticks):
        killed = None if seen.wait_status is None else seen.wait_status & 0x7F != 0
        return life.gone(daemon, seen.at, killed=killed)
    daemon = clients.dequeue(daemon, seen.pid)
    return chain(
        servers.end(daemon, seen.at, seen.pid),
        lambda daemon: clients.disconnect(daemon, seen.at, seen.pid, DepartureReason.EXIT),
    )


def _source_looked(node: Node, seen: SourceReading) -> Told:
    """NVML tells of a GPU by reading it, or not; a log has no last words that a whole read of it did not find."""
    if seen.name == NVML:
        return gpus.nvml_looked(node, seen), ()
    if seen.name == LOGS:
        return _every_daemon(node, lambda daemon: _logs_read(node, daemon, seen))
    return node, ()


def _logs_read(node: Node, daemon: Daemon, seen: SourceReading) -> Step:
    """Take in one read of a daemon's logs. Recordings of earlier versions have one read for all daemons."""
    if seen.daemon not in (None, daemon.name):
        return quiet(daemon)
    if seen.daemon is not None:
        daemon = log_files.looked(daemon, seen.problem)
    step = logged_commands.looked(daemon, seen)
    if seen.problem is not None or seen.more:
        return step
    return chain(step, lambda daemon: _last_words_read(node, daemon, seen.at, seen.at - seen.seconds))


def _last_words_read(node: Node, daemon: Daemon, at: float, began: float) -> Step:
    """Those in the journal, or systemd's, may be under way when the log's files have been read: they have a moment."""
    unit, gone_at = units.ran(node, daemon), daemon.lifecycle.gone_at
    whole = gone_at is not None and gone_at < began and not daemon.in_journal and not units.may_yet_tell(unit, gone_at)
    return life.explain(daemon, at, unit=unit, force=whole)


def _source_read(node: Node, seen: SourceReading) -> Node:
    """The eyes that daemons have each for themselves are one source, which is well where all of them are."""
    known = node.sources.get(seen.name) or Source(last=seen)
    failed = seen.problem is not None
    problems = {daemon: problem for daemon, problem in known.problems.items() if daemon in node.daemons}
    problems.pop(seen.daemon or "", None)
    if seen.problem is not None:
        problems[seen.daemon or ""] = seen.problem
    source = Source(
        last=replace(seen, daemon=None, problem=joined(problems.values())),
        problems=problems,
        last_success=known.last_success if problems else seen.at,
        failures=known.failures + failed,
    )
    return replace(node, sources={**node.sources, seen.name: source})
