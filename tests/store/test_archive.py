"""The archive: what is written is there again, within bounds, for its owner alone."""

import os
import sqlite3
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from exporter.errors import HistoryError
from exporter.model.event import EventName
from exporter.model.settings import Retention
from exporter.store.database import FILE, LOADED_INCIDENTS, StateFile, read_history
from tests.builders import AT
from tests.clocks import HandClock
from tests.store.values import event, fault, rich

KEPT = Retention(max_age=100.0, max_incidents=3, max_events=5)


@pytest.fixture
def clock() -> HandClock:
    return HandClock(AT)


@pytest.fixture
def archive(tmp_path: Path, clock: HandClock) -> Iterator[StateFile]:
    """An archive that is open."""
    made = StateFile(tmp_path / "state", KEPT, clock)
    made.open()
    yield made
    made.close()


def again(tmp_path: Path, clock: HandClock) -> StateFile:
    return StateFile(tmp_path / "state", KEPT, clock)


def spoil(tmp_path: Path, statement: str, *values: object) -> None:
    with sqlite3.connect(tmp_path / "state" / FILE) as connection:
        connection.execute(statement, values)
    connection.close()


def test_what_was_written_is_there_at_the_next_start(archive: StateFile, tmp_path: Path, clock: HandClock) -> None:
    archive.write([fault("one", at=AT - 2), rich("two")], [event(AT - 2), event(AT - 1)])
    archive.close()
    found = again(tmp_path, clock)
    remembered = found.open()
    assert remembered.incidents == (rich("two"), fault("one", at=AT - 2))
    assert remembered.events == (event(AT - 1), event(AT - 2))
    assert remembered.unreadable == 0
    found.close()


def test_an_incident_is_one_row_however_often_it_changes(archive: StateFile, tmp_path: Path) -> None:
    archive.write([fault("one")], [])
    archive.write([fault("one", affected=(600,))], [])
    archive.write([fault("one", ended=AT + 1)], [])
    assert read_history(tmp_path / "state")[0] == (fault("one", ended=AT + 1),)


def test_a_fault_is_told_in_its_event_without_the_particulars_of_everybody(archive: StateFile, tmp_path: Path) -> None:
    """Those stand with the incident. What the event tells is the same."""
    opening = event(event=EventName.FAULT_CHANGED, incident=rich())
    archive.write([rich()], [opening])
    _, (kept,) = read_history(tmp_path / "state")
    assert kept.as_json() == opening.as_json()
    assert kept.incident == replace(rich(), client_details={})


def test_ids_that_differ_by_what_sqlite_cannot_write_stay_apart(archive: StateFile, tmp_path: Path) -> None:
    names = {"\udc80", "\\udc80", "a\0b", "a", "a'", 'a"'}
    several = replace(KEPT, max_incidents=9)
    archive._retention = several
    archive.write([fault(name) for name in names], [])
    assert {each.id for each in read_history(tmp_path / "state")[0]} == names


def test_all_or_nothing_is_written(archive: StateFile, tmp_path: Path) -> None:
    with pytest.raises(sqlite3.IntegrityError):
        archive.write([fault("good")], [event(), event(float("nan"))])
    assert read_history(tmp_path / "state") == ((), ())
    archive.write([fault("good")], [event()])
    assert read_history(tmp_path / "state") == ((fault("good"),), (event(),))


# -- how much is kept -------------------------------------------------------------------------------------------------


def test_what_is_too_old_is_forgotten_but_what_is_open(archive: StateFile, tmp_path: Path, clock: HandClock) -> None:
    archive.write([fault("open"), fault("over", ended=AT + 1)], [event(AT)])
    clock.time += KEPT.max_age + 1
    archive.write([], [event(clock.time)])
    assert read_history(tmp_path / "state") == ((fault("open"),), (event(clock.time),))


def test_of_too_many_the_oldest_are_forgotten_and_those_that_are_open_last(archive: StateFile, tmp_path: Path) -> None:
    over = [fault(f"over{n}", at=AT + n, ended=AT + n) for n in range(5)]
    archive.write([fault("open", at=AT - 9), *over], [])
    kept, _ = read_history(tmp_path / "state")
    assert [each.id for each in kept] == ["over4", "over3", "open"]


def test_of_too_many_those_of_one_daemon_put_out_none_of_another(archive: StateFile, tmp_path: Path) -> None:
    """It may be an ordinary user's, which says what it likes."""
    forged = [fault(f"forged{n}", daemon="/tmp/mine", at=AT + n) for n in range(9)]
    archive.write([fault("true", at=AT - 9, ended=AT)], [])
    archive.write(forged, [])
    kept, _ = read_history(tmp_path / "state")
    assert [each.id for each in kept] == ["forged8", "forged7", "true"]


