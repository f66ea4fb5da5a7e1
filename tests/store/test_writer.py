"""The writer delays no other thread if the disk hangs or fails, and writes later what it could not write."""

import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from exporter.errors import HistoryError
from exporter.history import HistoryStatus, Sample
from exporter.model.event import Event
from exporter.model.incident import Incident
from exporter.model.node import Node
from exporter.model.values import replace
from exporter.model.watchdog import WatchdogState
from exporter.store import writer
from exporter.store.database import FILE, StoredState, read_history
from exporter.store.writer import Writer
from tests.builders import AT, DAEMON
from tests.clocks import HandClock
from tests.eventually import PATIENCE_SECONDS, eventually
from tests.store.values import Disk, assert_equal, event, fault, loaded, query

# The tests state these values, so that they notice a change of the program's constants.
MAX_SAMPLES = 120
SAMPLE_SECONDS = 30.0
HANG_SECONDS = 10.0
MAX_WAITING = 1000
TRIMMED = 900

SOON = 0.02
STATES = {DAEMON: WatchdogState(restarts=(AT,))}


@dataclass
class RunningWriter:
    """A writer and its disk."""

    directory: Path
    clock: HandClock = field(default_factory=lambda: HandClock(AT))

    def __post_init__(self) -> None:
        self.disk = Disk(self.directory, self.clock)
        self.writer = Writer(self.disk, self.clock, retry=SOON)

    def add(self, *incidents: Incident, events: Iterable[Event] = ()) -> None:
        by_id = {incident.id: incident for incident in incidents}
        self.writer.add(Node(incidents=by_id, watches=STATES), tuple(events))

    def wait_for(self, *incidents: Incident, events: int = 0) -> None:
        def written() -> None:
            try:
                stored, reported = read_history(self.directory)
            except HistoryError as error:
                raise AssertionError("no history yet") from error
            assert sorted(stored, key=lambda incident: incident.id) == list(incidents)
            assert len(reported) == events

        eventually(written)

    def wait_until_writable(self, *, writable: bool, events_dropped: int = 0) -> None:
        wanted = HistoryStatus(writable=writable, events_dropped=events_dropped)
        eventually(lambda: assert_equal(self.writer.status, wanted))


@pytest.fixture
def running(tmp_path: Path, patience: None) -> Iterator[RunningWriter]:
    """A writer that is not open yet, and waits long for the disk."""
    made = RunningWriter(tmp_path / "state")
    yield made
    made.disk.answers.set()
    made.writer.close()


def test_writes_only_what_has_changed(running: RunningWriter) -> None:
    assert running.writer.open() == StoredState()
    one, two, later = fault("one"), fault("two"), fault("two", ended=AT + 1)
    running.add(one, two)
    running.wait_for(one, two)
    running.add(one, two)
    running.add(one, later, events=[event()])
    running.wait_for(one, later, events=1)
    assert [value for value in running.disk.values if isinstance(value, Incident)] == [one, two, later]
    assert running.writer.status == HistoryStatus(writable=True, events_dropped=0)
    running.writer.close()

    second = RunningWriter(running.directory)
    second.writer.add(second.writer.open().restore(Node()), [event()])
    second.writer.close()
    assert second.disk.values == [event()], "loaded incidents are not written again"


@pytest.mark.parametrize("written", [True, False])
def test_deletes_deaths_that_the_death_of_their_daemon_replaces(running: RunningWriter, *, written: bool) -> None:
    first, second, other = fault("one"), fault("two"), fault("other")
    death = replace(fault("two", ended=AT + 1), replaces=("one",))
    running.writer.open()
    if written:
        running.add(first, second, other)
        running.wait_for(first, other, second)
    else:
        running.disk.answers.clear()
        running.add(first, second, other)
    running.add(other, death)
    running.disk.answers.set()
    running.wait_for(other, death)


