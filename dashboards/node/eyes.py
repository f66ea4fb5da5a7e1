"""The exporter itself: what it sees, and how well."""

from dashboards import looks
from dashboards.board import Row
from dashboards.panel import Column, bars, lines, table, timeline
from dashboards.query import Query

SOURCE = "job, instance, source"
FILE = "job, instance, daemon, file"

EYES = Row(
    "The exporter's own eyes",
    (
        timeline(
            "What it sees",
            "Whether each source saw all it should. What a blind one would tell is missing elsewhere, and not 0.",
            Query(f"max by ({SOURCE}) (cuda_mps_exporter_source_up{{node}})", "{{source}} {{instance}}"),
            looks.YES_IS_WELL,
            width=8,
            height=8,
        ),
        lines(
            "Age of what each source saw",
            "How long ago each source last saw all it should; and how old all of it was, when it was scraped.",
            Query(
                "time() - max by (job, instance) (cuda_mps_exporter_snapshot_timestamp_seconds{node})",
                "all that is told {{instance}}",
            ),
            Query(
                f"time() - max by ({SOURCE}) (cuda_mps_exporter_source_last_success_timestamp_seconds{{node}})",
                "{{source}} {{instance}}",
            ),
            unit=looks.SECONDS,
            width=8,
        ),
        lines(
            "How long a look takes",
            "How long each source's last look took, or has taken so far where it hangs.",
            Query(f"max by ({SOURCE}) (cuda_mps_exporter_source_duration_seconds{{node}})", "{{source}} {{instance}}"),
            unit=looks.SECONDS,
            width=8,
        ),
        bars(
            "Failed looks",
            "Looks of each source that did not see all they should, and connections that could not be accepted.",
            Query(
                f"sum by ({SOURCE}) (increase(cuda_mps_exporter_source_failures_total{{node}}[$__rate_interval]))",
                "{{source}} {{instance}}",
            ),
            Query(
                "sum by (job, instance, listener) "
                "(increase(cuda_mps_exporter_accept_failures_total{node}[$__rate_interval]))",
                "accept: {{listener}} {{instance}}",
            ),
            width=12,
        ),
        lines(
            "Log lines",
            "Lines read from the daemons' logs.",
            Query(
                f"sum by ({FILE}) (rate(cuda_mps_exporter_log_lines_total{{daemons}}[$__rate_interval]))",
                "{{file}} of {{daemon}} {{instance}}",
            ),
            unit=looks.PER_SECOND,
            width=12,
        ),
        lines(
            "Size of the logs",
            "Each log file of a daemon; they grow until somebody rotates them.",
            Query(
                f"max by ({FILE}) (cuda_mps_daemon_log_size_bytes{{daemons}})", "{{file}} of {{daemon}} {{instance}}"
            ),
            unit=looks.BYTES,
            width=6,
        ),
        lines(
            "Unread bytes of the logs",
            "Bytes of each log file that the exporter has not read yet. They grow in a flood.",
            Query(
                f"max by ({FILE}) (cuda_mps_daemon_log_unread_bytes{{daemons}})", "{{file}} of {{daemon}} {{instance}}"
            ),
            unit=looks.BYTES,
            width=6,
        ),
        bars(
            "Log lines that tell nothing",
            "Lines that no rule knows, lines that were lost before they could be read, and claims that no other source "
            "confirms.",
            Query(
                f"sum by ({FILE}) "
                f"(increase(cuda_mps_exporter_log_lines_unrecognized_total{{daemons}}[$__rate_interval]))",
                "unknown: {{file}} of {{daemon}} {{instance}}",
            ),
            Query(
                f"sum by ({FILE}) (increase(cuda_mps_exporter_log_lines_lost_total{{daemons}}[$__rate_interval]))",
                "lost: {{file}} of {{daemon}} {{instance}}",
            ),
            Query(
                "sum by (daemon, instance) "
                "(increase(cuda_mps_daemon_log_contradictions_total{daemons}[$__rate_interval]))",
                "contradicted: {{daemon}} {{instance}}",
            ),
            width=12,
        ),
        table(
            "The exporter",
            "Paused: it has let go of the driver, and knows nothing of GPUs. Configuration: whether it could be "
            "used when last read. History: whether incidents are kept on disk. Too many: clients without series of "
            "their own. Records dropped: of the exporter's own log.",
            (
                Query("max by (job, instance) (cuda_mps_exporter_paused{node})", instant=True),
                Query("min by (job, instance) (cuda_mps_exporter_log_followed{node})", instant=True),
                Query("min by (job, instance) (cuda_mps_exporter_config_last_reload_successful{node})", instant=True),
                Query(
                    "1000 * max by (job, instance) "
                    "(cuda_mps_exporter_config_last_reload_success_timestamp_seconds{node})",
                    instant=True,
                ),
                Query("min by (job, instance) (cuda_mps_exporter_history_writable{node})", instant=True),
                Query(
                    "round(sum by (job, instance) "
                    "(increase(cuda_mps_exporter_history_events_dropped_total{node}[$__range])))",
                    instant=True,
                ),
                Query("max by (job, instance) (cuda_mps_exporter_clients_omitted{node})", instant=True),
                Query(
                    "round(sum by (job, instance) "
                    "(increase(cuda_mps_exporter_log_records_dropped_total{node}[$__range])))",
                    instant=True,
                ),
            ),
            {
                "instance": Column("Node"),
                "Value #A": Column("Paused", looks.NUMBER, mappings=looks.YES_IS_ODD),
                "Value #B": Column("All logs followed", looks.NUMBER, mappings=looks.YES_IS_WELL),
                "Value #C": Column("Configuration in use", looks.NUMBER, mappings=looks.YES_IS_WELL),
                "Value #D": Column("Since", looks.MOMENT),
                "Value #E": Column("History kept", looks.NUMBER, mappings=looks.YES_IS_WELL),
                "Value #F": Column("Events lost", looks.COUNT, looks.NONE_IS_WELL_SOME_ARE_ODD),
                "Value #G": Column("Too many", looks.COUNT, looks.NONE_IS_WELL_SOME_ARE_ODD),
                "Value #H": Column("Records dropped", looks.COUNT, looks.NONE_IS_WELL_SOME_ARE_ODD),
            },
            sort=("Node", False),
            width=18,
            height=5,
        ),
        table(
            "Its version",
            "The exporter's version, and its Python's.",
            (Query("cuda_mps_exporter_build_info{node}", instant=True),),
            {"instance": Column("Node"), "version": Column("Version"), "python": Column("Python")},
            sort=("Node", False),
            width=6,
            height=5,
        ),
    ),
)
