"""Daemons that cannot be queried, and starts that do not end: no state lasts forever or is invented."""

from dataclasses import replace

import pytest

from exporter.model.daemon import Daemon, DaemonState
from exporter.model.node import Node
from exporter.model.observation import ControlReply, Observation, SourceReading
from exporter.model.reason import command_failed
from exporter.model.watchdog import Condition
from exporter.report import status_text
from exporter.report.finding import severity_and_label
from exporter.report.findings import findings
from exporter.report.problem import Severity
from exporter.state.hang_detection import STARTING_SECONDS
from exporter.watchdog.context import Policy
from exporter.watchdog.evaluation import evaluate
from tests.builders import AT, DAEMON, at_work, daemon_process, looks, reduced, reply

MISSING = "nvidia-cuda-mps-control: No such file or directory"
PROBLEM = command_failed("nvidia-cuda-mps-control", 127, MISSING)
TEXT = f"nvidia-cuda-mps-control failed with exit code 127: {MISSING}"


def unusable(at: float) -> tuple[ControlReply, SourceReading]:
    """The control program does not exist."""
    return (
        reply("get_server_list", exit_code=127, stderr=MISSING, at=at),
        SourceReading(at=at, name="control", seconds=0.01, problem=PROBLEM, daemon=DAEMON),
    )


def queried_twice(*before: Observation) -> Node:
    return reduced(*before, *unusable(AT + 1), *unusable(AT + 3)).node


def daemon_of(present: Node) -> Daemon:
    return present.daemons[DAEMON]


def bypassing_known(present: Node) -> Node:
    return evaluate(present, Policy(), at=present.at, chance=0.0)[0]


def test_without_process_and_pid_file_there_is_no_daemon() -> None:
    assert daemon_of(queried_twice(daemon_process(None, left=False))).state is DaemonState.ABSENT


@pytest.mark.parametrize("left", [True, None])
def test_the_state_is_unknown_if_a_pid_file_may_name_an_invisible_process(left: bool | None) -> None:
    assert daemon_of(queried_twice(daemon_process(None, left=left))).state is None


def test_one_failed_command_proves_nothing() -> None:
    assert daemon_of(reduced(daemon_process(None, left=False), *unusable(AT + 1)).node).state is None


@pytest.mark.parametrize("before", [(), tuple(at_work())], ids=["starting", "up"])
def test_the_state_of_a_running_process_becomes_unknown(before: tuple[Observation, ...]) -> None:
    present = queried_twice(*before, daemon_process())

    assert (daemon_of(present).state, daemon_of(present).runtime.process is not None) == (None, True)


def test_an_absent_daemon_stays_absent() -> None:
    gone = queried_twice(daemon_process(None, left=False))

    later = reduced(*unusable(AT + 40), *unusable(AT + 80), start=gone).node

    assert daemon_of(later).lifecycle.state_since == daemon_of(gone).lifecycle.state_since


def test_the_daemon_answers_again_once_the_program_exists() -> None:
    assert daemon_of(reduced(*at_work(at=AT + 10), start=queried_twice(daemon_process())).node).state is DaemonState.UP


@pytest.mark.parametrize(("after", "state"), [(STARTING_SECONDS, DaemonState.STARTING), (STARTING_SECONDS + 1, None)])
def test_the_starting_state_is_bounded(after: float, state: DaemonState | None) -> None:
    present = reduced(daemon_process(), *looks(at=AT + after)).node

    assert daemon_of(present).state is state


def test_reports_an_absent_daemon_and_its_cause_at_once() -> None:
    present = bypassing_known(queried_twice(daemon_process(None, left=False)))

    first = findings(present, present.at, Policy())[0]

    assert (first.severity, first.commands) == (Severity.CRITICAL, ("cuda-mps-exporter doctor",))
    assert f"it cannot be queried: {TEXT}" in first.text
    assert "Wait" not in first.remedy
    assert present.watches[DAEMON].diagnosis is not None
    assert present.watches[DAEMON].diagnosis.condition is Condition.NEVER_SEEN
    assert status_text.status_answer(present)["exit_code"] == 1


def test_does_not_report_a_daemon_that_cannot_be_queried_as_starting() -> None:
    present = bypassing_known(queried_twice(daemon_process()))

    first = findings(present, present.at, Policy())[0]

    assert (first.severity, first.daemon) == (Severity.WARNING, DAEMON)
    assert TEXT in first.text
    assert "Wait" not in first.remedy
    assert severity_and_label(daemon_of(present), (first,)) == (Severity.WARNING, "not queried")
    assert status_text.status_answer(present)["exit_code"] == 1


@pytest.mark.parametrize(("after", "waits"), [(5.0, True), (STARTING_SECONDS + 1, False)])
def test_status_names_a_bounded_waiting_time(after: float, waits: bool) -> None:
    present = reduced(*looks(at=AT), *looks(at=AT + after)).node

    first = findings(present, present.at, Policy())[0]

    assert first.remedy.startswith("Wait") is waits
    assert first.severity is (Severity.UNKNOWN if waits else Severity.WARNING)
    assert first.commands == (() if waits else ("cuda-mps-exporter doctor",))


def test_the_remedy_creates_the_directories_of_a_daemon() -> None:
    present = bypassing_known(
        reduced(
            daemon_process(None, left=False),
            reply("get_server_list", exit_code=1, at=AT + 1, stderr="Cannot find MPS control daemon process\n"),
            *looks(at=AT + 2),
        ).node
    )

    first = findings(present, present.at, Policy())[0]

    where = f"CUDA_MPS_PIPE_DIRECTORY={DAEMON} CUDA_MPS_LOG_DIRECTORY={DAEMON}/log"
    assert first.commands == (f"mkdir -p {DAEMON} {DAEMON}/log && {where} nvidia-cuda-mps-control -d",)


def test_stores_the_time_of_the_exporters_start() -> None:
    assert reduced(*looks(at=AT), *looks(at=AT + 7)).node.began_at == AT
    assert replace(Node(), at=AT).began_at is None
