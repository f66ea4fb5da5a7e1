"""Asking how the node is: the service where there is one, else a look, and never one for the other unsaid."""

from collections.abc import Mapping
from typing import Any

import pytest

from exporter.errors import ServiceError
from exporter.model.node import Node
from exporter.report import status_text
from exporter.report.text import text_of
from exporter.status_client import StatusReport, incident_lines, status_report
from tests.builders import DAEMON, daemon_dead, three_clients


class Around:
    """A service that may answer or not, and a node that can be looked at."""

    def __init__(self) -> None:
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

    def report(self, **wanted: Any) -> StatusReport:
        """As `status` asks."""
        return status_report(self.service, self.look, **wanted)


@pytest.fixture
def around() -> Around:
    """A node without a service."""
    return Around()


def test_passes_its_options_to_the_service(around: Around) -> None:
    around.answer = status_text.status_answer(three_clients(), width=80)

    report = around.report(daemon=DAEMON, width=80)

    assert around.asked == [{"as_json": False, "daemon": DAEMON, "width": 80}]
    assert (report.exit_code, report.text) == (0, status_text.render_status(three_clients(), width=80))
    assert around.looks == 0


def test_collects_if_no_service_answers(around: Around) -> None:
    report = around.report(as_json=True)

    assert (report.exit_code, report.text) == (1, None)
    assert report.node is not None
    assert report.node["daemons"][0]["state"] == "absent"


def test_collects_without_a_query_on_request(around: Around) -> None:
    status_report(None, around.look)

    assert (around.asked, around.looks) == ([], 1)


def test_reports_an_unknown_daemon(around: Around) -> None:
    with pytest.raises(ServiceError, match="no daemon another is here; there are: /tmp/nvidia-mps"):
        around.report(daemon="another")


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
        around.report()


def test_parses_lines_of_incidents() -> None:
    assert text_of(incident_lines({"lines": {"lines": [{"pieces": [{"text": "No incidents."}]}]}})) == "No incidents.\n"
    with pytest.raises(ServiceError, match="another version"):
        incident_lines({"text": "No incidents.\n"})
