"""Events of one daemon, or of any number of fake daemons, displace no event of another daemon."""

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from exporter.history import History
from exporter.model.daemon import Daemon, Declaration
from exporter.model.event import Event, EventName
from exporter.model.node import Node, select_fairly
from exporter.model.settings import Retention
from exporter.store.database import StateFile, StoredState, read_history
from exporter.store.writer import Writer
from tests.builders import AT
from tests.clocks import HandClock
from tests.eventually import PATIENCE_SECONDS
from tests.incidents.values import ended
from tests.store.values import query

# The tests state these values, so that they notice a change of the program's constants.
MAX_EVENTS = 1000
MAX_TIMELINE = 200
SPARE = 10
LOADED_EVENTS = 1000
MAX_WAITING = 1000

FLOOD = 6_000
CYCLE = 500
"""How many events one cycle adds."""
KEPT = Retention(max_age=1e9, max_events=2_000)
"""Less than in the program, so that a smaller flood suffices."""

LOST = Event(at=AT, event=EventName.DAEMON_LOST, daemon="b", reason="died")
XID = Event(at=AT, event=EventName.GPU_XID, gpu="GPU-1", xid=31)


def daemon(name: str) -> Daemon:
    declared = Declaration(expected=True)
    return Daemon(name=name, pipe_directory=f"/{name}", log_directory="/log", declared=declared)


def node(*expected: str) -> Node:
    return Node(daemons={name: daemon(name) for name in expected})


def flood(daemon: str, count: int = FLOOD) -> list[list[Event]]:
    events = [Event(at=AT + n, event=EventName.CLIENT_CONNECTED, daemon=daemon, pid=n) for n in range(count)]
    return [events[begin : begin + CYCLE] for begin in range(0, count, CYCLE)]


def fakes(count: int) -> list[list[Event]]:
    return [
        [Event(at=AT + n, event=EventName.DAEMON_UP, daemon=f"/tmp/{n}-{number}") for number in range(20)]
        for n in range(count // 20)
    ]


every_flood = pytest.mark.parametrize(
    ("expected", "cycles"),
    [
        (("a", "b"), flood("a")),
        (("b",), flood("a")),
        ((), flood("a")),
        (("b",), fakes(6_000)),
        (("b", *map(str, range(63))), [cycle for n in range(63) for cycle in flood(str(n), 100)]),
    ],
    ids=["of an expected daemon", "of another daemon", "none is expected", "of fake daemons", "of 63 daemons"],
)


@every_flood
def test_a_flood_displaces_no_event_of_another_daemon_in_memory(
    expected: Sequence[str], cycles: list[list[Event]]
) -> None:
    history, present = History(), node(*expected)
    history.add(present, (LOST, XID))
    for cycle in cycles:
        history.add(present, cycle)

    assert LOST in history.events
    assert len(history.events) <= MAX_EVENTS + MAX_EVENTS // SPARE
    assert history.events[0].at == max(cycle[-1].at for cycle in cycles[-1:])


@every_flood
def test_a_flood_displaces_no_event_of_another_daemon_in_the_file(
    expected: Sequence[str], cycles: list[list[Event]], tmp_path: Path
) -> None:
    state_file = StateFile(tmp_path, KEPT, HandClock(AT))
    state_file.open()
    state_file.write([LOST, XID], expected=expected)
    for begin in range(0, len(cycles), 20):
        batch = [event for cycle in cycles[begin : begin + 20] for event in cycle]
        state_file.write(batch, expected=expected)
    state_file.close()

    _, stored = read_history(tmp_path)
    assert {LOST, XID} <= set(stored)
    assert len(stored) <= KEPT.max_events
    # A start takes fewer of them.
    loaded = state_file.open().events
    assert LOST in loaded
    assert list(loaded) == [event for event in stored if event in set(loaded)]
    state_file.close()


@every_flood
def test_a_flood_displaces_no_event_of_another_daemon_while_the_disk_hangs(
    expected: Sequence[str], cycles: list[list[Event]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("exporter.store.writer.CLOSE_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr("exporter.store.writer.LOAD_SECONDS", 0.0)
    clock, present, answers = HandClock(AT), node(*expected), threading.Event()

    class Slow(StateFile):
        def open(self) -> StoredState:
            answers.wait(PATIENCE_SECONDS)
            return super().open()

    writer = Writer(Slow(tmp_path, KEPT, clock), clock)
    writer.open()
    writer.add(present, (LOST, XID))
    for cycle in cycles:
        writer.add(present, cycle)
    answers.set()
    writer.close()

    _, stored = read_history(tmp_path)
    assert LOST in stored
    assert len(stored) <= MAX_WAITING
    assert len(stored) + writer.status.events_dropped == 2 + sum(map(len, cycles))


def test_many_incidents_of_one_daemon_displace_none_of_another() -> None:
    history = History(max_incidents=10)
    true = ended(id="true", daemon="b", detected_at=AT - 1)
    forged = [ended(id=f"forged{n}", daemon="a", detected_at=AT + n) for n in range(50)]
    history.add(replace(node("b"), incidents={incident.id: incident for incident in (true, *forged)}), ())

    assert [incident.id for incident in history.incidents] == [f"forged{n}" for n in range(49, 40, -1)] + ["true"]


def test_selects_a_share_for_each_daemon() -> None:
    """An unused one is available to other daemons. Discovered daemons together have at most half."""
    values = [("a", n) for n in range(100)] + [("b", 0), ("c", 0)]
    selected = select_fairly(values, 10, lambda value: value[0], {"a", "b"})
    assert selected == (*(("a", n) for n in range(8)), ("b", 0), ("c", 0))

    values = [(f"fake{n}", n) for n in range(100)] + [("a", n) for n in range(100)]
    selected = select_fairly(values, 10, lambda value: value[0], {"a"})
    assert selected == (*((f"fake{n}", n) for n in range(5)), *(("a", n) for n in range(5)))


def test_other_events_do_not_displace_those_of_the_timeline(tmp_path: Path) -> None:
    history, late = History(), replace(LOST, at=AT + FLOOD - 3000)
    state_file = StateFile(tmp_path, Retention(max_age=1e9), HandClock(AT + FLOOD))
    state_file.open()
    history.add(node("b"), [LOST])
    state_file.write([late])
    for cycle in flood("b", 2 * LOADED_EVENTS):
        history.add(node("b"), cycle)
        state_file.write(cycle)
    state_file.close()

    assert LOST not in history.events
    assert history.timeline == (LOST,)
    assert late in state_file.open().events
    state_file.close()


def test_refused_clients_do_not_displace_other_events_of_the_timeline() -> None:
    history = History()
    history.add(node("b"), [LOST, XID])
    for cycle in flood("b", 10_000):
        history.add(node("b"), [replace(event, event=EventName.CLIENT_REFUSED) for event in cycle])

    assert {LOST, XID} <= set(history.timeline)
    assert len(history.timeline) <= 2 * MAX_TIMELINE


def test_a_row_that_is_no_event_does_not_prevent_the_start(tmp_path: Path) -> None:
    state_file = StateFile(tmp_path, KEPT, HandClock(AT))
    state_file.open()
    state_file.write([LOST])
    state_file.close()
    for row in ("{", b"\xff", "[]"):
        query(tmp_path, "INSERT INTO events VALUES (NULL, ?, ?, 0, 1, ?)", AT, b"\xff", row)

    stored = state_file.open()
    assert (stored.events, stored.unreadable) == ((LOST,), 3)
    state_file.close()
