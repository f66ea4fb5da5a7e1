"""The state file: what it retains, who can read it, and how it is read."""

import os
import sqlite3
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from exporter.errors import HistoryError
from exporter.history import MAX_SAMPLES, SAMPLE_SECONDS, Sample
from exporter.model.event import EventName
from exporter.model.incident import Clues
from exporter.model.settings import Retention
from exporter.store.database import FILE, LOADED_INCIDENTS, StateFile, read_history
from tests.builders import AT, DAEMON
from tests.clocks import HandClock
from tests.store.values import RETENTION, event, fault, query, reopened, rich


def test_the_next_start_loads_what_was_written_last(state_file: StateFile) -> None:
    for incident in (fault("one", at=AT - 2, affected=(600,)), fault("one", at=AT - 2), rich("two")):
        state_file.write([incident])
    state_file.write([event(AT - 2), event(AT - 1)])
    stored = reopened(state_file)
    assert stored.incidents == (rich("two"), fault("one", at=AT - 2))
    assert stored.events == (event(AT - 1), event(AT - 2))
    assert stored.unreadable == 0


def test_an_event_is_stored_without_the_details_of_clients(state_file: StateFile, tmp_path: Path) -> None:
    """The incident has them. The event's JSON is the same."""
    opening = event(event=EventName.FAULT_CHANGED, incident=rich())
    state_file.write([rich(), opening])
    _, (stored,) = read_history(tmp_path)
    assert stored.as_json() == opening.as_json()
    assert stored.incident == replace(rich(), client_details={}, clues=Clues())


def test_distinguishes_ids_that_sqlite_cannot_store(tmp_path: Path, clock: HandClock) -> None:
    state_file = StateFile(tmp_path, Retention(), clock)
    state_file.open()
    names = {"\udc80", "\\udc80", "a\0b", "a", "a'", 'a"'}
    state_file.write([fault(name) for name in names])
    assert {incident.id for incident in read_history(tmp_path)[0]} == names
    state_file.close()


def test_an_invalid_value_costs_no_other_value(state_file: StateFile, tmp_path: Path) -> None:
    """A defect may produce one."""
    invalid = event(float("nan"))
    refused = state_file.write([fault("good"), invalid, event(), Sample(at=float("inf"))])
    assert [type(value).__name__ for value, _ in refused] == ["Event", "Sample"]
    assert refused[0][0] is invalid
    assert read_history(tmp_path) == ((fault("good"),), (event(),))


def test_writes_all_or_nothing(state_file: StateFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr("exporter.store.database.trim", fail)
        with pytest.raises(sqlite3.OperationalError):
            state_file.write([fault("one"), event()])
    assert read_history(tmp_path) == ((), ())
    state_file.write([fault("one"), event()])
    assert read_history(tmp_path) == ((fault("one"),), (event(),))


# -- retention -----------------------------------------------------------------------------------------------------


def test_deletes_old_events_and_ended_incidents(state_file: StateFile, tmp_path: Path, clock: HandClock) -> None:
    state_file.write([fault("open"), fault("over", ended=AT + 1), event(AT)])
    clock.time += RETENTION.max_age + 1
    state_file.write([event(clock.time)])
    assert read_history(tmp_path) == ((fault("open"),), (event(clock.time),))


def test_deletes_the_oldest_incidents_and_open_ones_last(state_file: StateFile, tmp_path: Path) -> None:
    over = [fault(f"over{n}", at=AT + n, ended=AT + n) for n in range(5)]
    state_file.write([fault("open", at=AT - 9), *over])
    assert [incident.id for incident in read_history(tmp_path)[0]] == ["over4", "over3", "open"]


def test_incidents_of_one_daemon_displace_none_of_another(state_file: StateFile, tmp_path: Path) -> None:
    """An ordinary user's daemon may log anything."""
    state_file.write([fault("true", at=AT - 9, ended=AT)])
    state_file.write([fault(f"forged{n}", daemon="/tmp/mine", at=AT + n) for n in range(9)])
    assert [incident.id for incident in read_history(tmp_path)[0]] == ["forged8", "forged7", "true"]


def test_incidents_of_fake_daemons_displace_none_of_an_expected_one(state_file: StateFile, tmp_path: Path) -> None:
    state_file.write([fault("true", at=AT - 9, ended=AT)], expected={DAEMON})
    fakes = [fault(f"forged{n}", daemon=f"/tmp/{n}", at=AT + n, ended=AT + n) for n in range(9)]
    state_file.write(fakes, expected={DAEMON})
    assert "true" in [incident.id for incident in read_history(tmp_path)[0]]


def test_deletes_one_tenth_more_than_it_must_so_that_it_does_so_seldom(tmp_path: Path, clock: HandClock) -> None:
    state_file, counts = StateFile(tmp_path, Retention(max_age=1e9, max_events=20), clock), []
    state_file.open()
    for n in range(24):
        state_file.write([event(AT + n)])
        counts += query(tmp_path, "SELECT count(*) FROM events")
    assert [count for (count,) in counts] == [*range(1, 21), 18, 19, 20, 18]
    state_file.close()


def test_a_start_loads_a_limited_number_and_all_open_incidents(tmp_path: Path, clock: HandClock) -> None:
    state_file = StateFile(tmp_path, Retention(), clock)
    state_file.open()
    over = [fault(f"over{n}", at=AT + n, ended=AT + n) for n in range(LOADED_INCIDENTS + 9)]
    state_file.write([fault("open", at=AT - 9), *over])
    loaded = reopened(state_file).incidents
    assert (len(loaded), loaded[0].id, loaded[-1].id) == (LOADED_INCIDENTS, over[-1].id, "open")
    assert len(read_history(tmp_path)[0]) == len(over) + 1
    state_file.close()


def test_retains_the_last_events(state_file: StateFile, tmp_path: Path) -> None:
    for n in range(12):
        state_file.write([event(AT + n)])
    assert [stored.at for stored in read_history(tmp_path)[1]] == [AT + n for n in (11, 10, 9, 8, 7)]


def test_skips_and_counts_unreadable_rows(state_file: StateFile, tmp_path: Path, subtests: pytest.Subtests) -> None:
    state_file.write([fault("good"), fault("bad", at=AT - 1), event(AT), event(AT + 1)])
    for row in ["{", "[]", "7", "", "{}", b"\xff\xfe\x00", "[" * 100_000, 5, '{"id": 7}']:
        with subtests.test(row=str(row)[:9]):
            state_file.close()
            query(tmp_path, "UPDATE incidents SET json = ? WHERE id = '\"bad\"'", row)
            query(tmp_path, "UPDATE events SET json = ? WHERE number = 1", row)
            stored = state_file.open()
            assert (stored.incidents, stored.events, stored.unreadable) == ((fault("good"),), (event(AT + 1),), 2)
            assert stored.complete, "it has all watchdog states"


# -- owner and lock ------------------------------------------------------------------------------------------------


def test_only_the_owner_can_read_the_files(tmp_path: Path, clock: HandClock) -> None:
    """It contains users and workloads."""
    directory = tmp_path / "state"
    before = os.umask(0)
    state_file = StateFile(directory, RETENTION, clock)
    state_file.open()
    os.umask(before)
    state_file.write([fault(), event()])
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in directory.iterdir()}
    assert set(modes.values()) == {0o600}
    assert {FILE, f"{FILE}-wal"} <= modes.keys()
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    state_file.close()


