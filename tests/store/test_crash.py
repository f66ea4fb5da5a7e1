"""A crash in the middle of writing costs nothing that was written, and leaves a file that is whole."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from exporter.model.settings import Retention
from exporter.store.database import FILE, StateFile, read_history
from tests.clocks import HandClock

WRITES_FOR_EVER = """
import itertools, sys
from pathlib import Path
from exporter.store.database import StateFile, read_history
from exporter.model.settings import Retention
from tests.clocks import HandClock
from tests.store.values import event, fault
archive = StateFile(Path(sys.argv[1]), Retention(max_incidents=10_000), HandClock())
archive.open()
for n in itertools.count():
    archive.write([fault(str(n), at=n), fault("always", refused_count=n)], [event(n)])
    print(n, flush=True)
"""


@pytest.mark.parametrize("lines", [1, 50, 400])
def test_after_a_kill_all_that_was_told_to_be_written_is_there(lines: int, tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", WRITES_FOR_EVER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    with child.stdout:
        told = [int(child.stdout.readline()) for _ in range(lines)]
        child.kill()
        told += [int(line) for line in child.stdout.read().splitlines()]
    child.wait()

    archive = StateFile(tmp_path, Retention(max_incidents=10_000), HandClock())
    remembered = archive.open()
    archive.close()

    found = {each.id: each for each in read_history(tmp_path)[0]}
    assert {str(n) for n in told} <= found.keys()
    assert found["always"].refused_count in (told[-1], told[-1] + 1)
    times = [each.at for each in remembered.events]
    assert times == sorted(times, reverse=True)
    assert times[0] >= told[-1]
    assert remembered.unreadable == 0
    connection = sqlite3.connect(tmp_path / FILE)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
