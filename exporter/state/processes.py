"""Processes: recent exits and the workloads of clients; also process states, units and probes of control sockets."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType

from exporter.model.daemon import Daemon, DaemonState, with_commands
from exporter.model.event import Event, EventName
from exporter.model.identity import Confidence, Workload, WorkloadCounts, WorkloadIdentity, WorkloadKind, identity_of
from exporter.model.incident import ClientDetails, Death, Suspect
from exporter.model.node import Node
from exporter.model.observation import (
    ControlSocket,
    DaemonProcess,
    KernelRecord,
    Observation,
    PodFound,
    ProcessExit,
    ProcessReading,
    ProcessState,
    SessionHolder,
    SocketProbes,
    UnitState,
)
from exporter.model.server import Client
from exporter.model.values import made_of, replace, updated, with_latest, without
from exporter.model.watchdog import WatchdogState
from exporter.parse.cgroup import CGROUP_CACHE_SIZE, CgroupMembership, parse_cgroup
from exporter.parse.kernel_log import parse_kernel_record, parse_oom_kill

REMEMBERED_SECONDS = 60.0
MOST_DEATHS = 4096

DYING_SECONDS = 10.0  # How long a process that the kernel has killed may take to exit: its memory is freed first.
FORGOTTEN_SECONDS = 1200.0
"""How long a workload without clients, faults and use has counts and totals: twice the interval of the recording rules.
After a longer time, most series of a node of Kubernetes would be those of ended pods."""

MAX_WORKLOADS = 1024  # How many workloads have counts. Of more, those that had a client most recently.
MAX_SUSPECTS = 16  # By how many suspects the clients of a workload are counted. Of more, the most recent ones.


def process_exited(node: Node, ended: ProcessExit) -> Node:
    """Remember that a watched process has exited, and remove its state."""
    state = node.states.get(ended.pid)
    if state is not None and state.start_ticks == ended.start_ticks:
        node = prune_states(node, node.states.keys() - {ended.pid})
    process, ticks, status = node.processes.get(ended.pid), ended.start_ticks, ended.wait_status
    return _add_death(node, Death(at=ended.at, pid=ended.pid, start_ticks=ticks, process=process, wait_status=status))


def add_oom_kill(node: Node, record: KernelRecord) -> Node:
    """Remember a process that the kernel killed for lack of memory. Lines that programs wrote are ignored."""
    pid = parse_oom_kill(parse_kernel_record(record.record) or "")
    if pid is None or record.apart:
        return node
    process = node.processes.get(pid)
    start_ticks = None if process is None else process.start_ticks
    for name, daemon in node.daemons.items():
        if pid in daemon.clients:
            clients = {**daemon.clients, pid: replace(daemon.clients[pid], out_of_memory=True)}
            node = replace(node, daemons={**node.daemons, name: replace(daemon, clients=clients)})
    return _add_death(node, Death(at=record.at, pid=pid, start_ticks=start_ticks, process=process, out_of_memory=True))


def prune_exits(node: Node) -> Node:
    """Remove exits that are older than `REMEMBERED_SECONDS`."""
    recent = {pid: death for pid, death in node.deaths.items() if node.at - death.at <= REMEMBERED_SECONDS}
    return updated(node, deaths=recent)


def _add_death(node: Node, death: Death) -> Node:
    known = node.deaths.get(death.pid)
    ticks = set() if known is None else {known.start_ticks, death.start_ticks}
    if known is not None and (len(ticks) == 1 if None not in ticks else abs(known.at - death.at) <= DYING_SECONDS):
        death = replace(
            known,
            at=min(known.at, death.at),
            start_ticks=death.start_ticks if known.start_ticks is None else known.start_ticks,
            process=known.process or death.process,
            wait_status=death.wait_status if known.wait_status is None else known.wait_status,
            out_of_memory=known.out_of_memory or death.out_of_memory,
        )
    return replace(node, deaths=with_latest(node.deaths, death.pid, death, MOST_DEATHS))


_FROM_OUTSIDE = (1, 2, 9, 10, 12, 15, 24)
"""SIGHUP, SIGINT, SIGKILL, SIGUSR1, SIGUSR2, SIGTERM and SIGXCPU: batch systems, systemd, container runtimes and the
kernel (for a PID namespace) end processes with them."""


def death_of(node: Node, pid: int | None, start_ticks: int | None) -> Death | None:
    """Return the recent exit of a process; None if it is not known to have exited."""
    death = node.deaths.get(pid or 0)
    return death if death is not None and death.start_ticks == start_ticks else None


def is_from_outside(death: Death) -> bool:
    """Return whether another process ended it. A lack of memory is the process's own, and a code can mean anything."""
    return not death.out_of_memory and death.wait_status is not None and death.wait_status & 0x7F in _FROM_OUTSIDE


