"""Fleet: which nodes are unwell, and with what."""

from dashboards import looks
from dashboards.board import Board, Row
from dashboards.faults import faults
from dashboards.links import to_node
from dashboards.panel import Column, bars, lines, stat, table, timeline
from dashboards.problems import EVERY_PROBLEM, HEALTH, WORST
from dashboards.query import DAEMON, Query

NODE = "job, instance"
CLIENTS = f"sum by ({NODE}) (cuda_mps_daemon_clients{{node}})"
BYPASSING = f"sum by ({NODE}) (cuda_mps_bypassing_processes{{node}})"
MEMORY_IN_USE = (
    f"sum by ({NODE}) (cuda_mps_gpu_memory_used_bytes{{node}}) / "
    f"sum by ({NODE}) (cuda_mps_gpu_memory_total_bytes{{node}})"
)

NOW = Row(
    "Which nodes are unwell",
    (
        stat(
            "Nodes",
            "Nodes whose exporter can be scraped.",
            Query("sum(up{node})", instant=True),
        ),
        stat(
            "Exporters down",
            "Nodes where nobody watches MPS: what else is shown of them is old, or missing.",
            Query("count(up{node}) - sum(up{node})", instant=True),
            thresholds=looks.NONE_IS_WELL,
        ),
        stat(
            "Daemons not up",
            "Expected control daemons that do not respond, those included that an operator has stopped.",
            Query(
                f"sum((1 - cuda_mps_daemon_up{{node}}) * on ({DAEMON}) "
                f'max by ({DAEMON}) (cuda_mps_daemon_info{{node, expected="true"}}))',
                instant=True,
            ),
            thresholds=looks.NONE_IS_WELL,
        ),
        stat(
            "Servers in FAULT",
            "Servers that turn all new clients away, until all clients that a fatal GPU error hit have ended.",
            Query('sum(cuda_mps_server_state{node, state="fault"}) or 0 * sum(cuda_mps_daemon_up{node})', instant=True),
            thresholds=looks.NONE_IS_WELL,
        ),
        stat(
            "Faults",
            "Fatal GPU errors that hit a server's clients, in the time shown.",
            Query("round(sum(increase(cuda_mps_faults_total{node}[$__range])))", instant=True),
            thresholds=looks.NONE_IS_WELL_SOME_ARE_ODD,
        ),
        stat(
            "Daemon deaths",
            "Control daemons that died or were replaced in the time shown, whoever brought them back.",
            Query("round(sum(increase(cuda_mps_daemon_losses_total{node}[$__range])))", instant=True),
            thresholds=looks.NONE_IS_WELL_SOME_ARE_ODD,
        ),
        stat(
            "Bypassing MPS",
            "CUDA processes that run beside MPS on GPUs that a known daemon serves, or should.",
            Query("sum(cuda_mps_bypassing_processes{node})", instant=True),
            thresholds=looks.NONE_IS_WELL_SOME_ARE_ODD,
        ),
        stat(
            "Circuits open",
            "Daemons that the watchdog has given up: it restarts them no more until somebody says resume.",
            Query('sum(cuda_mps_watchdog_state{node, state=~"circuit_open|quarantined|state_lost"})', instant=True),
            thresholds=looks.NONE_IS_WELL,
        ),
        table(
            "What is the matter",
            "One row for each problem that there is now. ACT needs a person, look can wait for the day. Empty: "
            "nothing is the matter, if Nodes above is as it should be.",
            (Query(EVERY_PROBLEM, instant=True),),
            {
                "Value": Column("How", looks.NUMBER, mappings=HEALTH),
                "instance": Column("Node", link=to_node()),
                "problem": Column("Problem"),
                "daemon": Column("Daemon"),
            },
            sort=("How", True),
            width=12,
            height=10,
        ),
        timeline(
            "Nodes over time",
            "How each node was: well, to be looked at, or in need of a person. A gap: nobody scraped it.",
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
            "One row for each node; click its name for all of it. A cell without a value is not known: of an exporter "
            "that is down nothing is.",
            (
                Query(WORST, instant=True),
                Query(f"sum by ({NODE}) (cuda_mps_daemon_up{{node}})", instant=True),
                Query(f"count by ({NODE}) (cuda_mps_daemon_up{{node}})", instant=True),
                Query(CLIENTS, instant=True),
                Query(MEMORY_IN_USE, instant=True),
                Query(BYPASSING, instant=True),
                Query(f"round(sum by ({NODE}) (increase(cuda_mps_faults_total{{node}}[$__range])))", instant=True),
                Query(
                    f"round(sum by ({NODE}) (increase(cuda_mps_daemon_losses_total{{node}}[$__range])))", instant=True
                ),
                Query(f"sum by ({NODE}) (cuda_mps_exporter_source_up{{node}} == bool 0)", instant=True),
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
                "Value #I": Column("Blind eyes", looks.COUNT, looks.NONE_IS_WELL_SOME_ARE_ODD),
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
        lines(
            "Clients",
            "Connected clients of each node; an explicit 0 where there are none.",
            Query(CLIENTS, "{{instance}}"),
        ),
        bars(
            "Faults and deaths",
            "Faults, and control daemons that died, by node.",
            Query(
                f"sum by ({NODE}) (increase(cuda_mps_faults_total{{node}}[$__rate_interval]))", "faults {{instance}}"
            ),
            Query(
                f"sum by ({NODE}) (increase(cuda_mps_daemon_losses_total{{node}}[$__rate_interval]))",
                "deaths {{instance}}",
            ),
        ),
        lines(
            "GPU memory in use",
            "Part of the memory of each node's GPUs that is in use.",
            Query(MEMORY_IN_USE, "{{instance}}"),
            unit=looks.RATIO,
            ceiling=1,
        ),
        bars(
            "Turned away",
            "New clients that were refused, by reason: no place left, the server in FAULT, or another.",
            Query(
                "sum by (job, instance, reason) (increase(cuda_mps_clients_refused_total{node}[$__rate_interval]))",
                "{{reason}} {{instance}}",
            ),
        ),
        lines(
            "Bypassing MPS",
            "CUDA processes beside MPS, by node: as a rule they came while no daemon was there, and nothing limits "
            "them.",
            Query(BYPASSING, "{{instance}}"),
        ),
    ),
)

FLEET = Board(
    uid="cuda-mps-fleet",
    title="CUDA MPS / Fleet",
    description="Which nodes are unwell, and with what.",
    rows=(NOW, NODES, OVER_TIME),
)
