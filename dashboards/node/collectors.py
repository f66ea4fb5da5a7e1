"""The exporter itself: what it sees, and how well."""

from dashboards import looks
from dashboards.board import Row
from dashboards.links import to_page
from dashboards.panel import Column, bars, lines, table, timeline
from dashboards.query import DAEMON, GPU, NODE, Query, increase, max_by, rate

SOURCE = f"{NODE}, source"
FILE = f"{DAEMON}, file"

COLLECTORS = Row(
    "Collectors and logs",
    (
        timeline(
            "Collectors",
            "Whether the most recent collection succeeded. Data of a failed collector is missing in other panels, "
            "not 0.",
            Query(max_by("cuda_mps_exporter_source_up", SOURCE, of="node"), "{{source}} {{instance}}"),
            looks.YES_IS_WELL,
            width=8,
            height=8,
        ),
        table(
            "Problems of collectors",
            "Why the most recent collection failed. The runbook of CudaMpsExporterCannotCollect explains what to do.",
            max_by("cuda_mps_exporter_source_problem_info", f"{NODE}, source, problem", of="node"),
            {"instance": Column("Node", links=to_page()), "source": "Collector", "problem": "Problem"},
            sort=("Collector", False),
            width=8,
        ),
        lines(
            "Age of collected data",
            "Time since the last successful collection of each collector, and the age of all data when it was scraped.",
            Query(
                "time() - max by (cluster, job, instance) (cuda_mps_exporter_snapshot_timestamp_seconds{node})",
                "snapshot {{instance}}",
            ),
            Query(
                f"time() - max by ({SOURCE}) (cuda_mps_exporter_source_last_success_timestamp_seconds{{node}})",
                "{{source}} {{instance}}",
            ),
            unit=looks.SECONDS,
            width=8,
        ),
        lines(
            "Collection duration",
            "Duration of the most recent collection of each collector, or the time so far if it hangs.",
            Query(max_by("cuda_mps_exporter_source_duration_seconds", SOURCE, of="node"), "{{source}} {{instance}}"),
            unit=looks.SECONDS,
            width=8,
        ),
        bars(
            "Failed collections",
            "Collections that failed, completely or in part, refused connections, discarded values of NVML, "
            "and faulting addresses of unknown form.",
            Query(increase("cuda_mps_exporter_source_failures_total", SOURCE, of="node"), "{{source}} {{instance}}"),
            Query(
                increase("cuda_mps_exporter_accept_failures_total", f"{NODE}, listener", of="node"),
                "accept: {{listener}} {{instance}}",
            ),
            Query(
                increase("cuda_mps_gpu_discarded_values_total", GPU, of="node"),
                "discarded values of {{gpu}} {{instance}}",
            ),
            Query(
                increase("cuda_mps_exporter_fault_addresses_unrecognized_total", NODE, of="node"),
                "addresses of faults not recognized {{instance}}",
            ),
            width=12,
        ),
        lines(
            "Log lines",
            "Lines read from the logs of the daemons.",
            Query(rate("cuda_mps_exporter_log_lines_total", FILE), "{{file}} of {{daemon}} {{instance}}"),
            unit=looks.PER_SECOND,
            width=12,
        ),
        lines(
            "Size of the logs",
            "Size of each log file of a daemon. It grows until the file is rotated.",
            Query(max_by("cuda_mps_daemon_log_size_bytes", FILE), "{{file}} of {{daemon}} {{instance}}"),
            unit=looks.BYTES,
            width=6,
        ),
        lines(
            "Unread bytes of the logs",
            "Bytes of each log file that the exporter has not read yet. They grow when a log is flooded.",
            Query(max_by("cuda_mps_daemon_log_unread_bytes", FILE), "{{file}} of {{daemon}} {{instance}}"),
            unit=looks.BYTES,
            width=6,
        ),
        bars(
            "Unusable log lines",
            "Lines that no rule matches, lines that were lost before they could be read, and claims that no other "
            "source confirms.",
            Query(
                increase("cuda_mps_exporter_log_lines_unrecognized_total", FILE),
                "unknown: {{file}} of {{daemon}} {{instance}}",
            ),
            Query(
                increase("cuda_mps_exporter_log_lines_lost_total", FILE), "lost: {{file}} of {{daemon}} {{instance}}"
            ),
            Query(
                increase("cuda_mps_daemon_log_contradictions_total", DAEMON),
                "contradicted: {{daemon}} {{instance}}",
            ),
            width=12,
        ),
        table(
            "The exporter",
            "Paused: it has closed the driver and collects nothing from GPUs. Configuration: whether the last "
            "reload succeeded. History: whether incidents are written to disk. Too many: clients without their own "
            "series. Records dropped: records of the exporter's own log.",
            (
                max_by("cuda_mps_exporter_paused", NODE, of="node"),
                "min by (cluster, job, instance) (cuda_mps_exporter_log_followed{node})",
                "min by (cluster, job, instance) (cuda_mps_exporter_config_last_reload_successful{node})",
                "min by (cluster, job, instance) (cuda_mps_exporter_history_writable{node})",
                (
                    "round(sum by (cluster, job, instance) "
                    "(increase(cuda_mps_exporter_history_events_dropped_total{node}[$__range])))"
                ),
                max_by("cuda_mps_exporter_clients_omitted", NODE, of="node"),
                (
                    "round(sum by (cluster, job, instance) "
                    "(increase(cuda_mps_exporter_log_records_dropped_total{node}[$__range])))"
                ),
            ),
            {
                "instance": Column("Node", links=to_page()),
                "Value #A": Column("Paused", looks.NUMBER, mappings=looks.YES_IS_ODD),
                "Value #B": Column("All logs followed", looks.NUMBER, mappings=looks.YES_IS_WELL),
                "Value #C": Column("Configuration in use", looks.NUMBER, mappings=looks.YES_IS_WELL),
                "Value #D": Column("History written", looks.NUMBER, mappings=looks.YES_IS_WELL),
                "Value #E": Column("Events lost", looks.COUNT, looks.NONE_IS_WELL_SOME_ARE_ODD),
                "Value #F": Column("Too many", looks.COUNT, looks.NONE_IS_WELL_SOME_ARE_ODD),
                "Value #G": Column("Records dropped", looks.COUNT, looks.NONE_IS_WELL_SOME_ARE_ODD),
            },
            sort=("Node", False),
            width=18,
            height=5,
        ),
        table(
            "Version",
            "Versions of the exporter and of Python.",
            "cuda_mps_exporter_build_info{node}",
            {"instance": Column("Node", links=to_page()), "version": "Version", "python": "Python"},
            sort=("Node", False),
            width=6,
            height=5,
        ),
    ),
)