def shown_at(node: Node, pid: int) -> float | None:
    """Return when NVML was last read, if its lists contain the process as an MPS client."""
    times = (gpu.reading.at for gpu in node.gpus.values() if pid in gpu.mps_since and gpu.reading.problem is None)
    return max(times, default=None)


def exited_client(node: Node, pid: int) -> Client | None:
    """Return a client that is connected although its process has exited."""
    daemons = node.daemons.values()
    return next(iter([each for daemon in daemons if (each := daemon.clients.get(pid)) and each.exited_at]), None)


def with_exited_clients(node: Node) -> Node:
    """Return the node with the last reading of each process that has exited while its client is connected."""
    exited = {pid for daemon in node.daemons.values() for pid, each in daemon.clients.items() if each.exited_at}
    readings = {pid: node.deaths[pid].process for pid in exited & node.deaths.keys() - node.processes.keys()}
    gone = {pid: replace(process, ended=True) for pid, process in readings.items() if process}
    others = {pid: each for pid, each in node.processes.items() if not each.ended or pid in exited}
    return updated(node, processes=others | gone)


def holders_of(node: Node, pid: int) -> tuple[int, ...] | None:
    """Return the running processes that hold the connection of a client that has exited; None if it has not exited."""
    if (client := exited_client(node, pid)) is None:
        return None
    return tuple(each.pid for each in client.holders or () if identity_of(node.processes.get(each.pid)) == each)


def pids_to_end(node: Node, pid: int) -> tuple[int, ...]:
    """Return the running processes whose end disconnects a client: its own, or what holds its connection."""
    holders, process = holders_of(node, pid), node.processes.get(pid)
    own = () if process is None or process.ended or pid <= 1 else (pid,)
    return own if holders is None else holders


# -- workloads -----------------------------------------------------------------------------------------------------


def cgroup_of(process: ProcessReading | DaemonProcess | None) -> CgroupMembership:
    """Return what a process belongs to by its cgroup; empty if the process is unknown."""
    return parse_cgroup("") if process is None else parse_cgroup(process.cgroup or "", process.job_source)


def workload_of(process: ProcessReading | DaemonProcess | None) -> Workload | None:
    """Return the workload of a process: its job, pod, task, container, unit or user; None if all are unknown.

    A pod is named by its UID, which is known at once. Its name may be known later, or never. A unit with processes of
    other users, root included, is no workload.
    """
    if process is None:
        return None
    users = process.unit_users if isinstance(process, ProcessReading) else None
    return _workload(process.cgroup or "", process.job_source, _user(process), not set(users or ()) - {process.uid})


def _user(process: ProcessReading | DaemonProcess) -> str | None:
    return process.user or (None if process.uid is None else str(process.uid))


@lru_cache(maxsize=CGROUP_CACHE_SIZE)
def _workload(cgroup: str, job_source: str | None, user: str | None, alone: bool) -> Workload | None:
    member = parse_cgroup(cgroup, job_source)
    names = (
        (WorkloadKind.JOB, member.job_id),
        (WorkloadKind.POD, member.pod_uid),
        (WorkloadKind.TASK, member.task),
        (WorkloadKind.CONTAINER, member.container),
        (WorkloadKind.UNIT, member.own_unit if alone else None),
        (WorkloadKind.USER, user),
    )
    return next((Workload(kind=kind, name=name) for kind, name in names if name), None)


def pod_of(node: Node, process: ProcessReading | None) -> PodFound | None:
    """Return the pod of a process; None if its name is unknown."""
    uid = cgroup_of(process).pod_uid
    return None if uid is None else node.pods.get(uid)


def pod_uids(node: Node) -> frozenset[str]:
    """Return the UIDs of the pods of all known processes, and of those that run or ran daemons."""
    uids = (cgroup_of(process).pod_uid for process in node.processes.values())
    daemons = (pod_uid_of_daemon(daemon, node.watches.get(name)) for name, daemon in node.daemons.items())
    return frozenset(uid for uid in (*uids, *daemons) if uid is not None)


