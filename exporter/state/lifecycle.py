"""The lifecycle of a control daemon: up, lost, stopped, unresponsive, held."""

from collections.abc import Collection

from exporter.model.daemon import (
    ClaimKind,
    CommandState,
    Daemon,
    DaemonState,
    DefaultLimits,
    Lifecycle,
    LossReason,
    NamedBy,
    StopReason,
    with_commands,
    with_connections,
    with_lifecycle,
    with_log,
    with_runtime,
    with_stdout,
    with_totals,
)
from exporter.model.event import EventName, Step
from exporter.model.identity import WorkloadRole
from exporter.model.incident import Death
from exporter.model.node import Node
from exporter.model.observation import DaemonProcess
from exporter.model.server import DisconnectReason
from exporter.model.settings import VISIBLE_DEVICES
from exporter.model.values import increment, replace, without
from exporter.state import claims, processes, servers
from exporter.state.processes import cgroup_of, death_of, is_from_outside

SECOND_PROBE_SECONDS = 1.0
"""Least time between the first and the second command without an answer. One alone proves nothing."""

HELD_AFTER_SECONDS = 2.0
"""Refusals for this long, without an answer between them, are another open session. Shorter ones are collisions."""

LOG_SECONDS = 1.0  # After the end of a daemon, its log may take this long to report a `quit`.

SYSTEMD_SECONDS = 2.0
"""After the end of a daemon, systemd may take this long to report that an operator stopped the unit."""

UNIT_STOPPING_SECONDS = 5.0
"""The same, while systemd reports that the unit is stopping. It reports the result a moment later."""

STARTING_SECONDS = 60.0
"""After this time, a daemon that has neither answered nor been found to hang is not starting: its state is unknown.

A daemon answers within 0.1 s of its start (measured, R580). A hang is detected within half of this time.
"""

LOSS_SECONDS = 60.0
"""Any other end after this time makes a loss the past. Otherwise the daemon's return would report it again."""

QUIT_REMEMBERED_SECONDS = 900.0  # A daemon that ends within this time after a `quit` ends because of it.

_RESPONSIVE = (DaemonState.UP, DaemonState.HELD)


def answered(step: Step, at: float) -> None:
    """Apply an answer to a command."""
    explain_end(step, at, force=step.daemon.ended)
    step.daemon = _responsive(_new_if_ended(step.daemon))
    enter_state(step, at, DaemonState.UP)


def _responsive(daemon: Daemon) -> Daemon:
    now = daemon.commands
    commands = CommandState(asked_at=now.asked_at, waits_for_server=now.waits_for_server, probes=now.probes)
    return replace(daemon, commands=commands)


def _new_if_ended(daemon: Daemon) -> Daemon:
    """If the last daemon has ended, remove its properties: a new daemon may have another version."""
    if not daemon.ended:
        return daemon
    if daemon.lifecycle.unexplained_end_at is None:
        daemon = with_lifecycle(daemon, quit_at=None, quit_claimed_at=None)
    daemon = with_runtime(daemon, version=None, protocol=None, devices={}, seen_on=frozenset(), lists_partitions=False)
    return with_commands(daemon, asked_at={})


def enter_state(step: Step, at: float, state: DaemonState) -> None:
    """Change the state of the daemon. If it starts or stops to respond, that is an event."""
    before = step.daemon.state
    if before is state:
        return
    step.daemon = with_lifecycle(replace(step.daemon, state=state), state_since=at, ever_ran=True)
    if state is DaemonState.UNRESPONSIVE:
        step.report(at, EventName.DAEMON_UNRESPONSIVE)
    elif state in _RESPONSIVE and before not in _RESPONSIVE:
        is_again = before is DaemonState.UNRESPONSIVE
        step.report(at, EventName.DAEMON_RESPONSIVE if is_again else EventName.DAEMON_UP)


def unanswered(daemon: Daemon, at: float, asked_at: float) -> Daemon:
    """Return the daemon after a command timed out. The daemon or one of its servers may hang."""
    since = daemon.commands.unanswered_since
    return with_commands(
        daemon,
        refused_since=None,
        unanswered_since=at if since is None else since,
        unanswered_at=asked_at,
        unanswered=daemon.commands.unanswered + 1,
    )