def test_reports_rows_that_cannot_be_read(running: RunningWriter) -> None:
    running.writer.open()
    running.add(fault("one"), events=[event(), event(AT + 1)])
    running.wait_for(fault("one"), events=2)
    running.writer.close()
    for damage, reported in ("at = 0", []), ("at > 0", [2]):
        query(running.directory, f"UPDATE events SET json = '{{' WHERE {damage}")
        again = RunningWriter(running.directory)
        with capture_logs() as logs:
            again.writer.open()
            again.writer.close()
        assert [log["rows"] for log in logs if log["event"] == "history_rows_unreadable"] == reported


def test_close_writes_what_waits(running: RunningWriter) -> None:
    hang(running)
    running.add(fault("first", ended=AT + 1), events=[event()])
    running.disk.answers.set()
    running.writer.close()
    assert read_history(running.directory) == ((fault("first", ended=AT + 1),), (event(),))


# -- a disk that hangs ---------------------------------------------------------------------------------------------


def hang(running: RunningWriter) -> None:
    running.writer.open()
    running.disk.answers.clear()
    running.disk.asked.clear()
    running.add(fault("first"))
    assert running.disk.asked.wait(PATIENCE_SECONDS)


def test_a_hung_disk_loses_the_oldest_events_and_no_incident(running: RunningWriter) -> None:
    """The last state of an incident counts."""
    hang(running)
    for n in range(3 * MAX_WAITING):
        running.add(fault("first", refused_count=n), events=[event(AT + n)])
    waiting = 3 * MAX_WAITING - running.writer.status.events_dropped
    assert TRIMMED <= waiting <= MAX_WAITING
    running.disk.answers.set()
    running.wait_for(fault("first", refused_count=3 * MAX_WAITING - 1), events=waiting)
    times = [stored.at for stored in read_history(running.directory)[1]]
    assert times == [AT + n for n in reversed(range(3 * MAX_WAITING - waiting, 3 * MAX_WAITING))]


def test_reports_a_hung_disk_and_its_recovery_once(running: RunningWriter) -> None:
    hang(running)
    with capture_logs() as logs:
        for _ in range(5):
            running.add()
        assert (logs, running.writer.status.writable) == ([], True)
        running.clock.time += HANG_SECONDS
        for _ in range(5):
            running.add()
        assert running.writer.status.writable is False
        running.disk.answers.set()
        running.wait_until_writable(writable=True)
    reported = [(log["event"], log["log_level"]) for log in logs]
    assert reported == [("history_write_failed", "warning"), ("history_write_recovered", "info")]


def test_a_hung_disk_does_not_delay_the_end(running: RunningWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "CLOSE_SECONDS", SOON)
    hang(running)
    running.add(fault("first"), events=[event()])
    with capture_logs() as logs:
        running.writer.close()
    assert [(log["event"], log["events"]) for log in logs] == [("history_incomplete", 1)]


def test_a_hung_disk_does_not_delay_the_start(running: RunningWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    """What happens then is written once the disk answers."""
    monkeypatch.setattr(writer, "LOAD_SECONDS", SOON)
    running.disk.answers.clear()
    assert running.writer.open() == StoredState()
    assert running.writer.status.writable is False
    running.add(fault("one"))
    running.disk.answers.set()
    running.wait_for(fault("one"))
    running.wait_until_writable(writable=True)


# -- a disk that refuses -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "problem",
    [
        sqlite3.OperationalError("database or disk is full"),
        sqlite3.OperationalError("attempt to write a readonly database"),
        OSError(5, "Input/output error"),
        RuntimeError("a defect"),
    ],
    ids=str,
)
def test_retries_a_failed_write(problem: Exception, running: RunningWriter) -> None:
    running.writer.open()
    running.disk.problem = problem
    with capture_logs() as logs:
        running.add(fault("one"), events=[event(AT), event(AT + 1)])
        running.wait_until_writable(writable=False)
        running.disk.asked.clear()
        assert running.disk.asked.wait(PATIENCE_SECONDS), "it is tried again"
        running.add(fault("one", ended=AT + 2), events=[event(AT + 2)])
        running.disk.problem = None
        running.wait_for(fault("one", ended=AT + 2), events=3)
        running.wait_until_writable(writable=True)
    assert [log["event"] for log in logs] == ["history_write_failed", "history_write_recovered"]
    assert logs[0]["exc_info"] is (problem if isinstance(problem, RuntimeError) else None)
    running.writer.close()
    assert [stored.at for stored in loaded(running.directory).events] == [AT + 2, AT + 1, AT], "in their order"
    assert loaded(running.directory).watchdog_states == STATES


