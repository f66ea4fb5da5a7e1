"""A damaged or removed file, or one of another schema, is replaced by a new one. A hostile one harms no reader."""

import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from exporter.errors import HistoryError
from exporter.model.values import plain
from exporter.model.watchdog import WatchdogState
from exporter.store import database
from exporter.store.database import FILE, StateFile, WatchdogRow, read_history
from tests.clocks import HandClock
from tests.store.values import RETENTION, event, fault, query, reopened
from tests.tools import not_here

# The tests state these values, so that they notice a change of the program's constants.
MAX_SET_ASIDE = 16
MAX_VALUE_BYTES = 8 << 20


def write_garbage(file: Path) -> None:
    file.write_bytes(b"no database at all" * 500)


def set_another_schema(file: Path) -> None:
    query(file.parent, "PRAGMA user_version = 99")


def overwrite_a_page(file: Path) -> None:
    with file.open("r+b") as stream:
        stream.seek(4096)
        stream.write(b"\xa5" * 4096)


def truncate(file: Path) -> None:
    os.truncate(file, 5000)


@pytest.mark.parametrize("damage", [write_garbage, overwrite_a_page, truncate, set_another_schema])
def test_sets_a_damaged_file_aside_and_creates_a_new_one(
    damage: Callable[[Path], None], state_file: StateFile, tmp_path: Path
) -> None:
    state_file.write([fault("one"), event()])
    state_file.close()
    file = tmp_path / FILE
    damage(file)
    bad = file.read_bytes()
    if damage in (write_garbage, set_another_schema):
        with pytest.raises(HistoryError, match=r"file is not a database|another version"):
            read_history(file)
    with capture_logs() as logs:
        assert state_file.open().incidents == ()
    assert [(log["event"], log["new_path"]) for log in logs] == [("file_set_aside", f"{file}.aside-1")]
    assert Path(f"{file}.aside-1").read_bytes() == bad
    state_file.write([fault("two")])
    assert read_history(file)[0] == (fault("two"),)


def test_limits_the_number_of_files_set_aside(tmp_path: Path, clock: HandClock) -> None:
    state_file = StateFile(tmp_path, RETENTION, clock)
    for _ in range(MAX_SET_ASIDE):
        write_garbage(tmp_path / FILE)
        state_file.open()
        state_file.close()
    write_garbage(tmp_path / FILE)
    with pytest.raises(OSError, match="remove them"):
        state_file.open()
    assert len(list(tmp_path.glob("*.aside-*"))) == MAX_SET_ASIDE


def test_a_file_that_another_process_uses_is_not_damaged(
    state_file: StateFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must not be set aside: it has the watchdog's states."""
    state_file.write([fault()])
    state_file.close()
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.0)
    with contextlib.closing(sqlite3.connect(tmp_path / FILE)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            state_file.open()
    assert not list(tmp_path.glob("*.aside-*"))
    assert state_file.open().incidents == (fault(),)


def test_notices_a_removed_file(state_file: StateFile, tmp_path: Path) -> None:
    (tmp_path / FILE).unlink()
    with pytest.raises(FileNotFoundError):
        state_file.write([fault()])
    assert not state_file.is_open
    state_file.open()
    state_file.write([fault()])
    assert read_history(tmp_path)[0] == (fault(),)


def test_does_not_follow_a_link(tmp_path: Path, clock: HandClock) -> None:
    (tmp_path / FILE).symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="symbolic links"):
        StateFile(tmp_path, RETENTION, clock).open()
    assert not (tmp_path / "precious").exists()


@pytest.fixture
def small_disk(tmp_path: Path, clock: HandClock) -> Iterator[StateFile]:
    command = ["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", str(tmp_path)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        not_here("no file system can be mounted")
    state_file = StateFile(tmp_path, RETENTION, clock)
    yield state_file
    state_file.close()
    subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_full_file_system_loses_only_the_failed_write(small_disk: StateFile, tmp_path: Path) -> None:
    small_disk.open()
    small_disk.write([fault("before")])
    with pytest.raises((sqlite3.OperationalError, OSError), match=r"full|I/O"):
        small_disk.write([fault("large", affected=tuple(range(100_000)))])
    if not small_disk.is_open:
        small_disk.open()
    small_disk.write([fault("after")])
    assert {incident.id for incident in read_history(tmp_path)[0]} == {"before", "after"}


def test_a_write_of_nothing_fails_on_a_full_file_system(small_disk: StateFile, tmp_path: Path) -> None:
    """Such a file can be opened and read."""
    small_disk.open()
    small_disk.write([fault("before")])
    assert reopened(small_disk).incidents == (fault("before"),)
    with contextlib.suppress(OSError), (tmp_path / "filler").open("wb", buffering=0) as filler:
        while filler.write(bytes(4096)):
            pass
    with pytest.raises(sqlite3.OperationalError, match="full"):
        small_disk.write()


# -- hostile files: their author has fewer rights than the reader --------------------------------------------------

ENDLESS = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r)"


