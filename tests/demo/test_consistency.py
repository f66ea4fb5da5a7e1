"""Each failure of the demo: all outputs state the same, and who was hit is named an hour later."""

import re
from dataclasses import replace

import pytest

from exporter.demo.scenario import initial_node
from exporter.demo.simulation import FAILURES, PlannedFailure, Simulation, advance
from exporter.history import History
from exporter.model.event import Event, EventName
from exporter.model.server import DisconnectReason
from exporter.model.settings import Mode
from exporter.page.events import event_rows
from exporter.page.page import Page
from exporter.report.document_parts import Severity
from exporter.report.incident_text import client_text
from exporter.report.node_status import status_document
from exporter.report.status_text import headline, status_lines
from exporter.report.text import text_of
from exporter.view import StatusInput
from tests.clocks import HandClock
from tests.page.html_reader import Read
from tests.simulated import ACTING, POLICY

STARTS_AT, PAST, BEFORE, AFTER, HOUR = 3600.0, 60.0, 2.0, 15, 59 * 60
LASTS = {"daemon-hangs": 100.0}
"""Seconds, until the watchdog restarts the daemon; other failures last for 30 s."""

PAGE = Page({"Node": "/"}, simulated=True)
HIT = {
    EventName.CLIENT_REFUSED,
    EventName.CLIENT_WAITING,
    EventName.CLIENT_FAULT_CONTAINED,
    EventName.MEMORY_FILLED,
    EventName.PROCESS_BYPASSING,
}
ENDED = {DisconnectReason.DAEMON_GONE, DisconnectReason.SERVER_GONE}


def hit(event: Event) -> set[int]:
    """Return the processes that an event hit."""
    ended = event.event is EventName.CLIENT_DISCONNECTED and event.reason in ENDED
    own = [event.pid] if event.pid is not None and (ended or event.event in HIT) else []
    return {*own, *(event.incident.affected if event.incident is not None else ())}


def check(data: StatusInput) -> None:
    """Check that page, `status` and its headline state the severity and all problems of the document."""
    document, html = status_document(data), PAGE.node(data)
    page = Read(html).text.replace("\N{NO-BREAK SPACE}", " ")
    texts = [text_of(headline(document)), text_of(status_lines(document))]
    found, word, summary = document.findings, document.severity.words, f": {document.summary}"
    assert document.severity is (found[0].severity if found else Severity.WELL)
    assert f'<h1><b class="state {document.severity}">' in html.decode()
    assert all(re.search(rf"^{word}{re.escape(summary)}", text, re.MULTILINE | re.IGNORECASE) for text in texts)
    assert len(found) < 2 or f"{len(found) - 1} more problem" in page
    for text in (*texts, page):
        assert [each.code for each in found if each.text[1:] not in text] == []
    shown = [*(each.severity for each in document.daemons), *(each.severity for each in document.gpus)]
    urgent = (Severity.WARNING, Severity.CRITICAL)
    assert all(each.rank <= document.severity.rank for each in shown if each in urgent)


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.ACT])
@pytest.mark.parametrize("failure", sorted(FAILURES.keys() - {"noisy-neighbour"}))
def test_all_outputs_state_the_same_and_who_was_hit_is_named_an_hour_later(failure: str, mode: Mode) -> None:
    policy, clock, history = POLICY if mode is Mode.OBSERVE else ACTING, HandClock(STARTS_AT), History()
    node, victims = replace(initial_node(), simulated=True), set[int]()
    simulation, lasts = Simulation(1, clock, calm=True, past=PAST), LASTS.get(failure, 30.0)
    for second in advance(node, simulation, policy):
        node, _ = second
    simulation.plan([PlannedFailure(after=BEFORE, failure=failure, seconds=min(lasts, FAILURES[failure].lasts))])

    def data(at: float) -> StatusInput:
        return StatusInput(node=node, at=at, incidents=history.incidents, events=history.timeline, policy=policy)

    for number in range(int(BEFORE + lasts + AFTER)):
        clock.time += 1
        for second in advance(node, simulation, policy):
            node, events = second
            history.add(node, events)
            victims |= set().union(*map(hit, events))
        if number % 12 == 4:
            check(data(clock.time))
    later = data(clock.time + HOUR)
    incidents = status_document(later).incidents
    texts = [row.words for row in event_rows(later)]
    texts += [client_text(client) for each in incidents for client in each.affected]
    texts += [f"PID {pid}" for each in incidents for pid in each.refused]
    assert victims <= {int(pid) for text in texts for pid in re.findall(r"PID (\d+)", text)}
