"""Who is on the node, what they have of its memory, and with whom they fall."""

from dashboards import looks
from dashboards.board import Row
from dashboards.panel import Column, lines, table
from dashboards.query import CLIENT, DAEMON, Query

_WHO = "pid, user, command, unit, client_container, client_pod_uid, client_pod, client_namespace, slurm_job_id"
_INFO = f"topk by ({CLIENT}) (1, cuda_mps_client_info{{daemons}})"
_SAME = f"job, instance, daemon, server, client, {_WHO}"

CLIENTS = Row(
    "Clients",
    (
        table(
            "Clients now",
            "Everybody with series of their own, and the owner as far as it is known. Others: how many would fall "
            "with this client in a fatal fault. Without memory: NVML has not told yet.",
            (
                Query(
                    f'sum by ({_SAME}) (cuda_mps_client_memory_used_bytes{{daemons, gpu=~"$gpu"}} '
                    f"* on ({CLIENT}) group_left (server, {_WHO}) {_INFO})",
                    instant=True,
                ),
                Query(
                    f"max by ({_SAME}) (cuda_mps_client_failure_domain_clients{{daemons}} "
                    f"* on ({CLIENT}) group_left (server, {_WHO}) {_INFO})",
                    instant=True,
                ),
            ),
            {
                "instance": Column("Node"),
                "daemon": Column("Daemon"),
                "server": Column("Server"),
                "pid": Column("PID"),
                "user": Column("User"),
                "command": Column("Command"),
                "Value #A": Column("GPU memory", looks.BYTES),
                "Value #B": Column("Others that fall too", looks.COUNT),
                "slurm_job_id": Column("Slurm job"),
                "client_namespace": Column("Namespace"),
                "client_pod": Column("Pod"),
                "client_pod_uid": Column("Pod's UID"),
                "client_container": Column("Container"),
                "unit": Column("Unit"),
            },
            sort=("GPU memory", True),
            height=10,
        ),
        lines(
            "Clients of each owner",
            "Connected clients by owner: a Slurm job, pod, container, unit or user, the first that is known.",
            Query(
                "sum by (job, instance, workload_kind, workload) (cuda_mps_workload_clients{daemons})",
                "{{workload_kind}} {{workload}} {{instance}}",
            ),
            stacked=True,
            width=8,
        ),
        lines(
            "How many fall together",
            "The largest failure domain of each daemon: that many clients end with one fatal fault of any of them.",
            Query(
                f"1 + max by ({DAEMON}) (cuda_mps_client_failure_domain_clients{{daemons}})", "{{daemon}} {{instance}}"
            ),
            width=8,
        ),
        lines(
            "Owners that come again and again",
            "Clients of each owner that connect: one that crashes in a loop stands out.",
            Query(
                "sum by (job, instance, workload_kind, workload) "
                "(rate(cuda_mps_workload_clients_connected_total{node}[$__rate_interval]))",
                "{{workload_kind}} {{workload}} {{instance}}",
            ),
            unit=looks.PER_SECOND,
            width=8,
        ),
    ),
)

_TOTAL = Query("sum by (job, instance) (cuda_mps_gpu_memory_total_bytes{gpus})", "all there is {{instance}}")

MEMORY = Row(
    "GPU memory",
    (
        lines(
            "GPU memory by client",
            "What each client uses of the chosen GPUs, its context included, upon one another; dashed, all that "
            "they have.",
            Query(
                f'sum by ({CLIENT}, pid, user, command) (cuda_mps_client_memory_used_bytes{{daemons, gpu=~"$gpu"}} '
                f"* on ({CLIENT}) group_left (pid, user, command) {_INFO})",
                "{{command}} {{pid}} of {{user}} {{instance}}",
            ),
            _TOTAL,
            unit=looks.BYTES,
            stacked=True,
            limit="all there is",
            height=10,
        ),
        lines(
            "GPU memory by owner",
            "What each owner's clients use of the chosen GPUs, upon one another; dashed, all that they have. This "
            "one stays whole where clients are too many, or come and go too fast, for series of their own.",
            Query(
                "sum by (job, instance, workload_kind, workload) (cuda_mps_workload_memory_used_bytes{gpus})",
                "{{workload_kind}} {{workload}} {{instance}}",
            ),
            _TOTAL,
            unit=looks.BYTES,
            stacked=True,
            limit="all there is",
            height=10,
        ),
    ),
)
