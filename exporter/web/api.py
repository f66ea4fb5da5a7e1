"""The JSON API under /api/v1: incidents and events, in the envelope of Prometheus' own API."""

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from http import HTTPStatus
from itertools import islice
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote

from exporter.history import History
from exporter.model.event import Event, EventName
from exporter.model.incident import Incident
from exporter.parse.printable import LONGEST_TEXT, printable_value
from exporter.report.incident_filter import IncidentFilter
from exporter.report.objects import encode_within, incident_object
from exporter.report.remedy import AddressOf
from exporter.report.text import SIMULATED, utc_time
from exporter.web.handler import Answer, Request, Route

INCIDENTS, EVENTS, COMMANDS = "/api/v1/incidents", "/api/v1/events", "/api/v1/commands"

DEFAULT_LIMIT = 100
MAX_LIMIT = 1000
MAX_NUMBER = 1_000_000
MAX_BODY_BYTES = 1 << 22
"""Enough for thousands of events, or dozens of incidents with many clients each."""
MAX_PARAMETERS = 16

_ERROR_TYPES = {
    HTTPStatus.BAD_REQUEST: "bad_data",
    HTTPStatus.FORBIDDEN: "forbidden",
    HTTPStatus.NOT_FOUND: "not_found",
    HTTPStatus.UNPROCESSABLE_ENTITY: "execution",
}
"""The names that Prometheus' API uses, where it has one."""

Command = Callable[..., Mapping[str, Any]]
_Respond = Callable[[Request], Answer]
_Found = TypeVar("_Found")


class QueryError(ValueError):
    """An invalid query; the message has what is expected."""


class Query:
    """The parameters of a request, each at most once; QueryError for an unknown one or an invalid value."""

    def __init__(self, text: str, known: Collection[str]) -> None:
        names = f"the parameters are {', '.join(known)}" if known else "this page has no parameters"
        try:
            fields = parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_PARAMETERS)
        except ValueError as error:
            raise QueryError(f"more than {MAX_PARAMETERS} parameters; {names}") from error
        self._values = dict(fields)
        if not self._values.keys() <= set(known):
            raise QueryError(f"unknown parameter; {names}")
        if len(self._values) < len(fields):
            raise QueryError("duplicate parameter; remove one of them")

    def text(self, name: str) -> str | None:
        """Return any text; None if the parameter is absent."""
        return self._values.get(name)

    def word(self, name: str, words: Collection[str]) -> str | None:
        """Return one of some words; None if the parameter is absent."""
        word = self._values.get(name)
        if word is not None and word not in words:
            raise QueryError(f"{name}: expected one of {', '.join(words)}")
        return word

    def flag(self, name: str) -> bool:
        """Return whether the parameter is true; without it, it is false."""
        return self.word(name, ("true", "false")) == "true"

    def number(self, name: str, most: int = MAX_LIMIT) -> int | None:
        """Return an integer from 1 to `most`; None if the parameter is absent."""
        text = self._values.get(name)
        if text is None:
            return None
        if not (text.isascii() and text.isdecimal() and len(text) <= len(str(most)) and 1 <= int(text) <= most):
            raise QueryError(f"{name}: expected an integer from 1 to {most}")
        return int(text)

    def time(self, name: str) -> float | None:
        """Return seconds since the epoch; None if the parameter is absent."""
        text = self._values.get(name)
        try:
            at = None if text is None else float(text)
        except ValueError:
            at = math.nan
        if at is not None and not math.isfinite(at):
            raise QueryError(f"{name}: expected seconds since the epoch, such as those of `date +%s`")
        return at


