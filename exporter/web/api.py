"""The JSON API under /api/v1: the status, incidents and events, in the envelope of Prometheus' own API."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from itertools import islice
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote

from exporter.history import History
from exporter.model.event import Event, EventName
from exporter.model.incident import Incident
from exporter.model.values import frozen_positional, plain
from exporter.parse.printable import LONGEST_TEXT, printable_value
from exporter.report.document import StatusDocument
from exporter.report.document_parts import MOST_LISTED, IncidentFilter, IncidentStatus
from exporter.report.text import SIMULATED, utc_time
from exporter.web.pages import Answer, BadRequestError, Request, Route

STATUS, INCIDENTS, EVENTS = "/api/v1/status", "/api/v1/incidents", "/api/v1/events"

DEFAULT_LIMIT = 100
MAX_LIMIT = 1000
MAX_BODY_BYTES = 1 << 22
"""Enough for thousands of events, or dozens of incidents with many clients each."""
MAX_PARAMETERS = 16

_ERROR_TYPES = {
    HTTPStatus.BAD_REQUEST: "bad_data",
    HTTPStatus.FORBIDDEN: "forbidden",
    HTTPStatus.NOT_FOUND: "not_found",
    HTTPStatus.UNPROCESSABLE_ENTITY: "execution",
    HTTPStatus.INTERNAL_SERVER_ERROR: "internal",
}
"""The names that Prometheus' API uses, where it has one."""

_Found = TypeVar("_Found")


def _parameters(request: Request, **known: Callable[[str], Any]) -> dict[str, Any]:
    """Return the parsed parameters of a request, each at most once; BadRequestError for an unknown or invalid one.

    `known` are functions that parse a value. Their ValueError says what is expected.
    """
    names = f"the parameters are {', '.join(known)}" if known else "this page has no parameters"
    try:
        fields = parse_qsl(request.query, keep_blank_values=True, max_num_fields=MAX_PARAMETERS)
    except ValueError as error:
        raise BadRequestError(f"more than {MAX_PARAMETERS} parameters; {names}") from error
    if not dict(fields).keys() <= known.keys():
        raise BadRequestError(f"unknown parameter; {names}")
    if len(dict(fields)) < len(fields):
        raise BadRequestError("duplicate parameter; remove one of them")
    parsed = {}
    for name, text in fields:
        try:
            parsed[name] = known[name](text)
        except ValueError as error:
            raise BadRequestError(f"{name}: expected {error}") from error
    return parsed


def _choice(values: Mapping[str, Any]) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        if text not in values:
            raise ValueError(f"one of {', '.join(values)}")
        return values[text]

    return parse


