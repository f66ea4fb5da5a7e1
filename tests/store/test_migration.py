"""Rows of version 4 become rows of version 5: sentences become codes, and no row is lost."""

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.model.action import ActionKind, ActionReason
from exporter.model.identity import ProcessIdentity
from exporter.model.incident import ClientDetails, Clues, EarlyDisconnect, InFlightWork
from exporter.model.reason import Reason, ReasonCode
from exporter.model.settings import Limits, Retention
from exporter.model.watchdog import EscalationStep, LastAction, LimitDrift, LimitEnforcement, WatchdogPhase
from exporter.store import migration
from exporter.store.database import (
    FILE,
    MIGRATIONS,
    TRANSLATED_VERSION,
    StateFile,
    StoredState,
    open_database,
    read_history,
)
from tests.builders import AT, DAEMON, SERVER
from tests.clocks import HandClock

CLIENT = {"pid": 600, "client": "600-a", "memory_bytes": {}}
INCIDENT = {
    "id": "one",
    "daemon": DAEMON,
    "server": SERVER,
    "started_at": AT,
    "detected_at": AT,
    "block_stamp": "2026-11-20 14:57:59.920",
    "xids": [{"at": AT, "number": 31, "place": "0000:07:00"}],
    "affected": [600],
    "affected_told": True,
    "tenants": {"600": CLIENT},
    "clues": {
        "vanished": [{"pid": 600, "seconds_before": 0.12}],
        "flights": [{"pid": 600, "in_flight": True, "launched_before": 0.5}],
        "log_in_doubt": True,
    },
    "gone": [600],
    "unseen_since": AT,
    "announced": True,
    "told": True,
    "suspects": [{"tenant": CLIENT, "confidence": 0.5, "evidence": ["it was ended by signal 9", "the moon was full"]}],
}
EVENT = {
    "at": AT,
    "event": "daemon_diagnosed",
    "daemon": DAEMON,
    "reason": "process 441 is gone",
    "witnesses": ["process 441 is gone", "its log ends without a quit"],
}
FAULT = {"at": AT, "event": "fault_changed", "daemon": DAEMON, "reason": "suspects", "incident": INCIDENT}
WATCH = {
    "diagnosis": {
        "condition": "crashed",
        "since": AT,
        "witnesses": ["nobody listens on its socket", "a dream"],
        "culprit": {"pid": 441, "start_ticks": 7},
    },
    "acting": {"kind": "restart", "reason": "a new one", "began_at": AT, "problem": "there is no command to run"},
    "tallies": [{"kind": "restart", "reason": "boredom", "result": "failed", "count": 2}],
    "said": "would restart: crashed",
    "state": "circuit_open",
    "opened_at": AT + 1,
    "lost_at": AT + 2,
    "released_at": AT + 3,
    "well_since": AT + 4,
    "rung": {"incident": "one", "kind": "kill_clients", "at": AT},
    "wanted": {"client_priority": 1},
    "need": "crashed 7.000 1",
    "intention": "act: restart crashed 7.000",
    "enforcing": {
        "seen": {"client_priority": 0},
        "drifting": {"set_default_client_priority 1": {"tries": 3, "hopeless": True}},
        "exposed": {str(SERVER): AT},
        "sound": [SERVER],
    },
    "problem": "the cat sat on it",
}
INDICATIONS = (Reason(ReasonCode.KILLED_BY_SIGNAL, signal=9), Reason(ReasonCode.UNKNOWN, text="the moon was full"))


