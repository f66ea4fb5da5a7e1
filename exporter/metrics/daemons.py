"""Families of control daemons, of their servers, of limits, and of the watchdog.

The watchdog's families are those of expected daemons only, and absent if no watchdog runs.
"""

from collections.abc import Callable, Mapping
from itertools import product
from typing import NamedTuple

from exporter.metrics.family import Choice, Group, Items, Labels, Rows, Samples, Scope, Series, info
from exporter.model.action import AGAINST_FAULTS, ActionKind, ActionReason, ActionResult
from exporter.model.daemon import ClaimKind, Daemon, DaemonState, LossReason
from exporter.model.identity import JobManager
from exporter.model.server import DisconnectReason, RefusalReason, Server, ServerState
from exporter.model.settings import Mode
from exporter.model.watchdog import BlockReason, Condition, WatchdogPhase, WatchdogState
from exporter.parse.kernel_log import REBOOT, RESET
from exporter.state.limits import clients_limit, memory_limits_by_gpu
from exporter.state.processes import cgroup_of, pod_of_daemon
from exporter.view import View, clients_of
from exporter.watchdog import restart
from exporter.watchdog.context import Policy, block_reasons
from exporter.watchdog.limit_enforcement import LimitStatus, check_limits

DAEMON: Scope[Daemon] = Scope(("daemon",), lambda view: (((each.name,), each) for each in view.daemons()))

_WATCH: Scope[WatchdogState] = DAEMON.of(lambda view, each: view.node.watches.get(each.name))
_SERVER: Scope[tuple[Daemon, Server]] = Scope(
    ("daemon", "server"),
    lambda view: (((daemon.name, str(server.pid)), (daemon, server)) for daemon, server in view.servers()),
)


JOB = (Choice("job_manager", ("", *JobManager)), "job_id")


def _daemon_infos(view: View) -> Rows:
    for each in view.daemons():
        process = each.runtime.last_process
        member, pod = cgroup_of(process), pod_of_daemon(view.node, each)
        expected = "true" if each.declared.expected else "false"
        yield (
            each.name,
            each.pipe_directory,
            each.runtime.unit,
            None if process is None else process.uid,
            None if process is None else process.user,
            *(member.job_manager, member.job_id),
            *(("", "") if pod is None else (pod.name, pod.namespace)),
            each.runtime.version,
            each.runtime.protocol,
            expected,
        )


DAEMONS = Group(
    "Control daemons",
    "expected daemons that do not respond",
    'cuda_mps_daemon_up == 0 and on (job, instance, daemon) cuda_mps_daemon_info{expected="true"}',
    DAEMON.value("cuda_mps_daemon_up", lambda each: None if each.state is None else each.answers).help(
        "Whether the control daemon responds, also by a refusal because another control session is open."
    ),
    DAEMON.state("cuda_mps_daemon_state", Choice("state", DaemonState), lambda each: each.state).help(
        "State of the control daemon; exactly one state is 1."
    ),
    info(
        "cuda_mps_daemon_info",
        (
            *("daemon", "pipe_directory", "unit", "uid", "user"),
            *(*JOB, "daemon_pod", "daemon_namespace"),
            *("version", "protocol", Choice("expected", ("true", "false"))),
        ),
        _daemon_infos,
    ).help(
        "The control daemon, always 1. version is its program's, such as 13000 for CUDA 13.0. User, job and pod are "
        "those of its last process."
    ),
    DAEMON.value("cuda_mps_daemon_supported", lambda each: each.supported).help(
        "Whether the exporter supports the daemon's protocol (2 or 3). If not, only NVML and /proc are used."
    ),
    DAEMON.value(
        "cuda_mps_daemon_start_time_seconds",
        lambda each: None if each.runtime.process is None else each.runtime.process.started,
    ).help("Unix time at which the daemon's process started."),
    DAEMON.time("cuda_mps_daemon_last_loss_timestamp_seconds", lambda each: each.lifecycle.last_loss_at).help(
        "Unix time of the daemon's last loss, also after a restart, until the daemon ends without a loss."
    ),
    DAEMON.values("cuda_mps_daemon_losses_total", Choice("reason", LossReason), lambda each: each.totals.losses).help(
        "Ends of the daemon that neither an operator nor the watchdog caused."
    ),
    DAEMON.values(
        "cuda_mps_daemon_log_contradictions_total",
        Choice("claim", ClaimKind),
        lambda each: each.totals.log_contradictions,
    ).help("Claims in the daemon's logs that another source refuted or none confirmed."),
    DAEMON.value("cuda_mps_clients_connected_total", lambda each: each.totals.connected).help(
        "Clients that connected, or were connected when the exporter started. If the log cannot be read or loses "
        "lines, some that exited soon are missing."
    ),
    DAEMON.values(
        "cuda_mps_clients_disconnected_total", Choice("reason", DisconnectReason), lambda each: each.totals.disconnected
    ).help("Clients that disconnected."),
    DAEMON.values(
        "cuda_mps_clients_refused_total", Choice("reason", RefusalReason), lambda each: each.totals.refused
    ).help("New clients that the daemon or its servers refused."),
    DAEMON.value("cuda_mps_daemon_clients", lambda each: len(each.clients) if each.clients_known else None).help(
        "Clients of the daemon's servers. Absent until all were known once."
    ),
    DAEMON.value("cuda_mps_clients_waiting", lambda each: len(each.connections.waiting)).help(
        "Clients that wait until another user's clients disconnect."
    ),
)


