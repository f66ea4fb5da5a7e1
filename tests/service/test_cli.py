"""What comes out of a command may have nowhere to go."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.eventually import PATIENCE_SECONDS

RECORDING = Path(__file__).parents[1] / "recordings" / "h200_three_clients.jsonl.gz"
COMMANDS = {"status": ["status"], "doctor": ["doctor"], "replay": ["replay", "--events", str(RECORDING)]}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_reports_a_full_disk_in_one_line(command: list[str], tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "exporter", *command],
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
