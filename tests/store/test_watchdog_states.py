"""The watchdog's states outlive the exporter: its restarts, and what an operator stopped."""

import sqlite3
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
from exporter.model.values import build, plain
from exporter.model.watchdog import ActionCount, Condition, Diagnosis, OngoingAction, WatchdogPhase, WatchdogState
from exporter.store import tables
from exporter.store.database import FILE, StateFile
from exporter.store.writer import STATES_SECONDS, Writer
from tests.builders import AT, DAEMON, no_daemon, node, reduced, servers
from tests.clocks import HandClock
from tests.store.values import HOSTILE, event, fault, whole

BROKEN = WatchdogState(
    phase=WatchdogPhase.CIRCUIT_OPEN,
    diagnosis=Diagnosis(
        condition=Condition.CRASHED, since=AT - 1, indications=(Reason(ReasonCode.UNSPECIFIED, text=HOSTILE),)
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


def execute(directory: Path, statement: str, *values: object) -> None:
    with sqlite3.connect(directory / FILE) as connection:
        connection.execute(statement, values)
    connection.close()


def reopened(state_file: StateFile) -> dict[str, WatchdogState]:
    state_file.close()
    return dict(state_file.open().watchdog_states)


@given(whole(WatchdogState))
def test_any_state_is_read_as_written(watch: WatchdogState) -> None:
    assert build(WatchdogState, plain(watch)) == watch


def test_the_next_start_loads_the_last_state_of_each_daemon(state_file: StateFile) -> None:
    state_file.write([], [], {DAEMON: WatchdogState(), HOSTILE: STOPPED})
    state_file.write([], [], {DAEMON: BROKEN})
    assert reopened(state_file) == {DAEMON: BROKEN, HOSTILE: STOPPED}


def test_retains_a_state_of_any_age(state_file: StateFile, clock: HandClock) -> None:
    """An open circuit breaker stays open."""
    state_file.write([], [], {DAEMON: BROKEN})
    clock.time += 10 * Retention().max_age
    state_file.write([fault()], [event()], {"another": STOPPED})
    assert reopened(state_file) == {DAEMON: BROKEN, "another": STOPPED}


def test_deletes_the_states_that_changed_longest_ago(state_file: StateFile, clock: HandClock) -> None:
    state_file.write([], [], {"first": BROKEN})
    clock.time += 1
    state_file.write([], [], {f"later {n}": STOPPED for n in range(tables.MAX_WATCHDOG_STATES)})
    assert "first" not in reopened(state_file)


@pytest.mark.parametrize("row", ["{", "[]", b"\xff", "[" * 100_000, 7, '{"daemon": 7, "state": {}}', '{"daemon": "a"}'])
def test_skips_and_counts_an_unreadable_row(row: object, state_file: StateFile, tmp_path: Path) -> None:
    state_file.write([], [], {DAEMON: BROKEN, "bad": STOPPED})
    state_file.close()
    execute(tmp_path, "UPDATE watchdog_states SET state = ? WHERE daemon = 'bad'", row)
    stored = state_file.open()
    assert (stored.watchdog_states, stored.unreadable) == ({DAEMON: BROKEN}, 1)


def test_ignores_fields_of_a_later_version(state_file: StateFile, tmp_path: Path) -> None:
    state_file.write([], [], {DAEMON: STOPPED})
    state_file.close()
    execute(tmp_path, """UPDATE watchdog_states SET state = replace(state, '"state": {', '"state": {"later": [1], ')""")
    assert state_file.open().watchdog_states == {DAEMON: STOPPED}


# -- what the next start makes of it ----------------------------------------------------------------------------------


def restored(state_file: StateFile, start: Node, watch: WatchdogState) -> Node:
    state_file.write([], [], {DAEMON: watch})
    state_file.close()
    return state_file.open().restore(start)


def test_restores_the_watchdogs_state_to_the_node(state_file: StateFile) -> None:
    begun = restored(state_file, node(), BROKEN)
    assert begun.watches == {DAEMON: BROKEN}
    assert begun.daemons == node().daemons


def test_a_stopped_daemon_stays_stopped_without_an_event(state_file: StateFile) -> None:
    begun = restored(state_file, node(), STOPPED)
    story = reduced(no_daemon(), no_daemon(at=AT + 30), start=begun)
    assert (story.daemon.state, story.daemon.lifecycle.state_since) == (DaemonState.STOPPED, STOPPED.stopped_at)
    assert story.events == ()


def test_a_stopped_daemon_that_is_found_later_stays_stopped(state_file: StateFile) -> None:
    begun = restored(state_file, Node(), STOPPED)
    found = DaemonFound(at=AT, daemon=DAEMON, pipe_directory=DAEMON, log_directory="/log", expected=True, by="unit")
    assert reduced(found, no_daemon(), start=begun).daemon.state is DaemonState.STOPPED


def test_a_stopped_daemon_that_answers_is_up(state_file: StateFile) -> None:
    story = reduced(no_daemon(), servers(at=AT + 5), start=restored(state_file, node(), STOPPED))
    assert (story.daemon.state, story.names()) == (DaemonState.UP, [EventName.DAEMON_UP])


# -- when it is written ------------------------------------------------------------------------------------------------


class CountingFile(StateFile):
    """A state file that counts its writes."""

    written = 0

    def write(self, *given: object) -> None:
        """Count and write."""
        self.written += 1
        super().write(*given)  # type: ignore[arg-type]


@pytest.fixture
def counted(tmp_path: Path, clock: HandClock) -> CountingFile:
    return CountingFile(tmp_path, Retention(), clock)


def test_writes_a_changed_state_with_its_event(counted: CountingFile, clock: HandClock) -> None:
    """Then a crash of the exporter does not lose the next action."""
    writer = Writer(counted, clock)
    writer.open()
    writer.add(Node(watches={DAEMON: BROKEN}), [event()])
    writer.close()
    assert counted.written == 1
    assert counted.open().watchdog_states == {DAEMON: BROKEN}
    counted.close()


def test_writes_a_changed_state_once_a_second_and_at_the_end(counted: CountingFile, clock: HandClock) -> None:
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


def test_does_not_write_an_unchanged_state(counted: CountingFile, clock: HandClock) -> None:
    writer = Writer(counted, clock)
    writer.open()
    writer.add(Node(watches={DAEMON: BROKEN}), [event()])
    clock.time += STATES_SECONDS
    writer.add(Node(watches={DAEMON: replace(BROKEN)}), [])
    writer.close()
    assert counted.written == 1
