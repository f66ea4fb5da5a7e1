"""The service's own log blocks no thread, loses no record while its reader reads, and counts what it drops."""

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import textwrap
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from exporter import log
from exporter.log import MAX_PENDING, BackgroundStream
from tests import program
from tests.eventually import PATIENCE_SECONDS, answering, eventually
from tests.ports import free_address

SMALLEST_PIPE = 4096


class Pipe:
    """A pipe that holds little; nothing reads from it until a test does."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        fcntl.fcntl(self.writer, fcntl.F_SETPIPE_SZ, SMALLEST_PIPE)
        self.text = ""

    def fill(self) -> None:
        """Leave no room in it."""
        os.set_blocking(self.writer, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(self.writer, b"x")
        os.set_blocking(self.writer, True)

    def read(self) -> str:
        """All that was written so far."""
        os.set_blocking(self.reader, False)
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self.reader, 1 << 16):
                self.text += chunk.decode()
        return self.text


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    os.close(pipe.reader)


@pytest.fixture
def stream(pipe: Pipe) -> Iterator[BackgroundStream]:
    with open(pipe.writer, "w") as file:
        stream = BackgroundStream(file)
        log.configure("info", "json", stream)
        yield stream
        eventually(lambda: _assert(pipe.read() and stream.drain(0)))


def _assert(condition: object) -> None:
    assert condition


def test_drops_and_counts_records_while_the_reader_blocks(pipe: Pipe, stream: BackgroundStream) -> None:
    pipe.fill()
    logger = structlog.get_logger()
    for number in range(3):
        logger.info("early", number=number)
    logger.info("large", text="x" * MAX_PENDING)
    for number in range(3):
        logger.info("late", number=number)
    assert stream.dropped == 1

    eventually(lambda: _assert("log_records_dropped" in pipe.read()))

    records = [json.loads(line) for line in pipe.text.lstrip("x").splitlines()]
    assert [each["event"] for each in records] == ["early"] * 3 + ["late"] * 3 + ["log_records_dropped"]
    assert [each["number"] for each in records[:-1]] == [0, 1, 2] * 2
    assert records[-1]["count"] == 1


def test_writes_all_records_in_order_while_the_reader_reads(pipe: Pipe, stream: BackgroundStream) -> None:
    for number in range(2000):
        structlog.get_logger().info("record", number=number)
        pipe.read()

    eventually(lambda: _assert(pipe.read() and stream.drain(0)))
    pipe.read()

    assert [json.loads(line)["number"] for line in pipe.text.splitlines()] == list(range(2000))
    assert stream.dropped == 0


def test_writes_text_that_is_not_valid_unicode(pipe: Pipe, stream: BackgroundStream) -> None:
    print("caf\u00e9 \udcff", file=stream)

    eventually(lambda: _assert("\\udcff\n" in pipe.read()))


def run(body: str, stderr: int) -> "subprocess.Popen[bytes]":
    """A program that logs in the background."""
    program = "import sys, structlog\nfrom exporter import log\n" + textwrap.dedent(body)
    return subprocess.Popen([sys.executable, "-c", program], stderr=stderr)


CRASH = """
    print("before", file=sys.stderr)
    with log.in_background():
        log.configure("info", "json", sys.stderr)
        for number in range(1000):
            structlog.get_logger().info("record", number=number)
        raise ValueError("a crash")
"""


def test_writes_all_records_before_the_traceback_of_a_crash() -> None:
    program = run(CRASH, subprocess.PIPE)
    _, stderr = program.communicate(timeout=PATIENCE_SECONDS)

    lines = stderr.decode().splitlines()
    assert (program.returncode, lines[0], lines[-1]) == (1, "before", "ValueError: a crash")
    assert [json.loads(line)["number"] for line in lines if line.startswith("{")] == list(range(1000))
    assert lines[1001].startswith("Traceback")


def test_writes_all_records_before_a_normal_exit() -> None:
    program = run(
        CRASH.replace('raise ValueError("a crash")', "pass") + '    print("after", file=sys.stderr)', subprocess.PIPE
    )
    _, stderr = program.communicate(timeout=PATIENCE_SECONDS)

    lines = stderr.decode().splitlines()
    assert (program.returncode, len(lines), lines[-1]) == (0, 1002, "after")


@pytest.mark.parametrize("end", ['raise ValueError("a crash")', "pass"])
def test_exits_while_the_reader_blocks(pipe: Pipe, end: str) -> None:
    pipe.fill()
    body = CRASH.replace('raise ValueError("a crash")', end).replace('print("before", file=sys.stderr)', "pass")
    program = run(body, pipe.writer)

    assert program.wait(PATIENCE_SECONDS) == int(end != "pass")


def test_service_serves_and_stops_while_the_reader_of_its_log_blocks(pipe: Pipe, tmp_path: Path) -> None:
    pipe.fill()
    address = free_address()
    arguments = [
        "serve",
        f"--web.listen-address={address}",
    ]
    arguments += [f"--path.runtime-directory={tmp_path}/run", f"--path.state-directory={tmp_path}/state"]
    service = subprocess.Popen([sys.executable, *program.command(*arguments)], stderr=pipe.writer)

    def snapshot() -> str:
        assert service.poll() is None
        with answering(), urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE_SECONDS) as response:
            text: str = response.read().decode()
        (line,) = [line for line in text.splitlines() if line.startswith("cuda_mps_exporter_snapshot_timestamp_")]
        assert "cuda_mps_exporter_log_records_dropped_total 0.0" in text
        return line

    try:
        eventually(snapshot)
        service.send_signal(signal.SIGTERM)
        assert service.wait(PATIENCE_SECONDS) == 0
    finally:
        service.kill()
        service.wait()
