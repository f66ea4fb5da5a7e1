"""A damaged or removed file, or one of another schema, is replaced by a new one."""

import os
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from exporter.store.database import FILE, MAX_SET_ASIDE, StateFile, read_history
from tests.clocks import HandClock
from tests.store.test_state_file import clock as clock
from tests.store.test_state_file import closed_state_file
from tests.store.test_state_file import state_file as state_file
from tests.store.values import event, fault
from tests.tools import not_here

__all__ = ["clock", "state_file"]
"""Fixtures."""


def write_garbage(file: Path) -> None:
    file.write_bytes(b"no database at all" * 500)


def set_another_schema(file: Path) -> None:
    with sqlite3.connect(file) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()


def overwrite_a_page(file: Path) -> None:
    with file.open("r+b") as stream:
        stream.seek(4096)
        stream.write(b"\xa5" * 4096)


def truncate(file: Path) -> None:
    os.truncate(file, 5000)


@pytest.mark.parametrize("damage", [write_garbage, overwrite_a_page, truncate, set_another_schema])
def test_sets_a_damaged_file_aside_and_creates_a_new_one(
    damage: Callable[[Path], None],
    state_file: StateFile,
    tmp_path: Path,
    clock: HandClock,
) -> None:
    state_file.write([fault("one")], [event()])
    state_file.close()
    file = tmp_path / "state" / FILE
    damage(file)
    bad = file.read_bytes()
    found = closed_state_file(tmp_path, clock)
    with capture_logs() as logs:
        assert found.open().incidents == ()
    assert [(each["event"], each["new_path"]) for each in logs] == [("file_set_aside", f"{file}.aside-1")]
    assert Path(f"{file}.aside-1").read_bytes() == bad
    found.write([fault("two")], [])
    assert read_history(file)[0] == (fault("two"),)
    found.close()


def test_limits_the_number_of_files_set_aside(tmp_path: Path, clock: HandClock) -> None:
    file = tmp_path / "state" / FILE
    file.parent.mkdir()
    for _ in range(MAX_SET_ASIDE):
        write_garbage(file)
        found = closed_state_file(tmp_path, clock)
        found.open()
        found.close()
    write_garbage(file)
    with pytest.raises(OSError, match="remove them"):
        closed_state_file(tmp_path, clock).open()
    assert len(list(file.parent.glob("*.aside-*"))) == MAX_SET_ASIDE


def test_notices_a_removed_file(state_file: StateFile, tmp_path: Path) -> None:
    (tmp_path / "state" / FILE).unlink()
    with pytest.raises(FileNotFoundError):
        state_file.write([fault()], [])
    assert not state_file.is_open
    state_file.open()
    state_file.write([fault()], [])
    assert read_history(tmp_path / "state")[0] == (fault(),)


def test_does_not_follow_a_link(tmp_path: Path, clock: HandClock) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / FILE).symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="symbolic links"):
        closed_state_file(tmp_path, clock).open()
    assert not (tmp_path / "precious").exists()


def test_a_full_file_system_loses_only_the_failed_write(tmp_path: Path, clock: HandClock) -> None:
    mount = tmp_path / "state"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", str(mount)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        not_here("no file system can be mounted")
    found = closed_state_file(tmp_path, clock)
    try:
        found.open()
        found.write([fault("before")], [])
        with pytest.raises((sqlite3.OperationalError, OSError), match=r"full|I/O"):
            found.write([fault("large", affected=tuple(range(100_000)))], [])
        if not found.is_open:
            found.open()
        found.write([fault("after")], [])
        assert {each.id for each in read_history(mount)[0]} == {"before", "after"}
    finally:
        found.close()
        subprocess.run(["umount", str(mount)], check=True)
