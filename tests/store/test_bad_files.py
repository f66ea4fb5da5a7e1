"""A file that is damaged, full or gone is kept, and a new one takes its place. A later version's file is refused."""

import os
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from exporter.store.database import FILE, MAX_SET_ASIDE, StateFile, read_history
from tests.clocks import HandClock
from tests.store.test_archive import again
from tests.store.test_archive import archive as archive
from tests.store.test_archive import clock as clock
from tests.store.values import event, fault
from tests.tools import not_here

__all__ = ["archive", "clock"]
"""Fixtures."""


def garbage(file: Path) -> None:
    file.write_bytes(b"no database at all" * 500)


def of_a_later_version(file: Path) -> None:
    with sqlite3.connect(file) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()


def with_a_page_overwritten(file: Path) -> None:
    with file.open("r+b") as stream:
        stream.seek(4096)
        stream.write(b"\xa5" * 4096)


def cut_short(file: Path) -> None:
    os.truncate(file, 5000)


@pytest.mark.parametrize("spoilt", [garbage, with_a_page_overwritten, cut_short])
def test_it_is_set_aside_and_kept_and_a_new_one_begun(
    spoilt: Callable[[Path], None],
    archive: StateFile,
    tmp_path: Path,
    clock: HandClock,
) -> None:
    archive.write([fault("one")], [event()])
    archive.close()
    file = tmp_path / "state" / FILE
    spoilt(file)
    bad = file.read_bytes()
    found = again(tmp_path, clock)
    with capture_logs() as logs:
        assert found.open().incidents == ()
    assert [(each["event"], each["new_path"]) for each in logs] == [("file_set_aside", f"{file}.aside-1")]
    assert Path(f"{file}.aside-1").read_bytes() == bad
    found.write([fault("two")], [])
    assert read_history(file)[0] == (fault("two"),)
    found.close()


def test_a_file_of_a_later_version_is_refused_and_stays_in_place(
    archive: StateFile, tmp_path: Path, clock: HandClock
) -> None:
    archive.write([fault("one")], [event()])
    archive.close()
    file = tmp_path / "state" / FILE
    of_a_later_version(file)
    before = file.read_bytes()
    found = again(tmp_path, clock)
    with pytest.raises(OSError, match="a later version of this program wrote it"):
        found.open()
    assert not found.is_open
    assert file.read_bytes() == before
    assert list(file.parent.glob("*.aside-*")) == []


def test_a_disk_that_spoils_every_file_is_not_filled_with_them(tmp_path: Path, clock: HandClock) -> None:
    file = tmp_path / "state" / FILE
    file.parent.mkdir()
    for _ in range(MAX_SET_ASIDE):
        garbage(file)
        found = again(tmp_path, clock)
        found.open()
        found.close()
    garbage(file)
    with pytest.raises(OSError, match="remove them"):
        again(tmp_path, clock).open()
    assert len(list(file.parent.glob("*.aside-*"))) == MAX_SET_ASIDE


def test_a_file_that_was_taken_away_is_noticed_and_made_anew(archive: StateFile, tmp_path: Path) -> None:
    (tmp_path / "state" / FILE).unlink()
    with pytest.raises(FileNotFoundError):
        archive.write([fault()], [])
    assert not archive.is_open
    archive.open()
    archive.write([fault()], [])
    assert read_history(tmp_path / "state")[0] == (fault(),)


def test_a_link_in_its_place_is_not_followed(tmp_path: Path, clock: HandClock) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / FILE).symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="symbolic links"):
        again(tmp_path, clock).open()
    assert not (tmp_path / "precious").exists()


def test_a_full_file_system_costs_what_was_to_be_written_and_nothing_else(tmp_path: Path, clock: HandClock) -> None:
    mount = tmp_path / "state"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", str(mount)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        not_here("no file system can be mounted")
    found = again(tmp_path, clock)
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
