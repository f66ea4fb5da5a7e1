"""Usage and cost of a fleet: who costs what, which limits are enough, and which GPUs could take more clients."""

from dataclasses import replace

from dashboards import answers, looks
from dashboards.accounting.sharing import clients_fit
from dashboards.answer_table import HOURS, answer_table
from dashboards.board import Board, Row
from dashboards.links import to_node
from dashboards.panel import Column, bars, table
from dashboards.query import DAEMON, GPU, max_by, most_recorded

LISTED = 50


def _idle(answer: answers.Answer) -> answers.Answer:
    """Return the answer without the columns that follow from the others: each reads all samples of the range."""
    shown = ("Cost of idle time", "GPU time", "Used", "Recorded")
    columns = {column.heading: column for column in answer.columns}
    return replace(answer, columns=[columns[heading] for heading in shown if heading in columns])


COST = Row(
    "Cost",
    (
        answer_table(_idle(answers.IDLE_BY_CLUSTER), "The price of a GPU hour is a parameter of the rules.", height=5),
        answer_table(answers.COST_BY_NAMESPACE, height=8),
        answer_table(answers.COST_BY_TEAM, height=8),
    ),
)

JOBS = Row(
    "Users, jobs and nodes",
    (
        answer_table(answers.COST_BY_USER, height=8),
        answer_table(answers.COST_BY_JOB, many=True, height=8),
        answer_table(_idle(answers.IDLE_BY_NODE)),
    ),
)

OVER_TIME = Row(
    "Over time",
    (
        bars(
            "SM time by namespace",
            "Hours of whole GPUs that the ten namespaces with the most SM time used. Without namespace: all workloads "
            "that are not pods.",
            most_recorded(
                "application:cuda_mps_sm_seconds:increase10m",
                "cluster, client_namespace",
                "{{client_namespace}} {{cluster}}",
                factor=" / 3600",
            ),
            unit=HOURS,
        ),
        bars(
            "GPU time by cluster",
            "Hours of all GPUs, used or idle, of the ten clusters with the most.",
            most_recorded("instance:cuda_mps_gpu_seconds:increase10m", "cluster", "GPUs {{cluster}}", factor=" / 3600"),
            unit=HOURS,
        ),
    ),
)

LIMITS = Row(
    "Requested and used",
    (
        answer_table(
            answers.SIZES,
            "A percentage that is too low makes kernels take longer. A memory limit that is too low makes allocations "
            "fail. A fault of one replica ends all replicas of its GPU. A short peak may be higher than its average.",
            height=14,
        ),
    ),
)


_DOMAIN = f"1 + {max_by('cuda_mps_client_failure_domain_clients', DAEMON, of='clusters')}"


def _of_largest(expression: str) -> str:
    return f"({expression}) and on ({DAEMON}) topk({LISTED}, {_DOMAIN})"


PACKING = Row(
    "Packing",
    (
        table(
            "GPUs that could take more",
            f"The {LISTED} GPUs on which most clients like the present ones would still fit, now, and the bound that "
            "limits them: memory, SM time, client slots, or contention if the clients slow each other down.",
            f"max by ({GPU}, bound) (cuda_mps_gpu_clients_fit{{clusters}}) == on ({GPU}) group_left () "
            f"topk({LISTED}, ({clients_fit('clusters')}) > 0)",
            {
                "cluster": "Cluster",
                "instance": Column("Node", links=to_node("cluster")),
                "gpu": "GPU",
                "Value": Column("More clients", looks.COUNT),
                "bound": "Limited by",
            },
            sort=("More clients", True),
            width=14,
            height=12,
        ),
        table(
            "Largest failure domains",
            f"The {LISTED} daemons with the largest failure domain, now: one fatal fault would end so many clients. "
            "Workloads: how many have clients of the daemon. More daemons, or fewer clients on a GPU, make it smaller.",
            (
                f"topk({LISTED}, {_DOMAIN})",
                _of_largest(max_by("cuda_mps_daemon_clients", DAEMON, of="clusters")),
                _of_largest(f"count by ({DAEMON}) (cuda_mps_workload_clients{{clusters}} > 0)"),
            ),
            {
                "cluster": "Cluster",
                "instance": Column("Node", links=to_node("cluster")),
                "daemon": "Daemon",
                "Value #A": Column("Would end", looks.COUNT),
                "Value #B": Column("Clients", looks.COUNT),
                "Value #C": Column("Workloads", looks.COUNT),
            },
            sort=("Would end", True),
            width=10,
            height=12,
        ),
        answer_table(answers.ROOM),
    ),
)

USAGE = Board(
    uid="cuda-mps-usage",
    title="CUDA MPS / Usage and cost",
    description="Cost of each namespace, team, user and job; recommended limits; GPUs that could take more clients.",
    rows=(COST, JOBS, OVER_TIME, LIMITS, PACKING),
    since="now-30d",
    refresh="5m",
)