def test_refuses_a_second_exporter(state_file: StateFile, tmp_path: Path, clock: HandClock) -> None:
    second = StateFile(tmp_path, RETENTION, clock)
    with pytest.raises(OSError, match="another exporter uses this state directory"):
        second.open()
    state_file.write([fault()])
    state_file.close()
    assert second.open().incidents == (fault(),)
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
        state_file.write([fault(f"{n}", at=AT + n), event(AT + n)])
        incidents, events = read_history(tmp_path)
        assert (len(incidents), len(events)) == (n + 1, n + 1)
    state_file.close()
    before = (tmp_path / FILE).read_bytes()
    read_history(tmp_path / FILE)
    assert (tmp_path / FILE).read_bytes() == before, "reading changes nothing"


def test_reading_creates_no_file(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match=f"{FILE}: No such file"):
        read_history(tmp_path)
    assert list(tmp_path.iterdir()) == []


# -- samples -------------------------------------------------------------------------------------------------------


def samples(*numbers: int) -> tuple[Sample, ...]:
    return tuple(
        Sample(at=AT + SAMPLE_SECONDS * number, clients=number, memory_ratio=0.375 if number % 2 else None)
        for number in numbers
    )


def test_the_next_start_loads_the_samples_of_the_last_hour(
    state_file: StateFile, tmp_path: Path, clock: HandClock
) -> None:
    for sample in samples(*range(3 * MAX_SAMPLES)):
        clock.time = sample.at
        state_file.write([sample])
    clock.time += SAMPLE_SECONDS
    assert reopened(state_file).samples == samples(*range(2 * MAX_SAMPLES, 3 * MAX_SAMPLES))
    ((count,),) = query(tmp_path, "SELECT count(*) FROM samples")
    assert count == MAX_SAMPLES + 1


def test_samples_of_the_future_are_deleted_when_the_clock_was_set_back(state_file: StateFile, clock: HandClock) -> None:
    clock.time = AT + 3000
    state_file.write(samples(1, 2, 9))
    clock.time = AT + 3.5 * SAMPLE_SECONDS
    state_file.write(samples(3))
    clock.time = AT + 3000
    assert reopened(state_file).samples == samples(1, 2, 3)


def test_an_unreadable_sample_is_a_gap(state_file: StateFile, tmp_path: Path, clock: HandClock) -> None:
    clock.time = AT + 100
    state_file.write(samples(1, 2))
    state_file.close()
    query(tmp_path, "UPDATE samples SET json = ? WHERE slot = ?", b"\xff{", samples(1)[0].slot)
    stored = state_file.open()
    assert (stored.samples, stored.unreadable) == (samples(2), 1)
