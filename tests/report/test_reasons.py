"""A reason has the parameters of its text, which is safe to show. A collector's problem has the remedy, too."""

import ast
import re
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from string import Formatter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.doctor import CHECKS
from exporter.model.node import CollectorName, CollectorState
from exporter.model.reason import (
    LOG_BLOCKED,
    Reason,
    ReasonCode,
    command_failed,
    joined,
    parameters_of,
    timed_out,
    with_known_parts,
)
from exporter.model.values import build
from exporter.model.watchdog import BlockReason, Condition, WatchdogPhase
from exporter.parse.printable import LONGEST_PROBLEM
from exporter.report.document_parts import ReasonStatus, Severity
from exporter.report.finding import Finding
from exporter.report.problems import BLOCK_PROBLEMS, CONDITION_PROBLEMS, PHASE_PROBLEMS, PROBLEMS, DaemonProblem
from exporter.report.process_status import reason_status
from exporter.report.reasons import (
    ADVICE,
    log_text,
    reason_text,
    source_text,
    texts_of,
)
from tests.builders import HANGS, PAUSED, absent, denied, failure, look
from tests.store.values import HOSTILE, whole

ROOT = Path(__file__).parents[2]


@given(whole(Reason), st.sampled_from(["", *dict.fromkeys(source for source, _ in ADVICE)]))
def test_every_text_is_one_line_without_braces(reason: Reason, source: str) -> None:
    text = reason_text(reason, source)
    assert text.isprintable()
    assert len(text) <= LONGEST_PROBLEM
    assert all(each.isprintable() for each in reason_status(reason).parameters.values() if isinstance(each, str))


def test_a_code_of_a_file_without_its_parameters_has_a_text_too() -> None:
    """A file that another version wrote may lack some, and have others."""
    for code in ReasonCode:
        text = reason_text(build(Reason, {"code": code.value, "mood": 7}))
        assert text
        assert not {*"{}[]|"}.intersection(text), text


def test_a_code_of_a_later_version_can_be_read() -> None:
    assert build(Reason, {"code": "bored", "text": "x"}) == Reason(ReasonCode.UNSPECIFIED, text="x")


def test_a_missing_or_surplus_parameter_is_an_error() -> None:
    with pytest.raises(ValueError, match="needs"):
        Reason(ReasonCode.SERVER_IN_FAULT)
    with pytest.raises(ValueError, match="needs"):
        Reason(ReasonCode.SERVER_IN_FAULT, server=513, pid=7)


def test_every_reason_in_the_source_has_the_parameters_of_its_code() -> None:
    """So that none is an error when it is needed, in an action that failed for example."""
    made = 0
    for path in (ROOT / "exporter").rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            match call:
                case ast.Call(func=ast.Name(id="Reason"), args=[ast.Attribute(attr=code)], keywords=keywords):
                    needed, allowed = parameters_of(ReasonCode[code])
                    assert needed <= {each.arg for each in keywords} <= allowed, f"{path}:{call.lineno}"
                    made += 1
    assert made > 100


