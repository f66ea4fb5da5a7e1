"""What can be the matter with a node, and how much: 2 needs a person now, 1 should be looked at, 0 is well."""

from dataclasses import dataclass

from dashboards.looks import Colour, words
from dashboards.query import DAEMON

ACT, LOOK = 2, 1

HEALTH = words({0: ("well", Colour.WELL), LOOK: ("look", Colour.WARNING), ACT: ("ACT", Colour.BAD)})


@dataclass(frozen=True, slots=True)
class Problem:
    """There wherever the expression has a value, of each daemon if that is known."""

    grave: int
    said: str
    expression: str

    def query(self) -> str:
        """Its gravity, with what is the matter in a label."""
        return (
            f'label_replace({self.grave} + 0 * max by ({DAEMON}) ({self.expression}), "problem", "{self.said}", "", "")'
        )


_EXPECTED_AND_NOT_STOPPED = (
    f'and on ({DAEMON}) cuda_mps_daemon_info{{node, expected="true"}} '
    f'unless on ({DAEMON}) cuda_mps_watchdog_diagnosis{{node, diagnosis="stopped"}} == 1'
)

PROBLEMS = (
    Problem(ACT, "exporter down", "up{node} == 0"),
    Problem(ACT, "exporter stands still", "time() - cuda_mps_exporter_snapshot_timestamp_seconds{node} > 120"),
    Problem(ACT, "daemon dead", f'cuda_mps_daemon_state{{node, state="absent"}} == 1 {_EXPECTED_AND_NOT_STOPPED}'),
    Problem(ACT, "daemon unresponsive", 'cuda_mps_daemon_state{node, state="unresponsive"} == 1'),
    Problem(ACT, "server in FAULT", 'cuda_mps_server_state{node, state="fault"} == 1'),
    Problem(ACT, "servers crash again and again", 'cuda_mps_watchdog_diagnosis{node, diagnosis="crash_loop"} == 1'),
    Problem(ACT, "circuit open", 'cuda_mps_watchdog_state{node, state="circuit_open"} == 1'),
    Problem(ACT, "watchdog cannot act", "cuda_mps_watchdog_blocked{node} == 1"),
    Problem(ACT, "quarantined", 'cuda_mps_watchdog_state{node, state="quarantined"} == 1'),
    Problem(ACT, "GPU cannot be read", "cuda_mps_gpu_up{node} == 0"),
    Problem(LOOK, "died within the hour", "time() - cuda_mps_daemon_last_loss_timestamp_seconds{node} < 3600"),
    Problem(LOOK, "fault within the hour", "time() - cuda_mps_fault_last_timestamp_seconds{node} < 3600"),
    Problem(LOOK, "Xid within the hour", "time() - cuda_mps_xid_last_timestamp_seconds{node} < 3600"),
    Problem(LOOK, "session held open", 'cuda_mps_daemon_state{node, state="held"} == 1'),
    Problem(LOOK, "processes bypass MPS", "cuda_mps_bypassing_processes{node} > 0"),
    Problem(LOOK, "clients wait", "cuda_mps_clients_waiting{node} > 0"),
    Problem(
        LOOK, "client places nearly taken", "cuda_mps_server_clients{node} >= 0.9 * cuda_mps_server_clients_limit{node}"
    ),
    Problem(LOOK, "a server's limits drifted", "cuda_mps_server_limits_drifted{node} == 1"),
    Problem(LOOK, "default limits drifted", "cuda_mps_daemon_limits_drifted{node} == 1"),
    Problem(LOOK, "exporter blind in one eye", "cuda_mps_exporter_source_up{node} == 0"),
    Problem(LOOK, "a log is not followed", "cuda_mps_exporter_log_followed{node} == 0"),
    Problem(LOOK, "a log is blocked", "cuda_mps_daemon_log_blocked{node} == 1"),
    Problem(LOOK, "a log is not rotated", "cuda_mps_daemon_log_size_bytes{node} > 1e9"),
    Problem(LOOK, "exporter paused", "cuda_mps_exporter_paused{node} == 1"),
    Problem(LOOK, "configuration refused", "cuda_mps_exporter_config_last_reload_successful{node} == 0"),
)

EVERY_PROBLEM = " or ".join(problem.query() for problem in PROBLEMS)

WORST = f"max by (job, instance) ({EVERY_PROBLEM} or 0 * up{{node}})"
"""How a node is: well where nothing is the matter; nothing at all where nobody scrapes it."""
