"""What the watchdog knows outlives the exporter: what it did and may still do, and what an operator had stopped."""

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given

from exporter.model.action import ActionKind, ActionReason, ActionResult
from exporter.model.daemon import DaemonState
from exporter.model.event import EventName
from exporter.model.node import Node
from exporter.model.observation import DaemonFound
from exporter.model.reason import Reason, ReasonCode
from exporter.model.settings import Limits, Retention
from exporter.model.watchdog import ActionCount, Condition, Diagnosis, OngoingAction, WatchdogPhase, WatchdogState
from exporter.serialization import build, plain
from exporter.store import tables
from exporter.store.database import FILE, StateFile, open_database, read_history
from exporter.store.tables import INCIDENTS
from exporter.store.writer import STATES_SECONDS, Writer
from tests.builders import AT, DAEMON, no_daemon, node, reduced, servers
from tests.clocks import HandClock
from tests.store.values import HOSTILE, event, fault, whole

BROKEN = WatchdogState(
    phase=WatchdogPhase.CIRCUIT_OPEN,
    diagnosis=Diagnosis(
        condition=Condition.CRASHED, since=AT - 1, indications=(Reason(ReasonCode.UNKNOWN, text=HOSTILE),)
    ),
    restarts=(AT - 9, AT - 5),
    failures=2,
    circuit_opened_at=AT,
    acting=OngoingAction(kind=ActionKind.RESTART, reason=ActionReason.CRASHED, began_at=AT - 1),
    limits=Limits(active_thread_percentage=40.0, pinned_memory={0: 1 << 31}),
    action_counts=(
        ActionCount(kind=ActionKind.RESTART, reason=ActionReason.CRASHED, result=ActionResult.FAILED, count=2),
    ),
)
STOPPED = WatchdogState(stopped_at=AT - 3)


@pytest.fixture
def clock() -> HandClock:
    return HandClock(AT)


@pytest.fixture
def archive(tmp_path: Path, clock: HandClock) -> Iterator[StateFile]:
    """An archive that is open."""
    made = StateFile(tmp_path, Retention(), clock)
    made.open()
    yield made
    made.close()


def spoil(directory: Path, statement: str, *values: object) -> None:
    with sqlite3.connect(directory / FILE) as connection:
        connection.execute(statement, values)
    connection.close()


def reopened(archive: StateFile) -> dict[str, WatchdogState]:
    archive.close()
    return dict(archive.open().watchdog_states)


@given(whole(WatchdogState))
def test_any_watch_is_read_as_it_was_written(watch: WatchdogState) -> None:
    assert build(WatchdogState, plain(watch)) == watch


def test_the_last_that_is_known_of_each_daemon_is_there_at_the_next_start(archive: StateFile) -> None:
    archive.write([], [], {DAEMON: WatchdogState(), HOSTILE: STOPPED})
    archive.write([], [], {DAEMON: BROKEN})
    assert reopened(archive) == {DAEMON: BROKEN, HOSTILE: STOPPED}


def test_it_is_kept_however_old_it_is(archive: StateFile, clock: HandClock) -> None:
    """A circuit breaker that was opened stays open."""
    archive.write([], [], {DAEMON: BROKEN})
    clock.time += 10 * Retention().max_age
    archive.write([fault()], [event()], {"another": STOPPED})
    assert reopened(archive) == {DAEMON: BROKEN, "another": STOPPED}


def test_of_too_many_those_go_of_which_nothing_was_said_for_longest(archive: StateFile, clock: HandClock) -> None:
    archive.write([], [], {"first": BROKEN})
    clock.time += 1
    archive.write([], [], {f"later {n}": STOPPED for n in range(tables.MAX_WATCHDOG_STATES)})
    assert "first" not in reopened(archive)


@pytest.mark.parametrize("row", ["{", "[]", b"\xff", "[" * 100_000, 7, '{"daemon": 7, "watch": {}}', '{"daemon": "a"}'])
def test_a_row_that_cannot_be_read_is_passed_over_and_counted(row: object, archive: StateFile, tmp_path: Path) -> None:
    archive.write([], [], {DAEMON: BROKEN, "bad": STOPPED})
    archive.close()
    spoil(tmp_path, "UPDATE watches SET watch = ? WHERE daemon = 'bad'", row)
    remembered = archive.open()
    assert (remembered.watchdog_states, remembered.unreadable) == ({DAEMON: BROKEN}, 1)


