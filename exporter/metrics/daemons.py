"""Families about control daemons."""

from collections.abc import Callable, Mapping

from exporter.metrics.family import Samples, counter, gauge
from exporter.model.daemon import Daemon, DaemonState
from exporter.view import View


def _up(view: View) -> Samples:
    return (((each.name,), each.answers) for each in view.daemons() if each.state is not None)


def _state(view: View) -> Samples:
    for daemon in view.daemons():
        if daemon.state is not None:
            yield from (((daemon.name, state), daemon.state is state) for state in DaemonState)


def _info(view: View) -> Samples:
    for daemon in view.daemons():
        uid = "" if daemon.process is None or daemon.process.uid is None else str(daemon.process.uid)
        expected = "true" if daemon.expected else "false"
        protocol = "" if daemon.protocol is None else str(daemon.protocol)
        labels = (daemon.name, daemon.pipe_directory, daemon.unit or "", uid, daemon.version or "", protocol, expected)
        yield labels, 1


def _started(view: View) -> Samples:
    for daemon in view.daemons():
        if daemon.process is not None and daemon.process.started is not None:
            yield (daemon.name,), daemon.process.started


def _last_loss(view: View) -> Samples:
    for daemon in view.daemons():
        if daemon.last_loss_at is not None:
            yield (daemon.name,), daemon.last_loss_at + view.clock_step


def _by_reason(counts: Callable[[Daemon], Mapping[str, int]]) -> Callable[[View], Samples]:
    return lambda view: (
        ((daemon.name, reason), count) for daemon in view.daemons() for reason, count in sorted(counts(daemon).items())
    )


FAMILIES = (
    gauge(
        "cuda_mps_daemon_up",
        ("daemon",),
        "Whether the control daemon responds; refusing because somebody else's session is open is a response.",
        _up,
    ),
    gauge("cuda_mps_daemon_state", ("daemon", "state"), "State of the control daemon; exactly one is 1.", _state),
    gauge(
        "cuda_mps_daemon_info",
        ("daemon", "pipe_directory", "unit", "uid", "version", "protocol", "expected"),
        "The control daemon; version is its binary's, 13000 for CUDA 13.0; protocol 3 (R615) is not spoken here yet.",
        _info,
    ),
    gauge(
        "cuda_mps_daemon_supported",
        ("daemon",),
        "Whether the daemon speaks a protocol known here; where not (R615's third), only its process is watched.",
        lambda view: (((each.name,), each.supported) for each in view.daemons()),
    ),
    gauge(
        "cuda_mps_daemon_start_time_seconds",
        ("daemon",),
        "Start time of the control daemon's process, in seconds since the epoch.",
        _started,
    ),
    gauge(
        "cuda_mps_daemon_last_loss_timestamp_seconds",
        ("daemon",),
        "When the control daemon was last lost, in seconds since the epoch; stands after it is back.",
        _last_loss,
    ),
    counter(
        "cuda_mps_daemon_losses_total",
        ("daemon", "reason"),
        "Ends of the control daemon that nobody had asked for: it died, or was found replaced by another.",
        _by_reason(lambda daemon: daemon.totals.losses),
    ),
    counter(
        "cuda_mps_daemon_log_contradictions_total",
        ("daemon", "claim"),
        "Claims of the daemon's logs that another source refuted, or that none confirmed; any user can forge lines.",
        _by_reason(lambda daemon: daemon.totals.log_contradictions),
    ),
    counter(
        "cuda_mps_clients_connected_total",
        ("daemon",),
        "Clients that connected, those present when the exporter started included.",
        lambda view: (((each.name,), each.totals.connected) for each in view.daemons()),
    ),
    counter(
        "cuda_mps_clients_disconnected_total",
        ("daemon", "reason"),
        "Clients that left: by their own exit, or because their server or daemon had gone.",
        _by_reason(lambda daemon: daemon.totals.disconnected),
    ),
    counter(
        "cuda_mps_clients_refused_total",
        ("daemon", "reason"),
        "New clients that were turned away: all places taken, the server in FAULT, or another reason.",
        _by_reason(lambda daemon: daemon.totals.refused),
    ),
    gauge(
        "cuda_mps_daemon_clients",
        ("daemon",),
        "Clients connected to the daemon's servers; 0 also where it has no server.",
        lambda view: (((each.name,), len(each.clients)) for each in view.daemons()),
    ),
    gauge(
        "cuda_mps_clients_waiting",
        ("daemon",),
        "Clients queued until another user's clients have left.",
        lambda view: (((each.name,), len(each.waiting)) for each in view.daemons()),
    ),
)
