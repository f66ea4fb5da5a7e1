"""The writer: a disk that hangs, is full or refuses keeps nobody waiting; what matters is written once it can be."""

import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from exporter.errors import HistoryError
from exporter.model.accounting import UsageTotals
from exporter.model.event import Event
from exporter.model.incident import Incident
from exporter.model.node import Node
from exporter.model.settings import Retention
from exporter.model.watchdog import WatchdogState
from exporter.store import writer
from exporter.store.archive import FILE, StateFile, StoredState, read_history
from exporter.store.writer import HANGS_SECONDS, MOST_WAITING, TRIMMED, Writer
from exporter.view import HistoryStatus
from tests.builders import AT
from tests.clocks import HandClock
from tests.eventually import PATIENCE_SECONDS, eventually
from tests.store.values import event, fault

SOON = 0.02


class Disk(StateFile):
    """An archive on a disk that does as the test says."""

    def __init__(self, directory: Path, clock: HandClock) -> None:
        super().__init__(directory, Retention(), clock)
        self.answers = threading.Event()
        self.answers.set()
        self.problem: Exception | None = None
        self.asked = threading.Event()
        self.batches: list[tuple[set[str], int]] = []

    def open(self) -> StoredState:
        """As ever, once it answers."""
        self._answer()
        return super().open()

    def write(
        self,
        incidents: Iterable[Incident],
        events: Iterable[Event],
        watches: Mapping[str, WatchdogState] | None = None,
        ledger: UsageTotals | None = None,
    ) -> None:
        """As ever, once it answers; unless it has a problem."""
        self._answer()
        told = list(incidents), list(events)
        super().write(*told, watches, ledger)
        self.batches.append(({each.id for each in told[0]}, len(told[1])))

    def _answer(self) -> None:
        self.asked.set()
        self.answers.wait(PATIENCE_SECONDS)
        if self.problem is not None:
            raise self.problem


@dataclass
class Keeping:
    """A writer and its disk."""

    directory: Path
    clock: HandClock = field(default_factory=lambda: HandClock(AT))

    def __post_init__(self) -> None:
        self.disk = Disk(self.directory, self.clock)
        self.writer = Writer(self.disk, self.clock, retry=SOON)

    def take(self, *incidents: Incident, events: Iterable[Event] = ()) -> None:
        """A cycle has come to this."""
        self.writer.take(Node(incidents={each.id: each for each in incidents}), tuple(events))

    def kept(self) -> tuple[dict[str, Incident], list[float]]:
        """What the file has: incidents by id, and when its events were, the eldest first."""
        incidents, events = read_history(self.directory)
        return {each.id: each for each in incidents}, [each.at for each in reversed(events)]

    def keeps(self, *incidents: Incident, events: int = 0) -> None:
        """Wait until the file has these, and so many events."""

        def written() -> None:
            try:
                found, told = self.kept()
            except HistoryError as error:
                raise AssertionError("no history yet") from error
            assert (found, len(told)) == ({each.id: each for each in incidents}, events)

        eventually(written)


