"""The pages of one incident, of all incidents and of all events, and the links that lead to them."""

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from exporter.model.event import Event, EventName
from exporter.model.incident import Incident, IncidentEnd, IncidentKind
from exporter.page.page import Page, sentence
from exporter.report.document_parts import Severity
from exporter.report.node_status import status_document
from exporter.report.status_text import with_summary
from exporter.view import StatusInput
from exporter.web.pages import MOST_PAGES, Request, Site
from tests.builders import AT, DAEMON, incident, with_incidents
from tests.page.html_reader import Read, section
from tests.page.inputs import TRAINER, attributed, busy, fault, hostile, idle, status_input
from tests.page.test_page import assert_headings_in_order_and_tables_with_headers, assert_references_resolve
from tests.web.serving import Web

LINKED = (("critical", "finding-1"), ("warning", "finding-2"))
MINUTES = 60.0
DEATH = incident(
    "513-9",
    server=0,
    kind=IncidentKind.DAEMON_DIED,
    at=AT - 20 * MINUTES,
    ended_at=AT - 19 * MINUTES,
    ending=IncidentEnd.RECOVERED,
    affected=(TRAINER.pid, TRAINER.pid + 1),
    client_details={pid: replace(TRAINER, pid=pid) for pid in (TRAINER.pid, TRAINER.pid + 1)},
)
DIED = Event(at=DEATH.started_at, event=EventName.DAEMON_LOST, daemon=DAEMON, reason="died")
HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


def after_a_death(after: float = 1.0) -> StatusInput:
    """Return a node that is well, 20 minutes after its daemon died with two clients."""
    return status_input(replace(idle().node, incidents={DEATH.id: DEATH}), events=(DIED,), after=after)


def test_the_pages_of_all_inputs_are_well_formed(subtests: pytest.Subtests) -> None:
    page = Page({"Incidents": "/incidents"})
    for data in (after_a_death(), fault(), busy(), hostile(), idle()):
        for render in (page.incidents, page.events, *(_page_of(each) for each in data.incidents)):
            with subtests.test(data=data.host[:9], render=str(render)[:60]):
                read = Read(render(data))
                assert_references_resolve(read)
                assert_headings_in_order_and_tables_with_headers(read)
                assert read.tags.count("script") == 1
                assert not {"img", "form"} & set(read.tags)


def _page_of(of: Incident) -> Callable[[StatusInput], bytes]:
    return lambda data: asked(data, f"/incidents/{of.id}".replace("<", "%3C").replace(" ", "%20"))


def site(data: StatusInput) -> Site:
    served = Web(None, None)  # type: ignore[arg-type]
    served.sight = data
    return served.site()


def asked(data: StatusInput, path: str, **known: object) -> bytes:
    """Return the page of a path as a browser gets it."""
    request = Request(path=path, peer="127.0.0.1", host="localhost", accept="text/html", **known)  # type: ignore[arg-type]
    return site(data).answer(request).body


def test_the_page_of_a_fault_has_its_card_what_to_do_and_its_events() -> None:
    """The card is that of the node's page."""
    lasting = fault().incidents[0]
    data = replace(fault(), events=(Event(at=AT, event=EventName.FAULT, daemon=DAEMON, incident=lasting),))
    html = asked(data, "/incidents/513-2")
    cards = [re.findall(r"<dl>\n<dt>State.*?</dl>", each.decode(), re.DOTALL)[0] for each in (html, asked(data, "/"))]

    assert cards[0] == cards[1]
    assert section(html, "headline").startswith("Open Fault by a client killed while its kernel ran on server 513")
    assert "Caution Do not restart the daemon" in section(html, "problems")
    assert "suspect: very likely" in section(html, "before").replace("\N{NO-BREAK SPACE}", " ")


def test_the_page_of_a_death_names_who_ended_and_what_to_restart() -> None:
    html = asked(after_a_death(), "/incidents/513-9")
    text = section(html, "incident").replace("\N{NO-BREAK SPACE}", " ")

    assert "PID 700 (python3 of alice, job 42)" in text
    assert "Restart job 42 of alice: 2 clients (python3)" in text
    assert "Suspect" not in text
    assert 'id="problems"' not in html.decode()


