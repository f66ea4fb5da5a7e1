"""MIG instances, static SM partitions and namespaces of servers. Most nodes have none of them."""

from dashboards import looks
from dashboards.board import Row
from dashboards.panel import Column, lines, table
from dashboards.query import CLIENT, DAEMON, GPU, SERVER, WITH_INDEX, Query

_NAMED = f"* on ({SERVER}) group_left (name) cuda_mps_server_name_info{{daemons}}"

PARTITIONS = Row(
    "MIG, SM partitions, namespaces",
    (
        table(
            "MIG instances",
            "The instances of GPUs with MIG. Index: GPU, GPU instance, compute instance.",
            (
                Query(
                    f"(cuda_mps_gpu_mig_info{{gpus}} * on ({GPU}) group_left () cuda_mps_gpu_mig_sms{{gpus}}) "
                    f"{WITH_INDEX}",
                    instant=True,
                ),
            ),
            {
                "index": Column("Index"),
                "profile": Column("Profile"),
                "gpu": Column("Instance"),
                "parent": Column("GPU"),
                "Value": Column("SMs", looks.COUNT),
            },
            sort=("Index", False),
            width=12,
        ),
        table(
            "Static SM partitions",
            "The SMs of each partition and its clients. Clients use no SMs of another partition.",
            (
                Query(f"sum by ({DAEMON}, gpu, partition) (cuda_mps_sm_partition_sms{{daemons}})", instant=True),
                Query(f"sum by ({DAEMON}, gpu, partition) (cuda_mps_sm_partition_chunks{{daemons}})", instant=True),
                Query(f"sum by ({DAEMON}, gpu, partition) (cuda_mps_sm_partition_clients{{daemons}})", instant=True),
            ),
            {
                "daemon": Column("Daemon"),
                "gpu": Column("GPU"),
                "partition": Column("Partition"),
                "Value #A": Column("SMs", looks.COUNT),
                "Value #B": Column("Chunks", looks.COUNT),
                "Value #C": Column("Clients", looks.COUNT),
            },
            sort=("Partition", False),
            width=12,
        ),
        lines(
            "SMs and chunks in no partition",
            "What can still be partitioned. No client uses it.",
            Query(f"cuda_mps_sm_partition_free_sms{{daemons}} {WITH_INDEX}", "SMs, GPU {{index}} {{instance}}"),
            Query(f"cuda_mps_sm_partition_free_chunks{{daemons}} {WITH_INDEX}", "chunks, GPU {{index}} {{instance}}"),
            width=8,
        ),
        table(
            "Clients with partitions",
            "The partition of each client. Upper bound: the failure domain may be smaller, with driver R610 or later.",
            (
                Query(
                    f"max by ({CLIENT}, gpu, partition) (cuda_mps_client_sm_partition_info{{daemons}})", instant=True
                ),
                Query(f"max by ({CLIENT}) (cuda_mps_client_failure_domain_upper_bound{{daemons}})", instant=True),
            ),
            {
                "client": Column("Client"),
                "gpu": Column("GPU"),
                "partition": Column("Partition"),
                "Value #A": Column("Has a partition", looks.NUMBER, mappings=looks.YES_OR_NO),
                "Value #B": Column("Upper bound", looks.NUMBER, mappings=looks.YES_OR_NO),
            },
            sort=("Client", False),
            width=16,
        ),
        lines(
            "Clients of namespaces",
            "Clients in each namespace of a server (protocol 3).",
            Query(
                f"sum by (job, instance, daemon, name, mps_namespace) (cuda_mps_namespace_clients{{daemons}} {_NAMED})",
                "{{name}}/{{mps_namespace}} {{instance}}",
            ),
            width=8,
        ),
        lines(
            "Limits of namespaces",
            "Fraction of a GPU's threads that each client in the namespace may use.",
            Query(
                f"max by (job, instance, daemon, name, mps_namespace) "
                f"(cuda_mps_namespace_active_thread_ratio{{daemons}} {_NAMED})",
                "{{name}}/{{mps_namespace}} {{instance}}",
            ),
            unit=looks.RATIO,
            ceiling=1,
            width=8,
        ),
        lines(
            "Memory limits of namespaces",
            "GPU memory that each client in the namespace may allocate. No line: there is no limit.",
            Query(
                f"max by (job, instance, daemon, name, mps_namespace) "
                f"(cuda_mps_namespace_pinned_memory_limit_bytes{{daemons}} {_NAMED})",
                "{{name}}/{{mps_namespace}} {{instance}}",
            ),
            unit=looks.BYTES,
            width=8,
        ),
        lines(
            "MLOPart devices",
            "Devices (locality domains) into which servers divide a GPU. Each has a part of its SMs and memory.",
            Query(f"cuda_mps_gpu_mlopart_devices{{daemons}} {WITH_INDEX}", "GPU {{index}} {{instance}}"),
            width=8,
        ),
        lines(
            "Unknown columns and rows",
            "Columns and rows of the daemon's tables that the exporter does not know. They are ignored.",
            Query(
                f"sum by ({DAEMON}, part) "
                "(rate(cuda_mps_exporter_replies_unrecognized_total{daemons}[$__rate_interval]))",
                "{{part}} {{daemon}} {{instance}}",
            ),
            unit=looks.PER_SECOND,
            width=8,
        ),
    ),
)
