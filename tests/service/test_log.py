"""Formats of the log, and tracebacks without local variables."""

import io
import json
import re
from itertools import product

import pytest
import structlog

from exporter import log
from exporter.clock import SystemClock
from exporter.demo.scenario import initial_node
from exporter.demo.simulation import Simulation, advance
from exporter.log import EventLog
from exporter.model.server import ServerState
from exporter.model.settings import Mode
from exporter.watchdog.context import Policy


class Terminal(io.StringIO):
    """What a person looks at."""

    def isatty(self) -> bool:
        """Yes."""
        return True


def fail_with_a_secret() -> None:
    password = "hunter" + "2"
    raise ValueError(f"no use for {len(password)} letters")


def written(log_format: str, stream: io.StringIO, level: str = "info") -> str:
    log.configure(level, log_format, stream)
    logger = structlog.get_logger()
    logger.debug("unimportant")
    logger.info("client_connected", pid=7, name="two\nlines")
    try:
        fail_with_a_secret()
    except ValueError:
        logger.exception("source_raised", source="nvml")
    return stream.getvalue()


def test_writes_one_json_object_per_line() -> None:
    first, second = (json.loads(line) for line in written("json", io.StringIO()).splitlines())

    assert first.pop("timestamp").endswith("Z")
    assert first == {"event": "client_connected", "level": "info", "pid": 7, "name": "two\nlines"}
    assert (second["event"], second["level"], second["source"]) == ("source_raised", "error", "nvml")
    assert "ValueError: no use for 7 letters" in second["exception"]


def test_writes_one_logfmt_record_per_line() -> None:
    first, second = written("logfmt", io.StringIO()).splitlines()

    assert first.startswith("timestamp=")
    assert "level=info event=client_connected pid=7" in first
    assert "event=source_raised" in second


@pytest.mark.parametrize("log_format", ["console", "logfmt"])
def test_writes_lists_and_objects_as_text(log_format: str) -> None:
    """JSON has its lists."""
    stream = io.StringIO()
    log.configure("info", log_format, stream)
    structlog.get_logger().info(
        "daemon_lost",
        indications=[{"code": "process_gone", "pid": 7951}, {"code": "no_listener"}],
        detail={"seconds": 90.0},
        pids=[7, 8],
        none=(),
    )

    assert "process_gone pid=7951; no_listener" in stream.getvalue()
    assert "seconds=90" in stream.getvalue()
    assert "7; 8" in stream.getvalue()
    assert "(" not in stream.getvalue()


def test_writes_no_escape_sequence_of_a_value(subtests: pytest.Subtests) -> None:
    """A workload chooses its name, which the text of an error can contain."""
    for log_format, name in product(
        ["console", "json", "logfmt"], ["\x1b[31mred", "\x9b31m", "\x1b]0;title\x07", "\u202egnp.exe", "\r\x08"]
    ):
        with subtests.test(log_format=log_format, name=name):
            stream = io.StringIO()
            log.configure("info", log_format, stream)
            structlog.get_logger().info(
                "client_connected", command=name, several=(name, name), objects=[{"name": name}]
            )
            try:
                raise ValueError(name)
            except ValueError:
                structlog.get_logger().exception("source_raised")

            assert all(line.isprintable() for line in stream.getvalue().split("\n"))


@pytest.mark.parametrize(("stream", "colors"), [(io.StringIO(), False), (Terminal(), True)])
def test_writes_colours_only_on_a_terminal(stream: io.StringIO, colors: bool) -> None:
    assert ("\x1b[" in written("console", stream)) is colors


def test_auto_is_console_on_a_terminal_and_json_elsewhere() -> None:
    assert json.loads(written("auto", io.StringIO()).splitlines()[0])["pid"] == 7
    assert "client_connected" in written("auto", Terminal())
    assert not written("auto", Terminal()).startswith("{")


def test_omits_records_below_the_level() -> None:
    assert "unimportant" in written("json", io.StringIO(), level="debug")
    assert "client_connected" not in written("json", io.StringIO(), level="error")


@pytest.mark.parametrize("log_format", ["console", "json", "logfmt"])
def test_writes_no_local_variables_in_tracebacks(log_format: str) -> None:
    text = written(log_format, Terminal())

    assert "fail_with_a_secret" in text
    assert "hunter2" not in text


def shown(log_format: str, **values: object) -> str:
    stream = io.StringIO()
    log.configure("info", log_format, stream)
    structlog.get_logger().info("it_happened", **values)
    return stream.getvalue().partition("it_happened")[2].strip()


def test_console_shows_values_as_text(subtests: pytest.Subtests) -> None:
    for value, text in [
        (ServerState.FAULT, "fault"),
        ("two words", '"two words"'),
        ("it's", "it's"),
        ('a" level="error', '''"a' level='error"'''),
        ((1, 2), '"1; 2"'),
        ({"pid": 7, "user": None}, '"pid=7"'),
        ([{"code": "process_gone", "pid": 7, "name": "a b"}], '"process_gone pid=7 name=a b"'),
        (True, "true"),
        (0.125, "0.125"),
        (90.0, "90"),
        ("", '""'),
    ]:
        with subtests.test(value=value, text=text):
            assert shown("console", value=value) == f"value={text}"


def test_omits_values_that_are_unknown_or_empty(subtests: pytest.Subtests) -> None:
    for log_format, nothing in product(["console", "logfmt"], [None, (), [], {}]):
        with subtests.test(log_format=log_format, nothing=nothing):
            assert shown(log_format, value=nothing, pid=7) == "pid=7"


def test_console_shows_the_time_of_an_event_as_a_date() -> None:
    assert shown("console", at=1795472266.92) == "at=2026-11-23T22:17:46.920Z"
    assert shown("console", at=1e300) == 'at="invalid time"'


def test_console_shows_no_python_values_of_events() -> None:
    """The events of a simulated node, as the service logs them."""
    stream, clock = io.StringIO(), SystemClock()
    log.configure("info", "console", stream)
    simulation = Simulation(1, clock, past=300)
    for _, events in advance(initial_node(), simulation, Policy(mode=Mode.ACT)):
        for event in events:
            EventLog(clock).event(event)

    assert " incident " in stream.getvalue()
    assert "watchdog_" in stream.getvalue()
    assert not re.search(r"<\w+\.|\bNone\b|\b(True|False)\b|[(\[{]'|'[:,)\]}]|=[\[({]", stream.getvalue())