class Api:
    """The pages of a history. `address_of` returns how commands reach a daemon, `now` the time.

    `status` and `incidents` answer the commands of these names, as they answer them at the service socket.
    Lists and incidents of a `simulated` node have a warning.
    """

    def __init__(
        self,
        history: History,
        *,
        now: Callable[[], float],
        address_of: AddressOf,
        status: Command,
        incidents: Command,
        simulated: bool = False,
    ) -> None:
        self._warnings = [SIMULATED] if simulated else []
        self._commands = {"status": status, "incidents": incidents}
        self._history = history
        self._now = now
        self._address_of = address_of

    @property
    def routes(self) -> Mapping[str, Route]:
        """The pages by path. All are private, because they name users and workloads."""
        return {
            INCIDENTS: _route(self._incidents, "Incidents"),
            f"{INCIDENTS}/*": _route(self._incident),
            EVENTS: _route(self._events, "Events"),
            f"{COMMANDS}/status": _route(self._status_command),
            f"{COMMANDS}/incidents": _route(self._incidents_command),
        }

    def _incidents(self, request: Request) -> Answer:
        query = Query(request.query, ("limit", "daemon", "open"))
        limit = query.number("limit") or DEFAULT_LIMIT
        wanted = IncidentFilter(daemon=query.text("daemon"), open=query.flag("open"), limit=limit)
        return _list(wanted.apply(self._history.incidents), self._object, self._warnings)

    def _incident(self, request: Request) -> Answer:
        Query(request.query, ())
        name = unquote(request.page.rpartition("/")[2])
        for incident in IncidentFilter(id=name, limit=1).apply(self._history.incidents):
            return self._success(self._object(incident))
        return error_answer(HTTPStatus.NOT_FOUND, f"unknown incident; {INCIDENTS} lists the known ones")

    def _events(self, request: Request) -> Answer:
        query = Query(request.query, ("limit", "event", "daemon", "since"))
        name, daemon, since = query.word("event", tuple(EventName)), query.text("daemon"), query.time("since")
        events = (
            event
            for event in self._history.events
            if name in (None, event.event) and daemon in (None, event.daemon) and (since is None or event.at >= since)
        )
        return _list(list(islice(events, query.number("limit") or DEFAULT_LIMIT)), _event_object, self._warnings)

    def _status_command(self, request: Request) -> Answer:
        return self._command("status", Query(request.query, ("as_json", "daemon", "width")))

    def _incidents_command(self, request: Request) -> Answer:
        query = Query(request.query, ("as_json", "daemon", "id", "limit", "open", "width"))
        limit = query.number("limit", MAX_NUMBER) or MAX_NUMBER
        return self._command("incidents", query, id=query.text("id"), open=query.flag("open"), limit=limit)

    def _command(self, name: str, query: Query, **wanted: Any) -> Answer:
        common = {"as_json": query.flag("as_json"), "daemon": query.text("daemon")}
        answer = self._commands[name](**common, width=query.number("width", MAX_NUMBER), **wanted)
        if "problem" in answer:
            return error_answer(HTTPStatus.UNPROCESSABLE_ENTITY, str(answer["problem"]))
        return self._success(answer)

    def _success(self, data: Mapping[str, object]) -> Answer:
        warnings = {"warnings": self._warnings} if self._warnings else {}
        return _answer(HTTPStatus.OK, {"status": "success", "data": data, **warnings})

    def _object(self, incident: Incident) -> Mapping[str, object]:
        return incident_object(incident, now=self._now(), address=self._address_of(incident.daemon))


def error_answer(status: HTTPStatus, text: str) -> Answer:
    """Return an error in the envelope; the text has what to do."""
    return _answer(status, {"status": "error", "errorType": _ERROR_TYPES[status], "error": text})


def _route(respond: _Respond, title: str = "") -> Route:
    @wraps(respond)
    def checked(request: Request) -> Answer:
        try:
            return respond(request)
        except QueryError as error:
            return error_answer(HTTPStatus.BAD_REQUEST, str(error))

    return Route(respond=checked, private=True, title=title, problem=error_answer)


def _event_object(event: Event) -> Mapping[str, object]:
    return {"at": event.at, "time": utc_time(event.at), **printable_value(event.as_json(), LONGEST_TEXT)}


def _list(found: Sequence[_Found], as_object: Callable[[_Found], Mapping[str, object]], known: Sequence[str]) -> Answer:
    """Return the entries that fit into one body, with the `known` warnings, and another if some do not."""
    encoded = encode_within(map(as_object, found), MAX_BODY_BYTES)
    omitted = len(found) - len(encoded)
    warning = f"{omitted} older entries do not fit into {MAX_BODY_BYTES} bytes; use a lower limit, or one incident's ID"
    stated = [*known, *([warning] if omitted else ())]
    warnings = b',"warnings":' + json.dumps(stated).encode() if stated else b""
    return _json(HTTPStatus.OK, b'{"status":"success","data":[' + b",".join(encoded) + b"]" + warnings + b"}\n")


def _answer(status: HTTPStatus, envelope: Mapping[str, object]) -> Answer:
    return _json(status, b"".join(encode_within([envelope], MAX_BODY_BYTES)) + b"\n")


def _json(status: HTTPStatus, body: bytes) -> Answer:
    return Answer(status, body, "application/json", headers={"Cache-Control": "no-store"})
