"""The exporter's own log has each grave event, and of others a bounded number with a count of the rest."""

from collections.abc import MutableMapping
from typing import Any

import pytest
import structlog

from exporter.loop import MAX_RECORDS, PERIOD_SECONDS, EventLog
from exporter.model.action import ActionResult
from exporter.model.daemon import Daemon
from exporter.model.event import Event, EventName
from exporter.model.node import Node
from exporter.model.observation import SourceReading
from exporter.model.reason import Reason, ReasonCode
from exporter.model.server import ServerState
from exporter.model.watchdog import Condition
from exporter.reducer import reduce
from tests.builders import HANGS, UNREADABLE
from tests.clocks import HandClock

Records = list[MutableMapping[str, Any]]


def logged(events: list[Event], clock: HandClock | None = None) -> Records:
    """The records of these events, and of what is left out of them."""
    clock = clock or HandClock()
    with structlog.testing.capture_logs() as records:
        log = EventLog(clock)
        for event in events:
            log.event(event)
        clock.time += PERIOD_SECONDS
        log.summarize()
        log.summarize(force=True)
    return records


def connected(daemon: str, pid: int) -> Event:
    return Event(at=1.0, event=EventName.CLIENT_CONNECTED, daemon=daemon, pid=pid)


def test_logs_each_of_a_few_events() -> None:
    records = logged([connected("a", pid) for pid in range(MAX_RECORDS)])

    assert [(each["event"], each["pid"]) for each in records] == [
        ("client_connected", pid) for pid in range(MAX_RECORDS)
    ]


def test_logs_a_bounded_number_of_events_and_counts_the_rest() -> None:
    records = logged([connected("a", pid) for pid in range(10_000)])

    assert len(records) == MAX_RECORDS + 1
    assert records[-1] == {
        "event": "records_left_out",
        "log_level": "warning",
        "daemon": "a",
        "name": "client_connected",
        "count": 10_000 - MAX_RECORDS,
        "seconds": PERIOD_SECONDS,
    }


def test_a_flood_does_not_suppress_records_of_another_daemon_or_event() -> None:
    gone = Event(at=1.0, event=EventName.SERVER_EXITED, daemon="a", server=599)
    records = logged([*(connected("a", pid) for pid in range(1000)), connected("b", 7), gone])

    assert [(each["event"], each["daemon"]) for each in records[MAX_RECORDS:-1]] == [
        ("client_connected", "b"),
        ("server_exited", "a"),
    ]


def test_logs_every_urgent_event() -> None:
    urgent_events = [
        Event(at=1.0, event=EventName.FAULT, daemon="a"),
        Event(at=1.0, event=EventName.DAEMON_LOST, daemon="a", reason="died"),
        Event(at=1.0, event=EventName.DAEMON_STOPPED, daemon="a"),
        Event(at=1.0, event=EventName.WATCHDOG_ACTS, daemon="a", action="restart"),
        Event(at=1.0, event=EventName.WATCHDOG_ACTED, daemon="a", action="restart"),
        Event(at=1.0, event=EventName.CIRCUIT_OPENED, daemon="a"),
        Event(at=1.0, event=EventName.SERVER_STATE, daemon="a", state=ServerState.FAULT),
    ]

    records = logged([event for event in urgent_events for _ in range(MAX_RECORDS + 5)])

    assert len(records) == len(urgent_events) * (MAX_RECORDS + 5)


def test_logs_events_again_in_the_next_period() -> None:
    clock = HandClock()
    with structlog.testing.capture_logs() as records:
        log = EventLog(clock)
        for _ in range(3):
            for pid in range(2 * MAX_RECORDS):
                log.event(connected("a", pid))
            clock.time += PERIOD_SECONDS
            log.summarize()

    assert [each["event"] for each in records].count("client_connected") == 3 * MAX_RECORDS
    assert [each["count"] for each in records if each["event"] == "records_left_out"] == [MAX_RECORDS] * 3


def test_forgets_past_periods() -> None:
    clock = HandClock()
    log = EventLog(clock)
    for number in range(100):
        log.event(connected(f"fake{number}", 1))
    clock.time += PERIOD_SECONDS
    log.summarize()

    assert not log._periods