def test_a_failed_write_does_not_replace_what_came_during_it(running: RunningWriter) -> None:
    hang(running)
    running.add(fault("first", ended=AT + 2), events=[event(AT + 2)])
    running.disk.problem = OSError(5, "Input/output error")
    running.disk.answers.set()
    running.wait_until_writable(writable=False)
    running.disk.problem = None
    running.wait_for(fault("first", ended=AT + 2), events=1)


def test_runs_without_a_state_directory_until_it_exists(tmp_path: Path, patience: None) -> None:
    running = RunningWriter(tmp_path / "none" / "state")
    with capture_logs() as logs:
        assert running.writer.open() == StoredState()
        running.add(fault("one"), events=[event()])
        assert running.writer.status.writable is False
        (tmp_path / "none").mkdir()
        running.wait_for(fault("one"), events=1)
        running.writer.close()
    assert [log["event"] for log in logs] == ["history_write_failed", "history_write_recovered"]


def test_a_second_exporter_takes_over_after_the_first(running: RunningWriter) -> None:
    """During an upgrade, both may run for a moment."""
    running.writer.open()
    running.add(fault("one"))
    running.wait_for(fault("one"))
    second = RunningWriter(running.directory)
    with capture_logs() as logs:
        second.writer.open()
    assert "another exporter" in logs[0]["problem"]
    second.add(fault("two"))
    running.writer.close()
    second.wait_for(fault("one"), fault("two"))
    second.writer.close()


def test_writes_all_that_is_known_to_a_new_file(running: RunningWriter) -> None:
    running.writer.open()
    one = fault("one")
    running.add(one)
    running.wait_for(one)
    (running.directory / FILE).unlink()
    running.add(one, events=[event()])
    running.wait_for(one, events=1)
    running.writer.close()
    assert loaded(running.directory).watchdog_states == STATES


def test_an_invalid_value_costs_no_other_value_and_is_reported(running: RunningWriter) -> None:
    """A defect may produce one. The watchdog's states count its restarts."""
    running.writer.open()
    with capture_logs() as logs:
        running.add(fault("one"), events=[event(float("nan"))])
        running.wait_until_writable(writable=True, events_dropped=1)
    assert [log["event"] for log in logs] == ["history_write_failed", "history_write_recovered"]
    assert isinstance(logs[0]["exc_info"], sqlite3.IntegrityError)
    running.add(fault("one"), events=[event()])
    running.wait_for(fault("one"), events=1)
    running.writer.close()
    assert loaded(running.directory).watchdog_states == STATES


def test_a_state_that_cannot_be_stored_is_tried_again(running: RunningWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    running.writer.open()
    with monkeypatch.context() as patch:
        patch.setattr("exporter.store.database.json.dumps", lambda _: "\udcff")
        running.add()
        running.wait_until_writable(writable=False)
    running.wait_until_writable(writable=True)
    running.writer.close()
    assert loaded(running.directory).watchdog_states == STATES


def test_samples_that_could_not_be_written_are_written_later(running: RunningWriter) -> None:
    running.writer.open()
    running.disk.problem = OSError(28, "No space left on device")
    taken = [Sample(at=AT + SAMPLE_SECONDS * number, clients=number) for number in range(-2 * MAX_SAMPLES, 1)]
    for sample in taken:
        running.writer.add(Node(), (), (sample,))
    running.wait_until_writable(writable=False)
    running.disk.problem = None
    running.wait_until_writable(writable=True)
    running.writer.close()
    assert loaded(running.directory).samples == tuple(taken[-MAX_SAMPLES:])
