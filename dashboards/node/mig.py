"""MIG instances, and tables of protocol 3. Most nodes have neither."""

from dashboards import looks
from dashboards.board import Row
from dashboards.panel import Column, lines, table
from dashboards.query import DAEMON, GPU, SERVER, WITH_INDEX, Query, rate

_NAMED = f"* on ({SERVER}) group_left (name) cuda_mps_server_name_info{{daemons}}"

MIG = Row(
    "MIG and protocol 3",
    (
        table(
            "MIG instances",
            "The instances of GPUs with MIG. Index: GPU, GPU instance, compute instance.",
            f"(cuda_mps_gpu_mig_info{{gpus}} * on ({GPU}) group_left () cuda_mps_gpu_mig_sms{{gpus}}) {WITH_INDEX}",
            {
                "index": "Index",
                "profile": "Profile",
                "gpu": "Instance",
                "parent": "GPU",
                "Value": Column("SMs", looks.COUNT),
            },
            sort=("Index", False),
            width=12,
        ),
        lines(
            "Clients of named servers",
            "Clients of each server with a name (protocol 3).",
            Query(
                f"sum by ({DAEMON}, name) (cuda_mps_server_clients{{daemons}} {_NAMED})",
                "{{name}} {{daemon}} {{instance}}",
            ),
            width=6,
        ),
        lines(
            "Unknown columns and rows",
            "Columns and rows of the daemon's tables that the exporter does not know. They are ignored.",
            Query(
                rate("cuda_mps_exporter_replies_unrecognized_total", f"{DAEMON}, part"),
                "{{part}} {{daemon}} {{instance}}",
            ),
            unit=looks.PER_SECOND,
            width=6,
        ),
    ),
)
