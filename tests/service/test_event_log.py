"""The exporter's own log has each grave event, and of others a bounded number with a count of the rest."""

import io
import json
from collections.abc import MutableMapping
from dataclasses import replace
from typing import Any

import pytest
import structlog

from exporter import log as service_log
from exporter.log import EventLog
from exporter.model.action import ActionResult
from exporter.model.daemon import Daemon
from exporter.model.event import Event, EventName
from exporter.model.identity import Workload, WorkloadKind
from exporter.model.incident import Incident, IncidentEnd
from exporter.model.node import Node
from exporter.model.observation import SourceReading
from exporter.model.reason import Reason, ReasonCode
from exporter.model.server import ServerState
from exporter.model.watchdog import Condition
from exporter.reducer import reduce
from exporter.report.text import utc_time
from tests.builders import AT, DAEMON, GPU, HANGS, SERVER, UNREADABLE
from tests.clocks import HandClock
from tests.incidents.values import HOSTILE, blocked, crowded, ended, faulted_client, hostile, suspect

# The tests state these values, so that they notice a change of the program's constants.
MAX_RECORDS = 60
PERIOD_SECONDS = 60.0
LONGEST_TEXT = 128

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


LINE_BYTES = 16 * 1024
"""A container runtime splits longer lines of a log."""


def line_of(incident: Incident, name: EventName = EventName.FAULT_RECOVERED) -> str:
    """Return the line that the service writes about an incident."""
    stream = io.StringIO()
    service_log.configure("info", "json", stream)
    EventLog(HandClock()).event(Event(at=AT + 4.25, event=name, daemon=DAEMON, server=SERVER, incident=incident))
    (line,) = stream.getvalue().splitlines()
    assert len(line) < LINE_BYTES
    return line


def test_the_end_of_a_fault_is_one_complete_record() -> None:
    pod = faulted_client(601, workload=Workload(kind=WorkloadKind.POD, name="uid-1"), pod="vllm-0", namespace="ml")
    fault = blocked()
    over = ended(
        client_details={600: fault.client_details[600], 601: pod, 602: replace(pod, pid=602)},
        affected=(600, 601, 602, 603),
        xids=fault.xids * 2,
        suspects=(replace(suspect(601, 0.85), client=pod), suspect(600, 0.15)),
    )

    record = json.loads(line_of(over))

    assert record.pop("timestamp")
    assert record == {
        "event": "incident",
        "level": "warning",
        "incident": over.id,
        "daemon": DAEMON,
        "server": SERVER,
        "kind": "memory",
        "began": utc_time(AT),
        "ended": utc_time(AT + 4.25),
        "ending": "recovered",
        "seconds": 4.25,
        "gpus": [GPU],
        "xids": [31],
        "affected_count": 4,
        "affected_workloads": [
            {"workload": "pod/uid-1", "namespace": "ml", "pod": "vllm-0", "user": "alice", "clients": 2},
            {"workload": "job/42", "user": "alice", "clients": 1},
            {"workload": "pid/603", "clients": 1},
        ],
        "refused_count": 0,
        "suspect_pid": 601,
        "suspect_workload": "pod/uid-1",
        "suspect_namespace": "ml",
        "suspect_pod": "vllm-0",
        "suspect_user": "alice",
        "confidence": 0.85,
    }


def test_an_incident_without_a_suspect_names_none() -> None:
    record = json.loads(line_of(ended()))

    assert not [key for key in record if key.startswith("suspect") or key == "confidence"]


def test_hostile_names_neither_break_nor_lengthen_the_record(subtests: pytest.Subtests) -> None:
    for name in (*HOSTILE, "\N{GRINNING FACE}" * 10_000):
        with subtests.test(name=name[:20]):
            record = json.loads(line_of(replace(hostile(name), ending=IncidentEnd.RECOVERED, ended_at=AT + 4.25)))
            texts = [record["incident"], record["daemon"], record["suspect_workload"], record["suspect_user"]]
            assert all(each.isprintable() and len(each) <= LONGEST_TEXT for each in texts)


def test_a_crowded_fault_fits_into_one_line(subtests: pytest.Subtests) -> None:
    for name in (EventName.FAULT_CHANGED, EventName.FAULT_RECOVERED):
        with subtests.test(name=name):
            record = json.loads(line_of(crowded(name="\N{GRINNING FACE}" * 100), name))
            assert record["incident"]
    assert record["affected_count"] == 400
    assert 0 < len(record["affected_workloads"]) < 400