def test_a_text_shows_what_is_known(subtests: pytest.Subtests) -> None:
    at_parent = "; /proc has not shown that it is a child of this daemon"
    failed, suspended = ReasonCode.PROGRAM_FAILED, Condition.SERVER_SUSPENDED
    for reason, text in (
        (Reason(failed, command="start", exit_code=3, text="no GPU"), "start failed (exit code 3): no GPU"),
        (Reason(failed, command="start", exit_code=3), "start failed (exit code 3)"),
        (Reason(failed, command="start", text="no GPU"), "start failed: no GPU"),
        (Reason(ReasonCode.SESSION_OPEN, pid=7, user="alice"), "process 7 of alice is connected to it"),
        (Reason(ReasonCode.SESSION_OPEN, uid=1000), "a process of 1000 is connected to it"),
        (Reason(ReasonCode.AFFECTED_CLIENTS_CONNECTED, pids=(7, 8)), "it waits for the end of PIDs 7, 8"),
        (
            Reason(ReasonCode.AFFECTED_CLIENTS_CONNECTED, pids=tuple(range(1, 49))),
            f"it waits for the end of PIDs {', '.join(map(str, range(1, 17)))} and 32 more",
        ),
        (Reason(ReasonCode.AFFECTED_CLIENTS_CONNECTED), "it waits for the end of the affected clients"),
        (Reason(ReasonCode.CONTEXTS_ENDED_BEFORE_FAULT, seconds=0.12), "its contexts ended 120 ms before the fault"),
        (Reason(ReasonCode.WORK_IN_FLIGHT, seconds=0.04), "it had work in flight, last launched 0.0 s before"),
        (Reason(ReasonCode.RESTARTS_FAILED, count=1), "1 restart did not bring it back"),
        (Reason(ReasonCode.RESTARTS_FAILED, count=3), "3 restarts did not bring it back"),
        (Reason(ReasonCode.REMEDY_TAKES_EFFECT, action="kill_clients"), "the watchdog waits for the effect of kill cl"),
        (Reason(ReasonCode.GPU_NEEDS_RESET, xid=9999, gpu="GPU-7"), "Xid 9999: GPU-7 needs a reset"),
        (Reason(ReasonCode.GPU_NEEDS_REBOOT, xid=79), "Xid 79 (GPU fell off the bus): a GPU needs a reboot of"),
        (
            Reason(ReasonCode.MEMORY_LIMIT_DIFFERS, device=0, wanted=2**31),
            "memory limit of device 0 is unlimited, ",
        ),
        (
            Reason(ReasonCode.SERVER_PARENT_UNKNOWN, server=7, state=suspended),
            f"server 7 is suspended: SIGCONT continues it{at_parent}",
        ),
        (
            Reason(ReasonCode.SERVER_PARENT_UNKNOWN, server=7, state=Condition.SERVER_UNRESPONSIVE),
            f"server 7 does not answer its daemon: SIGKILL ends it and its clients{at_parent}",
        ),
        (
            Reason(ReasonCode.UNIT_UNREADABLE, unit="a.service", state="command_failed", text=HOSTILE),
            "the state of a.service cannot be read (command failed): \N{REPLACEMENT CHARACTER}'; DROP",
        ),
    ):
        with subtests.test(text=text):
            assert reason_text(reason).startswith(text)


def test_several_reasons_are_separated_by_semicolons() -> None:
    known = (Reason(ReasonCode.PROCESS_GONE, pid=441), Reason(ReasonCode.NO_DAEMON_FOUND))
    assert texts_of(known) == "process 441 has exited; nvidia-cuda-mps-control finds no daemon"


def test_an_object_has_the_code_and_the_parameters_that_apply() -> None:
    reason = Reason(ReasonCode.FAULT_WAITS_FOR_CLIENTS, server=513, pids=(600, 601))
    assert reason_status(reason) == ReasonStatus(
        code="fault_waits_for_clients",
        parameters={"server": 513, "pids": (600, 601)},
        text=reason_text(reason),
    )


def test_a_problem_has_the_cause_and_the_remedy(subtests: pytest.Subtests) -> None:
    for problem, source, text in [
        (HANGS, "process", "no result for 5 s"),
        (HANGS, CollectorName.NVML, "no result for 5 s. A call into the NVIDIA driver may hang"),
        (timed_out("get_server_list", 5.0), "control", "get_server_list: no answer within 5 s"),
        (command_failed("systemctl", 1, "Access denied"), "units", "systemctl failed with exit code 1: Access denied"),
        (command_failed("systemctl", -9, ""), "units", "systemctl failed with exit code -9"),
        (denied("/x/server.log"), CollectorName.LOGS, "/x/server.log cannot be read: Permission denied"),
        (
            failure("GPU is lost", subject="1"),
            CollectorName.NVML,
            "GPU 1: NVML: GPU is lost. Check the driver with nvidia-smi",
        ),
        (failure("lost", subject="GPU-7"), CollectorName.NVML, "GPU-7: NVML: lost. Check the driver with nvidia-smi"),
        (
            Reason(ReasonCode.TOO_MANY_DAEMONS, detail="UID 7", limits=(16, 64)),
            CollectorName.DISCOVERY,
            (
                "more control daemons run than are followed, and some of UID 7 are ignored (at most 16 of one user or"
                " container, and 64 of all). End those that are not needed"
            ),
        ),
        (
            Reason(ReasonCode.NOT_SUPPORTED, subject="openat2(2)", pid=7),
            CollectorName.DISCOVERY,
            (
                "this node does not support openat2(2). Control daemon 7 cannot be located: this needs Linux 5.6, and"
                " no RestrictSUIDSGID= in the exporter's unit"
            ),
        ),
    ]:
        with subtests.test(problem=problem, source=source, text=text):
            assert reason_text(problem, source) == text


