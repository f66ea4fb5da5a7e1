"""JSON API: filters, limits, access and errors."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pytest

from exporter.history import History
from exporter.model.event import Event, EventName
from exporter.model.incident import Incident
from exporter.model.node import Node
from exporter.model.reason import Reason, ReasonCode
from exporter.report.incident_status import incident_status
from exporter.web.api import EVENTS, INCIDENTS, MAX_BODY_BYTES, STATUS, Api, encode_within
from exporter.web.pages import Request, Site
from tests import builders
from tests.builders import AT, CLIENT, DAEMON, SERVER, at_work, gpu_reading, process, reduced
from tests.incidents.values import HOSTILE, blocked, crowded, ended, hostile, incident
from tests.ports import LOCALHOST
from tests.status import incident_json
from tests.web.serving import Web


def happened(web: Web, *incidents: Incident, events: tuple[Event, ...] = ()) -> None:
    web.history.add(Node(incidents={each.id: each for each in incidents}), events)


def data(web: Web, page: str) -> Any:
    """Return the data of a successful answer."""
    answer = web.get(page)
    envelope = json.loads(answer.body)
    assert (answer.status, envelope["status"]) == (200, "success")
    return envelope["data"]


def of(web: Web, page: str) -> list[object]:
    """Return the IDs of the incidents, or the times of the events."""
    return [each["id"] if "id" in each else each["at"] for each in data(web, page)]


def test_returns_incidents_newest_first_with_their_details(web: Web) -> None:
    assert data(web, INCIDENTS) == data(web, EVENTS) == []
    happened(web, ended(id="old"), blocked(id="new", detected_at=AT + 9))

    new, old = data(web, INCIDENTS)

    assert (new["id"], old["id"]) == ("new", "old")
    assert new["blocking"][1]["seconds"] == 182.0
    assert new["blocking"][1]["kill_command"] == ["kill -KILL 601"]


def test_filters_incidents(web: Web) -> None:
    happened(
        web,
        ended(id="a"),
        incident(id="b", detected_at=AT + 1),
        ended(id="c", daemon="/run/x & y", detected_at=AT + 2),
    )

    assert of(web, f"{INCIDENTS}?limit=2") == ["c", "b"]
    assert of(web, f"{INCIDENTS}?open=true") == ["b"]
    assert of(web, f"{INCIDENTS}?open=false") == ["c", "b", "a"]
    assert of(web, f"{INCIDENTS}?daemon={quote('/run/x & y', safe='')}") == ["c"]
    assert of(web, f"{INCIDENTS}?daemon={DAEMON}&limit=1") == ["b"]
    assert of(web, f"{INCIDENTS}?daemon=nowhere") == []


def test_returns_one_incident_by_id_or_404(web: Web) -> None:
    happened(web, ended(id="513-1a"), incident(id="-7-1b"))

    assert data(web, f"{INCIDENTS}/513-1a")["id"] == "513-1a"
    assert data(web, f"{INCIDENTS}/%2d7-1b")["id"] == "-7-1b"
    for name in ("513", "", "*", "513-1a%00", "..", "%ff"):
        answer = web.get(f"{INCIDENTS}/{name}")
        assert (answer.status, answer.headers["Content-Type"]) == (404, "application/json")
        assert json.loads(answer.body) == {
            "status": "error",
            "errorType": "not_found",
            "error": "unknown incident; /api/v1/incidents lists the known ones",
        }


def event(at: float, kind: EventName = EventName.CLIENT_CONNECTED, **known: Any) -> Event:
    return Event(at=at, event=kind, **{"daemon": DAEMON, "server": SERVER, **known})


def test_returns_events_newest_first_and_filters_them(web: Web) -> None:
    happened(web, events=(event(1), event(2, EventName.DAEMON_LOST), event(3, daemon="other"), event(4)))

    assert of(web, EVENTS) == [4, 3, 2, 1]
    assert of(web, f"{EVENTS}?limit=1") == [4]
    assert of(web, f"{EVENTS}?event=daemon_lost") == [2]
    assert of(web, f"{EVENTS}?daemon={DAEMON}") == [4, 2, 1]
    assert of(web, f"{EVENTS}?since=2.5&daemon={DAEMON}") == [4]
    assert of(web, f"{EVENTS}?since=3") == [4, 3]
    assert of(web, f"{EVENTS}?limit=1000") == [4, 3, 2, 1]


def test_returns_the_keys_of_replay_and_an_iso_time_for_an_event(web: Web) -> None:
    happened(web, events=(event(AT, EventName.FAULT, incident=incident(), server=None),))

    assert data(web, EVENTS) == [
        {
            "at": AT,
            "time": "1970-01-12T13:46:40.000Z",
            "event": "fault",
            "daemon": DAEMON,
            "incident": "513-1a",
            "server": SERVER,
            "gpus": list(incident().gpus),
        }
    ]


def test_names_the_expected_value_of_an_invalid_parameter(web: Web, subtests: pytest.Subtests) -> None:
    limit, since = "limit: expected an integer from 1 to 1000", "since: expected seconds since the epoch, such as"
    known = "the parameters are limit, daemon, open, clients"
    for page, wrong in {
        **{f"{INCIDENTS}?limit={text}": limit for text in ("0", "1001", "-1", "", "1e2", "%D9%A1", "9" * 5000)},
        **{f"{EVENTS}?since={text}": f"{since} those of `date +%s`" for text in ("yesterday", "nan", "1e999")},
        f"{INCIDENTS}?limit=1&limit=2": "duplicate parameter; remove one of them",
        f"{INCIDENTS}?open=yes": "open: expected one of true, false",
        f"{INCIDENTS}?event=fault": f"unknown parameter; {known}",
        f"{INCIDENTS}?{'daemon=a&' * 50}": f"more than 16 parameters; {known}",
        f"{STATUS}?a=1": "unknown parameter; this page has no parameters",
        f"{INCIDENTS}/513-1a?a=1": "unknown parameter; this page has no parameters",
        f"{EVENTS}?event=%3Cscript%3E": f"event: expected one of {', '.join(EventName)}",
    }.items():
        with subtests.test(page=page[:60]):
            answer = web.get(page)
            assert answer.status == 400
            assert json.loads(answer.body) == {"status": "error", "errorType": "bad_data", "error": wrong}


def test_refuses_visitors_who_may_not_see_names(web: Web, subtests: pytest.Subtests) -> None:
    happened(web, incident(), events=(event(1),))
    for page in (INCIDENTS, f"{INCIDENTS}/513-1a", EVENTS, STATUS):
        with subtests.test(page=page):
            answer = web.get(page, X_Forwarded_For="10.0.0.1")
            assert (answer.status, answer.headers["Content-Type"]) == (403, "application/json")
            assert json.loads(answer.body)["errorType"] == "forbidden"
            assert "--web.config.file" in json.loads(answer.body)["error"]
            assert b"alice" not in answer.body


def test_forbids_caching_and_answers_head_without_a_body(web: Web, subtests: pytest.Subtests) -> None:
    happened(web, incident(), events=(event(1),))
    for page in (INCIDENTS, f"{INCIDENTS}/513-1a", f"{INCIDENTS}/none", EVENTS, f"{EVENTS}?limit=0"):
        with subtests.test(page=page):
            get, head = web.get(page), web.get(page, method="HEAD")
            assert (get.headers["Cache-Control"], get.headers["Content-Type"]) == ("no-store", "application/json")
            assert (head.status, head.body, head.headers["Content-Length"]) == (get.status, b"", str(len(get.body)))


def texts(value: object) -> Iterator[str]:
    """Yield all texts and keys of a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in (*value, *(value.values() if isinstance(value, dict) else ())):
            yield from texts(each)


