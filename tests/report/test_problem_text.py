"""Every problem of a collector has an English text, made in one place, without control characters."""

from dataclasses import replace
from itertools import product

import pytest

from exporter.model.node import CollectorName, CollectorState
from exporter.model.problem import LOG_BLOCKED, Problem, ProblemCode, command_failed, joined, timed_out
from exporter.parse.printable import LONGEST_PROBLEM
from exporter.report.problem_text import ADVICE, TEXTS, log_text, problem_object, problem_text, source_text
from tests.builders import HANGS, PAUSED, absent, denied, failure, look

HOSTILE = "\x1b[31m{pid}{subject}%s\nline"


def test_every_code_has_a_text() -> None:
    assert set(TEXTS) == set(ProblemCode)


def test_every_code_can_be_shown_with_any_fields(subtests: pytest.Subtests) -> None:
    """A recording may hold a problem without the fields that its code usually has."""
    for source, code in product(["", *dict.fromkeys(source for source, _ in ADVICE)], ProblemCode):
        with subtests.test(source=source, code=code):
            for problem in (Problem(code=code), Problem(code=code, subject=HOSTILE, detail=HOSTILE * 100, limits=(1,))):
                text = problem_text(problem, source)
                assert text.isprintable()
                assert len(text) <= LONGEST_PROBLEM


def test_a_text_has_the_cause_and_the_remedy(subtests: pytest.Subtests) -> None:
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
        (
            failure("lost", subject="GPU-7"),
            CollectorName.NVML,
            "GPU-7: NVML: lost. Check the driver with nvidia-smi",
        ),
        (
            Problem(code=ProblemCode.TOO_MANY_DAEMONS, detail="UID 7", limits=(16, 64)),
            "discovery",
            (
                "more control daemons run than are followed, and some of UID 7 are ignored (at most 16 of one user or"
                " container, and 64 of all). End those that are not needed"
            ),
        ),
        (
            Problem(code=ProblemCode.DIRECTORY_SHARED, subject="b", detail="a"),
            "process",
            (
                "daemon b is not followed: its pipe directory is that of daemon a. Remove one of the two from the"
                " configuration"
            ),
        ),
        (
            Problem(code=ProblemCode.NOT_SUPPORTED, subject="openat2(2)", pid=7),
            "discovery",
            (
                "this node does not support openat2(2). Control daemon 7 cannot be located: this needs Linux 5.6, and"
                " no RestrictSUIDSGID= in the exporter's unit"
            ),
        ),
    ]:
        with subtests.test(problem=problem, source=source, text=text):
            assert problem_text(problem, source) == text


def test_all_problems_of_a_collection_are_shown() -> None:
    both = joined([denied("a"), None, absent("b"), denied("a")])
    assert both is not None
    assert problem_text(both) == "a cannot be read: Permission denied; b does not exist"
    assert both.each == (denied("a"), absent("b"))
    assert joined([both, None]) == both
    assert joined([None]) is None


def test_a_source_names_the_daemon_of_each_problem() -> None:
    source = CollectorState(last=look("log"), problems={"a": HANGS, "b": denied("x")})
    assert source_text("process", source) == "a: no result for 5 s; b: x cannot be read: Permission denied"
    assert source_text(CollectorName.NVML, replace(source, problems={"": PAUSED})).startswith("paused: ")


def test_a_log_in_the_journal_has_the_advice_for_the_journal() -> None:
    assert "systemd-journal" in log_text("stdout", denied("journal:x.service"))
    assert "systemd-journal" in problem_text(denied("journal:x.service"), CollectorName.JOURNAL)
    assert "systemd-journal" not in log_text("server.log", denied("x"))
    assert log_text("control.log", LOG_BLOCKED).startswith("blocked: ")


def test_an_object_has_the_code_and_the_text() -> None:
    shown = problem_object(denied("x"), "text")
    assert shown is not None
    assert (shown["code"], shown["subject"], shown["detail"], shown["text"]) == (
        "permission_denied",
        "x",
        "Permission denied",
        "text",
    )
    assert problem_object(None, "") is None
