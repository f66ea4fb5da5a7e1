"""The reducer: a node and one observation in, the next node and events out."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from exporter.incidents import incidents
from exporter.model.daemon import Daemon, DaemonState, Declaration, NamedBy
from exporter.model.event import Event
from exporter.model.launches import GpuUse, WorkReading
from exporter.model.node import CollectorState, Node
from exporter.model.observation import (
    ActionDone,
    ControlReply,
    ControlSocket,
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
    ProcessState,
    Resumed,
    SessionHolder,
    SourceReading,
    UnitState,
)
from exporter.model.problem import joined
from exporter.model.server import DisconnectReason
from exporter.model.values import replace
from exporter.state import (
    claims,
    clients,
    control_replies,
    daemon_log,
    disconnects,
    discovery,
    gpus,
    hang_detection,
    lifecycle,
    log_files,
    poll_schedule,
    process_states,
    servers,
    xids,
)
from exporter.state import processes as state_processes
from exporter.state.gpus import NVML
from exporter.state.transition import Transition, chain, without_events
from exporter.usage import accounting, attribution, launch_history
from exporter.watchdog import verification

REMEMBERED_QUESTIONS_SECONDS = 7200.0
"""How long it is remembered when a question was asked; longer than any question's period."""

REMEMBERED_SERVERS_SECONDS = 60.0
"""How long a server that has gone is remembered, so that a log line read late does not bring it back."""


def prune(node: Node) -> Node:
    """Let go of what no longer matters. While NVML shows a client that has left, it is remembered, and no stranger."""
    shown = {each.pid for gpu in node.gpus.values() for each in gpu.reading.compute_processes or ()}
    daemons = {
        name: _forget_daemon(daemon, node.at, shown)
        for name, daemon in node.daemons.items()
        if not daemon.removable(node.at)
    }
    wanted = poll_schedule.watched(node)
    processes = {pid: process for pid, process in node.processes.items() if pid in wanted}
    node = state_processes.prune_exits(replace(node, daemons=daemons, processes=processes))
    node = process_states.prune_states(node, poll_schedule.states_wanted(node))
    return state_processes.prune_workload_counts(_forget_pods(process_states.prune_units(node)))


def _forget_pods(node: Node) -> Node:
    if not node.pods:
        return node
    present = state_processes.pods(node)
    return replace(node, pods={uid: pod for uid, pod in node.pods.items() if uid in present})


def _forget_daemon(daemon: Daemon, at: float, shown: set[int]) -> Daemon:
    daemon = replace(
        daemon,
        connections=replace(
            daemon.connections,
            disconnected_at=_kept(daemon.connections.disconnected_at, at - clients.REMEMBERED_SECONDS, shown),
            server_exited_at=_kept(daemon.connections.server_exited_at, at - REMEMBERED_SERVERS_SECONDS, shown),
        ),
        commands=replace(
            daemon.commands,
            asked_at={
                command: when
                for command, when in daemon.commands.asked_at.items()
                if at - when < REMEMBERED_QUESTIONS_SECONDS
            },
        ),
    )
    return disconnects.prune_disconnects(daemon, at)


def _kept(departed: Mapping[int, float], since: float, shown: set[int]) -> Mapping[int, float]:
    return {pid: at for pid, at in departed.items() if at >= since or pid in shown}


Reduced = tuple[Node, tuple[Event, ...]]

LOGS = "log"
"""The source that follows the logs has this name."""


def reduce(node: Node, seen: Observation) -> Reduced:
    """Take in one observation."""
    last = node
    before = xids.pair_pending(_at(node, seen.at))
    node, explained = _explained(before)
    asked = node
    node, told = _take(node, seen)
    node, decided = _claims_decided(asked, node, seen)
    events = explained + told + decided
    node, faults = incidents.track(last, state_processes.count_events(before, node, events), events)
    node, unclaimed = xids.report_unclaimed(node)
    node = attribution.attribute(node, seen)
    return accounting.account(last, node, seen, events), events + faults + unclaimed


def reduce_all(node: Node, observations: Iterable[Observation]) -> Iterator[Reduced]:
    """Take in observations one by one, and last of all settle what was still open when they ended."""
    for seen in observations:
        node, events = reduce(node, seen)
        yield node, events
    last = node
    node = xids.pair_pending(node, force=True)
    node, explained = _every_daemon(
        node, lambda daemon: lifecycle.explain(daemon, node.at, unit=process_states.ran(node, daemon), force=True)
    )
    node, decided = _every_daemon(node, lambda daemon: claims.resolve_pending(node, daemon, force=True))
    explained += decided
    node, faults = incidents.track(last, node, explained, force=True)
    node, unclaimed = xids.report_unclaimed(node, force=True)
    yield node, explained + faults + unclaimed + incidents.report_open(node)