def test_all_problems_of_a_collection_are_shown() -> None:
    both = joined([denied("a"), None, absent("b"), denied("a")])
    assert both is not None
    assert reason_text(both) == "a cannot be read: Permission denied; b does not exist"
    assert both.each == (denied("a"), absent("b"))
    assert joined([both, None]) == both
    assert joined([None]) is None


def test_a_source_names_the_daemon_of_each_problem() -> None:
    source = CollectorState(last=look("log"), problems={"a": HANGS, "b": denied("x")})
    assert source_text("process", source) == "a: no result for 5 s; b: x cannot be read: Permission denied"
    assert source_text(CollectorName.NVML, replace(source, problems={"": PAUSED})).startswith("paused: ")


def test_a_log_in_the_journal_has_the_advice_for_the_journal() -> None:
    assert "systemd-journal" in log_text("stdout", denied("journal:x.service"))
    assert "systemd-journal" in reason_text(denied("journal:x.service"), CollectorName.JOURNAL)
    assert "systemd-journal" not in log_text("server.log", denied("x"))
    assert log_text("control.log", LOG_BLOCKED).startswith("blocked: ")


# The catalogue of problems is complete, written alike, and the only place that defines what can be wrong.


EXPORTER = ROOT / "exporter"


def test_each_condition_and_each_state_has_one_entry() -> None:
    tables: tuple[tuple[type[StrEnum], Mapping[StrEnum, object]], ...] = (
        (Condition, CONDITION_PROBLEMS),
        (WatchdogPhase, PHASE_PROBLEMS),
        (BlockReason, BLOCK_PROBLEMS),
    )
    for codes, table in tables:
        assert table.keys() == set(codes)


def test_no_other_table_has_texts_for_conditions_or_states() -> None:
    """A table that gives them texts would be a second definition."""
    found = {
        (path.relative_to(EXPORTER).as_posix(), ast.unparse(key))
        for path in EXPORTER.rglob("*.py")
        if "core" not in path.relative_to(EXPORTER).parts
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Dict)
        for key, value in zip(node.keys, node.values, strict=True)
        if isinstance(key, ast.Attribute) and ast.unparse(key).startswith(("Condition.", "WatchState.", "Block."))
        if any(isinstance(each, ast.Constant) and isinstance(each.value, str) for each in ast.walk(value))
    }
    assert found == set()


def test_texts_are_short_sentences(subtests: pytest.Subtests) -> None:
    for each in (*PROBLEMS, *CHECKS):
        problem = each.definition
        with subtests.test(code=each.code):
            assert re.fullmatch(r"[^.]+", re.sub(r"\d\.\d", "", problem.summary)), "one line, without a full stop"
            assert problem.meaning.endswith(".")
            assert problem.remedy.endswith(".") or each is DaemonProblem.WELL
            assert "{" not in problem.meaning + problem.remedy
            assert len(problem.label) <= 32
            for text in (problem.meaning, problem.remedy):
                longest = max((len(each.split()) for each in re.split(r"[.:;] ", text)), default=0)
                assert longest <= 30, text
            below = ROOT / "exporter" if (problem.page or "").startswith("/") else ROOT
            assert problem.page is None or (below / problem.page.lstrip("/")).exists(), "the runbook exists"
            names = {name for _, name, _, _ in Formatter().parse(with_known_parts(problem.summary, ()))}
            assert "node" in names or problem.alert is None, "an alert shows the summary"
            for since in (None, 0.0):
                finding = Finding(each, at=10.0, since=since)
                assert "{" not in finding.text + finding.remedy, "it can be shown without values"


def test_no_check_of_doctor_defines_a_problem_again() -> None:
    """One code names one problem."""
    codes = {problem.code: problem.definition for problem in PROBLEMS}
    assert all(codes.get(check.code, check.definition) is check.definition for check in CHECKS)


def test_values_that_contain_braces_are_shown_as_they_are() -> None:
    finding = Finding(DaemonProblem.DAEMON_DOWN, at=0.0, daemon="/run/{node}{0}")
    assert finding.text == "MPS daemon /run/{node}{0} is down"


def test_one_scale_orders_all_problems() -> None:
    assert [each.rank for each in Severity] == [0, 1, 2, 3, 4]


def test_advice_is_for_collectors_that_exist() -> None:
    assert {source for source, _ in ADVICE} <= set(CollectorName)
    needs_ptrace = reason_text(Reason(ReasonCode.PROCESS_NOT_READABLE, pid=7), CollectorName.DISCOVERY)
    assert "CAP_SYS_PTRACE" in needs_ptrace
