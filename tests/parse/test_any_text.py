"""No parser raises for any text of a driver, a workload or a broken disk."""

import contextlib
import io
import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.errors import RecordingError
from exporter.model.observation import ControlReply
from exporter.parse import control_reply, proc
from exporter.parse.log_line import LogEntry, parse_log_line, parse_log_message
from exporter.parse.log_message import Message
from exporter.parse.mps_variables import (
    has_ordinals,
    hides_gpus,
    names_device,
    parse_byte_size,
    parse_percentage,
    visible_gpu_uuids,
)
from exporter.recording import Recording
from tests.builders import stamped

PIECES = (
    *("Client {PID: ", "Context ID: ", "} connected", "Status of client {", "} is ACTIVE", "Volta MPS: "),
    *("[2026-11-20 15:08:45.147 ", "Control   441] ", "Server ", " exited with status ", "not found", "version: "),
    *("Maximum number of clients (", ") reached.", "NEW CLIENT ", " from user ", "Cmd:", "GPU-", "0x"),
    *("\n", "\r", "\0", "{", "}", "(", ")", ", ", "-", "\ud800", " " * 100),
    *("0", "513", "٣", "²", "9" * 5000),
)

texts = st.one_of(
    st.text(st.characters(exclude_categories=())),
    st.binary().map(lambda raw: raw.decode(errors="replace")),
    st.binary().map(lambda raw: raw.decode(errors="surrogateescape")),
    st.lists(st.sampled_from(PIECES), max_size=8).map("".join),
)

generous = settings(max_examples=100)


@given(texts)
@generous
def test_any_text_parses_as_a_log_line(text: str) -> None:
    assert isinstance(parse_log_message(text), Message)
    for line in (text, stamped(text)):
        assert parse_log_line(line) is None or isinstance(parse_log_line(line), LogEntry)


@given(texts, st.none() | st.integers())
@generous
def test_any_text_parses_as_a_control_reply(text: str, exit_code: int | None) -> None:
    reply = ControlReply(at=0.0, daemon="node", command=text, exit_code=exit_code, stdout=text, stderr=text)
    assert isinstance(control_reply.query_outcome(reply), control_reply.QueryOutcome)
    listed = control_reply.parse_pid_list(text)
    assert listed is None or all(pid >= 0 for pid in listed)
    control_reply.parse_server_state(text)
    control_reply.parse_missing_server(text)
    control_reply.parse_version(text)
    share, size = parse_percentage(text), parse_byte_size(text)
    assert share is None or 0 < share <= 100
    assert size is None or size > 0
    assert all(ordinal >= 0 and uuid.startswith("GPU-") for ordinal, uuid in control_reply.parse_devices(text).items())
    for command in (text, f"set_device_pinned_mem_limit {text}", f"set_active_thread_percentage {text} 1"):
        assert (control_reply.query_changed_by(command) or "get_").startswith("get_")


@given(texts)
@generous
def test_any_text_parses_as_process_stat(text: str) -> None:
    for whole in (text, f"1 ({text}) S 1 2 3", ") " + f"{text} " * 20):
        started = proc.start_ticks(whole)
        assert started is None or started >= 0
        assert proc.is_zombie(whole) in (True, False)
        status = proc.wait_status(whole)
        assert status is None or status >= 0


def test_any_number_parses_in_process_stat(subtests: pytest.Subtests) -> None:
    """Python refuses to parse a number of more than 4,300 digits."""
    for number in ["9" * 5000, "²", "٣", "-1", "1e9", "nan"]:
        with subtests.test(number=number):
            assert proc.start_ticks("1 (x) " + f"{number} " * 20) in (None, 3)


@given(texts, st.none() | st.integers(), texts)
@generous
def test_any_text_parses_as_visible_devices(text: str, index: int | None, uuid: str) -> None:
    assert names_device(text, index, uuid) in (True, False)
    assert {has_ordinals(text), hides_gpus(text)} <= {True, False}
    assert set(visible_gpu_uuids(text, {uuid: index})) <= {uuid}


@given(texts, st.binary(), st.binary(), st.none() | texts)
@generous
def test_any_title_leaves_a_command(name: str, arguments: bytes, environment: bytes, program: str | None) -> None:
    assert bool(proc.stable_command(name, arguments, program)) >= bool(name)
    assert proc.is_environment_intact(environment, arguments) in (True, False)


def read(text: str) -> None:
    """Read a whole recording. RecordingError is the only error that a user may get."""
    with contextlib.suppress(RecordingError):
        for _ in Recording(io.StringIO(text)).observations():
            pass


SOURCES = (
    *("control", "log", "log_file", "nvml", "nvml_event", "kernel"),
    *("process", "process_exit", "daemon_process", "source"),
)
KEYS = (
    *("at", "source", "recording", "daemons", "gpus", "pipe_directory", "log_directory", "index", "uuid", "name"),
    *("gpu", "pid", "command", "exit_code", "stdout", "line", "file", "compute_processes", "used_bytes", "problem"),
    *("environment", "seconds", "xid", "type", "start_ticks", "started", "record"),
)

values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from((10**400, -(10**400), float("inf"), float("nan"), "", "x", "\ud800", *SOURCES)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=12,
)
observations = st.dictionaries(st.sampled_from(KEYS), values, max_size=8)
plausible = st.builds(
    lambda source, rest: {**rest, "at": 1.0, "source": source}, st.sampled_from(SOURCES), observations
)
headers = st.builds(lambda rest: {**rest, "recording": 2}, observations)


@given(texts)
@generous
def test_any_text_parses_as_a_recording(text: str) -> None:
    read(text)


@given(st.lists(values | observations | plausible | headers, max_size=4), texts, st.booleans())
@generous
def test_any_json_parses_as_a_recording(lines: list[Any], tail: str, headed: bool) -> None:
    header = '{"recording": 2}\n' if headed else ""
    read(header + "".join(json.dumps(line) + "\n" for line in lines) + tail)


@given(headers)
@generous
def test_any_header_parses_in_a_recording(header: dict[str, Any]) -> None:
    read(json.dumps(header) + "\n")


DEEP, LONG = "[" * 100_000, "9" * 400


def test_refuses_a_hostile_recording_and_names_its_line(subtests: pytest.Subtests) -> None:
    """Deep nesting, invalid numbers, and an invalid time."""
    for text, line in [
        (f"{DEEP}\n", 1),
        ('{"a":' * 100_000 + "\n", 1),
        (f'{{"recording": 2}}\n{{"at": 1, "source": "log", "line": {DEEP}\n', 2),
        (f'{{"recording": 2}}\n{{"at": {LONG}, "source": "kernel", "record": "x"}}\n', 2),
        ('{"recording": 2}\n{"at": NaN, "source": "kernel", "record": "x"}\n', 2),
        ('{"recording": 2}\n{"at": 1e999, "source": "kernel", "record": "x"}\n', 2),
        ('{"recording": 2, "gpus": [{"index": "x", "uuid": "y"}]}\n', 1),
        ('{"recording": 2, "gpus": [{"index": 1e999, "uuid": "y"}]}\n', 1),
        ('{"recording": 2, "gpus": 7}\n', 1),
        ('{"recording": 2, "daemons": [{}]}\n', 1),
        ('{"recording": 2, "daemons": "abc"}\n', 1),
    ]:
        with (
            subtests.test(text=text, line=line),
            pytest.raises(RecordingError, match=re.escape(f"line {line} ")),
        ):
            for _ in Recording(io.StringIO(text)).observations():
                pass