@pytest.fixture(params=[4, 5], ids=["version 4", "version 5"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A file of an earlier version with an incident, events and a watchdog state. Version 5 still had some old keys."""
    path = tmp_path / FILE
    open_database(path, MIGRATIONS[: request.param]).close()
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("INSERT INTO incidents VALUES ('one', ?, 1, ?, ?)", (DAEMON, AT, json.dumps(INCIDENT)))
        for each in (EVENT, FAULT):
            connection.execute("INSERT INTO events (at, event) VALUES (?, ?)", (AT, json.dumps(each)))
        row = json.dumps({"daemon": DAEMON, "watch": WATCH})
        connection.execute("INSERT INTO watches VALUES (?, ?, ?)", (DAEMON, AT, row))
    connection.close()
    return path


def execute(file: Path, statement: str, *values: object) -> None:
    connection = sqlite3.connect(file)
    with connection:
        connection.execute(statement, values)
    connection.close()


def opened(file: Path) -> StoredState:
    state_file = StateFile(file.parent, Retention(max_age=1e9), HandClock(AT))
    try:
        return state_file.open()
    finally:
        state_file.close()


def test_translates_every_row_into_codes(file: Path) -> None:
    found = opened(file)
    (incident,), (fault, diagnosed) = found.incidents, found.events
    assert (found.unreadable, found.complete) == (0, True)
    assert incident.suspects[0].indications == INDICATIONS
    assert fault.reason == "suspects", "a word is a code already"
    assert fault.incident is not None
    assert fault.incident.suspects[0].indications == INDICATIONS
    gone = Reason(ReasonCode.PROCESS_GONE, pid=441)
    assert (diagnosed.reason, diagnosed.indications) == (gone, (gone, Reason(ReasonCode.LOG_ENDS_WITHOUT_QUIT)))
    watch = found.watchdog_states[DAEMON]
    assert watch.diagnosis is not None
    assert watch.diagnosis.indications == (
        Reason(ReasonCode.NO_LISTENER),
        Reason(ReasonCode.UNKNOWN, text="a dream"),
    )
    assert watch.acting is not None
    assert (watch.acting.reason, watch.acting.problem) == (ActionReason.UNKNOWN, Reason(ReasonCode.NO_PROGRAM))
    assert [(each.reason, each.count) for each in watch.action_counts] == [(ActionReason.UNKNOWN, 2)]
    would = LastAction(kind=ActionKind.RESTART, reason=ActionReason.CRASHED, begun=False)
    assert (watch.last_action, watch.reason) == (would, None)
    assert watch.problem == Reason(ReasonCode.UNKNOWN, text="the cat sat on it")
    assert watch.diagnosis.process == ProcessIdentity(pid=441, start_ticks=7)
    assert watch.phase is WatchdogPhase.CIRCUIT_OPEN
    times = (watch.circuit_opened_at, watch.state_lost_at, watch.resumed_at, watch.healthy_since)
    assert times == (AT + 1, AT + 2, AT + 3, AT + 4)
    assert watch.escalation == EscalationStep(incident="one", kind=ActionKind.KILL_CLIENTS, at=AT)
    assert watch.wanted_limits == Limits(client_priority=1)
    assert (watch.backoff_for, watch.last_planned) == ("crashed 7.000 1", "act: restart crashed 7.000")
    assert watch.enforcement == LimitEnforcement(
        defaults=Limits(client_priority=0),
        drifts={"set_default_client_priority 1": LimitDrift(tries=3, ineffective=True)},
        unlimited_since={SERVER: AT},
        limited_servers=(SERVER,),
    )


def test_reads_the_former_names_of_an_incidents_fields(file: Path) -> None:
    (incident,) = opened(file).incidents
    client = ClientDetails(pid=600, client="600-a")
    assert incident.block_timestamp == "2026-11-20 14:57:59.920"
    assert [each.bus_id for each in incident.xids] == ["0000:07:00"]
    assert (incident.affected_confirmed, incident.client_details) == (True, {600: client})
    assert incident.clues == Clues(
        early_disconnects=(EarlyDisconnect(pid=600, seconds_before=0.12),),
        in_flight_work=(InFlightWork(pid=600, in_flight=True, seconds_since_launch=0.5),),
        log_unreliable=True,
    )
    assert (incident.disconnected, incident.daemon_missing_since) == ((600,), AT)
    assert (incident.opening_reported, incident.end_reported) == (True, True)
    assert [each.client for each in incident.suspects] == [client]


def test_the_second_start_reads_the_same(file: Path) -> None:
    assert opened(file) == opened(file)


def test_reading_translates_rows_without_changing_the_file(file: Path) -> None:
    before = file.read_bytes()
    incidents, events = read_history(file)
    assert file.read_bytes() == before
    found = opened(file)
    assert (incidents, events) == (found.incidents, found.events)


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("kill clients: fault", LastAction(kind=ActionKind.KILL_CLIENTS, reason=ActionReason.FAULT, begun=True)),
        ("would set limits: new", LastAction(kind=ActionKind.SET_LIMITS, reason=ActionReason.UNKNOWN, begun=False)),
        ("it hangs, which may pass: it is restarted no sooner than after 90 s", ReasonCode.HANG_TOO_RECENT),
        ("would rather not: dance", ReasonCode.UNKNOWN),
    ],
)
def test_translates_the_watchdogs_last_sentence(file: Path, sentence: str, expected: LastAction | ReasonCode) -> None:
    execute(file, "UPDATE watches SET watch = ?", json.dumps({"daemon": DAEMON, "watch": {"said": sentence}}))
    watch = opened(file).watchdog_states[DAEMON]
    assert expected in (watch.last_action, None if watch.reason is None else watch.reason.code)


@pytest.mark.parametrize("row", ["{", "[]", "7", "", b"\xff\xfe\x00", "[" * 100_000])
def test_leaves_an_unreadable_row_as_it_is(file: Path, row: object) -> None:
    execute(file, "UPDATE incidents SET incident = ?", row)
    found = opened(file)
    assert (found.incidents, found.unreadable, len(found.events)) == ((), 1, 2)
    connection = sqlite3.connect(file)
    assert connection.execute("SELECT incident FROM incidents").fetchone() == (row,)
    connection.close()


def test_a_failed_migration_changes_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_connection: sqlite3.Connection) -> None:
        _connection.execute("DELETE FROM watches")
        raise sqlite3.OperationalError("disk I/O error")

    with pytest.raises(sqlite3.OperationalError):
        open_database(file, (*MIGRATIONS[: TRANSLATED_VERSION - 1], fails))
    assert opened(file).watchdog_states


anything: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(sorted({*INCIDENT, *EVENT, *WATCH, "watch", "evidence"})), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(anything)
@pytest.mark.parametrize("translate", [migration.incident, migration.event, migration.watchdog_row])
def test_translates_any_row_without_an_error(translate: Callable[[Any], Any], values: Any) -> None:
    translate(values)