def test_hostile_names_stay_printable_text_in_the_same_structure(web: Web, subtests: pytest.Subtests) -> None:
    for name in (*HOSTILE, "c1 \x9b2J", "\u2066bidi\u2069", "\x85", "x" * 4000 + "\u202e"):
        known = Reason(ReasonCode.UNSPECIFIED, text=name)
        node = reduced(
            *at_work(CLIENT, daemon=name),
            process(user=name, command=name, cgroup=f"0::/system.slice/{name}.service\n"),
            gpu_reading([CLIENT], name=name),
            start=builders.node(name),
        ).node
        web.sight = replace(web.sight, node=replace(node, incidents={name: hostile(name)}))
        web.history = History()
        happened(web, hostile(name), events=(event(1, daemon=name, name=name, reason=known, indications=(known,)),))
        site = web.site()

        def ask(page: str, site: Site = site) -> Any:
            body = site.answer(Request(path=page, peer=LOCALHOST, host="localhost")).body.decode()
            assert body.rstrip("\n").isprintable()
            return json.loads(body)

        coded = quote(name, safe="", errors="surrogateescape")
        for page in (*(f"{INCIDENTS}/{coded}", f"{EVENTS}?{coded}=1", STATUS, f"{STATUS}?daemon={coded}x"),):
            with subtests.test(name=name[:20], page=page[:40]):
                for text in texts(ask(page)):
                    assert text.isprintable()
        with subtests.test(name=name[:20]):
            (fault,), (one,) = ask(INCIDENTS)["data"], ask(EVENTS)["data"]
            assert fault.keys() == incident_json(incident()).keys()
            details = {"name", "reason", "reason_detail", "indications"}
            assert one.keys() == {"at", "time", "event", "daemon", "server"} | details
            names = (fault["affected"][0]["command"], fault["daemon"], one["name"])
            reasons = (one["reason_detail"]["text"], one["indications"][0]["text"])
            assert all(text.isprintable() and len(text) <= 128 for text in (*names, *reasons))


def test_limits_the_listed_clients(web: Web) -> None:
    happened(web, crowded(400))
    (fault,) = data(web, f"{INCIDENTS}?clients=1")
    assert (len(fault["affected"]), fault["affected_count"], len(data(web, INCIDENTS)[0]["affected"])) == (1, 400, 400)


def test_returns_a_hundred_entries_unless_more_are_wanted(web: Web) -> None:
    happened(web, events=tuple(event(number) for number in range(101)))
    assert of(web, EVENTS) == list(range(100, 0, -1))
    assert len(of(web, f"{EVENTS}?limit=101")) == 101


def test_a_status_that_is_not_known_is_an_error_and_not_an_empty_one() -> None:
    api = Api(History(), lambda _: "nothing yet", lambda _, each, __: incident_status(each, AT))
    answer = api.routes[STATUS].respond(Request(path=STATUS))
    assert answer.status == 422
    assert json.loads(answer.body) == {
        "status": "error",
        "errorType": "execution",
        "error": "nothing yet",
    }


def test_limits_the_body_and_warns_about_omitted_entries(web: Web) -> None:
    crowd = crowded(400, "x" * 10_000)
    happened(web, *(replace(crowd, id=str(number)) for number in range(20)))

    answer = web.get(INCIDENTS)
    envelope = json.loads(answer.body)

    assert len(answer.body) < MAX_BODY_BYTES + 1024
    left = 20 - len(envelope["data"])
    assert 0 < left < 20
    assert envelope["warnings"][0].startswith(f"{left} older entries do not fit")


def test_the_first_entry_is_returned_however_large_it_is() -> None:
    assert encode_within(["first", "x"], 3) == [b'"first"']
    assert encode_within(["a", "b", "c"], 6) == [b'"a"', b'"b"']
