"""The events before now: which are shown, in which words, and how they are bounded."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from exporter.model.action import ActionResult
from exporter.model.daemon import StopReason
from exporter.model.event import Event, EventName
from exporter.model.reason import Reason, ReasonCode
from exporter.page.events import Row, event_rows
from exporter.report.document_parts import Severity
from exporter.report.text import short_time
from exporter.view import StatusInput
from tests.builders import AT, DAEMON, GPU
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


def test_words_of_events(subtests: pytest.Subtests) -> None:
    for event, words in [
        (REFUSED, "PID 601 refused; all client slots are taken"),
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
    (row,) = shown(replace(REFUSED, at=AT - 60 * number, pid=600 + number) for number in range(20))
    since = short_time(AT - 60 * 19, busy().at)
    assert row.words == f"PID 600 refused; all client slots are taken; 20 times since {since}"


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
