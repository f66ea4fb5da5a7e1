"""Fleet: which nodes are unwell, and with what."""

from dashboards import looks
from dashboards.board import Board, Row
from dashboards.faults import faults
from dashboards.links import to_node
from dashboards.panel import Column, bars, lines, stat, table, timeline
from dashboards.problems import EVERY_PROBLEM, HEALTH, WORST
from dashboards.query import DAEMON, Query, increase

NODE = "job, instance"
CLIENTS = f"sum by ({NODE}) (cuda_mps_daemon_clients{{node}})"
BYPASSING = f"sum by ({NODE}) (cuda_mps_bypassing_processes{{node}})"
MEMORY_IN_USE = (
    f"sum by ({NODE}) (cuda_mps_gpu_memory_used_bytes{{node}}) / "
    f"sum by ({NODE}) (cuda_mps_gpu_memory_total_bytes{{node}})"
)

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
            "Fatal GPU errors that affected a server's clients, in the selected time range.",
            "round(sum(increase(cuda_mps_faults_total{node}[$__range])))",
            thresholds=looks.NONE_IS_WELL_SOME_ARE_ODD,
        ),
        stat(
            "Daemon deaths",
            "Control daemons that died or were replaced in the selected time range.",
            "round(sum(increase(cuda_mps_daemon_losses_total{node}[$__range])))",
            thresholds=looks.NONE_IS_WELL_SOME_ARE_ODD,
        ),
        stat(
            "Bypassing MPS",
            "CUDA processes that run without MPS on GPUs that a known daemon serves or should serve.",
            "sum(cuda_mps_bypassing_processes{node})",
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
            "One row for each current problem. CRITICAL needs a person now; warning can wait for the day. Empty: "
            "there is no problem, if Nodes above is correct.",
            EVERY_PROBLEM,
            {
                "Value": Column("How", looks.NUMBER, mappings=HEALTH),
                "instance": Column("Node", link=to_node()),
                "problem": "Problem",
                "daemon": "Daemon",
            },
            sort=("How", True),
            width=12,
            height=10,
        ),
        timeline(
            "Nodes over time",
            "The most severe problem of each node. A gap: the node was not scraped.",
            Query(WORST, "{{instance}}"),
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
            "One row for each node; click its name for details. A cell without a value is unknown. For an exporter "
            "that is down, all values are unknown.",
            (
                WORST,
                f"sum by ({NODE}) (cuda_mps_daemon_up{{node}})",
                f"count by ({NODE}) (cuda_mps_daemon_up{{node}})",
                CLIENTS,
                MEMORY_IN_USE,
                BYPASSING,
                f"round(sum by ({NODE}) (increase(cuda_mps_faults_total{{node}}[$__range])))",
                f"round(sum by ({NODE}) (increase(cuda_mps_daemon_losses_total{{node}}[$__range])))",
                f"sum by ({NODE}) (cuda_mps_exporter_source_up{{node}} == bool 0)",
                f"sum by ({NODE}) (cuda_mps_exporter_simulated{{node}})",
            ),
            {
                "instance": Column("Node", link=to_node()),
                "Value #A": Column("Now", looks.NUMBER, mappings=HEALTH),
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
            sort=("Now", True),
            height=9,
        ),
    ),
)

OVER_TIME = Row(
    "Over time",
    (
        faults(),
        lines("Clients", "Connected clients of each node; 0 if there are none.", Query(CLIENTS, "{{instance}}")),
        bars(
            "Faults and deaths",
            "Faults, and control daemons that died, by node.",
            Query(increase("cuda_mps_faults_total", NODE, of="node"), "faults {{instance}}"),
            Query(increase("cuda_mps_daemon_losses_total", NODE, of="node"), "deaths {{instance}}"),
        ),
        lines(
            "GPU memory in use",
            "Fraction of the memory of each node's GPUs that is used.",
            Query(MEMORY_IN_USE, "{{instance}}"),
            unit=looks.RATIO,
            ceiling=1,
        ),
        bars(
            "Refused clients",
            "New clients that were refused, by reason: no free slot, the server in FAULT, or another reason.",
            Query(
                increase("cuda_mps_clients_refused_total", "job, instance, reason", of="node"),
                "{{reason}} {{instance}}",
            ),
        ),
        lines(
            "Bypassing MPS",
            "CUDA processes that run without MPS, by node. Usually they started while no daemon ran. No limit "
            "applies to them.",
            Query(BYPASSING, "{{instance}}"),
        ),
    ),
)

FLEET = Board(
    uid="cuda-mps-fleet",
    title="CUDA MPS / Fleet",
    description="Nodes with problems, and what the problems are.",
    rows=(NOW, NODES, OVER_TIME),
)
