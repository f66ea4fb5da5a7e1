"""The state file: what it retains, who can read it, and how it is read."""

import os
import sqlite3
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from exporter.errors import HistoryError
from exporter.model.event import EventName
from exporter.model.identity import Workload, WorkloadKind
from exporter.model.settings import Retention
from exporter.model.usage import MAX_SAMPLES, SAMPLE_SECONDS, Division, Sample, WorkloadPart
from exporter.store.database import FILE, LOADED_INCIDENTS, StateFile, read_history
from tests.builders import AT
from tests.clocks import HandClock
from tests.store.values import HOSTILE, event, fault, rich

HOSTILE_WORKLOAD = Workload(kind=WorkloadKind.USER, name=HOSTILE)
RETENTION = Retention(max_age=100.0, max_incidents=3, max_events=5)


@pytest.fixture
def clock() -> HandClock:
    return HandClock(AT)


@pytest.fixture
def state_file(tmp_path: Path, clock: HandClock) -> Iterator[StateFile]:
    """An open state file."""
    made = StateFile(tmp_path / "state", RETENTION, clock)
    made.open()
    yield made
    made.close()


def closed_state_file(tmp_path: Path, clock: HandClock) -> StateFile:
    return StateFile(tmp_path / "state", RETENTION, clock)


def execute(tmp_path: Path, statement: str, *values: object) -> None:
    with sqlite3.connect(tmp_path / "state" / FILE) as connection:
        connection.execute(statement, values)
    connection.close()


def test_the_next_start_loads_what_was_written(state_file: StateFile, tmp_path: Path, clock: HandClock) -> None:
    state_file.write([fault("one", at=AT - 2), rich("two")], [event(AT - 2), event(AT - 1)])
    state_file.close()
    found = closed_state_file(tmp_path, clock)
    stored = found.open()
    assert stored.incidents == (rich("two"), fault("one", at=AT - 2))
    assert stored.events == (event(AT - 1), event(AT - 2))
    assert stored.unreadable == 0
    found.close()


def test_a_changed_incident_replaces_its_row(state_file: StateFile, tmp_path: Path) -> None:
    state_file.write([fault("one")], [])
    state_file.write([fault("one", affected=(600,))], [])
    state_file.write([fault("one", ended=AT + 1)], [])
    assert read_history(tmp_path / "state")[0] == (fault("one", ended=AT + 1),)


def test_an_event_is_stored_without_the_details_of_clients(state_file: StateFile, tmp_path: Path) -> None:
    """The incident has them. The event's JSON is the same."""
    opening = event(event=EventName.FAULT_CHANGED, incident=rich())
    state_file.write([rich()], [opening])
    _, (found,) = read_history(tmp_path / "state")
    assert found.as_json() == opening.as_json()
    assert found.incident == replace(rich(), client_details={})


def test_distinguishes_ids_that_sqlite_cannot_store(state_file: StateFile, tmp_path: Path) -> None:
    names = {"\udc80", "\\udc80", "a\0b", "a", "a'", 'a"'}
    several = replace(RETENTION, max_incidents=9)
    state_file._retention = several
    state_file.write([fault(name) for name in names], [])
    assert {each.id for each in read_history(tmp_path / "state")[0]} == names


def test_writes_all_or_nothing(state_file: StateFile, tmp_path: Path) -> None:
    with pytest.raises(sqlite3.IntegrityError):
        state_file.write([fault("good")], [event(), event(float("nan"))])
    assert read_history(tmp_path / "state") == ((), ())
    state_file.write([fault("good")], [event()])
    assert read_history(tmp_path / "state") == ((fault("good"),), (event(),))


# -- retention -----------------------------------------------------------------------------------------------------


