"""Limits: those in force, the defaults of servers to come, and whether they are as they should be."""

from dashboards import looks
from dashboards.board import Row
from dashboards.looks import Colour, words
from dashboards.panel import bars, lines, timeline
from dashboards.query import DAEMON, SERVER, WITH_INDEX, Query

DRIFTED = words({0: ("in force", Colour.WELL), 1: ("DRIFTED", Colour.WARNING)})

LIMITS = Row(
    "Limits",
    (
        lines(
            "Share of a GPU's threads",
            "What each client of a server may have; and, of servers to come, the daemon's default. A client may "
            "have asked for less.",
            Query(
                f"max by ({SERVER}) (cuda_mps_server_active_thread_ratio{{daemons}})",
                "server {{server}} of {{daemon}} {{instance}}",
            ),
            Query(
                f"max by ({DAEMON}) (cuda_mps_daemon_default_active_thread_ratio{{daemons}})",
                "default of {{daemon}} {{instance}}",
            ),
            unit=looks.RATIO,
            ceiling=1,
        ),
        lines(
            "GPU memory that a client may have",
            "On each GPU, of each client of a server; and, of servers to come, the daemon's default. Where there is "
            "no limit, there is no line.",
            Query(
                'cuda_mps_server_pinned_memory_limit_bytes{daemons, gpu=~"$gpu"} ' + WITH_INDEX,
                "server {{server}} on GPU {{index}} of {{daemon}} {{instance}}",
            ),
            Query(
                'cuda_mps_daemon_default_pinned_memory_limit_bytes{daemons, gpu=~"$gpu"} ' + WITH_INDEX,
                "default on GPU {{index}} of {{daemon}} {{instance}}",
            ),
            unit=looks.BYTES,
        ),
        timeline(
            "Limits of servers",
            "Whether they are as configured, or as they were before the daemon was started again.",
            Query(
                f"max by ({SERVER}) (cuda_mps_server_limits_drifted{{daemons}})",
                "{{server}} of {{daemon}} {{instance}}",
            ),
            DRIFTED,
            width=8,
        ),
        timeline(
            "Default limits of daemons",
            "Whether those that the next server will have are as configured, or as they were before the daemon's "
            "start.",
            Query(f"max by ({DAEMON}) (cuda_mps_daemon_limits_drifted{{daemons}})", "{{daemon}} {{instance}}"),
            DRIFTED,
            width=8,
        ),
        bars(
            "Clients that came before the limits",
            "Clients that were on a server before its limits were, and are not held to them.",
            Query(
                f"sum by ({DAEMON}) (increase(cuda_mps_clients_before_limits_total{{daemons}}[$__rate_interval]))",
                "{{daemon}} {{instance}}",
            ),
            width=8,
            height=6,
        ),
    ),
)