def _server_infos(view: View) -> Rows:
    for daemon, server in view.servers():
        process = view.node.processes.get(server.pid)
        uid = server.uid if server.uid is not None or process is None else process.uid
        yield daemon.name, server.pid, uid, process.user if process is not None and process.uid == uid else None


def _server_clients(each: tuple[Daemon, Server]) -> int | None:
    """Count clients. If the daemon and all other sources hide their PIDs, their number is unknown."""
    count = len(clients_of(*each))
    return count if each[1].clients_known and (count or not each[1].has_hidden_pids) else None


SERVERS = Group(
    "MPS servers",
    "servers that use more than 90 % of their client slots",
    "cuda_mps_server_clients / cuda_mps_server_clients_limit > 0.9",
    _SERVER.state("cuda_mps_server_state", Choice("state", ServerState), lambda each: each[1].state).help(
        "State of the MPS server; exactly one state is 1. In fault, it refuses new clients."
    ),
    info("cuda_mps_server_info", ("daemon", "server", "uid", "user"), _server_infos).help(
        "The MPS server, always 1. uid and user are its clients', or root's if it serves all users."
    ),
    _SERVER.value("cuda_mps_server_clients", _server_clients).help(
        "Clients connected to the server. Absent if unknown."
    ),
    _SERVER.of(lambda view, each: clients_limit(view.node, *each))
    .value("cuda_mps_server_clients_limit", float)
    .help(
        "Maximum number of clients: from the server's log, else as documented for CUDA_DEVICE_MAX_CONNECTIONS up to "
        "2. Absent if unknown, or if the daemon may have several GPUs, which have a limit each."
    ),
)


def _drifted(view: View) -> Samples:
    """Return whether each server's limits drifted, absent if that is not certain. The next server has no `server`."""
    for daemon in view.daemons():
        watch = view.node.watches.get(daemon.name)
        if watch is None or watch.wanted_limits is None or not daemon.answers:
            continue
        checks = check_limits(daemon, watch.wanted_limits, view.node.at)
        for server in (None, *(shown.pid for owner, shown in view.servers() if owner is daemon)):
            worst = max((each.status for each in checks if each.server == server), default=LimitStatus.UNKNOWN)
            if worst is not LimitStatus.UNKNOWN:
                yield (daemon.name, "" if server is None else str(server)), worst is LimitStatus.DRIFTED


