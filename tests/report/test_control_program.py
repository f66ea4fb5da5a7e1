"""`status` with a control program that hangs, and with a blocked log."""

from exporter.model.node import Node
from exporter.model.values import replace
from exporter.report.finding import Finding
from exporter.report.findings import daemon_findings
from exporter.report.problem import Severity
from exporter.watchdog.context import DaemonPolicy, Policy
from exporter.watchdog.evaluation import evaluate
from tests.builders import AT, DAEMON, control_log, look, probe, reduced, servers, silence, three_clients

UNIT = Policy(daemon_policies={DAEMON: DaemonPolicy(unit="nvidia-cuda-mps.service")})
COMMAND = Policy(daemon_policies={DAEMON: DaemonPolicy(command=("nvidia-cuda-mps-control", "-d"))})


def found(node: Node, policy: Policy) -> list[Finding]:
    judged, _, _ = evaluate(node, policy, at=node.at, chance=0.0)
    return list(daemon_findings(judged, judged.at, policy))


def hung_program() -> Node:
    seen = (silence(at=AT + 10), probe(True, at=AT + 10.1), silence(at=AT + 20), probe(True, at=AT + 20.1))
    return reduced(*seen, start=three_clients()).node


def blocked() -> Node:
    seen = (servers(513, at=AT + 10), look("log", at=AT + 16), servers(513, at=AT + 20), look("log", at=AT + 26))
    return reduced(*seen, start=three_clients()).node


HUNG_PROGRAM = "Find out why nvidia-cuda-mps-control hangs: run it by hand. Do not restart the daemon."


def test_reports_a_hung_control_program_with_a_command_that_times_out() -> None:
    (trouble,) = found(hung_program(), UNIT)
    assert trouble.severity is Severity.WARNING
    assert trouble.text == (
        "The control program has not answered for MPS daemon /tmp/nvidia-mps for 10 s, but the daemon accepts "
        "connections"
    )
    assert trouble.remedy == HUNG_PROGRAM
    assert trouble.commands == (
        'echo "get_server_list" | CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps timeout 10 nvidia-cuda-mps-control',
    )


def test_advises_against_a_restart_without_a_command_too() -> None:
    node = hung_program()
    unwritable = replace(node.daemons[DAEMON], pipe_directory="/tmp/two\nlines")
    (trouble,) = found(replace(node, daemons={DAEMON: unwritable}), UNIT)
    assert trouble.remedy == HUNG_PROGRAM
    assert trouble.commands == ()


def test_repairs_a_blocked_log_through_the_unit() -> None:
    (trouble,) = found(blocked(), UNIT)
    assert (trouble.severity, trouble.fails) == (Severity.WARNING, False)
    assert trouble.text.startswith("MPS daemon /tmp/nvidia-mps has not written its logs for ")
    assert trouble.commands == ("systemctl restart nvidia-cuda-mps.service",)


def test_repairs_a_blocked_log_by_quit_and_start() -> None:
    (trouble,) = found(blocked(), COMMAND)
    quits, start = trouble.commands
    assert quits == 'echo "quit -t 3" | CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps nvidia-cuda-mps-control'
    assert start.endswith("nvidia-cuda-mps-control -d")


def test_ends_with_the_next_command_in_the_log() -> None:
    logged = control_log("Cmd:get_server_list", at=AT + 40)
    assert found(reduced(*logged, start=blocked()).node, UNIT) == []