def _claims_decided(before: Node, node: Node, seen: Observation) -> Reduced:
    """Decide what the logs claim: what a line claims at once, and all of it after every other observation."""
    if not any(daemon.log.claims for daemon in node.daemons.values()):
        return node, ()
    fresh = isinstance(seen, LogLine)
    return _every_daemon(
        node,
        lambda daemon: claims.resolve_pending(node, daemon, before=before.daemons.get(daemon.name) if fresh else None),
    )


def _at(node: Node, at: float) -> Node:
    """The node as it is at this time; the lines of one look all have the same, and there may be thousands."""
    began_at = at if node.began_at is None else node.began_at
    return node if at <= node.at else replace(node, at=at, began_at=began_at)


def _explained(node: Node) -> Reduced:
    """Settle what only time can: why a daemon has gone, and that a start has taken too long."""
    open_ends = (
        each.lifecycle.unexplained_end_at is not None or each.state is DaemonState.STARTING
        for each in node.daemons.values()
    )
    if not any(open_ends):
        return node, ()
    return _every_daemon(
        node,
        lambda daemon: chain(
            hang_detection.start_overdue(daemon, node.at),
            lambda daemon: lifecycle.explain(daemon, node.at, unit=process_states.ran(node, daemon)),
        ),
    )


def _take(node: Node, seen: Observation) -> Reduced:
    match seen:
        case LogLine():
            return _heard(node, seen, lambda daemon: chain(log_files.own_command_read(daemon, seen), _with_line(seen)))
        case ControlReply():
            return _silence_settled(_reply_read(node, seen), seen.at)
        case LogFile():
            if not seen.followed and seen.daemon not in node.daemons:
                return node, ()
            return _daemon(node, seen.daemon, lambda daemon: without_events(log_files.file_read(daemon, seen)))
        case LogGap():
            return _daemon(node, seen.daemon, lambda daemon: without_events(_with_gap(daemon, seen)))
        case LogUnrecognized():
            return _daemon(
                node, seen.daemon, lambda daemon: without_events(daemon_log.lines_unrecognized(daemon, seen))
            )
        case DaemonFound():
            return discovery.daemon_found(node, seen), ()
        case DaemonProcess():
            if seen.same_as is not None:
                return discovery.doubled(node, seen.daemon, seen.same_as), ()
            return _daemon(
                node,
                seen.daemon,
                lambda daemon: lifecycle.process_read(
                    replace(daemon, runtime=replace(daemon.runtime, same_as=None)), seen
                ),
            )
        case GpuReading():
            node, events = gpus.gpu_read(node, seen)
            node, met = _clients_shown(node, seen)
            return prune(xids.gpu_read(node, seen)), events + met
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
            return _source_looked(prune(_source_read(node, seen)), seen)
        case GpuEvent():
            return xids.event_read(node, seen), ()
        case ProcessState() | UnitState() | ControlSocket() | SessionHolder():
            return _silence_settled((process_states.witness_read(node, seen), ()), seen.at)
        case ActionDone():
            return verification.record_result(node, seen), ()
        case Resumed():
            return verification.resume(node, seen)
        case KernelRecord():
            return state_processes.record_read(xids.record_read(node, seen), seen), ()


def _reply_read(node: Node, seen: ControlReply) -> Reduced:
    return _heard(
        node,
        seen,
        lambda daemon: chain(
            control_replies.reply_read(daemon, seen), lambda daemon: without_events(log_files.reply_read(daemon, seen))
        ),
    )


def _with_line(seen: LogLine) -> Callable[[Daemon], Transition]:
    return lambda daemon: daemon_log.line_read(daemon, seen)


def _with_gap(daemon: Daemon, seen: LogGap) -> Daemon:
    return log_files.commands_lost(log_files.gap_read(daemon, seen), seen)


def _heard(node: Node, seen: LogLine | ControlReply, take: Callable[[Daemon], Transition]) -> Reduced:
    return _daemon(node, seen.daemon, lambda daemon: chain(discovery.heard(daemon, seen.at, seen.pids), take))


def _silence_settled(told: Reduced, at: float) -> Reduced:
    """Whatever tells of a daemon may be the second witness of its silence."""
    node, events = told
    node, settled = _every_daemon(node, lambda daemon: hang_detection.resolve_pending(node, daemon, at))
    return node, events + settled


def _daemon(node: Node, name: str, take: Callable[[Daemon], Transition]) -> Reduced:
    known = node.daemons.get(name)
    known = known or Daemon(
        name=name, pipe_directory=name, log_directory="", declared=Declaration(by=NamedBy.DISCOVERED)
    )
    step = take(
        replace(known, declared=replace(known.declared, observed_at=node.at))
        if known.discovered and known.declared.observed_at != node.at
        else known
    )
    daemon, events = discovery.served(step, node.at, node.processes)
    return replace(node, daemons={**node.daemons, name: daemon}), events