LIMITS = Group(
    "Limits",
    "servers with a limit that is not in force",
    "cuda_mps_server_limits_drifted == 1",
    _SERVER.value(
        "cuda_mps_server_active_thread_ratio",
        lambda each: each[0].thread_ratio(each[1].limits.active_thread_percentage),
    ).help(
        "Active thread percentage of each client, as a fraction, unless it sets less. A client gets an even number of "
        "SMs, at least 8. Absent with static SM partitions."
    ),
    _SERVER.of(lambda view, each: memory_limits_by_gpu(view.node, each[0], each[1].limits.pinned_memory))
    .values("cuda_mps_server_pinned_memory_limit_bytes", "gpu", dict)
    .help("GPU memory that each client may allocate if it sees all of the daemon's GPUs. Absent without a limit."),
    DAEMON.value(
        "cuda_mps_daemon_default_active_thread_ratio",
        lambda each: each.thread_ratio(each.default_limits.active_thread_percentage),
    ).help("Active thread percentage of each client of the next server, as a fraction."),
    DAEMON.of(lambda view, each: memory_limits_by_gpu(view.node, each, each.default_limits.pinned_memory))
    .values("cuda_mps_daemon_default_pinned_memory_limit_bytes", "gpu", dict)
    .help("GPU memory for each client of the next server. Absent without a limit."),
    Series("cuda_mps_server_limits_drifted", ("daemon", "server"), _drifted).help(
        "Whether a limit differs from the configured or remembered one. Without server: of the next server."
    ),
    _WATCH.value("cuda_mps_clients_before_limits_total", lambda each: each.bypassed).help(
        "Clients that connected before their server had its limits, which do not apply to them."
    ),
)


PROTOCOL3 = Group(
    "Protocol 3 (R615)",
    "clients by name of the server",
    "sum by (instance, daemon, name) (cuda_mps_server_clients\n"
    "  * on (job, instance, daemon, server) group_left (name) cuda_mps_server_name_info)",
    info(
        "cuda_mps_server_name_info",
        ("daemon", "server", "name"),
        lambda view: (
            (daemon.name, str(server.pid), server.name) for daemon, server in view.servers() if server.name is not None
        ),
    ).help("The server's name, always 1."),
    DAEMON.values(
        "cuda_mps_exporter_replies_unrecognized_total",
        Choice("part", ("column", "row")),
        lambda each: each.totals.replies_unrecognized if each.dialect.answers_in_tables else {},
    ).help("Unknown columns and rows of the daemon's tables, counted in each reply."),
)


_OUTCOME = (Choice("reason", ActionReason), Choice("result", ActionResult))

_BY_WATCHDOG = (ActionResult.SUCCEEDED, ActionResult.FAILED, ActionResult.OBSERVED)

_COUNTED_FROM_ZERO = (
    *product((ActionKind.RESTART,), (ActionReason.DOWN, ActionReason.HUNG), ActionResult),
    *product((ActionKind.RESTART, *AGAINST_FAULTS), (ActionReason.FAULT,), _BY_WATCHDOG),
    *product((ActionKind.END_SERVER,), (ActionReason.HUNG,), _BY_WATCHDOG),
    *product((ActionKind.SET_LIMITS,), (ActionReason.LIMITS_LOST, ActionReason.LIMITS_DRIFTED), _BY_WATCHDOG[:2]),
)
"""What has a 0 before it first happens, because the first increase would be missed otherwise."""


class _Watched(NamedTuple):
    """An expected daemon, the watchdog's state of it, and the watchdog's configuration."""

    daemon: Daemon
    watch: WatchdogState
    policy: Policy
    at: float


def _watched(view: View) -> Items[_Watched]:
    if view.policy is not None:
        for daemon in view.daemons():
            if daemon.declared.expected:
                watch = view.node.watches.get(daemon.name, WatchdogState())
                yield (daemon.name,), _Watched(daemon, watch, view.policy, view.node.at)


_WATCHED: Scope[_Watched] = Scope(("daemon",), _watched)
_WATCHED_STATE: Scope[WatchdogState] = _WATCHED.of(lambda _, each: each.watch)


def _blocked(each: _Watched) -> Mapping[str, bool]:
    if each.policy.configured_mode_of(each.daemon) is not Mode.ACT:
        return {}
    found = block_reasons(each.policy, each.daemon, each.watch)
    return {reason: reason in found for reason in BlockReason}


def _processes(view: View) -> Rows:
    found = ((labels, watch.diagnosis) for labels, watch in _WATCHED_STATE.items(view))
    return ((*labels, each.condition, each.process.pid) for labels, each in found if each and each.process)