def pod_uid_of_daemon(daemon: Daemon, watch: WatchdogState | None) -> str | None:
    """Return the UID of the pod that runs, or last ran, a daemon."""
    return cgroup_of(daemon.runtime.last_process or (None if watch is None else watch.process)).pod_uid


def unnamed_pods(node: Node) -> frozenset[str]:
    """Return the UIDs of the pods whose name is unknown."""
    return pod_uids(node) - node.pods.keys()


def unlabelled_pods(node: Node) -> Sequence[PodFound]:
    """Return the pods of clients that have a known name and unknown labels."""
    pods = (pod_of(node, node.processes.get(pid)) for daemon in node.daemons.values() for pid in daemon.clients)
    return tuple({pod.uid: pod for pod in pods if pod is not None and pod.labels is None}.values())


def pod_of_daemon(node: Node, daemon: Daemon) -> PodFound | None:
    """Return that pod; None if its name is unknown, or if no pod ran the daemon."""
    return node.pods.get(pod_uid_of_daemon(daemon, node.watches.get(daemon.name)) or "")


def count_events(before: Node, node: Node, events: Collection[Event]) -> Node:
    """Count the clients that connected, disconnected or became known between two nodes for their workloads."""
    if not events and node.processes is before.processes:
        return node
    unattributed = set(node.unattributed)
    for event in events:
        if event.event is EventName.CLIENT_CONNECTED and event.pid is not None:
            unattributed.add(event.pid)
        elif event.event is EventName.CLIENT_DISCONNECTED and event.pid is not None:
            if event.pid not in unattributed:
                node = _count(node, workload_of(before.processes.get(event.pid)))
            unattributed.discard(event.pid)
    for pid in unattributed & node.processes.keys():
        unattributed.discard(pid)
        node = _count(_identified(node, node.processes[pid]), workload_of(node.processes[pid]), connected=1)
    return updated(node, unattributed=frozenset(unattributed))


def count_fault(node: Node, affected: Iterable[ClientDetails]) -> Node:
    """Count a fault once for each workload with an affected client."""
    for workload in dict.fromkeys(client.workload for client in affected):
        node = _count(node, workload, affected=1)
    return node


def count_end_of_fault(node: Node, affected: Iterable[ClientDetails], suspect: Suspect | None) -> Node:
    """Count the clients that a fault ended, by its main suspect, and the fault for that suspect if it is likely."""
    key = ("", Confidence.NONE) if suspect is None else (suspect.client.workload_label, suspect.level)
    for workload, number in Counter(client.workload for client in affected).items():
        node = _count(node, workload, faulted={key: number})
    if suspect is not None and suspect.level in (Confidence.HIGH, Confidence.MEDIUM):
        node = _count(node, suspect.client.workload, suspected=1)
    return node


def identify(node: Node, seen: Observation | None) -> Node:
    """Remember to which workload a bypassing process belongs, or the name and the labels of a pod."""
    if isinstance(seen, ProcessReading) and any(seen.pid in gpu.bypassing_processes for gpu in node.gpus.values()):
        return _identified(node, seen)
    if isinstance(seen, PodFound):
        found = WorkloadIdentity(namespace=seen.namespace, pod=seen.name, labels=seen.labels)
        members = {workload_of(each) for each in node.processes.values() if cgroup_of(each).pod_uid == seen.uid}
        for workload in {Workload(kind=WorkloadKind.POD, name=seen.uid), *members}:
            if workload in node.usage_totals.identities:
                node = _with_identity(node, workload, found)
    return node


def _identified(node: Node, process: ProcessReading) -> Node:
    """Remember what is known of a process of a workload."""
    workload, member, pod = workload_of(process), cgroup_of(process), pod_of(node, process)
    manager, name = member.job_manager and member.job_manager.value, None if pod is None else pod.name
    found = made_of(WorkloadIdentity, pod, member, pod=name, user=_user(process), job_manager=manager)
    return _with_identity(node, workload, found)


def _with_identity(node: Node, workload: Workload | None, found: WorkloadIdentity) -> Node:
    identities = node.usage_totals.identities
    if workload is None:
        return node
    merged = identities.get(workload, found).merged(found)
    if merged == identities.get(workload):
        return node
    return replace(node, usage_totals=replace(node.usage_totals, identities={**identities, workload: merged}))


def prune_identities(node: Node) -> Node:
    """Remove the identities of workloads without processes, usage and counts."""
    totals = node.usage_totals
    unused = totals.identities.keys() - totals.last_used_at.keys() - node.accounts.keys()
    gone = unused.difference(map(workload_of, node.processes.values())) if unused else unused
    return updated(node, usage_totals=updated(totals, identities=without(totals.identities, *gone)))


