"""Whether a start knows all that the watchdog knew, and can write what happens: if not, nothing may be restarted."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from exporter.model.node import Node
from exporter.model.settings import Retention
from exporter.model.watchdog import RecoveredState, WatchdogState
from exporter.store import writer as store_writer
from exporter.store.database import FILE, StateFile
from exporter.store.writer import Writer
from tests.builders import AT, DAEMON
from tests.clocks import HandClock
from tests.eventually import PATIENCE_SECONDS, eventually

OPEN = WatchdogState(circuit_opened_at=AT)
CLOCK = HandClock(AT)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the disk of a busy machine."""
    monkeypatch.setattr(store_writer, "LOAD_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr(store_writer, "CLOSE_SECONDS", PATIENCE_SECONDS)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state directory that has the watch of a daemon whose circuit is open."""
    archive = archive_of(tmp_path)
    archive.open()
    archive.write([], [], {DAEMON: OPEN})
    archive.close()
    return tmp_path


@pytest.fixture
def writers() -> Iterator[list[Writer]]:
    """Writers that are closed at the end."""
    made: list[Writer] = []
    yield made
    for each in made:
        each.close()


def archive_of(directory: Path) -> StateFile:
    return StateFile(directory, Retention(), CLOCK)


def started(directory: Path, writers: list[Writer], archive: StateFile | None = None) -> Writer:
    """Start an exporter's writer."""
    writers.append(Writer(archive or archive_of(directory), CLOCK, retry=0.01))
    writers[-1].open()
    return writers[-1]


def kept(directory: Path) -> dict[str, WatchdogState]:
    """Return what the file has."""
    archive = archive_of(directory)
    try:
        return dict(archive.open().watchdog_states)
    finally:
        archive.close()


def test_a_new_directory_has_nothing_to_know(tmp_path: Path, writers: list[Writer]) -> None:
    assert started(tmp_path / "state", writers).has_watchdog_states


def test_what_was_written_is_known(state: Path, writers: list[Writer]) -> None:
    writer = started(state, writers)

    assert (writer.has_watchdog_states, writer.available, writer.recovered_state()) == (True, True, None)


def test_a_directory_that_cannot_be_made_is_not_available(tmp_path: Path, writers: list[Writer]) -> None:
    (tmp_path / "file").touch()
    writer = started(tmp_path / "file" / "state", writers)

    assert (writer.has_watchdog_states, writer.available) == (False, False)


class ReadOnly(StateFile):
    """An archive whose disk cannot be written to until it is repaired."""

    repaired = False

    def check_writable(self) -> None:
        """Fail until then."""
        if not self.repaired:
            raise sqlite3.OperationalError("attempt to write a readonly database")
        super().check_writable()


def test_a_file_that_can_be_read_and_not_written_is_not_available(state: Path, writers: list[Writer]) -> None:
    archive = ReadOnly(state, Retention(), CLOCK)
    writer = started(state, writers, archive)
    assert not writer.available
    writer.add(Node(watches={DAEMON: WatchdogState(state_lost_at=AT)}), ())

    archive.repaired = True
    assert eventually_regained(writer) == RecoveredState({DAEMON: OPEN}, whole=True)
    assert (writer.has_watchdog_states, writer.recovered_state()) == (True, None)


def test_writing_is_tried_at_the_start(state: Path) -> None:
    """A full disk lets a file be opened and read."""
    archive = archive_of(state)
    archive.open()
    archive.check_writable()
    assert archive._connection is not None
    archive._connection.execute("PRAGMA query_only = ON")

    with pytest.raises(sqlite3.OperationalError):
        archive.check_writable()
    archive.close()


def eventually_regained(writer: Writer) -> RecoveredState:
    def regained() -> RecoveredState:
        found = writer.recovered_state()
        assert found is not None
        return found

    return eventually(regained)


def test_the_state_of_another_exporter_is_taken_over_when_that_ends(state: Path, writers: list[Writer]) -> None:
    """What this one has observed meanwhile does not replace it."""
    first = archive_of(state)
    first.open()
    second = started(state, writers)
    assert not second.available
    second.add(Node(watches={DAEMON: WatchdogState(state_lost_at=AT)}), ())

    first.write([], [], {DAEMON: WatchdogState(circuit_opened_at=AT + 1)})
    first.close()
    assert eventually_regained(second) == RecoveredState({DAEMON: WatchdogState(circuit_opened_at=AT + 1)}, whole=True)
    second.close()
    assert kept(state) == {DAEMON: WatchdogState(circuit_opened_at=AT + 1)}


def test_what_is_known_after_that_is_written(state: Path, writers: list[Writer]) -> None:
    first = archive_of(state)
    first.open()
    second = started(state, writers)
    first.close()
    eventually_regained(second)

    second.add(Node(watches={DAEMON: WatchdogState(failures=1)}), ())
    second.close()
    assert kept(state) == {DAEMON: WatchdogState(failures=1)}


def test_watches_in_a_file_that_was_set_aside_are_lost(state: Path, writers: list[Writer]) -> None:
    for each in state.glob(f"{FILE}*"):
        each.write_bytes(b"no database " * 1000)
    writer = started(state, writers)

    assert (writer.available, writer.has_watchdog_states) == (True, False)


def test_a_file_of_a_later_version_is_kept_and_its_watches_count_as_lost(state: Path, writers: list[Writer]) -> None:
    """The exporter runs without it, and names the file and the remedy."""
    connection = sqlite3.connect(state / FILE)
    with connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    before = (state / FILE).read_bytes()
    with capture_logs() as logs:
        writer = started(state, writers)
        writer.add(Node(watches={DAEMON: WatchdogState(failures=1)}), ())

    assert (writer.has_watchdog_states, writer.available, writer.recovered_state()) == (False, False, None)
    assert not writer.status.writable
    (log,) = [each for each in logs if each["event"] == "history_write_failed"]
    assert str(state / FILE) in log["problem"]
    assert "install that version again, or move the file away" in log["problem"]
    writer.close()
    assert (state / FILE).read_bytes() == before
    assert list(state.glob("*.aside-*")) == []


def test_a_watch_that_cannot_be_read_is_lost(state: Path, writers: list[Writer]) -> None:
    connection = sqlite3.connect(state / FILE)
    with connection:
        connection.execute("UPDATE watches SET watch = '{'")
    connection.close()
    writer = started(state, writers)

    assert (writer.available, writer.has_watchdog_states) == (True, False)
