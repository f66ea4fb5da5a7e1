"""Fleet: which nodes are unwell, and with what."""

from dashboards import looks
from dashboards.board import Board, Row
from dashboards.faults import deaths, faults
from dashboards.links import to_node
from dashboards.panel import Column, bars, lines, stat, table, timeline
from dashboards.problems import EVERY_PROBLEM, HEALTH
from dashboards.query import DAEMON, NODE, bypassing, greatest, most_recorded, newest, of_clusters, recorded

CLIENTS = f"sum by ({NODE}) (cuda_mps_daemon_clients{{node}})"
MEMORY_IN_USE = (
    f"sum by ({NODE}) (cuda_mps_gpu_memory_used_bytes{{node}}) / "
    f"sum by ({NODE}) (cuda_mps_gpu_memory_total_bytes{{node}})"
)
_FAULTS, _LOSSES = "instance:cuda_mps_faults:increase10m", "instance:cuda_mps_daemon_losses:increase10m"
_SEVERITY, _CLIENTS_RECORDED = "instance:cuda_mps_problem_severity:max", "instance:cuda_mps_clients:sum"
_LISTED = 100
_WORST_NODES = f"topk({_LISTED}, 1e6 * {newest(_SEVERITY)} + {newest(_CLIENTS_RECORDED)})"
"""The nodes with the most severe problems; of those that are equally well, the nodes with the most clients."""


def _in_range(record: str) -> str:
    """Return the sum of recorded increases; 0 only if the rules are evaluated."""
    return f"sum(sum_over_time({record}{{node}}[$__range])) or 0 * sum({newest(_CLIENTS_RECORDED)})"


def _of_worst(expression: str) -> str:
    return f"({expression}) and on ({NODE}) {_WORST_NODES}"


NOW = Row(
    "Nodes with problems",
    (
        stat("Nodes", "Nodes whose exporter Prometheus can scrape.", "sum(up{node})"),
        stat(
            "Exporters down",
            "Nodes whose exporter is down. Other data of these nodes is old or missing.",
            "count(up{node}) - sum(up{node})",
            thresholds=looks.NONE_IS_WELL,
        ),
        stat(
            "Daemons not up",
            "Expected control daemons that do not respond, including those that an operator has stopped.",
            (
                f"sum((1 - cuda_mps_daemon_up{{node}}) * on ({DAEMON}) "
                f'max by ({DAEMON}) (cuda_mps_daemon_info{{node, expected="true"}}))'
            ),
            thresholds=looks.NONE_IS_WELL,
        ),
        stat(
            "Servers in FAULT",
            "Servers that refuse new clients until all affected clients have exited.",
            'sum(cuda_mps_server_state{node, state="fault"}) or 0 * sum(cuda_mps_daemon_up{node})',
            thresholds=looks.NONE_IS_WELL,
        ),
        stat(
            "Faults",
            "Fatal GPU errors that affected a server's clients, in the selected time range, without the last minutes.",
            _in_range(_FAULTS),
            thresholds=looks.NONE_IS_WELL_SOME_ARE_ODD,
        ),
        stat(
            "Daemon deaths",
            "Control daemons that died or were replaced in the selected time range, without the last minutes.",
            _in_range(_LOSSES),
            thresholds=looks.NONE_IS_WELL_SOME_ARE_ODD,
        ),
        stat(
            "Bypassing MPS",
            "CUDA processes that run without MPS on GPUs that a known daemon serves or should serve.",
            f"sum({bypassing('{node}')})",
            thresholds=looks.NONE_IS_WELL_SOME_ARE_ODD,
        ),
        stat(
            "Restarts suspended",
            "Daemons that the watchdog does not restart until an operator runs `cuda-mps-exporter resume DAEMON`.",
            'sum(cuda_mps_watchdog_state{node, state=~"circuit_open|quarantined|state_lost"})',
            thresholds=looks.NONE_IS_WELL,
        ),
        table(
            "Current problems",
            f"One row for each current problem, at most {_LISTED}. CRITICAL needs a person now; warning can wait for "
            "the day. Empty: there is no problem, if Nodes above is correct.",
            f"topk({_LISTED}, {EVERY_PROBLEM})",
            {
                "Value": Column("How", looks.NUMBER, mappings=HEALTH),
                "instance": Column("Node", links=to_node()),
                "problem": "Problem",
                "daemon": "Daemon",
                "cluster": "Cluster",
            },
            sort=("How", True),
            width=12,
            height=10,
        ),
        timeline(
            "Nodes over time",
            "The most severe problem of the 20 nodes with the most problems, every ten minutes or more. A gap: the "
            "node was not scraped. Empty: no node had a problem.",
            greatest(_SEVERITY, 20, "sum_over_time"),
            HEALTH,
            height=10,
        ),
    ),
)