def test_deletes_old_events_and_ended_incidents(state_file: StateFile, tmp_path: Path, clock: HandClock) -> None:
    state_file.write([fault("open"), fault("over", ended=AT + 1)], [event(AT)])
    clock.time += RETENTION.max_age + 1
    state_file.write([], [event(clock.time)])
    assert read_history(tmp_path / "state") == ((fault("open"),), (event(clock.time),))


def test_deletes_the_oldest_incidents_and_open_ones_last(state_file: StateFile, tmp_path: Path) -> None:
    over = [fault(f"over{n}", at=AT + n, ended=AT + n) for n in range(5)]
    state_file.write([fault("open", at=AT - 9), *over], [])
    found, _ = read_history(tmp_path / "state")
    assert [each.id for each in found] == ["over4", "over3", "open"]


def test_incidents_of_one_daemon_displace_none_of_another(state_file: StateFile, tmp_path: Path) -> None:
    """An ordinary user's daemon may log anything."""
    forged = [fault(f"forged{n}", daemon="/tmp/mine", at=AT + n) for n in range(9)]
    state_file.write([fault("true", at=AT - 9, ended=AT)], [])
    state_file.write(forged, [])
    found, _ = read_history(tmp_path / "state")
    assert [each.id for each in found] == ["forged8", "forged7", "true"]


def test_a_start_loads_a_limited_number_and_all_open_incidents(tmp_path: Path, clock: HandClock) -> None:
    found = StateFile(tmp_path / "state", Retention(), clock)
    found.open()
    over = [fault(f"over{n}", at=AT + n, ended=AT + n) for n in range(LOADED_INCIDENTS + 9)]
    found.write([fault("open", at=AT - 9), *over], [])
    found.close()
    loaded = found.open().incidents
    assert (len(loaded), loaded[0].id, loaded[-1].id) == (LOADED_INCIDENTS, over[-1].id, "open")
    assert len(read_history(tmp_path / "state")[0]) == len(over) + 1
    found.close()


def test_retains_the_last_events(state_file: StateFile, tmp_path: Path) -> None:
    for n in range(12):
        state_file.write([], [event(AT + n)])
    _, found = read_history(tmp_path / "state")
    assert [each.at for each in found] == [AT + n for n in (11, 10, 9, 8, 7)]


# -- unreadable rows -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", ["{", "[]", "7", "", "{}", b"\xff\xfe\x00", "[" * 100_000, 5, '{"id": 7}'])
def test_skips_and_counts_an_unreadable_row(
    row: object, state_file: StateFile, tmp_path: Path, clock: HandClock
) -> None:
    state_file.write([fault("good"), fault("bad", at=AT - 1)], [event(AT), event(AT + 1)])
    state_file.close()
    execute(tmp_path, "UPDATE incidents SET incident = ? WHERE id = 'bad'", row)
    execute(tmp_path, "UPDATE events SET event = ? WHERE number = 1", row)
    found = closed_state_file(tmp_path, clock)
    stored = found.open()
    assert (stored.incidents, stored.events) == ((fault("good"),), (event(AT + 1),))
    assert stored.unreadable == 2
    found.close()


# -- owner and lock ------------------------------------------------------------------------------------------------


def test_only_the_owner_can_read_the_files(tmp_path: Path, clock: HandClock) -> None:
    """It contains users and workloads."""
    before = os.umask(0)
    state_file = closed_state_file(tmp_path, clock)
    state_file.open()
    os.umask(before)
    state_file.write([fault()], [event()])
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in (tmp_path / "state").iterdir()}
    assert set(modes.values()) == {0o600}
    assert {FILE, f"{FILE}-wal"} <= modes.keys()
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700
    state_file.close()


def test_refuses_a_second_exporter(state_file: StateFile, tmp_path: Path, clock: HandClock) -> None:
    state_file.write([fault()], [event()])
    second = closed_state_file(tmp_path, clock)
    with pytest.raises(OSError, match="another exporter uses this state directory"):
        second.open()
    state_file.write([fault(affected=(600,))], [])
    state_file.close()
    assert second.open().incidents == (fault(affected=(600,)),)
    second.close()


