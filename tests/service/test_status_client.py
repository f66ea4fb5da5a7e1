"""Asking how the node is: the service where there is one, else a look, and never one for the other unsaid."""

from collections.abc import Mapping
from typing import Any

import pytest

from exporter.errors import ServiceError
from exporter.model.node import Node
from exporter.report import status_text
from exporter.report.text import short_time, text_of
from exporter.status_client import COLLECT_SECONDS, StatusClient, incident_lines
from tests.builders import AT, DAEMON, daemon_dead, idle, three_clients
from tests.clocks import HandClock


class Around:
    """A service that may answer or not, and a node that can be looked at."""

    def __init__(self) -> None:
        self.clock = HandClock(AT)
        self.answer: Mapping[str, Any] | None = None
        self.asked: list[dict[str, Any]] = []
        self.looks = 0

    def service(self, **arguments: Any) -> Mapping[str, Any] | None:
        """What it answers."""
        self.asked.append(arguments)
        return self.answer

    def look(self) -> Node:
        """What is there to see."""
        self.looks += 1
        return daemon_dead()

    def inquiry(self, **wanted: Any) -> StatusClient:
        """As `status` asks."""
        return StatusClient(self.service, self.look, self.clock, **wanted)


@pytest.fixture
def around() -> Around:
    """A node without a service."""
    return Around()


def test_names_the_exporter_that_answered(around: Around) -> None:
    around.answer = status_text.status_answer(three_clients(), width=80)

    assert around.inquiry(service="http://node1").report(80).by == "http://node1"


def test_passes_its_options_to_the_service(around: Around) -> None:
    around.answer = status_text.status_answer(three_clients(), width=80)

    report = around.inquiry(daemon=DAEMON).report(80)

    assert around.asked == [{"as_json": False, "daemon": DAEMON, "width": 80}]
    assert (report.by, report.exit_code, report.text) == (
        "the service",
        0,
        status_text.render_status(three_clients(), width=80),
    )
    assert around.looks == 0


def test_collects_if_no_service_answers(around: Around) -> None:
    report = around.inquiry(as_json=True).report(None)

    assert (report.by, report.exit_code, report.text) == (f"a collection at {short_time(AT, AT)}", 1, None)
    assert report.node is not None
    assert report.node["daemons"][0]["state"] == "absent"


def test_collects_without_a_query_on_request(around: Around) -> None:
    StatusClient(None, around.look, around.clock).report(80)

    assert (around.asked, around.looks) == ([], 1)


def test_limits_the_frequency_of_collections(around: Around) -> None:
    """Each costs lines in every daemon's log."""
    inquiry = around.inquiry()
    for _ in range(3):
        around.clock.time += COLLECT_SECONDS / 4
        assert inquiry.report(80).by.endswith(short_time(AT + COLLECT_SECONDS / 4, AT)), (
            "the report has the time of the collection"
        )
    assert around.looks == 1

    around.clock.time += COLLECT_SECONDS
    inquiry.report(80)
    assert around.looks == 2


def test_uses_a_service_that_starts_later(around: Around) -> None:
    inquiry = around.inquiry()
    assert inquiry.report(80).by.startswith("a collection")

    around.answer = status_text.status_answer(idle())
    assert inquiry.report(80).by == "the service"


def test_does_not_collect_after_a_service_has_answered(around: Around) -> None:
    """It is restarted, most likely."""
    around.answer = status_text.status_answer(idle())
    inquiry = around.inquiry()
    inquiry.report(80)

    around.answer = None
    with pytest.raises(ServiceError, match="no service answers"):
        inquiry.report(80)
    assert around.looks == 0

    around.answer = status_text.status_answer(idle())
    assert inquiry.report(80).exit_code == 0


def test_reports_an_unknown_daemon(around: Around) -> None:
    with pytest.raises(ServiceError, match="no daemon another is here; there are: /tmp/nvidia-mps"):
        around.inquiry(daemon="another").report(80)


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"exit_code": 0, "text": {}},
        {"exit_code": "well", "node": {}},
        {"exit_code": 0, "text": 7},
        {"exit_code": 0},
        {"table": "as an earlier version wrote it", "exit_code": 0},
    ],
)
def test_reports_an_answer_of_another_version(around: Around, answer: Mapping[str, Any]) -> None:
    around.answer = answer
    with pytest.raises(ServiceError, match="another version"):
        around.inquiry().report(80)


def test_parses_lines_of_incidents() -> None:
    assert text_of(incident_lines({"lines": {"lines": [{"pieces": [{"text": "No incidents."}]}]}})) == "No incidents.\n"
    with pytest.raises(ServiceError, match="another version"):
        incident_lines({"text": "No incidents.\n"})
