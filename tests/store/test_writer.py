"""The writer delays no other thread if the disk hangs or fails, and writes later what it could not write."""

import sqlite3
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from exporter.errors import HistoryError
from exporter.model.event import Event
from exporter.model.incident import Incident
from exporter.model.node import Node
from exporter.model.settings import Retention
from exporter.model.usage import MAX_SAMPLES, SAMPLE_SECONDS, Sample, UsageTotals
from exporter.model.watchdog import WatchdogState
from exporter.store import writer
from exporter.store.database import FILE, StateFile, read_history
from exporter.store.tables import Refused, Storable, StoredState
from exporter.store.writer import HANG_SECONDS, MAX_WAITING, TRIMMED, Writer
from exporter.view import HistoryStatus
from tests.builders import AT, DAEMON
from tests.clocks import HandClock
from tests.eventually import PATIENCE_SECONDS, eventually
from tests.store.values import event, fault

SOON = 0.02


class Disk(StateFile):
    """A state file on a disk that the test controls."""

    def __init__(self, directory: Path, clock: HandClock) -> None:
        super().__init__(directory, Retention(), clock)
        self.answers = threading.Event()
        self.answers.set()
        self.problem: Exception | None = None
        self.asked = threading.Event()
        self.batches: list[tuple[set[str], int]] = []

    def open(self) -> StoredState:
        """Open the file once the disk answers."""
        self._answer()
        return super().open()

    def write(
        self, values: Iterable[Storable] = (), totals: UsageTotals | None = None, *, expected: Collection[str] = ()
    ) -> Refused:
        """Write once the disk answers, unless it has a problem."""
        self._answer()
        values = tuple(values)
        refused = super().write(values, totals, expected=expected)
        if values:
            incidents = {value.id for value in values if isinstance(value, Incident)}
            self.batches.append((incidents, sum(isinstance(value, Event) for value in values)))
        return refused

    def _answer(self) -> None:
        self.asked.set()
        self.answers.wait(PATIENCE_SECONDS)
        if self.problem is not None:
            raise self.problem


@dataclass
class RunningWriter:
    """A writer and its disk."""

    directory: Path
    clock: HandClock = field(default_factory=lambda: HandClock(AT))

    def __post_init__(self) -> None:
        self.disk = Disk(self.directory, self.clock)
        self.writer = Writer(self.disk, self.clock, retry=SOON)

    def add(self, *incidents: Incident, events: Iterable[Event] = ()) -> None:
        """Add the result of a cycle."""
        self.writer.add(Node(incidents={each.id: each for each in incidents}), tuple(events))

    def stored(self) -> tuple[dict[str, Incident], list[float]]:
        """Return the stored incidents by id, and the times of the stored events, oldest first."""
        incidents, events = read_history(self.directory)
        return {each.id: each for each in incidents}, [each.at for each in reversed(events)]

    def watchdog_states(self) -> Mapping[str, WatchdogState]:
        """Return the stored states. The writer must be closed."""
        with closing(StateFile(self.directory, Retention(), self.clock)) as file:
            return file.open().watchdog_states

    def wait_for(self, *incidents: Incident, events: int = 0) -> None:
        """Wait until the file has these incidents and this number of events."""

        def written() -> None:
            try:
                found, reported = self.stored()
            except HistoryError as error:
                raise AssertionError("no history yet") from error
            assert (found, len(reported)) == ({each.id: each for each in incidents}, events)

        eventually(written)


@pytest.fixture
def running(tmp_path: Path, patience: None) -> Iterator[RunningWriter]:
    """A writer that is not open yet, and waits long for the disk."""
    made = RunningWriter(tmp_path / "state")
    yield made
    made.disk.answers.set()
    made.writer.close()


def test_writes_what_is_added(running: RunningWriter) -> None:
    assert running.writer.open() == StoredState()
    running.add(fault("one"), events=[event()])
    running.wait_for(fault("one"), events=1)
    assert running.writer.status == HistoryStatus(writable=True, events_dropped=0)


def test_writes_only_changed_incidents(running: RunningWriter) -> None:
    running.writer.open()
    one, two = fault("one"), fault("two")
    running.add(one, two)
    running.wait_for(one, two)
    running.add(one, two)
    running.add(one, fault("two", ended=AT + 1))
    running.wait_for(one, fault("two", ended=AT + 1))
    assert running.disk.batches == [({"one", "two"}, 0), ({"two"}, 0)]


def test_does_not_write_loaded_incidents_again(running: RunningWriter, tmp_path: Path) -> None:
    running.writer.open()
    running.add(fault("one"))
    running.writer.close()
    second = RunningWriter(running.directory)
    stored = second.writer.open()
    second.writer.add(stored.restore(Node()), [event()])
    second.wait_for(fault("one"), events=1)
    assert second.disk.batches == [(set(), 1)]
    second.writer.close()


def test_close_writes_what_waits(running: RunningWriter) -> None:
    running.writer.open()
    running.disk.answers.clear()
    running.add(fault("one"))
    running.disk.asked.wait(PATIENCE_SECONDS)
    running.add(fault("one", ended=AT + 1), events=[event()])
    running.disk.answers.set()
    running.writer.close()
    assert running.stored() == ({"one": fault("one", ended=AT + 1)}, [AT])


# -- a disk that hangs ---------------------------------------------------------------------------------------------


def hang(running: RunningWriter) -> None:
    """Let the disk hang during a write."""
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
    assert running.stored()[1] == [AT + n for n in range(3 * MAX_WAITING - waiting, 3 * MAX_WAITING)]


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
        eventually(
            lambda: _is(
                [(each["event"], each["log_level"]) for each in logs],
                wanted=[("history_write_failed", "warning"), ("history_write_recovered", "info")],
            )
        )