@pytest.mark.parametrize("place", ["none/deeper", "file"])
def test_raises_an_error_for_an_unusable_directory(place: str, tmp_path: Path, clock: HandClock) -> None:
    (tmp_path / "file").touch()
    state_file = StateFile(tmp_path / place, RETENTION, clock)
    with pytest.raises(OSError, match=r"No such file|File exists|Not a directory"):
        state_file.open()
    assert not state_file.is_open


# -- reading without a running service -----------------------------------------------------------------------------


def test_reads_committed_rows_while_another_process_writes(state_file: StateFile, tmp_path: Path) -> None:
    for n in range(3):
        state_file.write([fault(f"{n}", at=AT + n)], [event(AT + n)])
        incidents, events = read_history(tmp_path / "state")
        assert (len(incidents), len(events)) == (n + 1, n + 1)


def test_reading_changes_nothing(state_file: StateFile, tmp_path: Path) -> None:
    state_file.write([fault()], [event()])
    state_file.close()
    before = (tmp_path / "state" / FILE).read_bytes()
    read_history(tmp_path / "state" / FILE)
    assert (tmp_path / "state" / FILE).read_bytes() == before


def test_reading_creates_no_file(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match=f"{FILE}: No such file"):
        read_history(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_refuses_to_read_a_file_of_another_schema(state_file: StateFile, tmp_path: Path) -> None:
    state_file.close()
    execute(tmp_path, "PRAGMA user_version = 99")
    with pytest.raises(HistoryError, match="another version"):
        read_history(tmp_path / "state")


def test_refuses_to_read_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"nonsense" * 1000)
    with pytest.raises(HistoryError, match="file is not a database"):
        read_history(tmp_path)


def samples(*numbers: int) -> tuple[Sample, ...]:
    division = Division(capacity=2.0, parts=(WorkloadPart(workload=HOSTILE_WORKLOAD, amount=0.5),), rest=0.25)
    return tuple(
        Sample(at=AT + SAMPLE_SECONDS * number, clients=number, memory=division if number % 2 else None)
        for number in numbers
    )


def test_the_next_start_loads_the_samples_of_the_last_hour(tmp_path: Path, clock: HandClock) -> None:
    state_file = closed_state_file(tmp_path, clock)
    assert state_file.open().samples == ()
    for each in samples(*range(3 * MAX_SAMPLES)):
        state_file.write([], [], samples=(each,))
    state_file.close()
    clock.time = AT + SAMPLE_SECONDS * 3 * MAX_SAMPLES

    assert state_file.open().samples == samples(*range(2 * MAX_SAMPLES, 3 * MAX_SAMPLES))
    state_file.close()
    with sqlite3.connect(tmp_path / "state" / FILE) as connection:
        (count,) = connection.execute("SELECT count(*) FROM samples").fetchone()
    connection.close()
    assert count <= MAX_SAMPLES + 1


def test_samples_later_than_a_new_one_are_deleted(tmp_path: Path, clock: HandClock) -> None:
    state_file = closed_state_file(tmp_path, clock)
    state_file.open()
    state_file.write([], [], samples=samples(1, 2, 9))
    state_file.write([], [], samples=samples(3))
    state_file.close()
    clock.time = AT + 3000

    assert state_file.open().samples == samples(1, 2, 3)
    state_file.close()


def test_an_unreadable_sample_is_a_gap(tmp_path: Path, clock: HandClock) -> None:
    state_file = closed_state_file(tmp_path, clock)
    state_file.open()
    state_file.write([], [], samples=samples(1, 2))
    state_file.close()
    execute(tmp_path, "UPDATE samples SET sample = ? WHERE slot = ?", b"\xff{", samples(1)[0].slot)
    clock.time = AT + 100

    found = state_file.open()
    assert (found.samples, found.unreadable) == (samples(2), 1)
    state_file.close()
