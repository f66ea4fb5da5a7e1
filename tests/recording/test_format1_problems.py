"""A recording of FORMAT 1 has sentences as problems: they become codes as they are read."""

import io
import json
from dataclasses import replace
from typing import Any

import pytest

from exporter.model.observation import LogFile, SourceReading
from exporter.model.problem import Problem, ProblemCode, command_failed, timed_out
from exporter.model.reason import Reason, ReasonCode
from exporter.recording import Recording, write_header, write_observation
from exporter.recording_format1 import LONGEST_SENTENCE, problem_of
from tests.builders import AT, HANGS, PAUSED, denied, failure
from tests.recording.test_format import HEADER

Code = ProblemCode
NOT_THERE = Problem(code=Code.NOT_FOUND, subject="/log/control.log")


@pytest.mark.parametrize(
    ("sentence", "problem"),
    [
        ("paused", PAUSED),
        ("no answer for 5 s", HANGS),
        ("no answer for 0.5 s", Problem(code=Code.STILL_RUNNING, seconds=0.5)),
        ("unexpected ValueError: a defect", Problem(code=Code.UNEXPECTED_ERROR, detail="ValueError: a defect")),
        ("/run/x: no answer to get_server_list within 5 s", timed_out("get_server_list", 5.0)),
        (
            "/run/x: get_client_list 7 was not asked: server 7 is stopped",
            Problem(code=Code.SERVER_STOPPED, subject="get_client_list 7", pid=7),
        ),
        (
            "nvidia-cuda-mps-control cannot be used (exit code 127): a: b; c",
            command_failed("nvidia-cuda-mps-control", 127, "a: b; c"),
        ),
        ("/log/control.log does not exist", NOT_THERE),
        ("/log/control.log cannot be read: Permission denied", denied("/log/control.log")),
        (
            (
                "/dev/kmsg cannot be read: Operation not permitted; where kernel.dmesg_restrict is 1, it takes"
                " CAP_SYSLOG: see the unit's drop-in kernel-log.conf"
            ),
            failure("Operation not permitted", Code.PERMISSION_DENIED, subject="/dev/kmsg"),
        ),
        ("x cannot be read: Input/output error", failure("Input/output error", Code.NOT_READABLE, subject="x")),
        (
            "NVML: Driver Not Loaded; is the driver loaded? (nvidia-smi)",
            failure("Driver Not Loaded", Code.DRIVER_NOT_LOADED),
        ),
        ("NVML: Driver Not Loaded (simulated)", failure("Driver Not Loaded (simulated)", Code.DRIVER_NOT_LOADED)),
        (
            "NVML: Driver/library version mismatch; is the driver loaded? (nvidia-smi)",
            failure("Driver/library version mismatch", Code.DRIVER_MISMATCH),
        ),
        ("NVML events: the driver is not open", Problem(code=Code.DRIVER_NOT_OPEN)),
        (
            "NVML: a call that has not come back keeps the driver from being opened anew",
            Problem(code=Code.DRIVER_HANGS),
        ),
        ("NVML events: Unknown Error", failure("Unknown Error")),
        ("a cannot be read: Permission denied; b cannot be read: Permission denied", None),
        ("anything else; it may hold a colon: 7", failure("anything else; it may hold a colon: 7", Code.UNSPECIFIED)),
        ("", failure("", Code.UNSPECIFIED)),
    ],
)
def test_a_sentence_becomes_a_code(sentence: str, problem: Problem | None) -> None:
    found = problem_of(sentence)
    assert found == problem if problem is not None else found.each == (denied("a"), denied("b"))


def test_a_long_sentence_is_cut() -> None:
    assert problem_of(": no answer to " * 100_000).detail == (": no answer to " * LONGEST_SENTENCE)[:LONGEST_SENTENCE]


def read(*lines: dict[str, Any]) -> list[Any]:
    header = io.StringIO()
    write_header(header, HEADER)
    file = io.StringIO()
    file.write(json.dumps({**json.loads(header.getvalue()), "recording": 1}) + "\n")
    for line in lines:
        file.write(json.dumps({"at": AT, **line}) + "\n")
    file.seek(0)
    return list(Recording(file).observations())


def test_a_sentence_in_a_recording_is_read_as_a_code() -> None:
    source, log, gpu, unit = read(
        {"source": "source", "name": "nvml", "seconds": 0.1, "problem": "paused"},
        {"source": "log_file", "file": "server.log", "problem": "server.log does not exist"},
        {"source": "nvml", "gpu": "GPU-1", "problem": "GPU is lost"},
        {"source": "unit", "unit": "x.service", "problem": "Access denied"},
    )
    assert source == SourceReading(at=AT, name="nvml", seconds=0.1, problem=PAUSED)
    assert log == LogFile(at=AT, daemon="training", file="server.log", problem=replace(NOT_THERE, subject="server.log"))
    assert gpu.problem == failure("GPU is lost", Code.UNSPECIFIED)
    assert unit.problem == failure("Access denied", Code.UNSPECIFIED)


def test_the_problem_of_an_action_is_a_reason_and_not_a_problem_of_a_collector() -> None:
    line = {
        "at": AT,
        "source": "action_done",
        "kind": "restart",
        "reason": "crashed",
        "seconds": 1,
        "problem": "paused",
    }
    (read_back,) = Recording(io.StringIO(f'{{"recording": 1}}\n{json.dumps(line)}\n')).observations()
    assert getattr(read_back, "problem", None) == Reason(ReasonCode.UNKNOWN, text="paused")


def test_a_code_of_a_later_version_is_unspecified() -> None:
    (source,) = read({"source": "source", "name": "x", "seconds": 0.1, "problem": {"code": "new", "detail": "text"}})
    assert source.problem == failure("text", Code.UNSPECIFIED)


def test_a_problem_is_written_as_an_object() -> None:
    file = io.StringIO()
    write_observation(file, SourceReading(at=AT, name="log", seconds=0.1, problem=denied("x")))
    problem = json.loads(file.getvalue())["problem"]
    assert (problem["code"], problem["subject"], problem["detail"]) == ("permission_denied", "x", "Permission denied")