def _integer(most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not (text.isascii() and text.isdecimal() and len(text) <= len(str(most)) and 1 <= int(text) <= most):
            raise ValueError(f"an integer from 1 to {most}")
        return int(text)

    return parse


def _time(text: str) -> float:
    with suppress(ValueError):
        at = float(text)
        if math.isfinite(at):
            return at
    raise ValueError("seconds since the epoch, such as those of `date +%s`")


_FLAG, _EVENT = _choice({"true": True, "false": False}), _choice({name: name for name in EventName})
_LIMIT, _CLIENTS = _integer(MAX_LIMIT), _integer(MOST_LISTED)


@frozen_positional
class Api:
    """The pages of a node.

    `status` returns its status as a viewer may see it, or why there is none, and `incident` an incident of `history`
    with at most so many clients of each kind. All answers of a `simulated` node have a warning.
    """

    history: History
    status: Callable[[int | None], StatusDocument | str]
    incident: Callable[[int | None, Incident, int], IncidentStatus]
    simulated: bool = False

    @property
    def routes(self) -> Mapping[str, Route]:
        """The pages by path. All are private, because they name users and workloads."""
        route = partial(Route, private=True, problem=error_answer)
        return {
            STATUS: route(self._status),
            INCIDENTS: route(self._incidents),
            f"{INCIDENTS}/*": route(self._incident),
            EVENTS: route(self._events),
        }

    def _status(self, request: Request) -> Answer:
        _parameters(request)
        document = self.status(request.viewer)
        if isinstance(document, str):
            return error_answer(HTTPStatus.UNPROCESSABLE_ENTITY, document)
        return self._success(plain(document))

    def _incidents(self, request: Request) -> Answer:
        wanted = _parameters(request, limit=_LIMIT, daemon=str, open=_FLAG, clients=_CLIENTS)
        clients = wanted.pop("clients", MOST_LISTED)
        incidents = IncidentFilter(**{"limit": DEFAULT_LIMIT, **wanted}).apply(self.history.incidents)
        viewer = request.viewer
        return self._list(incidents, lambda each: plain(self.incident(viewer, each, clients)))

    def _incident(self, request: Request) -> Answer:
        _parameters(request)
        name = unquote(request.page.rpartition("/")[2])
        for incident in IncidentFilter(id=name, limit=1).apply(self.history.incidents):
            return self._success(plain(self.incident(request.viewer, incident, MOST_LISTED)))
        return error_answer(HTTPStatus.NOT_FOUND, f"unknown incident; {INCIDENTS} lists the known ones")

    def _events(self, request: Request) -> Answer:
        wanted = _parameters(request, limit=_LIMIT, event=_EVENT, daemon=str, since=_time)
        name, daemon, since = (wanted.get(key) for key in ("event", "daemon", "since"))
        events = (
            event
            for event in self.history.events
            if name in (None, event.event) and daemon in (None, event.daemon) and (since is None or event.at >= since)
        )

        def as_object(event: Event) -> Mapping[str, object]:
            return {"at": event.at, "time": utc_time(event.at), **printable_value(event.as_json(), LONGEST_TEXT)}

        return self._list(list(islice(events, wanted.get("limit", DEFAULT_LIMIT))), as_object)

    def _success(self, data: Mapping[str, object]) -> Answer:
        warnings = {"warnings": [SIMULATED]} if self.simulated else {}
        return _answer(HTTPStatus.OK, {"status": "success", "data": data, **warnings})

    def _list(self, found: Sequence[_Found], as_object: Callable[[_Found], Mapping[str, object]]) -> Answer:
        """Return the entries that fit into one body, with a warning if some do not."""
        encoded = encode_within(map(as_object, found), MAX_BODY_BYTES)
        warnings = [SIMULATED] if self.simulated else []
        if len(encoded) < len(found):
            omitted = f"{len(found) - len(encoded)} older entries do not fit into {MAX_BODY_BYTES} bytes"
            warnings.append(f"{omitted}; use a lower limit, or one incident's ID")
        stated = b',"warnings":' + json.dumps(warnings).encode() if warnings else b""
        return _json(HTTPStatus.OK, b'{"status":"success","data":[' + b",".join(encoded) + b"]" + stated + b"}\n")


def encode_within(objects: Iterable[object], most_bytes: int) -> list[bytes]:
    """Return the first objects as JSON of printable texts, as many as fit into `most_bytes`, but at least one."""
    encoded: list[bytes] = []
    size = 0
    for each in objects:
        text = json.dumps(printable_value(each), ensure_ascii=False).encode()
        size += len(text)
        if encoded and size > most_bytes:
            break
        encoded.append(text)
    return encoded


def error_answer(status: HTTPStatus, text: str) -> Answer:
    """Return an error in the envelope; the text has what to do."""
    return _answer(status, {"status": "error", "errorType": _ERROR_TYPES[status], "error": text})


def _answer(status: HTTPStatus, envelope: Mapping[str, object]) -> Answer:
    return _json(status, b"".join(encode_within([envelope], MAX_BODY_BYTES)) + b"\n")


def _json(status: HTTPStatus, body: bytes) -> Answer:
    return Answer(status, body, "application/json", headers={"Cache-Control": "no-store"})