NODES = Row(
    "Nodes",
    (
        table(
            "Nodes",
            f"The {_LISTED} nodes with the most severe problems, then those with the most clients; click a name for "
            "details. A cell without a value is unknown. For an exporter that is down, all values are unknown.",
            tuple(
                map(
                    _of_worst,
                    (
                        newest(_SEVERITY),
                        f"sum by ({NODE}) (cuda_mps_daemon_up{{node}})",
                        f"count by ({NODE}) (cuda_mps_daemon_up{{node}})",
                        CLIENTS,
                        MEMORY_IN_USE,
                        bypassing("{node}"),
                        f"sum by ({NODE}) (sum_over_time({_FAULTS}{{node}}[$__range]))",
                        f"sum by ({NODE}) (sum_over_time({_LOSSES}{{node}}[$__range]))",
                        f"sum by ({NODE}) (cuda_mps_exporter_source_up{{node}} == bool 0)",
                        f"sum by ({NODE}) (cuda_mps_exporter_simulated{{node}})",
                    ),
                )
            ),
            {
                "instance": Column("Node", links=to_node()),
                "cluster": "Cluster",
                "Value #A": Column("Worst", looks.NUMBER, mappings=HEALTH),
                "Value #B": Column("Daemons up", looks.COUNT),
                "Value #C": Column("of", looks.COUNT),
                "Value #D": Column("Clients", looks.COUNT),
                "Value #E": Column("GPU memory", looks.RATIO, looks.FILLING),
                "Value #F": Column("Bypassing", looks.COUNT, looks.NONE_IS_WELL_SOME_ARE_ODD),
                "Value #G": Column("Faults", looks.COUNT, looks.NONE_IS_WELL_SOME_ARE_ODD),
                "Value #H": Column("Deaths", looks.COUNT, looks.NONE_IS_WELL_SOME_ARE_ODD),
                "Value #I": Column("Failed collectors", looks.COUNT, looks.NONE_IS_WELL_SOME_ARE_ODD),
                "Value #J": Column("Simulated (demo)", looks.COUNT, looks.NONE_IS_WELL_SOME_ARE_ODD),
            },
            sort=("Worst", True),
            height=12,
        ),
    ),
)

OVER_TIME = Row(
    "Over time",
    (
        faults(),
        deaths(),
        lines(
            "Clients",
            "Connected clients of all chosen nodes, by cluster.",
            of_clusters(_CLIENTS_RECORDED, "clients {{cluster}}"),
        ),
        bars(
            "Faults and deaths",
            "Faults, and control daemons that died, every ten minutes or more.",
            recorded(_FAULTS, "cluster", "faults {{cluster}}"),
            recorded(_LOSSES, "cluster", "deaths {{cluster}}"),
        ),
        bars(
            "Nodes with faults",
            "Faults of the ten nodes with the most faults in the selected time range.",
            most_recorded(_FAULTS, NODE, "{{instance}} {{cluster}}", of="node"),
        ),
        lines(
            "GPU memory in use",
            "Fraction of the memory of a node's GPUs that is used: the ten nodes that used the most.",
            greatest("instance:cuda_mps_gpu_memory_used:ratio"),
            unit=looks.RATIO,
            ceiling=1,
        ),
        bars(
            "Refused clients",
            "New clients that were refused: no free slot, the server in FAULT, or another reason. The dashboard of the "
            "node shows the reason.",
            recorded(
                "instance:cuda_mps_client_minutes:increase10m", "cluster", "refused {{cluster}}", ', outcome="refused"'
            ),
        ),
        lines(
            "Bypassing MPS",
            "CUDA processes that run without MPS: the ten nodes with the most. Usually they started while no daemon "
            "ran. No limit applies to them.",
            greatest("instance:cuda_mps_bypassing_processes:max5m"),
        ),
        lines(
            "Room",
            "How many more clients like the present ones would fit on the GPUs: the smallest bound of each GPU, added "
            "up by cluster.",
            of_clusters("instance:cuda_mps_clients_fit:sum", "more clients {{cluster}}"),
        ),
    ),
)

FLEET = Board(
    uid="cuda-mps-fleet",
    title="CUDA MPS / Fleet",
    description="Nodes with problems, and what the problems are.",
    rows=(NOW, NODES, OVER_TIME),
    since="now-24h",
    refresh="1m",
)
