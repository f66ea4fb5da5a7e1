"""A hostile file cannot hang, fill or mislead a reader with more rights than its author."""

import json
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from exporter.errors import HistoryError
from exporter.store import database
from exporter.store.database import FILE, MAX_VALUE_BYTES, StateFile, read_history
from tests.store.test_state_file import clock as clock
from tests.store.test_state_file import execute
from tests.store.test_state_file import state_file as state_file
from tests.store.values import fault

__all__ = ["clock", "state_file"]
"""Fixtures."""

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
    columns = "'a' AS id, 'd' AS daemon, 1 AS open, n AS started_at, 1 AS rowid, '{}' AS incident"
    _run(file, f"DROP TABLE incidents; CREATE VIEW incidents AS {ENDLESS} SELECT {columns} FROM r")


def a_huge_row(file: Path) -> None:
    _run(file, f"UPDATE incidents SET incident = zeroblob({MAX_VALUE_BYTES + 1})")


def _run(file: Path, statements: str) -> None:
    connection = sqlite3.connect(file)
    connection.executescript(statements)
    connection.close()


@pytest.mark.parametrize("damage", [a_pipe, a_device, a_pipe_beside, an_endless_view, a_huge_row])
def test_refuses_a_hostile_file(
    damage: Callable[[Path], None], state_file: StateFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "MAX_STEPS", database.MAX_STEPS // 20)
    state_file.write([fault("one")], [])
    state_file.close()
    damage(tmp_path / "state" / FILE)
    with pytest.raises(HistoryError):
        read_history(tmp_path / "state")


@pytest.mark.parametrize(
    "row", ["[" * 1_000_000, '{"id":' * 100_000, b"\xff\xfe\x00", "1" * 5000, "9e999", json.dumps({"id": 1})]
)
def test_skips_a_hostile_row(row: object, state_file: StateFile, tmp_path: Path) -> None:
    state_file.write([fault("one"), fault("two")], [])
    execute(tmp_path, "UPDATE incidents SET incident = ? WHERE id = 'two'", row)
    assert read_history(tmp_path / "state")[0] == (fault("one"),)