def refused(step: Step, at: float) -> None:
    """Apply the refusal of a command because another session is open.

    A daemon that has ended remains so: a stale pid file may name another process.
    """
    since, holder = step.daemon.commands.refused_since, step.daemon.commands.session_holder
    refused_since = at if since is None else since
    step.daemon = with_commands(_responsive(step.daemon), refused_since=refused_since, session_holder=holder)
    if not step.daemon.ended and at - refused_since >= HELD_AFTER_SECONDS:
        enter_state(step, at, DaemonState.HELD)


def control_unusable(step: Step, at: float) -> None:
    """Apply that the control program cannot be used.

    Without a process and without a pid file there is no daemon: NVIDIA's program would find none either. Otherwise the
    state is unknown. A pid file without a visible process may name a process of another PID namespace.
    """
    daemon = step.daemon
    since = daemon.commands.unanswered_since
    if since is None:
        step.daemon = with_commands(daemon, unanswered_since=at)
    elif daemon.ended or at - since < SECOND_PROBE_SECONDS:
        pass
    elif daemon.runtime.process is None and daemon.lifecycle.pid_file_left is False:
        end(step, at)
    elif daemon.state is not None:
        step.daemon = with_unknown_state(daemon, at)


def not_found(step: Step, at: float) -> None:
    """Apply that a command found no daemon.

    If its process exists, the pid file is wrong and the daemon cannot be queried. Every user can write that file
    (measured, R580), so nothing else follows from it. Nor does anything if the daemon may run unseen.
    """
    step.daemon = daemon = with_lifecycle(step.daemon, not_found_at=at)
    since = daemon.commands.unanswered_since
    unseen = daemon.runtime.hidden and daemon.lifecycle.pid_file_left is not False
    if daemon.runtime.process is None and not unseen:
        end(step, at)
    elif since is None:
        step.daemon = with_commands(daemon, unanswered_since=at)
    elif at - since >= SECOND_PROBE_SECONDS and daemon.state is not None:
        step.daemon = with_unknown_state(daemon, at)


def process_read(step: Step, reading: DaemonProcess) -> None:
    """Apply the process that the pid file of the daemon names."""
    at, known = reading.at, step.daemon.runtime.process
    hidden = reading.hidden and step.daemon.runtime.last_process is None
    daemon = with_runtime(step.daemon, foreign_owner=reading.foreign_owner, directory=reading.directory, hidden=hidden)
    # The pid file of another node's daemon shows nothing about the end of this one.
    left = None if daemon.directory_taken else reading.pid_file_left
    step.daemon = with_lifecycle(daemon, pid_file_left=left, quit_traces=bool(reading.quit_traces))
    if reading.pid is None:
        if known is None and reading.foreign_owner is None:
            step.daemon = with_lifecycle(step.daemon, traces_read=True)
            ended_at = step.daemon.lifecycle.unexplained_end_at
            if ended_at is not None and _was_quit(step.daemon, ended_at):
                explain_end(step, at)
        else:
            end(step, at)
            step.daemon = with_lifecycle(step.daemon, traces_read=True)
        return
    is_new = known is None or (known.pid, known.start_ticks) != (reading.pid, reading.start_ticks)
    if is_new and known is not None:
        end(step, at, LossReason.REPLACED)
    step.daemon = _with_process(step.daemon, reading)
    if is_new:
        step.daemon = _new_if_ended(step.daemon)
        if not step.daemon.supported:
            step.daemon = with_unknown_state(step.daemon, at)
        elif step.daemon.state is None or step.daemon.ended:
            enter_state(step, at, DaemonState.STARTING)
    if step.daemon.has_lost_directory and step.daemon.state is not None:
        step.daemon = with_unknown_state(step.daemon, at)
    if reading.servers is not None:
        # The child processes of the daemon. Of their clients, only NVML shows PIDs at first.
        new = [pid for pid in reading.servers if pid not in step.daemon.servers]
        for pid in [pid for pid in step.daemon.servers if pid not in reading.servers]:
            servers.end(step, at, pid)
        for pid in new:
            servers.start(step, at, pid)
            step.daemon = servers.with_hidden_pids(step.daemon, pid, True)
        step.daemon = with_connections(step.daemon, listed_at=at)


def _with_process(daemon: Daemon, reading: DaemonProcess) -> Daemon:
    daemon = with_runtime(
        daemon,
        process=reading,
        last_process=reading,
        visible_devices=reading.environment.get(VISIBLE_DEVICES),
        protocol=daemon.runtime.protocol or reading.protocol,
        unit=reading.unit or daemon.runtime.unit,
        stdout_in_journal=reading.stdout_in_journal,
    )
    return with_stdout(daemon, foreground=reading.foreground, in_file=reading.stdout_in_file)


