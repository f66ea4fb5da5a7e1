"""The problems that a dashboard can show: an expression for each; severity and label come from the catalogue."""

from dataclasses import dataclass

from dashboards.looks import Colour, words
from dashboards.query import DAEMON, NODE
from exporter.report.document_parts import Severity
from exporter.report.problems import DaemonProblem, NodeProblem, Problem

NUMBERS = {Severity.WELL: 0, Severity.WARNING: 1, Severity.CRITICAL: 2}
"""How a severity is written as a sample's value."""

HEALTH = words(
    {
        NUMBERS[Severity.WELL]: ("well", Colour.WELL),
        NUMBERS[Severity.WARNING]: ("warning", Colour.WARNING),
        NUMBERS[Severity.CRITICAL]: ("CRITICAL", Colour.BAD),
    }
)


@dataclass(frozen=True, slots=True)
class ShownProblem:
    """A problem of the catalogue. It exists wherever the expression has a value, for each daemon if that is known."""

    problem: Problem
    expression: str

    @property
    def label(self) -> str:
        """The problem in a few words."""
        return self.problem.definition.label

    @property
    def number(self) -> int:
        """The severity as a sample's value."""
        return NUMBERS[self.problem.definition.severity]

    def query(self) -> str:
        """Return the expression of the severity, with the problem's name in a label."""
        value = f"{self.number} + 0 * max by ({DAEMON}) ({self.expression})"
        return f'label_replace({value}, "problem", "{self.label}", "", "")'


_EXPECTED_AND_NOT_STOPPED = (
    f'and on ({DAEMON}) cuda_mps_daemon_info{{node, expected="true"}} '
    f'unless on ({DAEMON}) cuda_mps_watchdog_diagnosis{{node, diagnosis="stopped"}} == 1'
)

SHOWN_PROBLEMS = (
    ShownProblem(NodeProblem.EXPORTER_DOWN, "up{node} == 0"),
    ShownProblem(NodeProblem.EXPORTER_STALLED, "time() - cuda_mps_exporter_snapshot_timestamp_seconds{node} > 120"),
    ShownProblem(
        DaemonProblem.DAEMON_DOWN, f'cuda_mps_daemon_state{{node, state="down"}} == 1 {_EXPECTED_AND_NOT_STOPPED}'
    ),
    ShownProblem(DaemonProblem.DAEMON_UNRESPONSIVE, 'cuda_mps_daemon_state{node, state="unresponsive"} == 1'),
    ShownProblem(DaemonProblem.SERVER_FAULT, 'cuda_mps_server_state{node, state="fault"} == 1'),
    ShownProblem(DaemonProblem.SERVER_CRASH_LOOP, "cuda_mps_server_crash_loop{node} == 1"),
    ShownProblem(DaemonProblem.CIRCUIT_OPEN, 'cuda_mps_watchdog_state{node, state="circuit_open"} == 1'),
    ShownProblem(DaemonProblem.QUARANTINED, 'cuda_mps_watchdog_state{node, state="quarantined"} == 1'),
    ShownProblem(DaemonProblem.WATCHDOG_BLOCKED, "cuda_mps_watchdog_blocked{node} == 1"),
    ShownProblem(NodeProblem.GPU_UNREADABLE, "cuda_mps_gpu_up{node} == 0"),
    ShownProblem(DaemonProblem.DAEMON_DIED, "time() - cuda_mps_daemon_last_loss_timestamp_seconds{node} < 3600"),
    ShownProblem(DaemonProblem.FAULT, "time() - cuda_mps_fault_last_timestamp_seconds{node} < 3600"),
    ShownProblem(NodeProblem.GPU_XID, "time() - cuda_mps_xid_last_timestamp_seconds{node} < 3600"),
    ShownProblem(DaemonProblem.DAEMON_HELD, 'cuda_mps_daemon_state{node, state="held"} == 1'),
    ShownProblem(NodeProblem.PROCESS_BYPASSING, "cuda_mps_bypassing_processes{node} > 0"),
    ShownProblem(NodeProblem.CLIENTS_WAITING, "cuda_mps_clients_waiting{node} > 0"),
    ShownProblem(
        NodeProblem.CLIENT_SLOTS_NEARLY_FULL,
        "cuda_mps_server_clients{node} / cuda_mps_server_clients_limit{node} >= 0.9",
    ),
    ShownProblem(
        NodeProblem.LIMITS_DRIFTED,
        "cuda_mps_server_limits_drifted{node} == 1",
    ),
    ShownProblem(NodeProblem.EXPORTER_CANNOT_COLLECT, "cuda_mps_exporter_source_up{node} == 0"),
    ShownProblem(NodeProblem.LOG_NOT_FOLLOWED, "cuda_mps_exporter_log_followed{node} == 0"),
    ShownProblem(NodeProblem.LOG_BLOCKED, "cuda_mps_daemon_log_blocked{node} == 1"),
    ShownProblem(NodeProblem.LOG_GROWING, "cuda_mps_daemon_log_size_bytes{node} > 1e9"),
    ShownProblem(NodeProblem.EXPORTER_PAUSED, "cuda_mps_exporter_paused{node} == 1"),
    ShownProblem(NodeProblem.CONFIG_RELOAD_FAILED, "cuda_mps_exporter_config_last_reload_successful{node} == 0"),
)

EVERY_PROBLEM = " or ".join(problem.query() for problem in SHOWN_PROBLEMS)

WORST = f"max by ({NODE}) ({EVERY_PROBLEM} or 0 * up{{node}})"
"""How a node is: well if it has no problem; nothing at all if it is not scraped."""