def test_what_a_later_version_added_is_passed_over(archive: StateFile, tmp_path: Path) -> None:
    archive.write([], [], {DAEMON: STOPPED})
    archive.close()
    spoil(tmp_path, """UPDATE watches SET watch = replace(watch, '"watch": {', '"watch": {"hitherto": [1], ')""")
    assert archive.open().watchdog_states == {DAEMON: STOPPED}


def test_a_file_of_the_version_before_is_read_and_gets_the_table(tmp_path: Path, clock: HandClock) -> None:
    events = "CREATE TABLE events (number INTEGER PRIMARY KEY, at REAL NOT NULL, event TEXT NOT NULL);"
    open_database(tmp_path / FILE, [INCIDENTS + events]).close()
    assert read_history(tmp_path) == ((), ())
    archive = StateFile(tmp_path, Retention(), clock)
    assert archive.open().watchdog_states == {}
    archive.write([fault()], [event()], {DAEMON: BROKEN})
    assert reopened(archive) == {DAEMON: BROKEN}
    assert read_history(tmp_path) == ((fault(),), (event(),))
    archive.close()


# -- what the next start makes of it ----------------------------------------------------------------------------------


def remembered(archive: StateFile, start: Node, watch: WatchdogState) -> Node:
    archive.write([], [], {DAEMON: watch})
    archive.close()
    return archive.open().restore(start)


def test_the_node_knows_what_the_watchdog_knew(archive: StateFile) -> None:
    began = remembered(archive, node(), BROKEN)
    assert began.watches == {DAEMON: BROKEN}
    assert began.daemons == node().daemons


def test_what_an_operator_had_stopped_is_stopped_and_nobody_is_woken(archive: StateFile) -> None:
    began = remembered(archive, node(), STOPPED)
    story = reduced(no_daemon(), no_daemon(at=AT + 30), start=began)
    assert (story.daemon.state, story.daemon.lifecycle.state_since) == (DaemonState.STOPPED, STOPPED.stopped_at)
    assert story.events == ()


def test_it_is_so_where_the_daemon_is_found_only_later(archive: StateFile) -> None:
    began = remembered(archive, Node(), STOPPED)
    found = DaemonFound(at=AT, daemon=DAEMON, pipe_directory=DAEMON, log_directory="/log", expected=True, by="unit")
    assert reduced(found, no_daemon(), start=began).daemon.state is DaemonState.STOPPED


def test_until_it_lives_again(archive: StateFile) -> None:
    story = reduced(no_daemon(), servers(at=AT + 5), start=remembered(archive, node(), STOPPED))
    assert (story.daemon.state, story.names()) == (DaemonState.UP, [EventName.DAEMON_UP])


# -- when it is written ------------------------------------------------------------------------------------------------


class Counted(StateFile):
    """An archive that counts."""

    written = 0

    def write(self, *given: object) -> None:
        """As ever."""
        self.written += 1
        super().write(*given)  # type: ignore[arg-type]


@pytest.fixture
def counted(tmp_path: Path, clock: HandClock) -> Counted:
    return Counted(tmp_path, Retention(), clock)


def test_what_an_event_tells_is_written_with_it(counted: Counted, clock: HandClock) -> None:
    """So that what is done next is known whatever becomes of the exporter."""
    writer = Writer(counted, clock)
    writer.open()
    writer.add(Node(watches={DAEMON: BROKEN}), [event()])
    writer.close()
    assert counted.written == 1
    assert counted.open().watchdog_states == {DAEMON: BROKEN}
    counted.close()


def test_what_none_tells_is_written_once_a_second_and_at_the_end(counted: Counted, clock: HandClock) -> None:
    writer = Writer(counted, clock)
    writer.open()
    for number in range(3):
        writer.add(Node(watches={DAEMON: replace(BROKEN, failures=number)}), [])
    assert writer._batch.states == {}, "it waits"
    clock.time += STATES_SECONDS
    writer.add(Node(watches={DAEMON: replace(BROKEN, failures=3)}), [])
    writer.add(Node(watches={DAEMON: replace(BROKEN, failures=4)}), [])
    writer.close()
    assert counted.written in (1, 2)
    assert counted.open().watchdog_states == {DAEMON: replace(BROKEN, failures=4)}
    counted.close()


def test_what_has_not_changed_is_not_written(counted: Counted, clock: HandClock) -> None:
    writer = Writer(counted, clock)
    writer.open()
    writer.add(Node(watches={DAEMON: BROKEN}), [event()])
    clock.time += STATES_SECONDS
    writer.add(Node(watches={DAEMON: replace(BROKEN)}), [])
    writer.close()
    assert counted.written == 1
