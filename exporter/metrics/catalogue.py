"""The catalogue: all metric families, and the collector that reads them from a view of the node.

The families of the exporter itself are defined here: its sources, the logs that it reads, its history and its
configuration.
"""

import platform
from collections.abc import Iterable
from typing import Any

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from exporter import __version__
from exporter.history import HistoryStatus
from exporter.metrics import clients, daemons, gpus
from exporter.metrics.daemons import DAEMON
from exporter.metrics.family import NODE, Choice, Family, Group, Scope, Series, info
from exporter.model.node import CollectorState
from exporter.model.reason_code import COLLECTOR_CODES
from exporter.view import View

_SOURCE: Scope[CollectorState] = Scope(
    ("source",), lambda view: (((name,), each) for name, each in view.node.sources.items())
)
_HISTORY: Scope[HistoryStatus] = Scope((), lambda view: [] if view.history is None else [((), view.history)])


EXPORTER = Group(
    "The exporter",
    "sources that the exporter cannot collect",
    "cuda_mps_exporter_source_up == 0",
    Series(
        "cuda_mps_exporter_build_info", ("version", "python"), lambda _: [((__version__, platform.python_version()), 1)]
    ).help("Versions of the exporter and of Python, always 1."),
    NODE.time("cuda_mps_exporter_snapshot_timestamp_seconds", lambda view: view.node.at or None).help(
        "Unix time of the latest observation."
    ),
    NODE.value("cuda_mps_exporter_simulated", lambda view: view.node.simulated or None).help(
        "1 in the demo, else absent."
    ),
    NODE.value("cuda_mps_exporter_paused", lambda view: view.paused).help(
        "Whether `pause` released the NVIDIA driver: GPUs are not read until `resume`."
    ),
    _SOURCE.value("cuda_mps_exporter_source_up", lambda each: each.last.problem is None).help(
        "Whether the last collection succeeded."
    ),
    info(
        "cuda_mps_exporter_source_problem_info",
        ("source", Choice("problem", COLLECTOR_CODES)),
        lambda view: dict.fromkeys(
            (name, each.code)
            for name, source in view.node.sources.items()
            for problem in source.problems.values()
            for each in problem.each
        ),
    ).help("Why the last collection failed, always 1. Absent if it succeeded."),
    _SOURCE.value("cuda_mps_exporter_source_duration_seconds", lambda each: each.last.seconds).help(
        "Duration of the last collection, so far if it hangs."
    ),
    _SOURCE.time("cuda_mps_exporter_source_last_success_timestamp_seconds", lambda each: each.last_success).help(
        "Unix time of the last successful collection."
    ),
    _SOURCE.value("cuda_mps_exporter_source_failures_total", lambda each: each.failures).help(
        "Failed or incomplete collections."
    ),
    DAEMON.values(
        "cuda_mps_exporter_log_followed",
        "file",
        lambda each: {
            file: problem is None and each.log.own_commands.blocked_since is None
            for file, problem in each.log.problems.items()
        },
    ).help("Whether the log file exists, can be read, and is not blocked."),
    # Unknown before a command was found in the log, or missed.
    DAEMON.of(lambda _, each: each.log.own_commands)
    .value(
        "cuda_mps_daemon_log_blocked",
        lambda each: None if each.blocked_since is None and each.read_at is None else each.blocked_since is not None,
    )
    .help("Whether answered commands of the exporter no longer appear in the log. Absent if unknown."),
    DAEMON.values("cuda_mps_daemon_log_size_bytes", "file", lambda each: each.log.sizes).help(
        "Size of the log file, or of a renamed one that is still written, rounded to MiB."
    ),
    DAEMON.values(
        "cuda_mps_daemon_log_unread_bytes", "file", lambda each: each.log.unread if each.log.stuck is None else {}
    ).help("Bytes of the log file not read yet. Absent if a read hangs."),
    DAEMON.values("cuda_mps_exporter_log_lines_total", "file", lambda each: each.totals.log_lines).help(
        "Lines of the log that were read or counted."
    ),
    DAEMON.values(
        "cuda_mps_exporter_log_lines_unrecognized_total", "file", lambda each: each.totals.log_lines_unrecognized
    ).help("Lines of the log that no parser rule matches."),
    DAEMON.values("cuda_mps_exporter_log_lines_lost_total", "file", lambda each: each.totals.log_lines_lost).help(
        "Lines of the log that were not read, after a truncation or in a flood. An unknown number counts as 1."
    ),
    NODE.values(
        "cuda_mps_exporter_accept_failures_total",
        Choice("listener", ("service_socket", "web")),
        lambda view: view.accept_failures,
    ).help("Failures of accept() on the listener."),
    _HISTORY.value("cuda_mps_exporter_history_writable", lambda each: each.writable).help(
        "Whether incidents and events are stored on disk. If not, a restart loses them."
    ),
    _HISTORY.value("cuda_mps_exporter_history_events_dropped_total", lambda each: each.events_dropped).help(
        "Events not stored, because they were invalid or the disk could not be written for too long."
    ),
    NODE.value("cuda_mps_exporter_log_records_dropped_total", lambda view: view.log_records_dropped).help(
        "Records of the exporter's own log dropped because standard error blocks."
    ),
    NODE.value("cuda_mps_exporter_config_last_reload_successful", lambda view: view.config_valid).help(
        "Whether the configuration last read was valid. If not, the previous one is in effect."
    ),
)


GROUPS: tuple[Group, ...] = (
    daemons.DAEMONS,
    daemons.SERVERS,
    daemons.LIMITS,
    daemons.PROTOCOL3,
    clients.CLIENTS,
    clients.LAUNCHES,
    clients.WORKLOADS,
    clients.IDENTITIES,
    *gpus.CLIENTS,
    clients.FAULTS,
    daemons.WATCHDOG,
    gpus.GPUS,
    gpus.XIDS,
    EXPORTER,
)
CATALOGUE: tuple[Family, ...] = tuple(family for group in GROUPS for family in group.families)

NAMESPACE = "cuda_mps_"  # the prefix of all family names, except for those of the exporter's own process

Made = dict[str, tuple[tuple[Any, ...], Metric]]
"""The families of the last snapshot by name: the samples of each, and the metric that was made of them."""


class NodeCollector(Collector):
    """The metrics of one view of the node. A family without samples is left out.

    The metrics of the collector `beside` follow: those of the exporter's own process. Successive collectors share
    `made`: a family with unchanged samples is not made again.
    """

    def __init__(self, view: View, beside: Collector | None = None, made: Made | None = None) -> None:
        self._view = view
        self._beside = beside
        self._made: Made = {} if made is None else made

    def collect(self) -> Iterable[Metric]:
        """Return the families that have samples."""
        metrics = map(self._metric, CATALOGUE)
        others = () if self._beside is None else self._beside.collect()
        return [*(metric for metric in metrics if metric.samples), *others]

    def _metric(self, family: Family) -> Metric:
        samples, before = tuple(family.samples(self._view)), self._made.get(family.name)
        if before is not None and before[0] == samples:
            return before[1]
        metric = family.metric(samples)
        self._made[family.name] = samples, metric
        return metric