def test_an_unknown_incident_is_404_with_what_to_do(web: Web) -> None:
    for name in ("513-0", "", "..", "%00", "%3Cscript%3E", "x" * 5000):
        answer = web.get(f"/incidents/{name}", **HTML)
        assert (answer.status, answer.headers["Content-Type"]) == (404, "text/html; charset=utf-8")
        assert b"/incidents lists the newest ones" in answer.body
        assert answer.body.count(b"<script") == 1


def test_programs_get_an_incident_as_text(web: Web) -> None:
    web.sight = fault()
    answer = web.get("/incidents/513-2", Accept="*/*")

    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert answer.body.decode().startswith("513-2: fault by a client killed while its kernel ran")
    assert "Vary" in answer.headers


def test_incidents_and_events_are_private_and_link_to_each_incident(web: Web) -> None:
    web.sight = after_a_death()
    for path in ("/incidents", "/incidents/513-9", "/events"):
        answer = web.get(path, **HTML)
        assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
        assert b'href="/incidents/513-9"' in answer.body
        assert web.get(path, **HTML, X_Forwarded_For="10.0.0.1").status == 403


def test_the_timeline_and_the_chart_of_the_node_link_to_the_incident() -> None:
    lasting = fault().incidents[0]
    found = Event(at=AT, event=EventName.FAULT, daemon=DAEMON, incident=lasting)
    html = asked(replace(fault(), events=(found,)), "/").decode()
    for name in ("hour", "before", "faults"):
        begin = html.index(f'<section id="{name}"')
        assert 'href="/incidents/513-2"' in html[begin : html.index("</section>", begin)], name
    forgotten = replace(found, incident=replace(lasting, id="513-0"))
    assert "/incidents/513-0" not in asked(replace(fault(), events=(forgotten,)), "/").decode()


def test_a_well_node_names_who_ended_in_the_last_hour() -> None:
    text = section(asked(after_a_death(), "/"), "problems").replace("\N{NO-BREAK SPACE}", " ")

    assert "death of daemon /tmp/nvidia-mps , up again after 1 min 0 s. Affected: PIDs 700 and 701 (python3" in text
    later = after_a_death(after=61 * MINUTES)
    assert "death" not in section(asked(later, "/"), "problems")


def test_pages_of_hostile_names_need_no_memory() -> None:
    """What is stored is bounded, also if many incidents are asked for."""
    data = with_many_incidents(3 * MOST_PAGES)
    served = site(data)
    for each in data.incidents:
        request = Request(path=f"/incidents/{each.id}", peer="127.0.0.1", host="localhost", accept="text/html")
        assert served.answer(request).status == 200
        assert served.answer(replace(request, path=f"/incidents/x{each.id}")).status == 404
    assert served._caches.cache_info().currsize <= MOST_PAGES


def with_many_incidents(number: int) -> StatusInput:
    return status_input(with_incidents(*(replace(DEATH, id=f"id-{each}") for each in range(number))))


def test_the_headline_lists_other_critical_problems_and_links_to_all() -> None:
    lasting = fault().incidents[0]
    data = status_input(with_incidents(lasting, replace(lasting, id="514-1", server=514), start=busy().node), after=45)
    html = Page({}).node(data).decode()
    begin = html.index('<section id="headline"')
    headline = html[begin : html.index("</section>", begin)]

    assert "more problems:" in headline
    assert [html.count(f'<details class="card {kind}" id="{target}"') for kind, target in LINKED] == [1, 1]
    assert re.search('href="#finding-1"><b class="state critical">[^<]*</b> <bdi>MPS server 514', headline)
    assert re.search('href="#finding-2"><b class="state warning">[^<]*</b></a>', headline)


def test_warnings_about_sharing_count_in_the_headline() -> None:
    document = status_document(attributed())
    warned = replace(document.gpus[0].sharing_sentences[0], severity=Severity.WARNING)
    gpus = (replace(document.gpus[0], sharing_sentences=(warned, warned)), *document.gpus[1:])

    assert "2 warnings about how clients share GPUs" in with_summary(replace(document, gpus=gpus)).summary
    assert "warnings" not in document.summary
    no_problem = replace(document, gpus=gpus, findings=())
    assert sentence(no_problem) == "No problem is known, but the sharing of GPUs has warnings."