def prune_workload_counts(node: Node) -> Node:
    """Remove the counts of workloads without clients and faults for `FORGOTTEN_SECONDS`."""
    if all(node.at - each.used_at <= FORGOTTEN_SECONDS for each in node.accounts.values()):
        return node
    pids = (pid for daemon in node.daemons.values() for pid in daemon.clients if pid not in node.unattributed)
    for workload in {workload_of(node.processes.get(pid)) for pid in pids}:
        node = _count(node, workload)
    recent = {workload: each for workload, each in node.accounts.items() if node.at - each.used_at <= FORGOTTEN_SECONDS}
    return replace(node, accounts=recent)


def _count(
    node: Node,
    workload: Workload | None,
    *,
    connected: int = 0,
    affected: int = 0,
    suspected: int = 0,
    faulted: Mapping[tuple[str, Confidence], int] = MappingProxyType({}),
) -> Node:
    """Count for a workload that has a client, or had one until now. Without anything to count, add no new workload."""
    if workload is None or (workload not in node.accounts and not (connected or affected or suspected or faulted)):
        return node
    known = node.accounts.get(workload, WorkloadCounts(used_at=node.at))
    faulted_clients = known.faulted_clients
    for key, number in faulted.items():
        faulted_clients = with_latest(faulted_clients, key, faulted_clients.get(key, 0) + number, MAX_SUSPECTS)
    counts = replace(
        known,
        used_at=node.at,
        connected=known.connected + connected,
        faults_affected=known.faults_affected + affected,
        faults_suspected=known.faults_suspected + suspected,
        faulted_clients=faulted_clients,
    )
    accounts = {**node.accounts, workload: counts}
    if len(accounts) > MAX_WORKLOADS:
        del accounts[min(accounts, key=lambda workload: accounts[workload].used_at)]
    return replace(node, accounts=accounts)


def client_id(client: Client, process: ProcessReading | None) -> str:
    """Return the id of a client: PID and start time, or PID and time of connection if the start is unknown."""
    if process is None:
        return _id(client.pid, "s", int(client.connected_at))
    return _id(client.pid, "", process.start_ticks)


_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


@lru_cache(1024)
def _id(pid: int, kind: str, number: int) -> str:
    """Return an id. It is the same object each time, because the samples of many families contain it."""
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return f"{pid}-{kind}{digits or '0'}"


# -- states of processes and units ------------------------------------------------------------------------------------


def socket_read(daemon: Daemon, socket: ControlSocket) -> Daemon:
    """Return the daemon with the state of its control socket, which matters only while commands get no answer."""
    if not is_unanswered(daemon):
        return with_commands(daemon, listening=None, probes=None)
    since = daemon.commands.unanswered_since
    known = None if since is None else probes(daemon) or SocketProbes(since=since)
    if known is not None and socket.answers is True:
        known = replace(known, unanswered=0, others=False, answered_at=socket.at, wait_channel=None)
    elif known is not None and socket.answers is False:
        unanswered = 0 if socket.others else known.unanswered + (socket.others is False)
        known = replace(known, unanswered=unanswered, others=socket.others, answered_at=None)
        known = replace(known, wait_channel=socket.wait_channel)
    return with_commands(daemon, listening=socket.listening, probes=known)


def probes(daemon: Daemon) -> SocketProbes | None:
    """Return the exporter's connections since commands get no answer; None if the socket was not probed since then."""
    known = daemon.commands.probes
    return known if known is not None and known.since == daemon.commands.unanswered_since else None


def session_holder_read(daemon: Daemon, holder: SessionHolder) -> Daemon:
    """Return the daemon with the process that is connected to it, if that can be why commands get no answer."""
    known = (holder.pid, holder.uid) != (None, None) and (is_refused(daemon) or is_unanswered(daemon))
    return with_commands(daemon, session_holder=holder if known else None)


def is_refused(daemon: Daemon) -> bool:
    """Return whether another program's session may block the daemon."""
    return daemon.commands.refused_since is not None or daemon.state is DaemonState.HELD


def is_unanswered(daemon: Daemon) -> bool:
    """Return whether the daemon has ended or does not answer."""
    return daemon.commands.unanswered_since is not None or (daemon.state is not None and not daemon.answers)


