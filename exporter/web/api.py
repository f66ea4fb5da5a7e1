"""What has happened lately, as JSON, in an envelope like that of Prometheus' own API."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from http import HTTPStatus
from itertools import islice
from typing import TypeVar
from urllib.parse import unquote

from exporter.history import History
from exporter.model.event import Event, EventName
from exporter.model.incident import Incident
from exporter.parse.printable import printable
from exporter.telling.incident_object import incident_object
from exporter.telling.json_list import fitting
from exporter.telling.moment import utc
from exporter.telling.remedy import AddressOf
from exporter.telling.wanted import Wanted
from exporter.web.answer import Answer, Request, Route
from exporter.web.query import Query, QueryError

INCIDENTS, EVENTS = "/api/v1/incidents", "/api/v1/events"

DEFAULT_ENTRIES = 100
MOST_ENTRIES = 1000
MOST_BYTES = 1 << 22
"""Of a body: thousands of events, or dozens of incidents with many clients each."""

_JSON = "application/json"
_HEADERS = {"Cache-Control": "no-store"}

_Respond = Callable[[Request], Answer]
_Found = TypeVar("_Found")


class Api:
    """The pages of a history; `address_of` finds how a command reaches a daemon, `now` the time."""

    def __init__(self, history: History, *, now: Callable[[], float], address_of: AddressOf) -> None:
        self._history = history
        self._now = now
        self._address_of = address_of

    @property
    def routes(self) -> Mapping[str, Route]:
        """The pages by path; all of them name users and workloads."""
        pages = {
            INCIDENTS: ("Incidents", self._incidents),
            f"{INCIDENTS}/*": ("", self._incident),
            EVENTS: ("Events", self._events),
        }
        return {
            path: Route(respond=_asked_well(respond), private=True, title=title, problem=problem)
            for path, (title, respond) in pages.items()
        }

    def _incidents(self, request: Request) -> Answer:
        query = Query(request.query, ("limit", "daemon", "open"))
        wanted = Wanted(
            daemon=query.text("daemon"),
            open=query.word("open", ("true", "false")) == "true",
            limit=query.count("limit", DEFAULT_ENTRIES, MOST_ENTRIES),
        )
        return _listed(wanted.of(self._history.incidents), self._object)

    def _incident(self, request: Request) -> Answer:
        Query(request.query, ())
        name = unquote(request.page.rpartition("/")[2])
        for incident in Wanted(id=name, limit=1).of(self._history.incidents):
            return _sent(HTTPStatus.OK, {"status": "success", "data": self._object(incident)})
        return problem(HTTPStatus.NOT_FOUND, f"no such incident is remembered; {INCIDENTS} lists those that are")

    def _events(self, request: Request) -> Answer:
        query = Query(request.query, ("limit", "event", "daemon", "since"))
        name, daemon, since = query.word("event", tuple(EventName)), query.text("daemon"), query.moment("since")
        meant = (
            each
            for each in self._history.events
            if name in (None, each.event) and daemon in (None, each.daemon) and (since is None or each.at >= since)
        )
        limit = query.count("limit", DEFAULT_ENTRIES, MOST_ENTRIES)
        return _listed(list(islice(meant, limit)), _event)

    def _object(self, incident: Incident) -> Mapping[str, object]:
        return incident_object(incident, now=self._now(), address=self._address_of(incident.daemon))


_ERRORS = {
    HTTPStatus.BAD_REQUEST: "bad_data",
    HTTPStatus.FORBIDDEN: "forbidden",
    HTTPStatus.NOT_FOUND: "not_found",
}
"""What Prometheus' API calls them, as far as it has a word."""


def problem(status: HTTPStatus, text: str) -> Answer:
    """What is wrong, and what to do."""
    return _sent(status, {"status": "error", "errorType": _ERRORS[status], "error": text})


def _asked_well(respond: _Respond) -> _Respond:
    """The same, but that a query which cannot be answered is told what is wrong with it."""

    @wraps(respond)
    def answered(request: Request) -> Answer:
        try:
            return respond(request)
        except QueryError as error:
            return problem(HTTPStatus.BAD_REQUEST, str(error))

    return answered


def _event(event: Event) -> Mapping[str, object]:
    told = {key: _shown(value) for key, value in event.as_json().items()}
    return {"at": event.at, "time": utc(event.at), **told}


def _shown(value: object) -> object:
    if isinstance(value, tuple):
        return [_shown(each) for each in value]
    return printable(value) if isinstance(value, str) else value


def _listed(found: Sequence[_Found], told: Callable[[_Found], Mapping[str, object]]) -> Answer:
    """What was found, as far as it fits into one body; where it does not, that is said."""
    encoded = fitting(map(told, found), MOST_BYTES)
    left = len(found) - len(encoded)
    warning = f"{left} older entries do not fit into {MOST_BYTES} bytes; ask for fewer, or for one by its id"
    warnings = b',"warnings":' + json.dumps([warning]).encode() if left else b""
    body = b'{"status":"success","data":[' + b",".join(encoded) + b"]" + warnings + b"}\n"
    return Answer(HTTPStatus.OK, body, _JSON, headers=_HEADERS)


def _sent(status: HTTPStatus, envelope: Mapping[str, object]) -> Answer:
    return Answer(status, b"".join(fitting([envelope], MOST_BYTES)) + b"\n", _JSON, headers=_HEADERS)
