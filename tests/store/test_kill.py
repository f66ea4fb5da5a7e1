"""A kill during a write loses nothing that was written before, and does not damage the file."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from exporter.model.settings import Retention
from exporter.store.database import FILE, StateFile, read_history
from tests.clocks import HandClock

WRITE_FOREVER = """
import itertools, sys
from pathlib import Path
from exporter.store.database import StateFile, read_history
from exporter.model.settings import Retention
from tests.clocks import HandClock
from tests.store.values import event, fault
archive = StateFile(Path(sys.argv[1]), Retention(max_incidents=10_000), HandClock())
archive.open()
for n in itertools.count():
    archive.write([fault(str(n), at=n), fault("always", refused_count=n), event(n)])
    print(n, flush=True)
"""


@pytest.mark.parametrize("lines", [1, 50, 400])
def test_a_kill_loses_nothing_that_was_written(lines: int, tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", WRITE_FOREVER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    with child.stdout:
        printed = [int(child.stdout.readline()) for _ in range(lines)]
        child.kill()
        printed += [int(line) for line in child.stdout.read().splitlines()]
    child.wait()

    state_file = StateFile(tmp_path, Retention(max_incidents=10_000), HandClock())
    stored = state_file.open()
    state_file.close()

    found = {each.id: each for each in read_history(tmp_path)[0]}
    assert {str(n) for n in printed} <= found.keys()
    assert found["always"].refused_count in (printed[-1], printed[-1] + 1)
    times = [each.at for each in stored.events]
    assert times == sorted(times, reverse=True)
    assert times[0] >= printed[-1]
    assert stored.unreadable == 0
    connection = sqlite3.connect(tmp_path / FILE)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