def _clients_shown(node: Node, seen: GpuReading) -> Reduced:
    found = servers.server_with_hidden_pids(node, seen)
    if found is None:
        return node, ()
    daemon, server = found
    return _daemon(node, daemon.name, lambda daemon: servers.hidden_pids_shown(node, daemon, server.pid, seen))


def _every_daemon(node: Node, take: Callable[[Daemon], Transition]) -> Reduced:
    taken = {name: take(daemon) for name, daemon in node.daemons.items()}
    if all(daemon is node.daemons[name] for name, (daemon, _) in taken.items()):
        return node, ()
    events = tuple(event for _, told in taken.values() for event in told)
    return replace(node, daemons={name: daemon for name, (daemon, _) in taken.items()}), events


def _process_read(node: Node, seen: ProcessReading) -> Reduced:
    """A PID with another start time is another process: whoever had it before has left."""
    known = node.processes.get(seen.pid)
    events: tuple[Event, ...] = ()
    if known is not None and known.start_ticks != seen.start_ticks:
        node, events = _process_exited(node, ProcessExit(at=seen.at, pid=seen.pid, start_ticks=known.start_ticks))
    node = replace(node, processes={**node.processes, seen.pid: seen})
    node, disowned = _every_daemon(
        node, lambda daemon: discovery.served(without_events(daemon), seen.at, {seen.pid: seen})
    )
    return node, events + disowned


def _process_exited(node: Node, seen: ProcessExit) -> Reduced:
    known = node.processes.get(seen.pid)
    if known is not None and known.start_ticks != seen.start_ticks:
        return node, ()
    node = process_states.exited(state_processes.exit_recorded(node, seen), seen)
    processes = {pid: process for pid, process in node.processes.items() if pid != seen.pid}
    return _every_daemon(replace(node, processes=processes), lambda daemon: _member_exited(daemon, seen))


def _member_exited(daemon: Daemon, seen: ProcessExit) -> Transition:
    process = daemon.runtime.process
    if process is not None and (process.pid, process.start_ticks) == (seen.pid, seen.start_ticks):
        killed = None if seen.wait_status is None else seen.wait_status & 0x7F != 0
        return lifecycle.gone(daemon, seen.at, killed=killed)
    daemon = clients.dequeue(daemon, seen.pid)
    return chain(
        servers.end(daemon, seen.at, seen.pid),
        lambda daemon: clients.disconnect(daemon, seen.at, seen.pid, DisconnectReason.EXIT),
    )


def _source_looked(node: Node, seen: SourceReading) -> Reduced:
    """NVML tells of a GPU by reading it, or not; a log has no last words that a whole read of it did not find."""
    if seen.name == NVML:
        return gpus.nvml_looked(node, seen), ()
    if seen.name == LOGS:
        return _every_daemon(node, lambda daemon: _logs_read(node, daemon, seen))
    return node, ()


def _logs_read(node: Node, daemon: Daemon, seen: SourceReading) -> Transition:
    """Take in one read of a daemon's logs. Recordings of earlier versions have one read for all daemons."""
    if seen.daemon not in (None, daemon.name):
        return without_events(daemon)
    if seen.daemon is not None:
        daemon = log_files.files_collected(daemon, seen.problem)
    step = log_files.check_overdue(daemon, seen)
    if seen.problem is not None or seen.more:
        return step
    return chain(step, lambda daemon: _last_words_read(node, daemon, seen.at, seen.at - seen.seconds))


def _last_words_read(node: Node, daemon: Daemon, at: float, began: float) -> Transition:
    """Those in the journal, or systemd's, may be under way when the log's files have been read: they have a moment."""
    unit, ended_at = process_states.ran(node, daemon), daemon.lifecycle.unexplained_end_at
    whole = (
        ended_at is not None
        and ended_at < began
        and not daemon.in_journal
        and not process_states.may_yet_tell(unit, ended_at)
    )
    return lifecycle.explain(daemon, at, unit=unit, force=whole)


def _source_read(node: Node, seen: SourceReading) -> Node:
    """The eyes that daemons have each for themselves are one source, which is well where all of them are."""
    known = node.sources.get(seen.name) or CollectorState(last=seen)
    failed = seen.problem is not None
    problems = {daemon: problem for daemon, problem in known.problems.items() if daemon in node.daemons}
    problems.pop(seen.daemon or "", None)
    if seen.problem is not None:
        problems[seen.daemon or ""] = seen.problem
    source = CollectorState(
        last=replace(seen, daemon=None, problem=joined(problems.values())),
        problems=problems,
        last_success=known.last_success if problems else seen.at,
        failures=known.failures + failed,
    )
    return replace(node, sources={**node.sources, seen.name: source})
