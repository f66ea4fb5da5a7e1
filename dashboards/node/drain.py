"""Which clients a drain of the node would end, by owner, and what they would lose."""

from dashboards import looks
from dashboards.board import Row
from dashboards.links import to_page
from dashboards.panel import Column, stat, table
from dashboards.query import CLIENT, NODE, Query, bypassing

_LABELS = "client_namespace, client_pod, job_manager, job_id, unit, user"
_OWNER = f"{NODE}, {_LABELS}"
_CLIENTS = f"topk by ({CLIENT}) (1, cuda_mps_client_info{{daemons}})"
_OWNED = f"* on ({CLIENT}) group_left ({_LABELS}) {_CLIENTS}"

DRAIN = Row(
    "Drain check",
    (
        table(
            "Clients by owner",
            "Clients on this node now. If you drain the node, they end, and all work since their last checkpoint is "
            "lost. Running for and SM-hours count only the selected time range. No value: unknown. Clients without a "
            "series of their own are missing; the numbers beside include them.",
            (
                f"count by ({_OWNER}) ({_CLIENTS})",
                f"sum by ({_OWNER}) (cuda_mps_client_memory_used_bytes{{daemons}} {_OWNED})",
                (
                    f"max by ({_OWNER}) (time() - "
                    "min_over_time(timestamp(cuda_mps_client_info{daemons})[$__range:1m]) "
                    f"and on ({CLIENT}) {_CLIENTS})"
                ),
                (
                    f"sum by ({_OWNER}) (sum_over_time(cuda_mps_client_sm_utilization_ratio{{daemons}}[$__range:1m]) "
                    f"{_OWNED}) / 60"
                ),
            ),
            {
                "instance": Column("Node", links=to_page()),
                "client_namespace": "Namespace",
                "client_pod": "Pod",
                "job_id": "Job",
                "job_manager": "Batch system",
                "unit": "Unit",
                "user": "User",
                "Value #A": Column("Clients", looks.COUNT),
                "Value #B": Column("GPU memory", looks.BYTES),
                "Value #C": Column("Running for", looks.SECONDS),
                "Value #D": Column("SM-hours", looks.COUNT),
            },
            sort=("SM-hours", True),
            width=20,
        ),
        stat(
            "Clients of MPS now",
            "Clients of the daemons. The node is drained of them at 0.",
            Query("sum(cuda_mps_daemon_clients{daemons})"),
            width=4,
        ),
        stat(
            "Bypassing now",
            "CUDA processes that bypass MPS. A drain ends them too; the row Clients lists them.",
            Query(f"sum({bypassing('{gpus}')})"),
            width=4,
        ),
    ),
)
