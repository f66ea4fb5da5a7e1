"""Nothing is restarted unless the watchdog's earlier states could be read, and new ones can be written."""

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
    """Wait longer, for a busy machine."""
    monkeypatch.setattr(store_writer, "LOAD_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr(store_writer, "CLOSE_SECONDS", PATIENCE_SECONDS)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state directory that has the state of a daemon with an open circuit."""
    state_file = state_file_of(tmp_path)
    state_file.open()
    state_file.write([], [], {DAEMON: OPEN})
    state_file.close()
    return tmp_path


@pytest.fixture
def writers() -> Iterator[list[Writer]]:
    """Yield a list of writers, and close them."""
    made: list[Writer] = []
    yield made
    for each in made:
        each.close()


def state_file_of(directory: Path) -> StateFile:
    return StateFile(directory, Retention(), CLOCK)


def started(directory: Path, writers: list[Writer], state_file: StateFile | None = None) -> Writer:
    """Start an exporter's writer."""
    writers.append(Writer(state_file or state_file_of(directory), CLOCK, retry=0.01))
    writers[-1].open()
    return writers[-1]


def stored_states(directory: Path) -> dict[str, WatchdogState]:
    """Return what the file has."""
    state_file = state_file_of(directory)
    try:
        return dict(state_file.open().watchdog_states)
    finally:
        state_file.close()


def test_a_new_directory_has_complete_state(tmp_path: Path, writers: list[Writer]) -> None:
    assert started(tmp_path / "state", writers).has_watchdog_states


def test_loads_complete_state(state: Path, writers: list[Writer]) -> None:
    writer = started(state, writers)

    assert (writer.has_watchdog_states, writer.available, writer.recovered_state()) == (True, True, None)


def test_a_directory_that_cannot_be_created_is_unavailable(tmp_path: Path, writers: list[Writer]) -> None:
    (tmp_path / "file").touch()
    writer = started(tmp_path / "file" / "state", writers)

    assert (writer.has_watchdog_states, writer.available) == (False, False)


class ReadOnly(StateFile):
    """A state file on a read-only disk, until it is repaired."""

    repaired = False

    def check_writable(self) -> None:
        """Fail until then."""
        if not self.repaired:
            raise sqlite3.OperationalError("attempt to write a readonly database")
        super().check_writable()


def test_a_read_only_file_is_unavailable(state: Path, writers: list[Writer]) -> None:
    state_file = ReadOnly(state, Retention(), CLOCK)
    writer = started(state, writers, state_file)
    assert not writer.available
    writer.add(Node(watches={DAEMON: WatchdogState(state_lost_at=AT)}), ())

    state_file.repaired = True
    assert wait_for_recovered_state(writer) == RecoveredState({DAEMON: OPEN}, whole=True)
    assert (writer.has_watchdog_states, writer.recovered_state()) == (True, None)


def test_checks_at_the_start_that_the_file_is_writable(state: Path) -> None:
    """A full disk lets a file be opened and read."""
    state_file = state_file_of(state)
    state_file.open()
    state_file.check_writable()
    assert state_file._connection is not None
    state_file._connection.execute("PRAGMA query_only = ON")

    with pytest.raises(sqlite3.OperationalError):
        state_file.check_writable()
    state_file.close()


def wait_for_recovered_state(writer: Writer) -> RecoveredState:
    def recovered() -> RecoveredState:
        stored_states = writer.recovered_state()
        assert stored_states is not None
        return stored_states

    return eventually(recovered)


def test_takes_over_the_state_of_another_exporter(state: Path, writers: list[Writer]) -> None:
    """What this exporter has observed before does not replace it."""
    first = state_file_of(state)
    first.open()
    second = started(state, writers)
    assert not second.available
    second.add(Node(watches={DAEMON: WatchdogState(state_lost_at=AT)}), ())

    first.write([], [], {DAEMON: WatchdogState(circuit_opened_at=AT + 1)})
    first.close()
    assert wait_for_recovered_state(second) == RecoveredState(
        {DAEMON: WatchdogState(circuit_opened_at=AT + 1)}, whole=True
    )
    second.close()
    assert stored_states(state) == {DAEMON: WatchdogState(circuit_opened_at=AT + 1)}


def test_writes_states_after_the_takeover(state: Path, writers: list[Writer]) -> None:
    first = state_file_of(state)
    first.open()
    second = started(state, writers)
    first.close()
    wait_for_recovered_state(second)

    second.add(Node(watches={DAEMON: WatchdogState(failures=1)}), ())
    second.close()
    assert stored_states(state) == {DAEMON: WatchdogState(failures=1)}


def test_states_in_a_damaged_file_are_lost(state: Path, writers: list[Writer]) -> None:
    for each in state.glob(f"{FILE}*"):
        each.write_bytes(b"no database " * 1000)
    writer = started(state, writers)

    assert (writer.available, writer.has_watchdog_states) == (True, False)


def test_states_in_a_file_of_another_schema_are_lost(state: Path, writers: list[Writer]) -> None:
    connection = sqlite3.connect(state / FILE)
    with connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with capture_logs() as logs:
        writer = started(state, writers)

    assert (writer.available, writer.has_watchdog_states) == (True, False)
    (log,) = [each for each in logs if each["event"] == "file_set_aside"]
    assert log["problem"] == "it has schema version 99, and this version of the program uses 1"


def test_an_unreadable_state_is_lost(state: Path, writers: list[Writer]) -> None:
    connection = sqlite3.connect(state / FILE)
    with connection:
        connection.execute("UPDATE watchdog_states SET state = '{'")
    connection.close()
    writer = started(state, writers)

    assert (writer.available, writer.has_watchdog_states) == (True, False)
