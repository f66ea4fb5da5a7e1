"""What goes wrong on the node: faults, newcomers who are turned away or wait, processes that bypass MPS, and Xids."""

from dashboards import looks
from dashboards.board import Row
from dashboards.faults import deaths, faults
from dashboards.links import to_page
from dashboards.panel import Column, bars, lines, stat, table
from dashboards.query import DAEMON, NODE, SERVER, WITH_INDEX, WORKLOAD, Query, increase, max_by

PROBLEMS = Row(
    "Problems",
    (
        faults(),
        deaths(),
        bars(
            "Faults and deaths",
            "Fatal GPU errors that affected all clients on a GPU, those that affected one client alone, deaths of "
            "control daemons, and servers that repeatedly exit before they are ready.",
            Query(increase("cuda_mps_faults_total", DAEMON), "fault {{daemon}} {{instance}}"),
            Query(increase("cuda_mps_client_faults_contained_total", DAEMON), "contained {{daemon}} {{instance}}"),
            Query(
                increase("cuda_mps_daemon_losses_total", f"{DAEMON}, reason"),
                "{{reason}} {{daemon}} {{instance}}",
            ),
            Query(increase("cuda_mps_server_crash_loops_total", DAEMON), "crash loop {{daemon}} {{instance}}"),
        ),
        bars(
            "Refused clients",
            "New clients that were refused: no free slot (limit), the server in FAULT, or another reason.",
            Query(
                increase("cuda_mps_clients_refused_total", f"{DAEMON}, reason"),
                "{{reason}} {{daemon}} {{instance}}",
            ),
            width=8,
        ),
        lines(
            "Waiting and blocking",
            "Clients that wait until another user's clients have exited, and affected clients that "
            "still run. Until the latter exit, their server refuses new clients.",
            Query(max_by("cuda_mps_clients_waiting", DAEMON), "waiting {{daemon}} {{instance}}"),
            Query(
                max_by("cuda_mps_fault_blocking_clients", SERVER),
                "blocking server {{server}} of {{daemon}} {{instance}}",
            ),
            width=8,
        ),
        lines(
            "Bypassing MPS",
            "CUDA processes that run without MPS on each GPU. Usually they started while no daemon ran. No limit "
            "applies to them.",
            Query(f"cuda_mps_bypassing_processes{{gpus}} {WITH_INDEX}", "GPU {{index}} {{instance}}"),
            width=8,
        ),
        bars(
            "Xids",
            "Errors that the driver reported, by number and GPU, each counted once. Empty: there was none.",
            Query(
                increase("cuda_mps_xid_errors_total", f"{NODE}, gpu, xid", of="node") + " > 0",
                "Xid {{xid}} {{gpu}} {{instance}}",
            ),
            width=8,
        ),
        bars(
            "Affected and suspected workloads",
            "Faults that affected clients of a workload, and faults of which one of its clients was the main suspect, "
            "which is no proof. Empty: there was none.",
            Query(
                increase("cuda_mps_workload_faults_affected_total", WORKLOAD, of="node") + " > 0",
                "affected: {{workload_kind}} {{workload}} {{instance}}",
            ),
            Query(
                increase("cuda_mps_workload_faults_suspected_total", WORKLOAD, of="node") + " > 0",
                "suspected: {{workload_kind}} {{workload}} {{instance}}",
            ),
            width=8,
        ),
        table(
            "Hardware errors",
            "GPUs that need a reset or a reboot of the machine, until it happens, and other Xids of hardware in the "
            "last hour. A quarantine is below. Empty: there is none.",
            "1000 * max by (cluster, job, instance, gpu, xid, action) "
            "(cuda_mps_gpu_hardware_xid_timestamp_seconds{gpus})",
            {
                "instance": Column("Node", links=to_page()),
                "gpu": "GPU",
                "xid": "Xid",
                "action": "NVIDIA advises",
                "Value": Column("Since", looks.MOMENT, painted=False),
            },
            sort=("Node", False),
            width=24,
            height=5,
        ),
        stat(
            "Recovery time",
            "Average duration of the faults that ended in the selected time range. A client that does not exit "
            "makes it long. No value: none has ended.",
            (
                "sum(increase(cuda_mps_fault_recovery_seconds_sum{daemons}[$__range]))"
                " / sum(increase(cuda_mps_fault_recovery_seconds_count{daemons}[$__range]))"
            ),
            unit=looks.SECONDS,
            width=4,
            height=8,
        ),
        stat(
            "Clients affected by faults",
            "Clients that had the error in the selected time range.",
            "round(sum(increase(cuda_mps_fault_affected_clients_total{daemons}[$__range])))",
            width=4,
            height=8,
        ),
    ),
)
