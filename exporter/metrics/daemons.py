"""Families of control daemons, of their servers and of limits."""

from collections import Counter
from collections.abc import Iterable, Mapping

from exporter.metrics.family import Choice, Items, Labels, Rows, Samples, Scope, family, group, info
from exporter.model.daemon import ClaimKind, Daemon, DaemonState, LossReason
from exporter.model.server import DisconnectReason, RefusalReason, Server, ServerState
from exporter.parse import protocol3
from exporter.state.devices import gpus_by_ordinal
from exporter.state.limits import clients_limit
from exporter.state.processes import cgroup_of, pod_of_daemon
from exporter.view import View
from exporter.watchdog.limit_enforcement import LimitCheck, LimitStatus, check_limits

DAEMON: Scope[Daemon] = Scope(("daemon",), lambda view: (((each.name,), each) for each in view.daemons()))


def _servers(view: View) -> Items[Server]:
    return (((daemon.name, str(server.pid)), server) for daemon, server in view.servers())


_SERVER: Scope[Server] = Scope(("daemon", "server"), _servers)


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
            *(member.slurm_job_id, member.slurm_job_sluid),
            *(("", "") if pod is None else (pod.name, pod.namespace)),
            each.runtime.version,
            each.runtime.protocol,
            expected,
        )


DAEMONS = group(
    "Control daemons",
    "expected daemons that do not respond",
    'cuda_mps_daemon_up == 0 and on (job, instance, daemon) cuda_mps_daemon_info{expected="true"}',
    DAEMON.value("cuda_mps_daemon_up", lambda each: None if each.state is None else each.answers),
    "Whether the control daemon responds. A refusal because another control session is open is a response.",
    DAEMON.state("cuda_mps_daemon_state", Choice("state", DaemonState), lambda each: each.state),
    "State of the control daemon; exactly one state is 1.",
    info(
        "cuda_mps_daemon_info",
        (
            *("daemon", "pipe_directory", "unit", "uid", "user"),
            *("slurm_job_id", "slurm_job_sluid", "daemon_pod", "daemon_namespace"),
            *("version", "protocol", Choice("expected", ("true", "false"))),
        ),
        _daemon_infos,
    ),
    "The control daemon, always 1. version is that of its program, such as 13000 for CUDA 13.0. User, job and pod "
    "are those of its process, or of its last one.",
    DAEMON.value("cuda_mps_daemon_supported", lambda each: each.supported),
    "Whether the exporter supports the daemon's protocol (2, or 3 of R615). If not, it uses only NVML and /proc.",
    DAEMON.value(
        "cuda_mps_daemon_start_time_seconds",
        lambda each: None if each.runtime.process is None else each.runtime.process.started,
    ),
    "Unix time at which the control daemon's process started.",
    DAEMON.time("cuda_mps_daemon_last_loss_timestamp_seconds", lambda each: each.lifecycle.last_loss_at),
    "Unix time of the last loss of the control daemon. It remains after a restart.",
    DAEMON.values("cuda_mps_daemon_losses_total", Choice("reason", LossReason), lambda each: each.totals.losses),
    "Ends of the control daemon that no operator requested: it died, or another daemon replaced it.",
    DAEMON.values(
        "cuda_mps_daemon_log_contradictions_total",
        Choice("claim", ClaimKind),
        lambda each: each.totals.log_contradictions,
    ),
    "Claims in the daemon's logs that another source refuted or none confirmed.",
    DAEMON.value("cuda_mps_clients_connected_total", lambda each: each.totals.connected),
    "Clients that connected, including those that were connected when the exporter started.",
    DAEMON.values(
        "cuda_mps_clients_disconnected_total", Choice("reason", DisconnectReason), lambda each: each.totals.disconnected
    ),
    "Clients that disconnected: they exited, or their server or daemon ended.",
    DAEMON.values("cuda_mps_clients_refused_total", Choice("reason", RefusalReason), lambda each: each.totals.refused),
    "New clients that the daemon or its servers refused.",
    DAEMON.value("cuda_mps_daemon_clients", lambda each: len(each.clients) if each.clients_known else None),
    "Clients connected to the daemon's servers; 0 if it has no server. Absent until all clients were known once.",
    DAEMON.value("cuda_mps_clients_waiting", lambda each: len(each.connections.waiting)),
    "Clients that wait for another user's clients to disconnect.",
)


def _server_infos(view: View) -> Rows:
    for daemon, server in view.servers():
        process = view.node.processes.get(server.pid)
        uid = server.uid if server.uid is not None or process is None else process.uid
        yield daemon.name, server.pid, uid, process.user if process is not None and process.uid == uid else None


def _server_clients(view: View) -> Samples:
    """Count clients. If the daemon and all other sources hide their PIDs, their number is unknown."""
    for daemon in view.daemons():
        connected = Counter(client.server for client in daemon.clients.values())
        for server in daemon.servers.values():
            if server.clients_known and (connected[server.pid] or not server.has_hidden_pids):
                yield (daemon.name, str(server.pid)), connected[server.pid]


_CLIENTS_LIMIT: Scope[int | None] = Scope(
    _SERVER.labels,
    lambda view: (
        ((each.name, str(server.pid)), clients_limit(view.node, each, server)) for each, server in view.servers()
    ),
)

