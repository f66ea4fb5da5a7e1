"""Families about the exporter itself: what it can see, and how well."""

import platform
from collections.abc import Callable, Mapping

from exporter import __version__
from exporter.metrics.family import Samples, counter, gauge
from exporter.model.daemon import Totals
from exporter.view import View


def _snapshot(view: View) -> Samples:
    if view.node.at:
        yield (), view.node.at + view.clock_step


def _last_success(view: View) -> Samples:
    for name, source in view.node.sources.items():
        if source.last_success is not None:
            yield (name,), source.last_success + view.clock_step


def _log_followed(view: View) -> Samples:
    for daemon in view.daemons():
        readable = daemon.logged.blocked_since is None
        for file, problem in sorted(daemon.log_problems.items()):
            yield (daemon.name, file), readable and problem is None


def _log_blocked(view: View) -> Samples:
    for daemon in view.daemons():
        blocked = daemon.logged.blocked_since is not None
        if blocked or daemon.logged.read_at is not None:
            yield (daemon.name,), blocked


def _log_unread(view: View) -> Samples:
    """What is unread of a log that hangs is not known."""
    for daemon in view.daemons():
        if daemon.log_stuck is None:
            yield from (((daemon.name, file), unread) for file, unread in sorted(daemon.log_unread.items()))


def _log_sizes(view: View) -> Samples:
    for daemon in view.daemons():
        yield from (((daemon.name, file), size) for file, size in sorted(daemon.log_sizes.items()))


def _by_file(counts: Callable[[Totals], Mapping[str, int]]) -> Callable[[View], Samples]:
    def samples(view: View) -> Samples:
        for daemon in view.daemons():
            yield from (((daemon.name, file), count) for file, count in sorted(counts(daemon.totals).items()))

    return samples


FAMILIES = (
    gauge(
        "cuda_mps_exporter_build_info",
        ("version", "python"),
        "The exporter.",
        lambda _view: [((__version__, platform.python_version()), 1)],
    ),
    gauge(
        "cuda_mps_exporter_snapshot_timestamp_seconds",
        (),
        "When the exporter last saw anything before it wrote this, in seconds since the epoch.",
        _snapshot,
    ),
    gauge(
        "cuda_mps_exporter_paused",
        (),
        "Whether the driver was let go of by `pause`, so that nothing is known of GPUs until `resume`.",
        lambda view: [((), view.paused)],
    ),
    gauge(
        "cuda_mps_exporter_source_up",
        ("source",),
        "Whether the source's last look saw all it should.",
        lambda view: (((name,), source.last.problem is None) for name, source in view.node.sources.items()),
    ),
    gauge(
        "cuda_mps_exporter_source_duration_seconds",
        ("source",),
        "How long the source's last look took, or has taken so far where it hangs.",
        lambda view: (((name,), source.last.seconds) for name, source in view.node.sources.items()),
    ),
    gauge(
        "cuda_mps_exporter_source_last_success_timestamp_seconds",
        ("source",),
        "When the source last saw all it should, in seconds since the epoch.",
        _last_success,
    ),
    counter(
        "cuda_mps_exporter_source_failures_total",
        ("source",),
        "Looks of the source that did not see all they should.",
        lambda view: (((name,), source.failures) for name, source in view.node.sources.items()),
    ),
    gauge(
        "cuda_mps_exporter_log_followed",
        ("daemon", "file"),
        "Whether the daemon's log file is there, can be read, and is not blocked.",
        _log_followed,
    ),
    gauge(
        "cuda_mps_daemon_log_blocked",
        ("daemon",),
        "Whether commands of the exporter that the daemon answered no longer appear in its log. Absent while unknown.",
        _log_blocked,
    ),
    gauge(
        "cuda_mps_daemon_log_size_bytes",
        ("daemon", "file"),
        "Size of the daemon's log file, and of renamed ones that are still written to, as last told, to the MiB.",
        _log_sizes,
    ),
    gauge(
        "cuda_mps_daemon_log_unread_bytes",
        ("daemon", "file"),
        "Bytes of the daemon's log file that the exporter has not read yet. It grows in a flood of the log.",
        _log_unread,
    ),
    counter(
        "cuda_mps_exporter_log_lines_total",
        ("daemon", "file"),
        "Lines of the daemon's log that the exporter read or counted.",
        _by_file(lambda totals: totals.log_lines),
    ),
    counter(
        "cuda_mps_exporter_log_lines_unrecognized_total",
        ("daemon", "file"),
        "Lines of the daemon's log that no rule knows.",
        _by_file(lambda totals: totals.log_lines_unrecognized),
    ),
    counter(
        "cuda_mps_exporter_log_lines_lost_total",
        ("daemon", "file"),
        "Lines of the daemon's log that were not read: the file was truncated, or its flood exceeded the budget. "
        "If their number cannot be known, it counts as 1.",
        _by_file(lambda totals: totals.log_lines_lost),
    ),
    counter(
        "cuda_mps_exporter_accept_failures_total",
        ("listener",),
        "Failures of accept() on the exporter's web server (web) and on its service socket (service_socket).",
        lambda view: (((listener,), count) for listener, count in view.accept_failures.items()),
    ),
    gauge(
        "cuda_mps_exporter_history_writable",
        (),
        "Whether incidents and events are kept on disk; where not, a restart forgets what happens now.",
        lambda view: [] if view.history is None else [((), view.history.writable)],
    ),
    counter(
        "cuda_mps_exporter_history_events_dropped_total",
        (),
        "Events that were not kept on disk, because it could not be written for too long.",
        lambda view: [] if view.history is None else [((), view.history.events_dropped)],
    ),
    counter(
        "cuda_mps_exporter_log_records_dropped_total",
        (),
        "Records of the exporter's own log that were dropped because the reader of its standard error blocks.",
        lambda view: [] if view.log_records_dropped is None else [((), view.log_records_dropped)],
    ),
)