def a_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def a_device(file: Path) -> None:
    file.unlink()
    file.symlink_to("/dev/zero")


def a_pipe_beside(file: Path) -> None:
    os.mkfifo(f"{file}-wal")


def an_endless_view(file: Path) -> None:
    columns = "'a' AS id, 'd' AS daemon, 1 AS expected, 1 AS open, n AS at, 1 AS rowid, '{}' AS json"
    query(file.parent, "DROP TABLE incidents")
    query(file.parent, f"CREATE VIEW incidents AS {ENDLESS} SELECT {columns} FROM r")


def a_huge_row(file: Path) -> None:
    query(file.parent, f"UPDATE incidents SET json = zeroblob({MAX_VALUE_BYTES + 1})")


@pytest.mark.parametrize("damage", [a_pipe, a_device, a_pipe_beside, an_endless_view, a_huge_row])
def test_refuses_a_hostile_file(
    damage: Callable[[Path], None], state_file: StateFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "MAX_STEPS", database.MAX_STEPS // 20)
    state_file.write([fault("one")])
    state_file.close()
    damage(tmp_path / FILE)
    with pytest.raises(HistoryError):
        read_history(tmp_path)


def test_skips_a_hostile_row(state_file: StateFile, tmp_path: Path, subtests: pytest.Subtests) -> None:
    state_file.write([fault("one"), fault("two")])
    for row in ["[" * 1_000_000, '{"id":' * 100_000, b"\xff\xfe\x00", "1" * 5000, "9e999", json.dumps({"id": 1})]:
        with subtests.test(row=str(row)[:9]):
            query(tmp_path, "UPDATE incidents SET json = ? WHERE id = '\"two\"'", row)
            assert read_history(tmp_path)[0] == (fault("one"),)


def test_reads_a_limited_number_of_bytes(
    state_file: StateFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state_file.write([fault("one"), fault("two"), event()])
    monkeypatch.setattr(database, "MAX_BYTES", len(json.dumps(plain(fault("one")))) + 9)
    assert read_history(tmp_path) == ((fault("two"),), (event(),))


def empty(file: Path) -> None:
    file.write_bytes(b"")


def lose_the_log(file: Path) -> None:
    """Leave the header of a file whose content was in SQLite's log."""
    with sqlite3.connect(file) as connection:
        connection.execute("DROP TABLE watchdog_states")
        connection.execute("PRAGMA user_version = 0")
    connection.close()


@pytest.mark.parametrize("damage", [empty, lose_the_log, write_garbage, truncate])
def test_a_file_without_its_content_is_not_a_new_one(
    damage: Callable[[Path], None], state_file: StateFile, tmp_path: Path
) -> None:
    """It may have had an open circuit breaker, so the watchdog does not restart until an operator's `resume`."""
    state_file.write([WatchdogRow(daemon="node", state=WatchdogState(circuit_opened_at=1.0))])
    state_file.close()
    damage(tmp_path / FILE)
    with capture_logs() as logs:
        stored = state_file.open()
    assert (stored.watchdog_states, stored.complete) == ({}, False)
    assert [log["event"] for log in logs] == ["file_set_aside"]
    state_file.close()
    assert state_file.open().complete, "the new file is whole"


def test_a_file_that_could_not_be_created_is_no_lost_one(
    tmp_path: Path, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk, on which each attempt would set one more file aside."""
    state_file = StateFile(tmp_path, RETENTION, clock)
    with monkeypatch.context() as full:
        full.setattr(database, "SCHEMA", "no schema;")
        for _ in range(3):
            with pytest.raises(sqlite3.Error):
                state_file.open()
    with capture_logs() as logs:
        assert state_file.open().complete
    assert logs == []
    state_file.close()


def test_what_is_left_of_a_removed_file_is_not_part_of_the_next_one(
    state_file: StateFile, tmp_path: Path, clock: HandClock
) -> None:
    """As after a kill, which leaves SQLite's log, and an operator who removes the file to begin anew."""
    state_file.write([event(), WatchdogRow(daemon="node", state=WatchdogState(circuit_opened_at=1.0))])
    later = tmp_path / "later"
    later.mkdir()
    shutil.copy(tmp_path / f"{FILE}-wal", later)
    new = StateFile(later, RETENTION, clock)
    stored = new.open()
    new.close()
    assert (stored.events, stored.watchdog_states, stored.complete) == ((), {}, True)


def test_the_first_file_is_complete(tmp_path: Path, clock: HandClock) -> None:
    state_file = StateFile(tmp_path, RETENTION, clock)
    assert state_file.open().complete
    state_file.close()