def test_logs_a_collector_problem_of_each_daemon() -> None:
    daemons = {name: Daemon(name=name, pipe_directory=f"/{name}", log_directory="/log") for name in ("a", "b")}
    node, log = Node(daemons=daemons), EventLog(HandClock())
    with structlog.testing.capture_logs() as records:
        for daemon, problem in (("a", HANGS), ("b", UNREADABLE), ("b", None), ("a", None), ("a", None)):
            reading = SourceReading(at=1.0, name="log", seconds=0.1, daemon=daemon, problem=problem)
            before, (node, _) = node, reduce(node, reading)
            log.source(reading, before, node)

    assert [(each["event"], each["daemon"], each.get("problem")) for each in records] == [
        ("source_problem", "a", "still_running"),
        ("source_problem", "b", "permission_denied"),
        ("source_recovered", "b", None),
        ("source_recovered", "a", None),
    ]
    assert records[1]["text"] == "server.log cannot be read: Permission denied"


def test_the_level_of_a_record_is_the_severity_of_its_event(subtests: pytest.Subtests) -> None:
    for event, level in [
        (Event(at=1.0, event=EventName.FAULT), "error"),
        (Event(at=1.0, event=EventName.DAEMON_UP), "info"),
        (Event(at=1.0, event=EventName.CIRCUIT_OPENED), "error"),
        (Event(at=1.0, event=EventName.CIRCUIT_CLOSED), "info"),
        (Event(at=1.0, event=EventName.DAEMON_QUARANTINED), "error"),
        (Event(at=1.0, event=EventName.DAEMON_RELEASED), "info"),
        (Event(at=1.0, event=EventName.WATCHDOG_ACTS), "warning"),
        (Event(at=1.0, event=EventName.WATCHDOG_WOULD_ACT), "info"),
        (Event(at=1.0, event=EventName.WATCHDOG_WAITS), "info"),
        (Event(at=1.0, event=EventName.LIMITS_DRIFTED), "warning"),
        (Event(at=1.0, event=EventName.LIMITS_BYPASSED), "warning"),
        (Event(at=1.0, event=EventName.LIMITS_IN_FORCE), "info"),
        (Event(at=1.0, event=EventName.DAEMON_DIAGNOSED, state=Condition.UNKNOWN), "info"),
        (Event(at=1.0, event=EventName.CLIENT_FAULT_CONTAINED), "warning"),
        (Event(at=1.0, event=EventName.DAEMON_DIAGNOSED, state=Condition.DOWN), "warning"),
        (Event(at=1.0, event=EventName.DAEMON_DIAGNOSED, state=Condition.WELL), "info"),
        (Event(at=1.0, event=EventName.WATCHDOG_ACTED, result=ActionResult.SUCCEEDED), "info"),
        (Event(at=1.0, event=EventName.WATCHDOG_ACTED, result=ActionResult.FAILED), "warning"),
        (Event(at=1.0, event=EventName.WATCHDOG_ACTED, problem=Reason(ReasonCode.NO_RESULT)), "warning"),
    ]:
        with subtests.test(event=event, level=level):
            (record,) = logged([event])

            assert record["log_level"] == level


def test_a_record_has_codes_and_parameters() -> None:
    gone = Reason(ReasonCode.PROCESS_GONE, pid=441)
    event = Event(
        at=1.0,
        event=EventName.DAEMON_DIAGNOSED,
        state=Condition.DOWN,
        reason=gone,
        indications=(gone, Reason(ReasonCode.PID_FILE_LEFT)),
    )
    (record,) = logged([event])

    assert (record["reason"], record["reason_detail"]) == ("process_gone", {"pid": 441})
    assert record["indications"] == [{"code": "process_gone", "pid": 441}, {"code": "pid_file_left"}]


def test_no_event_is_both_urgent_and_frequent() -> None:
    """The log leaves out frequent events, and every urgent one is to be there."""
    assert not [name for name in EventName if name.traits.urgent and name.traits.frequent]
    assert all(name == name.value for name in EventName)