def test_a_hung_disk_does_not_delay_the_end(running: RunningWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "CLOSE_SECONDS", SOON)
    hang(running)
    running.add(fault("first"), events=[event()])
    with capture_logs() as logs:
        running.writer.close()
    assert [(each["event"], each["events"]) for each in logs] == [("history_incomplete", 1)]


def test_a_hung_disk_does_not_delay_the_start(running: RunningWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    """What happens then is written once the disk answers."""
    monkeypatch.setattr(writer, "LOAD_SECONDS", SOON)
    running.disk.answers.clear()
    assert running.writer.open() == StoredState()
    assert running.writer.status.writable is False
    running.add(fault("one"))
    running.disk.answers.set()
    running.wait_for(fault("one"))
    eventually(lambda: _is(running.writer.status.writable, wanted=True))


# -- a disk that refuses -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "problem",
    [
        sqlite3.OperationalError("database or disk is full"),
        sqlite3.OperationalError("attempt to write a readonly database"),
        OSError(5, "Input/output error"),
    ],
    ids=str,
)
def test_retries_a_failed_write(problem: Exception, running: RunningWriter) -> None:
    running.writer.open()
    running.disk.problem = problem
    with capture_logs() as logs:
        running.add(fault("one"), events=[event(AT), event(AT + 1)])
        eventually(lambda: _is(running.writer.status.writable, wanted=False))
        running.disk.asked.clear()
        assert running.disk.asked.wait(PATIENCE_SECONDS), "it is tried again"
        running.add(fault("one", ended=AT + 2), events=[event(AT + 2)])
        running.disk.problem = None
        running.wait_for(fault("one", ended=AT + 2), events=3)
        eventually(
            lambda: _is([each["event"] for each in logs], wanted=["history_write_failed", "history_write_recovered"])
        )
    assert running.stored()[1] == [AT, AT + 1, AT + 2], "in their order"


def test_runs_without_a_state_directory_until_it_exists(tmp_path: Path) -> None:
    running = RunningWriter(tmp_path / "none" / "state")
    with capture_logs() as logs:
        assert running.writer.open() == StoredState()
        running.add(fault("one"), events=[event()])
        assert running.writer.status.writable is False
        (tmp_path / "none").mkdir()
        running.wait_for(fault("one"), events=1)
        running.writer.close()
    assert [each["event"] for each in logs] == ["history_write_failed", "history_write_recovered"]


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


def test_writes_all_known_incidents_to_a_new_file(running: RunningWriter) -> None:
    running.writer.open()
    one = fault("one")
    running.add(one)
    running.wait_for(one)
    (running.directory / FILE).unlink()
    running.add(one, events=[event()])
    eventually(lambda: _is((running.directory / FILE).exists(), wanted=True))
    eventually(lambda: _is(running.disk.is_open, wanted=True))
    running.wait_for(one, events=1)


def test_an_invalid_value_costs_no_other_value_and_is_reported(running: RunningWriter) -> None:
    """A defect may produce one. The watchdog's states count its restarts."""
    running.writer.open()
    states = {DAEMON: WatchdogState(restarts=(AT,))}
    with capture_logs() as logs:
        running.writer.add(Node(incidents={"one": fault("one")}, watches=states), [event(float("nan"))])
        eventually(lambda: _is(running.writer.status, wanted=HistoryStatus(writable=True, events_dropped=1)))
    assert [log["event"] for log in logs] == ["history_write_failed", "history_write_recovered"]
    assert isinstance(logs[0]["exc_info"], sqlite3.IntegrityError)
    running.writer.add(Node(incidents={"one": fault("one")}, watches=states), [event()])
    running.wait_for(fault("one"), events=1)
    running.writer.close()
    assert running.watchdog_states() == states


def test_a_defect_costs_nothing_that_waits(running: RunningWriter) -> None:
    running.writer.open()
    states = {DAEMON: WatchdogState(restarts=(AT,))}
    running.disk.problem = RuntimeError("a defect")
    with capture_logs() as logs:
        running.writer.add(Node(incidents={"one": fault("one")}, watches=states), [event()])
        eventually(lambda: _is(running.writer.status, wanted=HistoryStatus(writable=False, events_dropped=0)))
    assert logs[0]["exc_info"] is running.disk.problem
    running.disk.problem = None
    running.wait_for(fault("one"), events=1)
    running.writer.close()
    assert running.watchdog_states() == states


def test_a_state_that_cannot_be_stored_is_tried_again(running: RunningWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    running.writer.open()
    states = {DAEMON: WatchdogState(restarts=(AT,))}
    with monkeypatch.context() as patch:
        patch.setattr("exporter.store.tables.json.dumps", lambda _: "\udcff")
        running.writer.add(Node(watches=states), ())
        eventually(lambda: _is(running.writer.status.writable, wanted=False))
    eventually(lambda: _is(running.writer.status.writable, wanted=True))
    running.writer.close()
    assert running.watchdog_states() == states


def _is(found: object, *, wanted: object) -> None:
    assert found == wanted


def test_samples_that_could_not_be_written_are_written_later(running: RunningWriter) -> None:
    running.writer.open()
    running.disk.problem = OSError(28, "No space left on device")
    taken = [Sample(at=AT + SAMPLE_SECONDS * number, clients=number) for number in range(-2 * MAX_SAMPLES, 1)]
    for each in taken:
        running.writer.add(Node(), (), (each,))
    eventually(lambda: _is(running.writer.status.writable, wanted=False))
    running.disk.problem = None
    eventually(lambda: _is(running.writer.status.writable, wanted=True))
    running.writer.close()

    with closing(StateFile(running.directory, Retention(), running.clock)) as file:
        assert file.open().samples == tuple(taken[-MAX_SAMPLES:])