def with_unknown_state(daemon: Daemon, at: float) -> Daemon:
    """Return a daemon that exists but cannot be queried."""
    return with_lifecycle(replace(daemon, state=None), state_since=at, ever_ran=True)


def expire_start(daemon: Daemon, at: float) -> Daemon:
    """Return the daemon with an unknown state if it did not answer for long after its start."""
    since = daemon.lifecycle.state_since
    if daemon.state is not DaemonState.STARTING or since is None or at - since <= STARTING_SECONDS:
        return daemon
    return with_unknown_state(daemon, at)


def _is_recent(quit_at: float | None, ended_at: float) -> bool:
    return quit_at is not None and ended_at - quit_at <= QUIT_REMEMBERED_SECONDS


def exit_claimed(step: Step, at: float, writer: int) -> None:
    """Apply the exit after a quit that the log reports. The process, or a command that finds none, confirms it."""
    daemon = step.daemon
    if daemon.lifecycle.unexplained_end_at is not None:
        step.daemon = with_lifecycle(daemon, quit_claimed_at=at)
        explain_end(step, at)
    elif not daemon.ended and (daemon.runtime.process is None or daemon.runtime.process.pid == writer):
        asked_at = without(daemon.commands.asked_at, daemon.dialect.list_servers)
        daemon = with_lifecycle(with_commands(daemon, asked_at=asked_at), quit_claimed_at=at)
        step.daemon = claims.add(daemon, at, ClaimKind.DAEMON_EXIT, 0)


def end(step: Step, at: float, how: LossReason = LossReason.DIED, *, killed: bool | None = None) -> None:
    """End the daemon, with its servers and clients, which end with it (measured).

    `killed` is whether a signal ended its process; None if that is unknown.
    """
    daemon = step.daemon
    if daemon.ended:
        killed = daemon.lifecycle.killed if killed is None else killed
        step.daemon = with_lifecycle(with_runtime(daemon, process=None), killed=killed)
        return
    explain_end(step, at, force=True)
    daemon = step.daemon
    had_process = daemon.runtime.process is not None
    to_explain = had_process or daemon.state is not None or _is_recent(daemon.lifecycle.quit_at, at)
    daemon = with_lifecycle(
        _responsive(replace(daemon, state=DaemonState.DOWN, default_limits=DefaultLimits())),
        killed=killed,
        traces_expected=had_process,
        traces_read=False,
        process_at_end=daemon.runtime.last_process,
        clients_at_end=frozenset((*daemon.clients, *daemon.connections.queued)) if daemon.clients_known else None,
        state_since=at,
        unexplained_end_at=at if to_explain else None,
        loss_reason=how,
    )
    daemon = with_log(with_runtime(daemon, process=None), last_command=None, echoing=False, others_at=None)
    step.daemon = with_connections(daemon, queued={}, waiting={}, listed_at=None)
    servers.end_all(step, at, DisconnectReason.DAEMON_GONE)
    explain_end(step, at)


