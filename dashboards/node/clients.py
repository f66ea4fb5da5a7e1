"""The clients of the node, their memory, and their failure domains."""

from dashboards import looks
from dashboards.board import Row
from dashboards.links import to_page
from dashboards.panel import Column, lines, table
from dashboards.query import CLIENT, DAEMON, NODE, WORKLOAD, Query, rate

_WHO = "pid, user, command, unit, client_container, client_pod_uid, client_pod, client_namespace, job_manager, job_id"
_OWNER = "client_namespace, client_pod, client_container, user, unit, job_manager, job_id"
_INFO = f"topk by ({CLIENT}) (1, cuda_mps_client_info{{daemons}})"
_SAME = f"{DAEMON}, server, client, {_WHO}"

CLIENTS = Row(
    "Clients",
    (
        table(
            "Clients now",
            "All clients with their own series, and their workload if it is known. Others: how many clients would "
            "end with this one in a fatal fault. No memory: NVML has not reported it yet.",
            (
                (
                    f'sum by ({_SAME}) (cuda_mps_client_memory_used_bytes{{daemons, gpu=~"$gpu"}} '
                    f"* on ({CLIENT}) group_left (server, {_WHO}) {_INFO})"
                ),
                (
                    f"max by ({_SAME}) (cuda_mps_client_failure_domain_clients{{daemons}} "
                    f"* on ({CLIENT}) group_left (server, {_WHO}) {_INFO})"
                ),
            ),
            {
                "instance": Column("Node", links=to_page()),
                "daemon": "Daemon",
                "server": "Server",
                "pid": "PID",
                "user": "User",
                "command": "Command",
                "Value #A": Column("GPU memory", looks.BYTES),
                "Value #B": Column("Others in its failure domain", looks.COUNT),
                "job_id": "Job",
                "job_manager": "Batch system",
                "client_namespace": "Namespace",
                "client_pod": "Pod",
                "client_pod_uid": "Pod's UID",
                "client_container": "Container",
                "unit": "Unit",
            },
            sort=("GPU memory", True),
            height=10,
        ),
        table(
            "Workloads",
            "Workloads with usage in the last 20 minutes, also those that have ended. Clients ended: by faults, in the "
            "selected time range. An empty cell: unknown, or several values.",
            (
                f"max by ({WORKLOAD}, {_OWNER}) (cuda_mps_workload_info{{node}})",
                (
                    f"round(sum by ({WORKLOAD}, {_OWNER}) (increase("
                    f"cuda_mps_workload_faulted_clients_total{{node}}[$__range]) * on ({WORKLOAD}) "
                    f"group_left ({_OWNER}) topk by ({WORKLOAD}) (1, cuda_mps_workload_info{{node}})))"
                ),
            ),
            {
                "instance": Column("Node", links=to_page()),
                "workload_kind": "Kind",
                "workload": "Workload",
                "client_namespace": "Namespace",
                "client_pod": "Pod",
                "job_id": "Job",
                "job_manager": "Batch system",
                "client_container": "Container",
                "unit": "Unit",
                "user": "User",
                "Value #B": Column("Clients ended", looks.COUNT),
                "Value #A": Column("Known", looks.NUMBER, hidden=True),
            },
            sort=("Workload", False),
        ),
        table(
            "Labels of the clients' pods",
            "The labels that --kubernetes.pod-labels lists, until 20 minutes after the pod's last use. Empty: the "
            "option is not set, or no pod has clients.",
            "cuda_mps_pod_labels{node}",
            {
                "instance": Column("Node", links=to_page()),
                "client_namespace": "Namespace",
                "client_pod": "Pod",
                "client_pod_uid": "Pod's UID",
                # Grafana takes the names of columns as patterns. The other names depend on the option.
                "label_.+": "Labels",
            },
            sort=("Pod", False),
        ),
        table(
            "Processes that bypass MPS",
            "CUDA processes on GPUs of MPS that run without it. Empty: there is none.",
            "cuda_mps_bypassing_process_info{gpus}",
            {
                "instance": Column("Node", links=to_page()),
                "gpu": "GPU",
                "pid": "PID",
                "user": "User",
                "command": "Command",
                "workload_kind": "Kind",
                "workload": "Workload",
            },
            sort=("PID", False),
        ),
        lines(
            "Clients of each workload",
            "Connected clients by workload: a job, pod, container, unit or user, the first that is known.",
            Query(
                f"sum by ({WORKLOAD}) (cuda_mps_workload_clients{{daemons}})",
                "{{workload_kind}} {{workload}} {{instance}}",
            ),
            stacked=True,
            width=8,
        ),
        lines(
            "Largest failure domain",
            "The largest failure domain of each daemon: the number of clients that end with one fatal fault of any "
            "of them.",
            Query(
                f"1 + max by ({DAEMON}) (cuda_mps_client_failure_domain_clients{{daemons}})", "{{daemon}} {{instance}}"
            ),
            width=8,
        ),
        lines(
            "Reconnecting workloads",
            "New connections of each workload. A workload that crashes in a loop has a high rate.",
            Query(
                rate("cuda_mps_workload_clients_connected_total", WORKLOAD, of="node"),
                "{{workload_kind}} {{workload}} {{instance}}",
            ),
            unit=looks.PER_SECOND,
            width=8,
        ),
    ),
)

_TOTAL = Query(f"sum by ({NODE}) (cuda_mps_gpu_memory_total_bytes{{gpus}})", "GPU total {{instance}}")

MEMORY = Row(
    "GPU memory",
    (
        lines(
            "GPU memory by client",
            "Memory that each client uses on the chosen GPUs, including its context, stacked. Dashed: the memory of "
            "the GPUs.",
            Query(
                f'sum by ({CLIENT}, pid, user, command) (cuda_mps_client_memory_used_bytes{{daemons, gpu=~"$gpu"}} '
                f"* on ({CLIENT}) group_left (pid, user, command) {_INFO})",
                "{{command}} {{pid}} of {{user}} {{instance}}",
            ),
            _TOTAL,
            unit=looks.BYTES,
            stacked=True,
            limit="GPU total",
            height=10,
        ),
        lines(
            "GPU memory by workload",
            "Memory that each workload's clients use on the chosen GPUs, stacked. Dashed: the memory of the GPUs. "
            "This panel is complete even if too many clients, or very short ones, have no series of their own.",
            Query(
                f"sum by ({WORKLOAD}) (cuda_mps_workload_memory_used_bytes{{gpus}})",
                "{{workload_kind}} {{workload}} {{instance}}",
            ),
            _TOTAL,
            unit=looks.BYTES,
            stacked=True,
            limit="GPU total",
            height=10,
        ),
    ),
)
