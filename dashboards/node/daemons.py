"""The node's daemons and their servers: how they are, and how they were."""

from collections.abc import Mapping

from dashboards import looks
from dashboards.board import Row
from dashboards.links import to_page
from dashboards.looks import Colour
from dashboards.panel import Column, lines, stat, table, timeline
from dashboards.query import DAEMON, NODE, SERVER, Query, bypassing, max_by, moment, rate, which
from exporter.model.daemon import DaemonState
from exporter.model.server import ServerState

DAEMON_STATES: Mapping[str, Colour] = {
    DaemonState.UP: Colour.WELL,
    DaemonState.STARTING: Colour.NEWS,
    DaemonState.STOPPED: Colour.ODD,
    DaemonState.HELD: Colour.WARNING,
    DaemonState.UNRESPONSIVE: Colour.BAD,
    DaemonState.DOWN: Colour.BAD,
}
SERVER_STATES: Mapping[str, Colour] = {
    ServerState.ACTIVE: Colour.WELL,
    ServerState.INITIALIZING: Colour.NEWS,
    ServerState.FAULT: Colour.BAD,
}

_DAEMON_STATE = which("cuda_mps_daemon_state", "state", DAEMON_STATES, DAEMON)
_SERVER_STATE = which("cuda_mps_server_state", "state", SERVER_STATES, SERVER)

NOW = Row(
    "Now",
    (
        stat(
            "Daemons",
            "State of each control daemon. Held: an open session blocks all other commands.",
            Query(_DAEMON_STATE, "{{daemon}}"),
            unit=looks.NUMBER,
            mappings=looks.states(DAEMON_STATES),
            width=8,
        ),
        stat(
            "Servers",
            "State of each MPS server, by its PID. In FAULT it refuses new clients.",
            Query(_SERVER_STATE, "{{server}}"),
            unit=looks.NUMBER,
            mappings=looks.states(SERVER_STATES),
            width=4,
        ),
        stat(
            "Clients",
            "Clients connected to the servers of these daemons.",
            Query("sum(cuda_mps_daemon_clients{daemons})"),
            width=2,
        ),
        stat(
            "Largest failure domain",
            "The largest number of clients that one fatal fault would end.",
            Query("1 + max(cuda_mps_client_failure_domain_clients{daemons}) or 0 * sum(cuda_mps_daemon_up{daemons})"),
            width=2,
        ),
        stat(
            "Bypassing",
            "CUDA processes that run without MPS on GPUs that a known daemon serves or should serve.",
            Query(f"sum({bypassing('{gpus}')})"),
            thresholds=looks.NONE_IS_WELL_SOME_ARE_ODD,
            width=2,
        ),
        stat(
            "Waiting",
            "Clients that wait until another user's clients have exited.",
            Query("sum(cuda_mps_clients_waiting{daemons})"),
            thresholds=looks.NONE_IS_WELL_SOME_ARE_ODD,
            width=2,
        ),
        stat(
            "Faults",
            "Faults in the selected time range.",
            "round(sum(increase(cuda_mps_faults_total{daemons}[$__range])))",
            thresholds=looks.NONE_IS_WELL_SOME_ARE_ODD,
            width=2,
        ),
        stat(
            "Deaths",
            "Control daemons that died or were replaced, in the selected time range.",
            "round(sum(increase(cuda_mps_daemon_losses_total{daemons}[$__range])))",
            thresholds=looks.NONE_IS_WELL_SOME_ARE_ODD,
            width=2,
        ),
    ),
)

STATES = Row(
    "Daemons and servers",
    (
        timeline(
            "Daemons over time",
            "State of each control daemon. A gap: no data was collected.",
            Query(_DAEMON_STATE, "{{daemon}} {{instance}}"),
            looks.states(DAEMON_STATES),
        ),
        timeline(
            "Servers over time",
            "State of each MPS server. A row that ends: the server has exited. A daemon ends an idle server.",
            Query(_SERVER_STATE, "{{server}} of {{daemon}} {{instance}}"),
            looks.states(SERVER_STATES),
        ),
        table(
            "Daemons",
            "Each control daemon. Up: whether it responds. Supported: whether the exporter supports its protocol.",
            (
                max_by("cuda_mps_daemon_up", DAEMON),
                moment("cuda_mps_daemon_start_time_seconds"),
                moment("cuda_mps_daemon_last_loss_timestamp_seconds"),
                max_by("cuda_mps_daemon_supported", DAEMON),
            ),
            {
                "instance": Column("Node", links=to_page()),
                "daemon": "Daemon",
                "Value #A": Column("Up", looks.NUMBER, mappings=looks.YES_IS_WELL),
                "Value #B": Column("Started", looks.MOMENT),
                "Value #C": Column("Last died", looks.MOMENT),
                "Value #D": Column("Supported", looks.NUMBER, mappings=looks.YES_IS_WELL),
            },
            sort=("Daemon", False),
            width=12,
            height=6,
        ),
        table(
            "Daemon details",
            "Version of the daemon's binary, and the unit that it runs in. The absence of an expected daemon is an "
            "outage.",
            "cuda_mps_daemon_info{daemons}",
            {
                "instance": Column("Node", links=to_page()),
                "daemon": "Daemon",
                "version": "Version",
                "protocol": "Protocol",
                "unit": "Unit",
                "uid": "UID",
                "user": "User",
                "job_id": "Job",
                "job_manager": "Batch system",
                "daemon_pod": "Pod",
                "expected": "Expected",
                "pipe_directory": "Pipe directory",
            },
            sort=("Daemon", False),
            width=12,
            height=6,
        ),
        lines(
            "Clients of each server",
            "Clients connected to each server, and its limit of clients. A server serves one user.",
            Query(
                f"max by ({SERVER}) (cuda_mps_server_clients{{daemons}}) "
                f"* on ({SERVER}) group_left (user) topk by ({SERVER}) (1, cuda_mps_server_info{{daemons}})",
                "server {{server}} for {{user}}, {{daemon}} {{instance}}",
            ),
            Query(max_by("cuda_mps_server_clients_limit", NODE), "limit of a server {{instance}}"),
            limit="limit of a server",
        ),
        lines(
            "Connections and disconnections",
            "Clients that connect, and clients that disconnect: by their own exit, or because their server or "
            "daemon ended.",
            Query(rate("cuda_mps_clients_connected_total", DAEMON), "connected {{daemon}} {{instance}}"),
            Query(
                rate("cuda_mps_clients_disconnected_total", f"{DAEMON}, reason"),
                "disconnected: {{reason}} {{daemon}} {{instance}}",
            ),
            unit=looks.PER_SECOND,
        ),
    ),
)