def explain_end(step: Step, at: float, node: Node | None = None, *, force: bool = False) -> None:
    """Decide whether a daemon that ended was stopped or lost: at once if a quit is known, otherwise after a delay.

    In that time its log, or the unit that ran it, may report a stop. Another daemon may already run there. Only a
    `node` shows the unit, and whether the daemon ended with its job or pod.
    """
    daemon = step.daemon
    ended_at = daemon.lifecycle.unexplained_end_at
    if ended_at is None:
        return
    unit, workload_ended = (None, None) if node is None else (processes.unit_of(node, daemon), has_ended(node, daemon))
    lost_at = daemon.lifecycle.last_loss_at
    recent = None if lost_at is None or ended_at - lost_at > LOSS_SECONDS else lost_at
    if step.restarting:
        step.daemon = with_lifecycle(daemon, unexplained_end_at=None, watchdog_ended_at=ended_at, last_loss_at=recent)
        step.report(ended_at, EventName.DAEMON_STOPPED, reason=StopReason.WATCHDOG)
        return
    delay = SYSTEMD_SECONDS if processes.may_unit_change(unit, ended_at) else LOG_SECONDS
    # A unit that was stopping while its daemon still ran is stopped, or restarted, by an operator.
    stopping, age = processes.is_unit_stopping(unit), -1.0 if unit is None else ended_at - unit.at
    before = daemon.lifecycle.stopped_by_unit or (stopping and 0.0 <= age <= UNIT_STOPPING_SECONDS)
    if stopping or before:
        delay = UNIT_STOPPING_SECONDS
    waited = force or (workload_ended is False and at - ended_at >= delay)
    # NVIDIA's DRA driver removes the directory of a claim that was released. A crash leaves the pid file.
    released = daemon.declared.by is NamedBy.DRA and daemon.lifecycle.pid_file_left is False
    quit_or_stopped = (
        _is_recent(daemon.lifecycle.quit_at, ended_at)
        or processes.was_unit_stopped(unit, ended_at)
        or (before and daemon.state is not DaemonState.DOWN)
        or released
        or _was_quit(daemon, ended_at, waited=waited)
    )
    stopped = quit_or_stopped or workload_ended is True
    if not stopped and not waited:
        if before and not daemon.lifecycle.stopped_by_unit:
            step.daemon = with_lifecycle(daemon, stopped_by_unit=True)
        return
    daemon = with_lifecycle(daemon, unexplained_end_at=None, quit_claimed_at=None, stopped_by_unit=False)
    if stopped:
        step.daemon = with_lifecycle(daemon, quit_at=None, last_loss_at=recent)
        if daemon.state is DaemonState.DOWN:
            step.daemon = with_lifecycle(replace(step.daemon, state=DaemonState.STOPPED), state_since=ended_at)
        step.report(ended_at, EventName.DAEMON_STOPPED, reason=None if quit_or_stopped else StopReason.WORKLOAD_ENDED)
        return
    reason = daemon.lifecycle.loss_reason
    daemon = with_totals(daemon, losses=increment(daemon.totals.losses, reason))
    step.daemon = with_lifecycle(daemon, last_loss_at=ended_at)
    step.report(ended_at, EventName.DAEMON_LOST, reason=reason)


def _was_quit(daemon: Daemon, ended_at: float, *, waited: bool = False) -> bool:
    """Return whether a daemon ended by a quit, as the traces of its end or its log show.

    A quit removes the pid file and the fifo; SIGKILL, SIGTERM and SIGINT leave them (measured, R580). The log need not
    report a quit, because any user can remove lines. If the traces cannot be read, the log decides.
    """
    if daemon.lifecycle.killed or daemon.lifecycle.pid_file_left:
        return False
    if daemon.lifecycle.quit_traces:
        return True
    no_contradiction = daemon.lifecycle.pid_file_left is False or not daemon.lifecycle.traces_expected or waited
    return no_contradiction and _is_recent(daemon.lifecycle.quit_claimed_at, ended_at)


# -- the end of a job or pod ------------------------------------------------------------------------------------------

BESIDE_SECONDS = 0.25
"""Ends within this time are beside each other: they are read in any order. A job's processes end one after another.
With a longer time, the end of a job because of its daemon could look like the cause."""

SANDBOX_SECONDS = 5.0
"""A pod's sandbox may end so much later than its last container, and SIGKILL so much later than a signal that can be
caught. If a container restarts, the sandbox remains."""

_SIGKILL = 9  # No process can catch it.

GRACE_SECONDS = 30.0
"""The same if a process ended beside the daemon. Others save their work, and the driver releases their GPUs."""


def processes_of(daemon: Daemon) -> Collection[int]:
    """Return the processes that show the end of the job or pod of a daemon that runs, or that has just ended."""
    pending = Lifecycle() if daemon.lifecycle.unexplained_end_at is None else daemon.lifecycle
    processes = filter(None, (daemon.runtime.process, pending.process_at_end))
    peers = (each.pid for process in processes for each in process.peers)
    return () if daemon.declared.expected else (*(pending.clients_at_end or ()), *peers)


