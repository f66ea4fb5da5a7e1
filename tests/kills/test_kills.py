"""The exporter is killed at any moment, also during a write: nothing is counted twice, and no counter decreases."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.systems

KILLS = int(os.environ.get("LEDGER_KILLS", "40"))
SEED = int(os.environ.get("LEDGER_SEED", "1"))


@pytest.mark.timeout(600)
def test_kills_lose_only_the_time_since_the_last_write() -> None:
    command = [sys.executable, "-m", "tests.kills", f"--kills={KILLS}", f"--seed={SEED}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