@pytest.fixture
def keeping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Keeping]:
    """A writer that has not been opened, and waits for a slow disk."""
    monkeypatch.setattr(writer, "LOAD_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr(writer, "CLOSE_SECONDS", PATIENCE_SECONDS)
    made = Keeping(tmp_path / "state")
    yield made
    made.disk.answers.set()
    made.writer.close()


def test_what_happens_is_written(keeping: Keeping) -> None:
    assert keeping.writer.open() == StoredState()
    keeping.take(fault("one"), events=[event()])
    keeping.keeps(fault("one"), events=1)
    assert keeping.writer.status == HistoryStatus(writable=True, events_dropped=0)


def test_only_what_has_changed_is_written_again(keeping: Keeping) -> None:
    keeping.writer.open()
    one, two = fault("one"), fault("two")
    keeping.take(one, two)
    keeping.keeps(one, two)
    keeping.take(one, two)
    keeping.take(one, fault("two", ended=AT + 1))
    keeping.keeps(one, fault("two", ended=AT + 1))
    assert keeping.disk.batches == [({"one", "two"}, 0), ({"two"}, 0)]


def test_what_was_known_at_the_start_is_not_written_again(keeping: Keeping, tmp_path: Path) -> None:
    keeping.writer.open()
    keeping.take(fault("one"))
    keeping.writer.close()
    second = Keeping(keeping.directory)
    remembered = second.writer.open()
    second.writer.take(remembered.into(Node()), [event()])
    second.keeps(fault("one"), events=1)
    assert second.disk.batches == [(set(), 1)]
    second.writer.close()


def test_close_writes_what_waits(keeping: Keeping) -> None:
    keeping.writer.open()
    keeping.disk.answers.clear()
    keeping.take(fault("one"))
    keeping.disk.asked.wait(PATIENCE_SECONDS)
    keeping.take(fault("one", ended=AT + 1), events=[event()])
    keeping.disk.answers.set()
    keeping.writer.close()
    assert keeping.kept() == ({"one": fault("one", ended=AT + 1)}, [AT])


# -- a disk that hangs ---------------------------------------------------------------------------------------------


def hanging(keeping: Keeping) -> None:
    """In the middle of a write."""
    keeping.writer.open()
    keeping.disk.answers.clear()
    keeping.disk.asked.clear()
    keeping.take(fault("first"))
    assert keeping.disk.asked.wait(PATIENCE_SECONDS)


def test_a_disk_that_hangs_costs_the_oldest_events_and_no_incident(keeping: Keeping) -> None:
    """Of which the last state counts."""
    hanging(keeping)
    for n in range(3 * MOST_WAITING):
        keeping.take(fault("first", refused_count=n), events=[event(AT + n)])
    waiting = 3 * MOST_WAITING - keeping.writer.status.events_dropped
    assert TRIMMED <= waiting <= MOST_WAITING
    keeping.disk.answers.set()
    keeping.keeps(fault("first", refused_count=3 * MOST_WAITING - 1), events=waiting)
    assert keeping.kept()[1] == [AT + n for n in range(3 * MOST_WAITING - waiting, 3 * MOST_WAITING)]


def test_it_is_told_of_once_and_so_is_its_recovery(keeping: Keeping) -> None:
    hanging(keeping)
    with capture_logs() as logs:
        for _ in range(5):
            keeping.take()
        assert (logs, keeping.writer.status.writable) == ([], True)
        keeping.clock.time += HANGS_SECONDS
        for _ in range(5):
            keeping.take()
        assert keeping.writer.status.writable is False
        keeping.disk.answers.set()
        eventually(
            lambda: _is(
                [(each["event"], each["log_level"]) for each in logs],
                wanted=[("history_not_kept", "warning"), ("history_kept_again", "info")],
            )
        )


def test_it_does_not_hold_up_the_end(keeping: Keeping, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "CLOSE_SECONDS", SOON)
    hanging(keeping)
    keeping.take(fault("first"), events=[event()])
    with capture_logs() as logs:
        keeping.writer.close()
    assert [(each["event"], each["events"]) for each in logs] == [("history_not_whole", 1)]


def test_it_does_not_hold_up_the_start(keeping: Keeping, monkeypatch: pytest.MonkeyPatch) -> None:
    """What happens from then on is kept once it answers."""
    monkeypatch.setattr(writer, "LOAD_SECONDS", SOON)
    keeping.disk.answers.clear()
    assert keeping.writer.open() == StoredState()
    assert keeping.writer.status.writable is False
    keeping.take(fault("one"))
    keeping.disk.answers.set()
    keeping.keeps(fault("one"))
    eventually(lambda: _is(keeping.writer.status.writable, wanted=True))


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
def test_what_a_disk_refuses_is_tried_again_until_it_goes(problem: Exception, keeping: Keeping) -> None:
    keeping.writer.open()
    keeping.disk.problem = problem
    with capture_logs() as logs:
        keeping.take(fault("one"), events=[event(AT)])
        eventually(lambda: _is(keeping.writer.status.writable, wanted=False))
        keeping.disk.asked.clear()
        assert keeping.disk.asked.wait(PATIENCE_SECONDS), "it is tried again"
        keeping.take(fault("one", ended=AT + 1), events=[event(AT + 1)])
        keeping.disk.problem = None
        keeping.keeps(fault("one", ended=AT + 1), events=2)
        eventually(lambda: _is([each["event"] for each in logs], wanted=["history_not_kept", "history_kept_again"]))
    assert keeping.kept()[1] == [AT, AT + 1], "in their order"


def test_a_directory_that_cannot_be_had_is_no_reason_not_to_serve(tmp_path: Path) -> None:
    keeping = Keeping(tmp_path / "none" / "state")
    with capture_logs() as logs:
        assert keeping.writer.open() == StoredState()
        keeping.take(fault("one"), events=[event()])
        assert keeping.writer.status.writable is False
        (tmp_path / "none").mkdir()
        keeping.keeps(fault("one"), events=1)
        keeping.writer.close()
    assert [each["event"] for each in logs] == ["history_not_kept", "history_kept_again"]


def test_a_second_exporter_takes_over_when_the_first_has_gone(keeping: Keeping) -> None:
    """As where one is upgraded, and both run for a moment; what the second has seen is there."""
    keeping.writer.open()
    keeping.take(fault("one"))
    keeping.keeps(fault("one"))
    second = Keeping(keeping.directory)
    with capture_logs() as logs:
        second.writer.open()
    assert "another exporter" in logs[0]["problem"]
    second.take(fault("two"))
    keeping.writer.close()
    second.keeps(fault("one"), fault("two"))
    second.writer.close()


def test_a_file_that_is_lost_is_made_anew_with_all_that_is_known(keeping: Keeping) -> None:
    keeping.writer.open()
    one = fault("one")
    keeping.take(one)
    keeping.keeps(one)
    (keeping.directory / FILE).unlink()
    keeping.take(one, events=[event()])
    eventually(lambda: _is((keeping.directory / FILE).exists(), wanted=True))
    eventually(lambda: _is(keeping.disk.is_open, wanted=True))
    keeping.keeps(one, events=1)


def test_what_can_never_be_written_costs_its_batch_alone(keeping: Keeping) -> None:
    """A defect of ours."""
    keeping.writer.open()
    with capture_logs() as logs:
        keeping.take(events=[event(float("nan"))])
        eventually(lambda: _is([each["event"] for each in logs], wanted=["history_refused"]))
    keeping.take(fault("one"), events=[event()])
    keeping.keeps(fault("one"), events=1)


def _is(found: object, *, wanted: object) -> None:
    assert found == wanted