def has_ended(node: Node, daemon: Daemon) -> bool | None:
    """Return whether a daemon that ended did so with its job or pod; None if that may still become known.

    It did not if it is expected, ended by itself, or had a client elsewhere. Otherwise one of these shows that it did:

    * All tasks or containers ended independently of the daemon.
    * All its clients did, and a signal ended the daemon. Without a job, the tasks may be other work of the user.
    * It was idle without a job, and a signal ended another process beside it.
    * For lack of memory, the kernel killed all of them at once (memory.oom.group, cgroup-v2.rst).

    In a pod, the sandbox must end too.
    """
    process, ended_at = daemon.lifecycle.process_at_end, daemon.lifecycle.unexplained_end_at
    at_end, expected = daemon.lifecycle.clients_at_end, daemon.declared.expected
    if process is None or ended_at is None or at_end is None or expected or not process.peers:
        return False
    own, waited = death_of(node, process.pid, process.start_ticks), node.at - ended_at
    signal = None if own is None or own.wait_status is None else own.wait_status & 0x7F
    if own is not None and signal is not None and not own.out_of_memory and not is_from_outside(own):
        return False
    exited = {pid: death.process for pid, death in node.deaths.items()}
    clients = [node.processes.get(pid) or exited.get(pid) for pid in at_end]
    job_or_pod = cgroup_of(process).job_or_pod
    whole = job_or_pod or process.cgroup
    if any(each is None or (cgroup_of(each).job_or_pod or each.cgroup) != whole for each in clients):
        return False
    if waited <= BESIDE_SECONDS:
        return None
    deaths = {each: death_of(node, each.pid, each.start_ticks) for each in process.peers}
    if own is not None and own.out_of_memory:
        return all(each and each.out_of_memory and abs(each.at - own.at) <= BESIDE_SECONDS for each in deaths.values())

    running = {(pid, each.start_ticks) for pid, each in node.processes.items() if not each.ended}
    known = [each for each, death in deaths.items() if death is not None or (each.pid, each.start_ticks) in running]
    sandboxes = [deaths[each] for each in known if each.role is WorkloadRole.SANDBOX]
    tasks = [deaths[each] for each in known if each.role is not WorkloadRole.SANDBOX]
    lost = [death_of(node, each.pid, each.start_ticks) for each in clients if each is not None]
    beside = [each for each in (*tasks, *lost) if each is not None and abs(each.at - ended_at) <= BESIDE_SECONDS]
    together, idle = any(map(is_from_outside, beside)), _is_idle(daemon)
    patience = _patience(daemon, signal, in_pod=bool(sandboxes), together=together)
    by_tasks = _are_independent(daemon, signal, tasks, patience if idle else BESIDE_SECONDS)
    failed = [death for death in lost if death is None or death.wait_status != 0]  # Without its daemon, a client fails.
    by_clients = bool(signal and lost) and (not failed or _are_independent(daemon, signal, failed, patience))
    if not by_tasks and not by_clients and not (idle and together and job_or_pod is None):
        undecided = (by_tasks if idle else by_clients) is None
        return None if undecided and waited <= patience else False
    if not sandboxes:
        return any(each.role is WorkloadRole.TASK for each in known)
    if all(death is not None and death.at - ended_at <= SANDBOX_SECONDS for death in sandboxes):
        return True
    return None if waited <= SANDBOX_SECONDS else False


def _is_idle(daemon: Daemon) -> bool:
    """Return whether no other process can have ended because of the daemon's end."""
    return not daemon.runtime.foreground and not daemon.lifecycle.clients_at_end


def _patience(daemon: Daemon, signal: int | None, *, in_pod: bool, together: bool) -> float:
    """Return how long after the daemon the same cause may end others."""
    if in_pod:
        return SANDBOX_SECONDS
    if daemon.runtime.foreground:
        return BESIDE_SECONDS  # What waits for the daemon may end others because of its end.
    if together:
        return GRACE_SECONDS
    return BESIDE_SECONDS if signal in (None, _SIGKILL) else SANDBOX_SECONDS


def _are_independent(
    daemon: Daemon, signal: int | None, deaths: Collection[Death | None], within: float
) -> bool | None:
    """Return whether there are such processes, and none ended because of the daemon; None if one may still run."""
    shown = [death and _is_independent(daemon, signal, death, within) for death in deaths]
    return False if not shown or False in shown else None if None in shown else True


def _is_independent(daemon: Daemon, signal: int | None, death: Death, within: float) -> bool:
    """Return whether a process ended before the daemon, or by the same cause, `within` seconds of it."""
    seconds, by_signal = death.at - (daemon.lifecycle.unexplained_end_at or 0.0), is_from_outside(death)
    if seconds >= -BESIDE_SECONDS:
        unharmed = death.wait_status == 0 or seconds <= BESIDE_SECONDS
        return seconds <= within and (by_signal or (_is_idle(daemon) and unharmed))
    job = cgroup_of(daemon.lifecycle.process_at_end)
    if job.job_or_pod != job.pod_uid:
        return True  # What manages the job ends what is left of it.
    # A daemon may crash long after a process that had nothing more to do.
    return (job.pod_uid is not None or not daemon.lifecycle.clients_at_end) and (signal is not None or by_signal)
