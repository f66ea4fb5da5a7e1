"""Node: all of one node, from its daemons to the exporter's collectors."""

from dashboards.board import Annotation, Board, Variable
from dashboards.faults import marks
from dashboards.looks import Colour
from dashboards.node import clients, collectors, daemons, drain, gpus, limits, mig, problems, watchdog

DAEMONS = Variable(
    name="daemon", label="Daemon", query="label_values(cuda_mps_daemon_info{node}, daemon)", everything=".+"
)
GPUS = Variable(name="gpu", label="GPU", query="label_values(cuda_mps_gpu_info{node}, gpu)", everything=".+")

ANNOTATIONS = (
    *marks("daemons"),
    Annotation(
        name="Daemon starts",
        colour=Colour.WELL,
        moments="cuda_mps_daemon_start_time_seconds{daemons}",
        title="Daemon started",
        text="The control daemon {{daemon}} on {{instance}} was started.",
    ),
    Annotation(
        name="Watchdog's restarts",
        colour=Colour.NEWS,
        moments="cuda_mps_watchdog_last_restart_timestamp_seconds{daemons}",
        title="Watchdog restarted the daemon",
        text="The watchdog restarted {{daemon}} on {{instance}}.",
    ),
    Annotation(
        name="Xids",
        colour=Colour.ODD,
        moments="cuda_mps_xid_last_timestamp_seconds{node}",
        title="Xid {{xid}}",
        text="The driver reported Xid {{xid}} for {{gpu}} of {{instance}}.",
    ),
)

NODE = Board(
    uid="cuda-mps-node",
    title="CUDA MPS / Node",
    description="All data of a node: daemons, servers, clients, GPUs, the watchdog, and the exporter's collectors.",
    variables=(DAEMONS, GPUS),
    annotations=ANNOTATIONS,
    rows=(
        daemons.NOW,
        daemons.STATES,
        problems.PROBLEMS,
        clients.CLIENTS,
        clients.MEMORY,
        drain.DRAIN,
        watchdog.WATCHDOG,
        limits.LIMITS,
        mig.MIG,
        gpus.GPUS,
        collectors.COLLECTORS,
    ),
)