def state_read(node: Node, state: ProcessState) -> Node:
    """Return the node with the state of a process. The time of an unchanged state remains the time of its begin."""
    known = node.states.get(state.pid)
    if known is not None and known.start_ticks == state.start_ticks:
        ended = known.children_page_faults is not None and known.children_page_faults != state.children_page_faults
        ended_at = state.at if ended else known.child_ended_at
        latest = known if known.state == state.state else state
        state = replace(latest, children_page_faults=state.children_page_faults, child_ended_at=ended_at)
    return node if state == known else replace(node, states={**node.states, state.pid: state})


def prune_states(node: Node, wanted: frozenset[int] | set[int]) -> Node:
    """Return the node with the states of these processes only."""
    return updated(node, states=without(node.states, *(node.states.keys() - wanted)))


def state_of_daemon(node: Node, daemon: Daemon) -> ProcessState | None:
    """Return the state of the daemon's process; None if it is unknown."""
    process = daemon.runtime.process
    state = None if process is None or process.pid is None else node.states.get(process.pid)
    return state if process is not None and state is not None and state.start_ticks == process.start_ticks else None


def state_of_server(node: Node, pid: int) -> ProcessState | None:
    """Return the state of a server; None if it is unknown, or if it is the state of another process with the PID."""
    state, process = node.states.get(pid), node.processes.get(pid)
    return None if state is None or (process and process.start_ticks != state.start_ticks) else state


def is_suspended(state: ProcessState | None) -> bool:
    """Return whether a signal or a debugger stopped the process (proc_pid_stat(5))."""
    return state is not None and state.state in ("T", "t")


def is_stuck(state: ProcessState | None) -> bool:
    """Return whether the process is in an uninterruptible sleep. For a moment that is normal."""
    return state is not None and state.state == "D"


def can_query(node: Node, server: int) -> bool:
    """Return whether a query about the server is safe. A query about a suspended one hangs the daemon (R580)."""
    return not is_suspended(state_of_server(node, server))


_ALWAYS_RESTARTED = ("always", "on-success")
"""Restart= of a unit that systemd restarts after every end (systemd.service(5))."""

_RESTARTED_AFTER_TIMEOUT = ("always", "on-failure", "on-abnormal")
"""Restart= of a unit that systemd restarts after a timeout, unless an operator stopped it (measured, systemd 252)."""

_STOP_SECONDS = 1.0
"""A unit that systemd restarts, for example by RestartForceExitStatus=, stops in less time (measured, systemd 252)."""

_ABOUT_TO_RESTART = "failed-before-auto-restart"  # Short state before a restart, from systemd 254 on.


def prune_units(node: Node) -> Node:
    """Return the node without units that belong to no daemon."""
    named = {daemon.declared.unit for daemon in node.daemons.values()}
    return updated(node, units={unit: state for unit, state in node.units.items() if unit in named})


def unit_of(node: Node, daemon: Daemon) -> UnitState | None:
    """Return the declared unit of a daemon; None if systemd does not know it, or if the daemon runs in another."""
    unit = node.units.get(daemon.declared.unit or "")
    return unit if unit is not None and unit.known and daemon.runtime.unit == daemon.declared.unit else None


def was_unit_stopped(unit: UnitState | None, ended_at: float) -> bool:
    """Return whether an operator stopped the unit, and with it the daemon that ended at that time."""
    if unit is None or unit.at <= ended_at:
        return False
    not_restarted = is_unit_stopping(unit) and unit.restart not in _ALWAYS_RESTARTED
    return is_unit_stopped(unit) or (not_restarted and unit.at - ended_at > _STOP_SECONDS)


def is_unit_stopped(unit: UnitState) -> bool:
    """Return whether an operator stopped the unit. systemd may have killed it after a timeout."""
    killed = (unit.active, unit.result) == ("failed", "timeout") and unit.sub != _ABOUT_TO_RESTART
    stopped = (unit.active, unit.result) == ("inactive", "success")
    return stopped or (killed and unit.restart in _RESTARTED_AFTER_TIMEOUT)


def is_unit_stopping(unit: UnitState | None) -> bool:
    """Return whether the unit was stopping, without a failure so far."""
    return unit is not None and (unit.active, unit.result) == ("deactivating", "success")


def may_unit_change(unit: UnitState | None, ended_at: float) -> bool:
    """Return whether systemd may not have noticed the end of the daemon yet, or was not asked since."""
    return unit is not None and (unit.at <= ended_at or unit.active in ("active", "deactivating"))