def test_a_start_takes_no_more_than_it_has_time_for_and_all_that_is_open(tmp_path: Path, clock: HandClock) -> None:
    found = StateFile(tmp_path / "state", Retention(), clock)
    found.open()
    over = [fault(f"over{n}", at=AT + n, ended=AT + n) for n in range(LOADED_INCIDENTS + 9)]
    found.write([fault("open", at=AT - 9), *over], [])
    found.close()
    loaded = found.open().incidents
    assert (len(loaded), loaded[0].id, loaded[-1].id) == (LOADED_INCIDENTS, over[-1].id, "open")
    assert len(read_history(tmp_path / "state")[0]) == len(over) + 1
    found.close()


def test_of_too_many_events_the_last_are_kept(archive: StateFile, tmp_path: Path) -> None:
    for n in range(12):
        archive.write([], [event(AT + n)])
    _, kept = read_history(tmp_path / "state")
    assert [each.at for each in kept] == [AT + n for n in (11, 10, 9, 8, 7)]


# -- rows that cannot be read -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", ["{", "[]", "7", "", "{}", b"\xff\xfe\x00", "[" * 100_000, 5, '{"id": 7}'])
def test_a_row_that_cannot_be_read_is_passed_over_and_counted(
    row: object, archive: StateFile, tmp_path: Path, clock: HandClock
) -> None:
    archive.write([fault("good"), fault("bad", at=AT - 1)], [event(AT), event(AT + 1)])
    archive.close()
    spoil(tmp_path, "UPDATE incidents SET incident = ? WHERE id = 'bad'", row)
    spoil(tmp_path, "UPDATE events SET event = ? WHERE number = 1", row)
    found = again(tmp_path, clock)
    remembered = found.open()
    assert (remembered.incidents, remembered.events) == ((fault("good"),), (event(AT + 1),))
    assert remembered.unreadable == 2
    found.close()


# -- whose it is ------------------------------------------------------------------------------------------------------


def test_it_is_for_its_owner_alone(tmp_path: Path, clock: HandClock) -> None:
    """It names users and workloads."""
    before = os.umask(0)
    archive = again(tmp_path, clock)
    archive.open()
    os.umask(before)
    archive.write([fault()], [event()])
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in (tmp_path / "state").iterdir()}
    assert set(modes.values()) == {0o600}
    assert {FILE, f"{FILE}-wal"} <= modes.keys()
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700
    archive.close()


def test_a_second_exporter_is_told_of_the_first_and_changes_nothing(
    archive: StateFile, tmp_path: Path, clock: HandClock
) -> None:
    archive.write([fault()], [event()])
    second = again(tmp_path, clock)
    with pytest.raises(OSError, match="another exporter uses this state directory"):
        second.open()
    archive.write([fault(affected=(600,))], [])
    archive.close()
    assert second.open().incidents == (fault(affected=(600,)),)
    second.close()


@pytest.mark.parametrize("place", ["none/deeper", "file"])
def test_a_directory_that_cannot_be_had_is_an_error_that_says_so(place: str, tmp_path: Path, clock: HandClock) -> None:
    (tmp_path / "file").touch()
    archive = StateFile(tmp_path / place, KEPT, clock)
    with pytest.raises(OSError, match=r"No such file|File exists|Not a directory"):
        archive.open()
    assert not archive.is_open


# -- without a running service ----------------------------------------------------------------------------------------


def test_it_goes_on_beside_a_writer_and_sees_what_is_committed(archive: StateFile, tmp_path: Path) -> None:
    for n in range(3):
        archive.write([fault(f"{n}", at=AT + n)], [event(AT + n)])
        incidents, events = read_history(tmp_path / "state")
        assert (len(incidents), len(events)) == (n + 1, n + 1)


def test_it_changes_nothing(archive: StateFile, tmp_path: Path) -> None:
    archive.write([fault()], [event()])
    archive.close()
    before = (tmp_path / "state" / FILE).read_bytes()
    read_history(tmp_path / "state" / FILE)
    assert (tmp_path / "state" / FILE).read_bytes() == before


def test_where_there_is_none_it_says_so_and_makes_none(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match=f"{FILE}: No such file"):
        read_history(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_a_later_version_wrote_it_leaves_alone(archive: StateFile, tmp_path: Path) -> None:
    archive.close()
    spoil(tmp_path, "PRAGMA user_version = 99")
    with pytest.raises(HistoryError, match="a later version"):
        read_history(tmp_path / "state")


def test_what_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"nonsense" * 1000)
    with pytest.raises(HistoryError, match="file is not a database"):
        read_history(tmp_path)
