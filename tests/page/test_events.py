"""The events before now: which are shown, in which words, and how they are bounded."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from exporter.model.action import ActionResult
from exporter.model.daemon import StopReason
from exporter.model.event import Event, EventName
from exporter.model.incident import IncidentEnd, IncidentKind
from exporter.model.reason import Reason, ReasonCode
from exporter.page.events import Row, event_rows
from exporter.report.document_parts import Severity
from exporter.view import StatusInput
from tests.builders import AT, DAEMON, GPU, incident
from tests.page.inputs import busy, fault

# The tests state these values, so that they notice a change of the program's constants.
MOST_ROWS = 40

REFUSED = Event(at=AT, event=EventName.CLIENT_REFUSED, daemon=DAEMON, pid=601, reason="limit")


def shown(events: Iterable[Event], given: StatusInput | None = None, *, began: float | None = None) -> Sequence[Row]:
    given = replace(given or busy(), events=tuple(events))
    return event_rows(replace(given, node=replace(given.node, began_at=began)))


def test_shows_events_newest_first_without_connections() -> None:
    found = shown(reversed(busy().events))
    assert [(each.about, each.words) for each in found] == [
        (DAEMON, "the watchdog would restart the daemon; it was down"),
        (DAEMON, "the daemon died"),
        (DAEMON, "the daemon answers"),
    ]


def test_shows_the_result_of_an_action() -> None:
    done = Event(
        at=AT,
        event=EventName.WATCHDOG_ACTED,
        daemon=DAEMON,
        action="restart",
        reason="down",
        result=ActionResult.FAILED,
        problem=Reason(ReasonCode.UNIT_NOT_RESTARTED, unit="a.service", text="no"),
    )
    (row,) = shown([done])
    assert row.words == (
        "the watchdog finished: restart the daemon; failed; it was down; systemctl could not restart a.service: no"
    )
    assert row.severity is Severity.WARNING
    assert shown([replace(done, result=ActionResult.SUCCEEDED, problem=None)])[0].severity is Severity.WELL


def test_a_fault_names_its_suspect_as_known_now() -> None:
    lasting = fault().incidents[0]
    before = replace(lasting, suspects=(), affected=())
    (row,) = shown([Event(at=AT, event=EventName.FAULT, daemon=DAEMON, incident=before)], fault())
    assert row.words == (
        "fault; server 513; affected: 3 clients; suspect: very likely PID 700 (python3 of alice, job 42)"
    )
    assert row.severity is Severity.CRITICAL


@pytest.mark.parametrize(
    ("ending", "words", "severity"),
    [
        (IncidentEnd.RECOVERED, "recovered from the fault; server 513", Severity.WELL),
        (IncidentEnd.SERVER_GONE, "the fault is over; server 513; the server has exited", Severity.WARNING),
        (IncidentEnd.DAEMON_GONE, "the fault is over; server 513; the daemon has exited", Severity.WARNING),
    ],
)
def test_only_a_server_that_recovered_is_well(ending: IncidentEnd, words: str, severity: Severity) -> None:
    lasting = fault().incidents[0]
    (row,) = shown(
        [Event(at=AT, event=EventName.FAULT_RECOVERED, daemon=DAEMON, incident=lasting, reason=ending)], fault()
    )
    assert (row.words, row.severity, row.incident) == (words, severity, "513-2")


def test_the_event_of_a_death_has_who_ended() -> None:
    death = incident("513-9", server=0, kind=IncidentKind.DAEMON_DIED, at=AT - 9, affected=(600, 601))
    events = [replace(REFUSED, event=EventName.DAEMON_LOST, at=at, reason=None) for at in (AT - 9, AT - 999)]
    rows = shown(events, replace(busy(), incidents=(death,)))
    assert [(each.words.split("; ")[1:], each.incident) for each in rows] == [
        (["2 clients ended, as far as is known"], "513-9"),
        ([], ""),
    ]


def test_a_death_that_ended_clients_is_a_row_beside_those_that_ended_none() -> None:
    deaths = [
        incident(f"513-{number}", server=0, kind=IncidentKind.DAEMON_DIED, at=AT - number, affected=affected)
        for number, affected in enumerate([(), (), (600,), (600, 601)])
    ]
    events = [Event(at=AT - number, event=EventName.DAEMON_LOST, daemon=DAEMON) for number in range(4)]
    rows = shown(events, replace(busy(), incidents=tuple(deaths)))
    assert [each.words.split(", ")[0].removeprefix("the daemon died; ") for each in rows] == [
        "no client ended",
        "1 client ended",
        "2 clients ended",
    ]


def test_words_of_events(subtests: pytest.Subtests) -> None:
    for event, words in [
        (REFUSED, "PID 601 refused; all client slots are taken"),
        (replace(REFUSED, user="bob", command="<b>"), "PID 601 (<b> of bob) refused; all client slots are taken"),
        (
            replace(REFUSED, user="bob", event=EventName.CLIENT_FAULT_CONTAINED, reason=None),
            "PID 601 (bob) ended by a fault of its own",
        ),
        (Event(at=AT, event=EventName.MEMORY_FILLED, gpu=GPU), "a client fills the GPU's memory with its workload"),
        (Event(at=AT, event=EventName.GPU_XID, gpu=GPU, xid=79), "Xid 79"),
        (Event(at=AT, event=EventName.EXPORTER_PAUSED), "an operator paused the exporter"),
        (Event(at=AT, event=EventName.DAEMON_STOPPED, daemon=DAEMON), "an operator stopped the daemon"),
        (
            Event(at=AT, event=EventName.DAEMON_STOPPED, daemon=DAEMON, reason=StopReason.WORKLOAD_ENDED),
            "the daemon stopped; its job or pod ended",
        ),
        (Event(at=AT, event=EventName.DAEMON_RESUMED, daemon=DAEMON), "an operator resumed the daemon"),
    ]:
        with subtests.test(event=event, words=words):
            assert [each.words for each in shown([event])] == [words]


def test_equal_events_that_follow_each_other_are_one_row() -> None:
    (row,) = shown(replace(REFUSED, at=AT - 60 * number, pid=600 + number % 3) for number in range(20))
    assert row.words == "PID 600 refused; all client slots are taken; 20 times in 19 min 0 s; also PID 601 and PID 602"


def test_equal_events_of_one_moment_have_no_duration() -> None:
    (row,) = shown([REFUSED, replace(REFUSED, pid=602)])
    assert row.words == "PID 601 refused; all client slots are taken; 2 times; also PID 602"


def test_a_row_names_nine_processes_and_counts_the_others() -> None:
    named = Event(at=AT, event=EventName.PROCESS_BYPASSING, daemon=DAEMON, user="bob", command="a.py")
    (row,) = shown(replace(named, pid=600 + number) for number in range(12))
    assert row.words.count(" (a.py of bob)") == 9
    assert row.words.endswith("PID 608 (a.py of bob) and 3 more")


@pytest.mark.parametrize(
    ("other", "rows"),
    [
        ({}, 1),
        ({"at": AT - 300}, 1),
        ({"at": AT - 301}, 2),
        ({"pid": 602}, 1),
        ({"event": EventName.CLIENT_WAITING}, 2),
        ({"daemon": "/other"}, 2),
        ({"reason": "fault"}, 2),
        ({"action": "restart"}, 2),
        ({"result": ActionResult.FAILED}, 2),
        ({"xid": 31}, 2),
    ],
)
def test_equal_events_are_one_row_for_five_minutes(other: Mapping[str, Any], rows: int) -> None:
    assert len(shown([REFUSED, replace(REFUSED, **other)])) == rows


def test_each_fault_is_a_row() -> None:
    """Also if the daemon had the same fault a second before."""
    assert len(shown(replace(REFUSED, event=EventName.FAULT, at=AT - number) for number in range(3))) == 3


def test_a_row_names_the_daemon_or_the_gpu_and_has_its_age() -> None:
    gpu_lost = replace(REFUSED, event=EventName.GPU_LOST, gpu=GPU, pid=None, reason=None)
    (row,) = shown([gpu_lost])
    assert (row.about, row.severity, row.ago) == (DAEMON, Severity.CRITICAL, "3.0 s ago")
    assert row.words == "the GPU is lost; GPU 0"
    assert shown([replace(gpu_lost, daemon=None)])[0].about == "GPU 0"
    assert shown([replace(gpu_lost, daemon=None, gpu="GPU-12345678-unknown")])[0].about == "GPU GPU-12345678"
    assert shown([replace(gpu_lost, daemon=None, gpu=None)])[0].about == ""
    assert shown([replace(REFUSED, pid=None)])[0].words == "a client refused; all client slots are taken"
    assert shown([replace(REFUSED, at=busy().at + 60)])[0].ago == "0 ms ago", "the clock was set back"


def test_rows_are_bounded() -> None:
    reasons = [f"reason{number}" for number in range(3 * MOST_ROWS)]
    events = [replace(REFUSED, at=AT - 20 * number, reason=reason) for number, reason in enumerate(reasons)]
    assert len(shown(events, began=AT)) == MOST_ROWS


def test_shows_when_the_exporter_started() -> None:
    started = "the exporter started"
    assert [each.words for each in shown([REFUSED], began=AT - 60)] == [shown([REFUSED])[0].words, started]
    assert shown([replace(REFUSED, at=AT - 90)], began=AT - 60)[0].words == started
