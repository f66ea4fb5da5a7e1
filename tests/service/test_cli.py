"""What comes out of a command may have nowhere to go."""

import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from exporter.cli import main
from tests import program
from tests.eventually import PATIENCE_SECONDS

RECORDING = Path(__file__).parents[1] / "recordings" / "session_left_open.jsonl.gz"
COMMANDS = {"status": ["status"], "doctor": ["doctor"], "replay": ["replay", "--events", str(RECORDING)]}
ALL = (*COMMANDS.values(), ["incidents"], ["once"], ["resume"], ["record", "--for", "0.1s", "-"], ["serve", "--help"])


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_reports_a_full_disk_in_one_line(command: list[str], tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, *program.command(*command)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"STATE_DIRECTORY": str(tmp_path), "RUNTIME_DIRECTORY": str(tmp_path)},
            cwd=Path(__file__).parents[2],
            timeout=PATIENCE_SECONDS,
            check=False,
        )

    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == ("cuda-mps-exporter: the output cannot be written: No space left on device")
    assert "Traceback" not in done.stderr


def test_no_command_needs_open_standard_streams(tmp_path: Path) -> None:
    """A file that the program opens must not become its standard output."""
    wrong: list[str] = []
    one_closed = [(COMMANDS["replay"], closed) for closed in ("<&-", ">&-", "2>&-")]
    for command, closed in (*one_closed, *((command, "<&- >&- 2>&-") for command in ALL)):
        words = shlex.join([sys.executable, *program.command(*command)])
        done = subprocess.run(
            ["/bin/sh", "-c", f"{words} {closed}"],
            capture_output=True,
            text=True,
            env=os.environ | {"STATE_DIRECTORY": str(tmp_path), "RUNTIME_DIRECTORY": str(tmp_path)},
            cwd=Path(__file__).parents[2],
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        if done.returncode not in (0, 1, 2) or "Traceback" in done.stderr or "Error:" in done.stderr:
            wrong.append(f"{command} {closed}: {done.returncode} {done.stderr}")
    assert wrong == []


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["serve", "--web.listen-adress", ":1"], "did you mean --web.listen-address?"),
        (["status", "--colour=always"], "did you mean --color?"),
        (["report", "--month", "2026-10"], "`report` is now the script dashboards/report.py"),
        (["status", "--qqqqqqqq"], "unrecognized arguments: --qqqqqqqq\n"),
        (["record", "--for", "0s", "new.jsonl"], "--for: invalid value '0': expected a duration above 0"),
        (["demo", "--web.config.file", "/nowhere/web.yml"], "/nowhere/web.yml: cannot be read"),
    ],
)
def test_refuses_an_argument_and_names_the_right_one(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: object = main(arguments)
    except SystemExit as stopped:
        code = stopped.code
    assert code == 2
    assert problem in capsys.readouterr().err


def test_the_demo_reports_a_used_port_before_it_simulates(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as used:
        address = f"127.0.0.1:{used.getsockname()[1]}"
        assert main(["demo", "--web.listen-address", address]) == 1
    error = capsys.readouterr().err
    assert f"cannot listen on {address}" in error
    assert "simulating" not in error