def _actions(shown: Callable[[ActionKind], Labels | None]) -> Callable[[View], Samples]:
    """Count actions by reason and result. `shown` returns the labels of a kind of action, None if it is not shown."""

    def samples(view: View) -> Samples:
        for labels, watch in _WATCHED_STATE.items(view):
            action_counts: Mapping[tuple[ActionKind, str, ActionResult], int] = {
                **dict.fromkeys(_COUNTED_FROM_ZERO, 0),
                **{(each.kind, each.reason, each.result): each.count for each in watch.action_counts},
            }
            for (kind, reason, result), count in sorted(action_counts.items()):
                by_kind = shown(kind)
                if by_kind is not None:
                    yield (*labels, *by_kind, reason, result), count

    return samples


def _quarantined(view: View) -> Samples:
    for labels, watch in _WATCHED_STATE.items(view):
        found = watch.quarantine
        if found is not None:
            yield (*labels, found.gpu, str(found.xid), found.action), found.at + view.clock_step


WATCHDOG = Group(
    "The watchdog",
    "daemons with suspended restarts",
    'cuda_mps_watchdog_state{state=~"circuit_open|quarantined|state_lost"} == 1',
    _WATCHED.state("cuda_mps_watchdog_mode", Choice("mode", Mode), lambda each: each.policy.mode_of(each.daemon)).help(
        "Watchdog mode of the daemon; exactly one mode is 1. In observe, it only reports."
    ),
    _WATCHED.values("cuda_mps_watchdog_blocked", Choice("reason", BlockReason), _blocked).help(
        "Whether this reason prevents actions in the configured mode act."
    ),
    _WATCHED_STATE.state("cuda_mps_watchdog_state", Choice("state", WatchdogPhase), lambda each: each.phase).help(
        "Watchdog state of the daemon; exactly one state is 1. An operator's resume ends quarantined, state_lost and "
        "circuit_open."
    ),
    _WATCHED_STATE.state(
        "cuda_mps_watchdog_diagnosis",
        Choice("diagnosis", Condition),
        lambda each: Condition.UNKNOWN if each.diagnosis is None else each.diagnosis.condition,
    ).help("Diagnosis of the daemon from several sources; exactly one diagnosis is 1."),
    info("cuda_mps_watchdog_process_info", ("daemon", Choice("diagnosis", Condition), "pid"), _processes).help(
        "Process that holds the control session, is suspended, or hangs, by the diagnosis, always 1."
    ),
    Series(
        "cuda_mps_watchdog_restarts_total",
        ("daemon", *_OUTCOME),
        _actions(lambda kind: () if kind is ActionKind.RESTART else None),
    ).help("Restarts of the daemon by the watchdog or systemd, or only observed."),
    Series(
        "cuda_mps_watchdog_actions_total",
        ("daemon", Choice("action", (*AGAINST_FAULTS, ActionKind.END_SERVER, ActionKind.SET_LIMITS)), *_OUTCOME),
        _actions(lambda kind: None if kind is ActionKind.RESTART else (kind,)),
    ).help("Other actions of the watchdog, taken or observed."),
    _WATCHED.value(
        "cuda_mps_watchdog_restarts_left",
        lambda each: restart.restarts_left(each.watch, each.policy.thresholds, each.at),
    ).help("Restarts that the budget still allows; 0 while the circuit is open."),
    _WATCHED_STATE.time(
        "cuda_mps_watchdog_next_restart_timestamp_seconds",
        lambda each: each.not_before if each.phase is WatchdogPhase.BACKOFF else None,
    ).help("Earliest Unix time of the next restart. Only during a backoff."),
    _WATCHED_STATE.time("cuda_mps_watchdog_last_restart_timestamp_seconds", lambda each: each.last_restart_at).help(
        "Unix time of the daemon's last restart."
    ),
    _WATCHED_STATE.time("cuda_mps_watchdog_circuit_opened_timestamp_seconds", lambda each: each.circuit_opened_at).help(
        "Unix time at which the circuit breaker opened. Absent while it is closed."
    ),
    Series(
        "cuda_mps_watchdog_quarantined_timestamp_seconds",
        ("daemon", "gpu", "xid", Choice("action", (RESET, REBOOT))),
        _quarantined,
    ).help("Unix time at which the quarantine began, with NVIDIA's advised action. Absent otherwise."),
)
