"""Limits: those in force, the defaults of servers to come, and whether they are as they should be."""

from dashboards import looks
from dashboards.board import Row
from dashboards.looks import Colour, words
from dashboards.panel import Column, bars, lines, table, timeline
from dashboards.query import CLIENT, DAEMON, SERVER, WITH_INDEX, WORKLOAD, Query, increase, max_by

DRIFTED = words({0: ("in force", Colour.WELL), 1: ("DRIFTED", Colour.WARNING)})

LIMITS = Row(
    "Limits",
    (
        lines(
            "Active thread percentage",
            "Limit of each client of a server, and the daemon's default for new servers. A client may have "
            "requested less.",
            Query(
                max_by("cuda_mps_server_active_thread_ratio", SERVER), "server {{server}} of {{daemon}} {{instance}}"
            ),
            Query(max_by("cuda_mps_daemon_default_active_thread_ratio", DAEMON), "default of {{daemon}} {{instance}}"),
            unit=looks.RATIO,
            ceiling=1,
        ),
        lines(
            "GPU memory limit",
            "Limit on each GPU for each client of a server, and the daemon's default for new servers. No line: "
            "there is no limit.",
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
        lines(
            "Active thread percentage of clients",
            "Fraction of a GPU's threads that each client may use: the smaller limit of its server and of its own "
            "environment.",
            Query(max_by("cuda_mps_client_active_thread_ratio", CLIENT), "{{client}} of {{daemon}} {{instance}}"),
            unit=looks.RATIO,
            ceiling=1,
        ),
        lines(
            "GPU memory limit of clients",
            "Memory that each client may allocate on a GPU: the smallest limit of its server and of its own "
            "environment. No line: there is no limit, or it is unknown.",
            Query(
                'cuda_mps_client_pinned_memory_limit_bytes{daemons, gpu=~"$gpu"} ' + WITH_INDEX,
                "{{client}} on GPU {{index}} of {{daemon}} {{instance}}",
            ),
            unit=looks.BYTES,
        ),
        table(
            "Limits of workloads",
            "Sums over the clients of each workload on a GPU. No value: a limit is unknown or not set.",
            (
                f'max by ({WORKLOAD}, gpu) (cuda_mps_workload_active_thread_ratio{{node, gpu=~"$gpu"}})',
                f'max by ({WORKLOAD}, gpu) (cuda_mps_workload_pinned_memory_limit_bytes{{node, gpu=~"$gpu"}})',
            ),
            {
                "instance": "Node",
                "workload_kind": "Kind",
                "workload": "Workload",
                "gpu": "GPU",
                "Value #A": Column("Threads", looks.RATIO),
                "Value #B": Column("GPU memory limit", looks.BYTES),
            },
            sort=("Threads", True),
        ),
        timeline(
            "Limits of servers",
            "Whether the limits are as configured, or as they were before the daemon was restarted. Without a number: "
            "the limits of the next server.",
            Query(max_by("cuda_mps_server_limits_drifted", SERVER), "{{server}} of {{daemon}} {{instance}}"),
            DRIFTED,
        ),
        bars(
            "Clients without the limits",
            "Clients that connected to a server before its limits were set. The limits do not apply to them.",
            Query(increase("cuda_mps_clients_before_limits_total", DAEMON), "{{daemon}} {{instance}}"),
            height=6,
        ),
    ),
)