SERVERS = group(
    "MPS servers",
    "servers that use more than 90 % of their client slots",
    "cuda_mps_server_clients / cuda_mps_server_clients_limit > 0.9",
    _SERVER.state("cuda_mps_server_state", Choice("state", ServerState), lambda each: each.state),
    "State of the MPS server; exactly one state is 1. In fault, it refuses all new clients.",
    info("cuda_mps_server_info", ("daemon", "server", "uid", "user"), _server_infos),
    "The MPS server, always 1. uid and user are those of its clients, or root's if it serves all users.",
    family("cuda_mps_server_clients", ("daemon", "server"), _server_clients),
    "Clients connected to the server. Absent if unknown.",
    _CLIENTS_LIMIT.value("cuda_mps_server_clients_limit", lambda limit: limit),
    "Maximum number of clients: from the server's log, else as NVIDIA documents it, unless a client sets "
    "CUDA_DEVICE_MAX_CONNECTIONS to more than 2. Absent if unknown.",
)


def _memory_by_gpu(view: View, daemon: Daemon, labels: Labels, limits: Mapping[int, int]) -> Samples:
    """Read memory limits. A device that cannot be mapped to a GPU has no sample."""
    gpus = gpus_by_ordinal(view.node, daemon)
    return (((*labels, gpus[device]), limit) for device, limit in sorted(limits.items()) if device in gpus)


def _server_memory(view: View) -> Samples:
    for daemon, server in view.servers():
        yield from _memory_by_gpu(view, daemon, (daemon.name, str(server.pid)), server.pinned_memory_limits)


def _server_threads(view: View) -> Samples:
    for daemon, server in view.servers():
        ratio = None if daemon.has_static_partitions else _as_ratio(server.active_thread_percentage)
        if ratio is not None:
            yield (daemon.name, str(server.pid)), ratio


def _default_memory(view: View) -> Samples:
    for labels, daemon in DAEMON.items(view):
        yield from _memory_by_gpu(view, daemon, labels, daemon.default_limits.pinned_memory)


def _as_ratio(percentage: float | None) -> float | None:
    """Return a percentage as a ratio."""
    return None if percentage is None else percentage / 100


def _limit_checks(view: View) -> Iterable[tuple[Daemon, tuple[LimitCheck, ...]]]:
    for daemon in view.daemons():
        watch = view.node.watches.get(daemon.name)
        if watch is not None and watch.wanted_limits is not None and daemon.answers:
            yield daemon, check_limits(daemon, watch.wanted_limits, view.node.at)


def _server_limit_checks(view: View) -> Items[list[LimitCheck]]:
    for daemon, found in _limit_checks(view):
        for server in daemon.servers:
            yield (daemon.name, str(server)), [each for each in found if each.server == server]


def _default_limit_checks(view: View) -> Items[list[LimitCheck]]:
    return (((daemon.name,), [each for each in found if each.server is None]) for daemon, found in _limit_checks(view))


def _drifted(found: list[LimitCheck]) -> bool | None:
    """Return whether a limit has drifted; None if none has for certain, and not all are known."""
    worst = max((each.status for each in found), default=LimitStatus.UNKNOWN)
    return None if worst is LimitStatus.UNKNOWN else worst is LimitStatus.DRIFTED


def _before_limits(view: View) -> Samples:
    watches = ((labels, view.node.watches.get(daemon.name)) for labels, daemon in DAEMON.items(view))
    return ((labels, watch.bypassed) for labels, watch in watches if watch is not None)


LIMITS = group(
    "Limits",
    "servers with a limit that is not in force",
    "cuda_mps_server_limits_drifted == 1",
    family("cuda_mps_server_active_thread_ratio", _SERVER.labels, _server_threads),
    "Fraction of a GPU's threads that each client of the server may use. A client may have requested less. Absent "
    "with static SM partitions.",
    family("cuda_mps_server_pinned_memory_limit_bytes", ("daemon", "server", "gpu"), _server_memory),
    "GPU memory that each client of the server may allocate. Absent without a limit.",
    DAEMON.value(
        "cuda_mps_daemon_default_active_thread_ratio",
        lambda each: None if each.has_static_partitions else _as_ratio(each.default_limits.active_thread_percentage),
    ),
    "Fraction of a GPU's threads that each client of the next server may use.",
    family("cuda_mps_daemon_default_pinned_memory_limit_bytes", ("daemon", "gpu"), _default_memory),
    "GPU memory that each client of the next server may allocate. Absent without a limit.",
    Scope(_SERVER.labels, _server_limit_checks).value("cuda_mps_server_limits_drifted", _drifted),
    "Whether a limit of the server differs from the configured or remembered one.",
    Scope(DAEMON.labels, _default_limit_checks).value("cuda_mps_daemon_limits_drifted", _drifted),
    "Whether a limit of the next server differs from the configured or remembered one.",
    family("cuda_mps_clients_before_limits_total", ("daemon",), _before_limits),
    "Clients that connected before the limits of their server were in force. The limits do not apply to them.",
)


def _replies_unrecognized(view: View) -> Samples:
    for labels, daemon in DAEMON.items(view):
        if daemon.runtime.protocol == protocol3.PROTOCOL:
            yield from (((*labels, part), count) for part, count in daemon.totals.replies_unrecognized.items())


PROTOCOL3 = group(
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
    ),
    "The name of the server (protocol 3), always 1.",
    family(
        "cuda_mps_exporter_replies_unrecognized_total",
        ("daemon", Choice("part", ("column", "row"))),
        _replies_unrecognized,
    ),
    "Columns and rows of the daemon's tables that the exporter does not know. Counted in each reply.",
)
