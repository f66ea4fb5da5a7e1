"""The watchdog's states outlive the exporter: its restarts, and what an operator stopped.

Nothing is restarted unless the earlier states could be read, and new ones can be written.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from exporter.model.action import ActionKind, ActionReason, ActionResult
from exporter.model.daemon import DaemonState
from exporter.model.event import EventName
from exporter.model.node import Node
from exporter.model.observation import DaemonFound
from exporter.model.reason import Reason, ReasonCode
from exporter.model.settings import Limits, Retention
from exporter.model.watchdog import (
    ActionCount,
    Condition,
    Diagnosis,
    OngoingAction,
    RecoveredState,
    WatchdogPhase,
    WatchdogState,
)
from exporter.store import database
from exporter.store.database import FILE, StateFile
from exporter.store.writer import Writer
from tests.builders import AT, DAEMON, no_daemon, node, reduced, servers
from tests.clocks import HandClock
from tests.eventually import eventually
from tests.store.values import HOSTILE, Disk, assert_equal, event, fault, loaded, query, reopened, rows

BROKEN = WatchdogState(
    phase=WatchdogPhase.CIRCUIT_OPEN,
    diagnosis=Diagnosis(
        condition=Condition.DOWN, since=AT - 1, indications=(Reason(ReasonCode.UNSPECIFIED, text=HOSTILE),)
    ),
    restarts=(AT - 9, AT - 5),
    failures=2,
    circuit_opened_at=AT,
    acting=OngoingAction(kind=ActionKind.RESTART, reason=ActionReason.DOWN, began_at=AT - 1),
    limits=Limits(active_thread_percentage=40.0, pinned_memory={0: 1 << 31}),
    action_counts=(
        ActionCount(kind=ActionKind.RESTART, reason=ActionReason.DOWN, result=ActionResult.FAILED, count=2),
    ),
)
STOPPED = WatchdogState(stopped_at=AT - 3)


def test_the_next_start_loads_the_last_state_of_each_daemon(state_file: StateFile) -> None:
    state_file.write(rows({DAEMON: WatchdogState(), HOSTILE: STOPPED}))
    state_file.write(rows({DAEMON: BROKEN}))
    assert reopened(state_file).watchdog_states == {DAEMON: BROKEN, HOSTILE: STOPPED}


def test_retains_a_state_of_any_age(state_file: StateFile, clock: HandClock) -> None:
    """An open circuit breaker stays open."""
    state_file.write(rows({DAEMON: BROKEN}))
    clock.time += 10 * Retention().max_age
    state_file.write([fault(), event(), *rows({"another": STOPPED})])
    assert reopened(state_file).watchdog_states == {DAEMON: BROKEN, "another": STOPPED}


def test_deletes_the_states_that_changed_longest_ago(state_file: StateFile) -> None:
    state_file.write(rows({"first": BROKEN, "changed": BROKEN}))
    state_file.write(rows({f"later {n}": STOPPED for n in range(database.MAX_WATCHDOG_STATES - 2)}))
    state_file.write(rows({"changed": STOPPED, "last": STOPPED}))
    stored = reopened(state_file).watchdog_states
    assert (len(stored), stored["changed"]) == (database.MAX_WATCHDOG_STATES, STOPPED)
    assert "first" not in stored


def test_skips_and_counts_an_unreadable_row(state_file: StateFile, tmp_path: Path, subtests: pytest.Subtests) -> None:
    state_file.write(rows({DAEMON: BROKEN, "bad": STOPPED}))
    for row in ["{", "[]", b"\xff", "[" * 100_000, 7, '{"daemon": 7, "state": {}}', '{"daemon": "a"}']:
        with subtests.test(row=str(row)[:30]):
            state_file.close()
            query(tmp_path, "UPDATE watchdog_states SET json = ? WHERE daemon = '\"bad\"'", row)
            stored = state_file.open()
            assert (stored.watchdog_states, stored.unreadable, stored.complete) == ({DAEMON: BROKEN}, 1, False)


def test_ignores_fields_of_a_later_version(state_file: StateFile, tmp_path: Path) -> None:
    state_file.write(rows({DAEMON: STOPPED}))
    query(tmp_path, """UPDATE watchdog_states SET json = replace(json, '"state": {', '"state": {"later": [1], ')""")
    assert reopened(state_file).watchdog_states == {DAEMON: STOPPED}


# -- what the next start makes of it ----------------------------------------------------------------------------------


def restored(state_file: StateFile, start: Node, watch: WatchdogState) -> Node:
    state_file.write(rows({DAEMON: watch}))
    return reopened(state_file).restore(start)


def test_a_stopped_daemon_stays_stopped_without_an_event(state_file: StateFile) -> None:
    begun = restored(state_file, node(), STOPPED)
    observed = reduced(no_daemon(), no_daemon(at=AT + 30), start=begun)
    assert (observed.daemon.state, observed.daemon.lifecycle.state_since) == (DaemonState.STOPPED, STOPPED.stopped_at)
    assert observed.events == ()
    found = DaemonFound(at=AT, daemon=DAEMON, pipe_directory=DAEMON, log_directory="/log", expected=True, by="unit")
    assert reduced(found, no_daemon(), start=replace(begun, daemons={})).daemon.state is DaemonState.STOPPED


def test_a_stopped_daemon_that_answers_is_up(state_file: StateFile) -> None:
    observed = reduced(no_daemon(), servers(at=AT + 5), start=restored(state_file, node(), STOPPED))
    assert (observed.daemon.state, observed.names()) == (DaemonState.UP, [EventName.DAEMON_UP])


# -- when it is written ------------------------------------------------------------------------------------------------


@pytest.fixture
def writers() -> Iterator[list[Writer]]:
    made: list[Writer] = []
    yield made
    for writer in made:
        writer.close()


def started(directory: Path, writers: list[Writer], disk: Disk | None = None) -> Writer:
    writers.append(Writer(disk or Disk(directory, HandClock(AT)), HandClock(AT), retry=0.01))
    writers[-1].open()
    return writers[-1]


def test_writes_changed_states_only(tmp_path: Path, writers: list[Writer], patience: None) -> None:
    """Also without an event. Then a crash of the exporter does not lose the next action."""
    disk = Disk(tmp_path, HandClock(AT))
    writer = started(tmp_path, writers, disk)
    writer.add(Node(watches={"another": STOPPED, DAEMON: BROKEN}), [event()])
    eventually(lambda: assert_equal(states_of(disk), [("another", STOPPED), (DAEMON, BROKEN)]))
    writer.add(Node(watches={DAEMON: replace(BROKEN), "another": STOPPED}), [event()])
    later = replace(BROKEN, failures=3)
    writer.add(Node(watches={DAEMON: later, "another": STOPPED}), [])
    eventually(lambda: assert_equal(states_of(disk), [("another", STOPPED), (DAEMON, BROKEN), (DAEMON, later)]))
    writer.close()
    assert len(states_of(disk)) == 3
    assert loaded(tmp_path).watchdog_states == {DAEMON: later, "another": STOPPED}


def states_of(disk: Disk) -> list[tuple[str, WatchdogState]]:
    return [(value.daemon, value.state) for value in disk.values if isinstance(value, database.WatchdogRow)]


# -- whether earlier states are known ----------------------------------------------------------------------------------


@pytest.fixture
def state(tmp_path: Path, patience: None) -> Path:
    disk = Disk(tmp_path, HandClock(AT))
    disk.open()
    disk.write(rows({DAEMON: BROKEN}))
    disk.close()
    return tmp_path


def test_loads_complete_state(state: Path, writers: list[Writer]) -> None:
    for directory in (state, state / "new"):
        writer = started(directory, writers)
        assert (writer.has_watchdog_states, writer.available, writer.recovered_state()) == (True, True, None)


def test_a_read_only_file_is_unavailable(state: Path, writers: list[Writer]) -> None:
    disk = Disk(state, HandClock(AT))
    disk.problem = OSError(30, "Read-only file system")
    writer = started(state, writers, disk)
    assert not writer.available
    writer.add(Node(watches={DAEMON: WatchdogState(state_lost_at=AT)}), ())
    disk.problem = None
    assert recovered(writer) == RecoveredState({DAEMON: BROKEN}, whole=True)
    assert (writer.has_watchdog_states, writer.recovered_state()) == (True, None)


def recovered(writer: Writer) -> RecoveredState:
    def recovered_state() -> RecoveredState:
        result = writer.recovered_state()
        assert result is not None
        return result

    return eventually(recovered_state)


def test_takes_over_the_state_of_another_exporter(state: Path, writers: list[Writer]) -> None:
    """What this exporter has observed before does not replace it. What it observes then does."""
    first = Disk(state, HandClock(AT))
    first.open()
    disk = Disk(state, HandClock(AT))
    second = started(state, writers, disk)
    assert not second.available
    second.add(Node(watches={DAEMON: WatchdogState(state_lost_at=AT)}), [event()])
    first.write(rows({DAEMON: STOPPED}))
    first.close()
    assert recovered(second) == RecoveredState({DAEMON: STOPPED}, whole=True)
    second.add(Node(watches={DAEMON: STOPPED, "another": BROKEN}), ())
    second.close()
    assert states_of(disk) == [("another", BROKEN)]
    assert loaded(state).watchdog_states == {DAEMON: STOPPED, "another": BROKEN}


def test_a_loss_of_states_is_known(state: Path, writers: list[Writer], subtests: pytest.Subtests) -> None:
    (state / "file").touch()
    assert not started(state / "file" / "state", writers).available, "the directory cannot be created"
    schema = "it has schema version 99, and this version of the program uses 3"
    for damage, problems in [
        (lambda: query(state, "UPDATE watchdog_states SET json = '{'"), []),
        (lambda: query(state, "PRAGMA user_version = 99"), [schema]),
        (lambda: (state / FILE).write_bytes(b"no database " * 1000), ["file is not a database"]),
    ]:
        with subtests.test(problems=problems):
            damage()
            with capture_logs() as logs:
                writer = started(state, writers)
            assert (writer.available, writer.has_watchdog_states) == (True, False)
            assert [log["problem"] for log in logs if log["event"] == "file_set_aside"] == problems
            writer.close()
