"""The reducer: a node and one observation in, the next node and events out."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from exporter.incidents import deaths, fault_address, fault_kernels, incidents
from exporter.model import observation as kinds
from exporter.model.daemon import (
    Daemon,
    DaemonState,
    Declaration,
    NamedBy,
    with_commands,
    with_connections,
    with_declaration,
    with_runtime,
)
from exporter.model.event import TIMELINE, Event, EventName, Step
from exporter.model.identity import ConnectionHolders
from exporter.model.kernels import KernelReading
from exporter.model.launches import WorkReading
from exporter.model.node import CollectorName, CollectorState, Node
from exporter.model.reason import ReasonCode, joined
from exporter.model.sharing import GpuUse
from exporter.model.values import replace, updated, without
from exporter.state import (
    claims,
    control_replies,
    devices,
    gpus,
    hangs,
    known_daemons,
    lifecycle,
    log_files,
    log_lines,
    poll_schedule,
    servers,
    xids,
)
from exporter.state import processes as state_processes
from exporter.usage import accounting, attribution, last_minute, lasting
from exporter.watchdog import restart

QUERY_SECONDS = 7200.0
"""How long the time of a query is stored: longer than the interval of any query."""

EXITED_SERVER_SECONDS = 60.0
"""How long a server that exited is stored, so that a log line that is read late does not restore it."""

MOST_STORED_PROCESSES = 2 * poll_schedule.MOST_PROCESSES
"""If more processes are stored, only those that something refers to remain."""

UNWANTED_SECONDS = 30.0
"""How long a process that was just read is stored although nothing refers to it. A client that waited for its server
is neither queued nor connected for a moment, and its collector, which does not notice that, reads it only once."""

PRUNE_SECONDS = 1.0

Reduced = tuple[Node, tuple[Event, ...]]


def reduce(node: Node, observation: kinds.Observation) -> Reduced:
    """Return the node after one observation, and the events."""
    if isinstance(observation, kinds.GpuReading):
        observation = gpus.checked(node.gpus.get(observation.gpu), observation)
    elif isinstance(observation, GpuUse) and not gpus.is_possible(observation):
        return node, ()
    return _reduce(node, observation)


def finish(node: Node) -> Reduced:
    """Return the node at the end of a recording, and the events. Resolve what is pending, without further evidence."""
    node, events = _reduce(node, None)
    return node, (*events, *incidents.report_open(node))


def reduce_all(node: Node, observations: Iterable[kinds.Observation]) -> Iterator[Reduced]:
    """Reduce observations one by one, and finish."""
    for observation in observations:
        node, events = reduce(node, observation)
        yield node, events
    yield finish(node)


def _reduce(last: Node, observation: kinds.Observation | None) -> Reduced:
    """Return the node after an observation; after None, everything is resolved.

    The order of the steps is a contract:

    1. The time, with which all other steps compare.
    2. What time alone decides, without the observation: Xids that no other source confirmed, and why a daemon ended.
    3. The observation itself.
    4. Claims of the log, which the observation may confirm or refute.
    5. Counts of clients by workload, then faults. A fault counts each workload of a client that the steps before ended.
    6. Deaths of daemons and servers, and Xids that belong to no fault: after the faults took their clients and Xids.
    7. Names of workloads, then SM time, which is posted to them, then the other accounts, which close idle ones.
    """
    before, force = last, observation is None
    # All lines of one collection, perhaps thousands, have the same time.
    if observation is not None and observation.at > last.at:
        began_at = observation.at if last.began_at is None else last.began_at
        before = replace(last, at=observation.at, began_at=began_at)
    before = xids.count_unmatched(before, force=force)
    undecided, explained = _resolve_by_time(before, force=force)
    node, observed = (undecided, ()) if observation is None else _take(undecided, observation)
    node, decided = _decide_claims(undecided, node, observation)
    events = explained + observed + decided
    node, faults = incidents.track(last, state_processes.count_events(before, node, events), events, force=force)
    node, unclaimed = xids.report_unclaimed(deaths.track(last, node, events), force=force)
    if observation is not None:
        node = attribution.attribute(state_processes.identify(node, observation), observation)
    reported = tuple(_with_names(last, node, event) for event in events)
    return accounting.account(last, node, observation, events), reported + faults + unclaimed


def _with_names(last: Node, node: Node, event: Event) -> Event:
    """Return an event of the timeline with the user and the command of its process, which may have exited since."""
    process = None if event.pid is None else node.processes.get(event.pid) or last.processes.get(event.pid)
    if process is None or event.event not in TIMELINE:
        return event
    return replace(event, user=process.user, command=process.command)


def _take(node: Node, observation: kinds.Observation) -> Reduced:
    match observation:
        case kinds.LogLine():

            def read_line(step: Step) -> None:
                known_daemons.pids_read(step, observation.at, observation.pids)
                log_files.own_command_read(step, observation)
                log_lines.line_read(step, observation)

            return _for_daemon(node, observation.daemon, read_line)
        case kinds.ControlReply():

            def read_reply(step: Step) -> None:
                known_daemons.pids_read(step, observation.at, observation.pids)
                control_replies.reply_read(step, observation, devices.mps_pids(node))
                step.daemon = log_files.await_command(step.daemon, observation)

            return _resolve_hangs(_for_daemon(node, observation.daemon, read_reply), observation.at)
        case kinds.LogFile():
            if not observation.followed and observation.daemon not in node.daemons:
                return node, ()
            return _change_daemon(node, observation.daemon, lambda daemon: log_files.file_read(daemon, observation))
        case kinds.LogGap():
            return _change_daemon(node, observation.daemon, lambda daemon: log_files.gap_read(daemon, observation))
        case kinds.LogUnrecognized(daemon=name, file=file, lines=lines):
            return _change_daemon(
                node, name, lambda daemon: log_lines.count_lines(daemon, file, recognized=False, lines=lines)
            )
        case kinds.DaemonFound():
            return known_daemons.daemon_found(node, observation), ()
        case kinds.DaemonProcess():
            if observation.same_as is not None:
                return known_daemons.mark_duplicate(node, observation.daemon, observation.same_as), ()

            def read_process(step: Step) -> None:
                step.daemon = with_runtime(step.daemon, same_as=None)
                lifecycle.process_read(step, observation)

            return _for_daemon(node, observation.daemon, read_process)
        case kinds.GpuReading():
            node, events = gpus.apply_reading(node, observation)
            node, connected = _hidden_pids_shown(node, observation)
            node, restored = _for_daemons(node, lambda step: servers.listed_after_exit(step, node, observation))
            node = state_processes.with_exited_clients(node)
            return prune(xids.add_gpu_address(node, observation)), events + connected + restored
        case WorkReading():
            return last_minute.with_reading(node, observation), ()
        case KernelReading():
            return fault_kernels.with_reading(node, observation), ()
        case GpuUse():
            return node, ()
        case kinds.ProcessReading():
            return _process_read(node, observation)
        case kinds.ProcessExit():
            return _process_exited(node, observation)
        case kinds.AddressRanges():
            return fault_address.ranges_read(node, observation), ()
        case kinds.PodFound():
            return replace(node, pods={**node.pods, observation.uid: observation}), ()
        case kinds.SourceReading():
            return _collected(prune(_with_collector(node, observation)), observation)
        case kinds.GpuEvent():
            return xids.apply_nvml_event(node, observation), ()
        case kinds.ProcessState():
            return _resolve_hangs((state_processes.state_read(node, observation), ()), observation.at)
        case kinds.UnitState():
            node = replace(node, units={**node.units, observation.unit: observation})
            return _resolve_hangs((node, ()), observation.at)
        case ConnectionHolders(daemon=name, at=at):
            return _change_known(node, name, at, lambda known: servers.holders_read(known, node, observation))
        case kinds.ControlSocket(daemon=name, at=at):
            return _change_known(node, name, at, lambda known: state_processes.socket_read(known, observation))
        case kinds.SessionHolder(daemon=name, at=at):
            return _change_known(node, name, at, lambda known: state_processes.session_holder_read(known, observation))
        case kinds.ActionDone():
            return restart.record_result(node, observation), ()
        case kinds.Resumed():
            return restart.resume(node, observation)
        case kinds.Paused(at=at, paused=paused):
            event = Event(at=at, event=EventName.EXPORTER_PAUSED if paused else EventName.EXPORTER_RESUMED)
            return node if paused else xids.with_resets(node, {gpu for gpu, _ in node.xids.counts}, at), (event,)
        case kinds.KernelRecord():
            return state_processes.add_oom_kill(xids.apply_kernel_record(node, observation), observation), ()


# -- daemons ---------------------------------------------------------------------------------------------------------


def _step(node: Node, daemon: Daemon) -> Step:
    watch = node.watches.get(daemon.name)
    return Step(daemon, restarting=watch is not None and watch.restarts_process(daemon.runtime.last_process))


def _for_daemon(node: Node, name: str, take: Callable[[Step], None]) -> Reduced:
    daemon = node.daemons.get(name)
    if daemon is None:
        declared = Declaration(by=NamedBy.DISCOVERED)
        daemon = Daemon(name=name, pipe_directory=name, log_directory="", declared=declared)
    if daemon.discovered and daemon.declared.observed_at != node.at:
        daemon = with_declaration(daemon, observed_at=node.at)
    step = _step(node, daemon)
    take(step)
    known_daemons.remove_others(step, node.at, node.processes)
    return known_daemons.with_daemon(node, step.daemon), tuple(step.events)


def _change_daemon(node: Node, name: str, change: Callable[[Daemon], Daemon]) -> Reduced:
    """Change a daemon without an event."""

    def take(step: Step) -> None:
        step.daemon = change(step.daemon)

    return _for_daemon(node, name, take)


def _change_known(node: Node, name: str, at: float, change: Callable[[Daemon], Daemon]) -> Reduced:
    """Change a daemon by what is seen of its sockets, if it is known."""
    if (known := node.daemons.get(name)) is not None:
        node = state_processes.with_exited_clients(known_daemons.with_daemon(node, change(known)))
    return _resolve_hangs((node, ()), at)


def _for_daemons(node: Node, take: Callable[[Step], None]) -> Reduced:
    steps = {name: _step(node, daemon) for name, daemon in node.daemons.items()}
    for step in steps.values():
        take(step)
    if all(step.daemon is node.daemons[name] for name, step in steps.items()):
        return node, ()
    events = tuple(event for step in steps.values() for event in step.events)
    return replace(node, daemons={name: step.daemon for name, step in steps.items()}), events


def _resolve_hangs(reduced: Reduced, at: float) -> Reduced:
    """Decide which daemons hang: any report about a daemon may be the second indication."""
    node, events = reduced
    node, resolved = _for_daemons(node, lambda step: hangs.resolve_hang(step, node, at))
    return node, events + resolved


def _decide_claims(before: Node, node: Node, observation: kinds.Observation | None) -> Reduced:
    """Decide the claims of the logs: after a log line, only the new ones; after None, all."""
    if not any(daemon.log.claims for daemon in node.daemons.values()):
        return node, ()
    known = before.daemons if isinstance(observation, kinds.LogLine) else {}
    force = observation is None
    return _for_daemons(
        node, lambda step: claims.resolve_pending(step, node, before=known.get(step.daemon.name), force=force)
    )


def _resolve_by_time(node: Node, *, force: bool) -> Reduced:
    """Resolve what only time resolves: why a daemon ended, and whether a start takes too long."""
    if not any(
        daemon.lifecycle.unexplained_end_at is not None or daemon.state is DaemonState.STARTING
        for daemon in node.daemons.values()
    ):
        return node, ()

    def resolve(step: Step) -> None:
        step.daemon = lifecycle.expire_start(step.daemon, node.at)
        lifecycle.explain_end(step, node.at, node, force=force)

    return _for_daemons(node, resolve)


def _hidden_pids_shown(node: Node, reading: kinds.GpuReading) -> Reduced:
    if (found := servers.server_with_hidden_pids(node, reading)) is None:
        return node, ()
    daemon, server = found
    return _for_daemon(node, daemon.name, lambda step: servers.hidden_pids_shown(step, node, server.pid, reading))


# -- processes -------------------------------------------------------------------------------------------------------


def _process_read(node: Node, reading: kinds.ProcessReading) -> Reduced:
    """Reduce a reading of a process. If the start time of the PID differs, the process before has ended.

    A process that began after an exited client was listed is not that client: it only has the same PID.
    """
    known = node.processes.get(reading.pid)
    exited = state_processes.exited_client(node, reading.pid)
    if exited is not None and reading.started > (exited.exited_at or 0.0):
        return node, ()
    events: tuple[Event, ...] = ()
    if known is not None and known.start_ticks != reading.start_ticks:
        ended = kinds.ProcessExit(at=reading.at, pid=reading.pid, start_ticks=known.start_ticks)
        node, events = _process_exited(node, ended)
    node = replace(node, processes={**node.processes, reading.pid: reading})
    named = {reading.pid: reading}
    node, removed = _for_daemons(node, lambda step: known_daemons.remove_others(step, reading.at, named))
    return node, events + removed


def _process_exited(node: Node, ended: kinds.ProcessExit) -> Reduced:
    known = node.processes.get(ended.pid)
    if known is not None and known.start_ticks != ended.start_ticks:
        return node, ()
    node = state_processes.process_exited(node, ended)
    processes = {pid: process for pid, process in node.processes.items() if pid != ended.pid}

    def end_member(step: Step) -> None:
        process = step.daemon.runtime.process
        if process is not None and (process.pid, process.start_ticks) == (ended.pid, ended.start_ticks):
            killed = None if ended.wait_status is None else ended.wait_status & 0x7F != 0
            lifecycle.end(step, ended.at, killed=killed)
        else:
            known_daemons.end_member(step, ended.at, ended.pid)

    return _for_daemons(replace(node, processes=processes), end_member)


# -- collectors ------------------------------------------------------------------------------------------------------


def _with_collector(node: Node, reading: kinds.SourceReading) -> Node:
    """Return the node with the state of a collector. The collectors of all daemons for the same data are one."""
    known = node.sources.get(reading.name) or CollectorState(last=reading)
    problems = {name: problem for name, problem in known.problems.items() if name in node.daemons}
    problems.pop(reading.daemon or "", None)
    if reading.problem is not None:
        problems[reading.daemon or ""] = reading.problem
    collector = CollectorState(
        last=replace(reading, daemon=None, problem=joined(problems.values())),
        problems=problems,
        last_success=known.last_success if problems else reading.at,
        failures=known.failures + (reading.problem is not None),
        failing_since=(known.failing_since or reading.at) if problems else None,
    )
    return replace(node, sources={**node.sources, reading.name: collector})


def _collected(node: Node, reading: kinds.SourceReading) -> Reduced:
    if reading.name == CollectorName.NVML:
        node, lost = gpus.mark_unread_gpus(node, reading)
        node, changes = lasting.examined(node)
        return node, lost + changes
    if reading.name == CollectorName.LOGS:
        return _for_daemons(node, lambda step: _logs_collected(step, node, reading))
    still_running = reading.problem is not None and reading.problem.code is ReasonCode.STILL_RUNNING
    daemon = node.daemons.get(reading.daemon or "")
    if reading.name == CollectorName.CONTROL and still_running and daemon is not None and daemon.answers:
        # A query hangs, for example in the daemon's directory. Whether the daemon still responds is unknown.
        return known_daemons.with_daemon(node, lifecycle.with_unknown_state(daemon, reading.at)), ()
    return node, ()


def _logs_collected(step: Step, node: Node, reading: kinds.SourceReading) -> None:
    """Reduce one collection of a daemon's logs. Recordings of earlier versions have one for all daemons.

    A complete collection that began after the end of a daemon has everything that its log files report of the end.
    The journal and systemd may report it a little later.
    """
    if reading.daemon not in (None, step.daemon.name):
        return
    if reading.daemon is not None:
        step.daemon = log_files.files_collected(step.daemon, reading)
    log_files.check_overdue(step, reading)
    if reading.problem is not None or reading.more:
        return
    daemon = step.daemon
    unit, ended_at = state_processes.unit_of(node, daemon), daemon.lifecycle.unexplained_end_at
    complete = (
        ended_at is not None
        and ended_at < reading.at - reading.seconds
        and not daemon.in_journal
        and not state_processes.may_unit_change(unit, ended_at)
        and (daemon.lifecycle.traces_read or not daemon.lifecycle.traces_expected)
        and lifecycle.has_ended(node, daemon) is not None
    )
    lifecycle.explain_end(step, node.at, node, force=complete)


# -- pruning ---------------------------------------------------------------------------------------------------------


def prune(node: Node) -> Node:
    """Remove what is out of date, at most once in `PRUNE_SECONDS`.

    A disconnected client that NVML still shows remains: it does not bypass MPS.
    """
    if node.at - node.pruned_at < PRUNE_SECONDS:
        return node
    shown = {each.pid for gpu in node.gpus.values() for each in gpu.reading.compute_processes or ()}
    daemons = {
        name: _prune_daemon(daemon, node.at, shown)
        for name, daemon in node.daemons.items()
        if not daemon.removable(node.at)
    }
    wanted = poll_schedule.processes_wanted(node)
    kept_since = node.at - UNWANTED_SECONDS if len(node.processes) <= MOST_STORED_PROCESSES else node.at
    gone = [pid for pid in node.processes.keys() - wanted if node.processes[pid].at <= kept_since]
    node = updated(node, daemons=daemons, processes=without(node.processes, *gone))
    node = state_processes.prune_exits(replace(node, pruned_at=node.at))
    node = state_processes.prune_states(node, poll_schedule.states_wanted(node))
    node = fault_address.prune(state_processes.prune_units(node))
    if node.pods:
        present = state_processes.pod_uids(node)
        # The labels of a pod are shown as long as its usage.
        present |= {workload.name for workload in node.usage_totals.last_used_at}
        node = replace(node, pods={uid: pod for uid, pod in node.pods.items() if uid in present})
    return state_processes.prune_identities(state_processes.prune_workload_counts(node))


def _prune_daemon(daemon: Daemon, at: float, shown: set[int]) -> Daemon:
    connections = daemon.connections
    remembered = servers.LATE_SECONDS if any(daemon.log.unread.values()) else servers.REMEMBERED_SECONDS
    daemon = with_connections(
        daemon,
        disconnected_at=_recent(connections.disconnected_at, at - remembered, shown),
        server_exited_at=_recent(connections.server_exited_at, at - EXITED_SERVER_SECONDS, shown),
    )
    queries = daemon.commands.asked_at.items()
    daemon = with_commands(daemon, asked_at={command: then for command, then in queries if at - then < QUERY_SECONDS})
    return log_lines.prune_disconnects(daemon, at)


def _recent(times: Mapping[int, float], since: float, shown: set[int]) -> Mapping[int, float]:
    return {pid: at for pid, at in times.items() if at >= since or pid in shown}
