"""Requests and answers of one connection, and the page of each path: metrics, health, landing page, runbooks.

`Request.may_see_private` is the access rule of private pages, and `Request.viewer` of kernels on them.
"""

import io
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property, lru_cache, partial
from http import HTTPStatus
from http.client import LineTooLong
from http.server import BaseHTTPRequestHandler
from ipaddress import IPv6Address, ip_address
from itertools import islice
from pathlib import Path
from socket import socket
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote

import structlog

from exporter import __version__
from exporter.metrics.exposition import Exposition, offers, quality_of
from exporter.model.values import frozen, frozen_positional, replace
from exporter.parse.printable import printable_lines
from exporter.parse.proc import tcp_user
from exporter.report.document_parts import ROOT
from exporter.report.incident_text import details
from exporter.report.node_status import incident_as_seen, status_document
from exporter.report.status_text import status_lines
from exporter.report.text import text_of
from exporter.view import StatusInput
from exporter.web.web_config import Protection

if TYPE_CHECKING:
    from exporter.page.page import Page

PACKAGE = Path(__file__).parents[1]
"""Not by importlib.resources, which imports zipfile. That takes 0.4 MiB."""

MAX_REQUEST_BYTES = 1 << 17
"""Limit of the request line and all headers. http.server limits each line (64 KiB) and their number (100)."""

MOST_SOCKETS = 1 << 16
"""How many TCP sockets of each kind are searched for that of a visitor."""

_PROXY_HEADERS = ("forwarded", "x-forwarded-", "x-real-ip", "via", "x-client-ip", "true-client-ip", "cf-connecting-ip")
"""Prefixes of headers that a proxy adds. Only their presence counts, not their value."""


@frozen
class Request:
    """The parts of a GET request that pages use, and its sender as far as the server knows it."""

    path: str
    accept: str = ""
    accept_encoding: str = ""
    peer: str = ""
    host: str = ""
    """The Host header."""
    proxied: bool = False
    """Whether a header shows that a proxy forwarded the request."""
    authenticated: bool = False
    """Whether the visitor gave a password or a required and verified client certificate."""
    find_user: Callable[[], int | None] = lambda: None
    """Returns the UID at the other end; None if it is unknown. Only some pages need it."""

    @property
    def page(self) -> str:
        """The path without the query."""
        return self.path.partition("?")[0]

    @property
    def query(self) -> str:
        """The part after the question mark."""
        return self.path.partition("?")[2]

    @property
    def viewer(self) -> int | None:
        """The UID by which the visitor sees kernels. Root gave the passwords and certificates."""
        return ROOT if self.authenticated else self.find_user()

    @property
    def may_see_private(self) -> bool:
        """Whether the visitor can see pages that name users and workloads.

        A proxy header is never believed, but it shows that the loopback peer is a proxy, whose client is unknown. The
        Host header must name this machine: by DNS rebinding, a local browser sends requests for a foreign page.
        """
        if self.authenticated:
            return True
        host = self.host.strip()
        name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        return is_loopback(self.peer) and not self.proxied and (name.lower() == "localhost" or is_loopback(name))


def is_loopback(text: str) -> bool:
    """Return whether this is a loopback address. IPv4 can be mapped into IPv6."""
    with suppress(ValueError):
        address = ip_address(text)
        mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
        return (mapped or address).is_loopback
    return False


def user_of_peer(connection: socket, peer: tuple[Any, ...]) -> int | None:
    """Return the UID that made the other end of a TCP connection within this network namespace; None if unknown."""
    for table in ("tcp", "tcp6"):
        with suppress(OSError), open(f"/proc/self/net/{table}") as lines:
            if (uid := tcp_user(islice(lines, MOST_SOCKETS), peer[:2], connection.getsockname()[:2])) is not None:
                return uid
    return None


@frozen_positional
class Answer:
    """Status, body and headers of a response."""

    status: HTTPStatus
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    gzipped: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)


def plain(status: HTTPStatus, text: str, headers: Mapping[str, str] = MappingProxyType({})) -> Answer:
    """Return an answer of one line of text."""
    return Answer(status, f"{text}\n".encode(), headers=headers)


@frozen_positional
class Route:
    """A page. A private page needs a local or authenticated visitor.

    `title` is the text of its link on the landing page; without a title there is no link. `problem` formats errors.
    """

    respond: Callable[[Request], Answer]
    private: bool = False
    title: str = ""
    problem: Callable[[HTTPStatus, str], Answer] = plain
    ready: Callable[[Request], Answer | None] = lambda _: None
    """Returns the answer if nothing must be rendered for it."""


_CHALLENGE = {"WWW-Authenticate": 'Basic realm="cuda-mps-exporter", charset="UTF-8"'}
_REFUSALS = {
    answer.status: answer
    for answer in (
        plain(HTTPStatus.UNAUTHORIZED, "unauthorized", _CHALLENGE),
        plain(HTTPStatus.SERVICE_UNAVAILABLE, "too many password checks are pending; try again", {"Retry-After": "1"}),
    )
}
_NOT_ALLOWED = plain(HTTPStatus.METHOD_NOT_ALLOWED, "method not allowed: use GET or HEAD", {"Allow": "GET, HEAD"})


class BadRequestError(ValueError):
    """An invalid query of a page; the message has what is expected."""


class Handler(BaseHTTPRequestHandler):
    """Parses the one request of a connection, and writes the response. Only GET and HEAD exist.

    `head` has what was received: request line and headers. `response` returns what is to be sent.
    """

    server_version = f"cuda-mps-exporter/{__version__}"
    sys_version = ""

    def __init__(
        self, head: bytes | bytearray, connection: socket, peer: tuple[Any, ...], protection: Protection
    ) -> None:
        self._head = head
        self._written = io.BytesIO()
        self._protection = protection
        self._parsed: Request | Answer = plain(HTTPStatus.BAD_REQUEST, "bad request")
        super().__init__(connection, peer, cast("Any", None))

    def setup(self) -> None:
        """Read from memory, and write there."""
        self.rfile, self.wfile = _Head(self._head), self._written

    def finish(self) -> None:
        """Close nothing: the response is not sent yet."""

    @property
    def wanted(self) -> Request:
        """The request; ValueError if it is invalid, which `refusal` says."""
        if isinstance(self._parsed, Request):
            return self._parsed
        raise ValueError("invalid request")

    def refusal(self) -> Answer | None:
        """Return the answer if the request is invalid, or has no valid password. The check of one takes long."""
        if isinstance(self._parsed, Answer):
            return self._parsed
        users = self._protection.users
        return None if users is None else _REFUSALS.get(users.verdict(self.headers.get("Authorization", "")))

    def response(self, answer: Answer) -> list[memoryview]:
        """Return the parts of the response to GET, or to HEAD: the same headers only."""
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if answer.gzipped:
            self.send_header("Content-Encoding", "gzip")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        return [memoryview(part) for part in (self._written.getvalue(), b"" if self.command == "HEAD" else answer.body)]

    def do_GET(self) -> None:
        """Keep the request."""
        self._parsed = Request(
            path=self.path,
            accept=self.headers.get("Accept", ""),
            accept_encoding=self.headers.get("Accept-Encoding", ""),
            peer=str(self.client_address[0]),
            host=self.headers.get("Host", ""),
            proxied=any(name.lower().startswith(_PROXY_HEADERS) for name in self.headers),
            authenticated=self._protection.users is not None or self._protection.authenticates_by_tls,
            find_user=partial(user_of_peer, self.request, self.client_address),
        )

    do_HEAD = do_GET  # noqa: N815 (http.server calls it)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer an invalid request with one line of text. Methods other than GET and HEAD are not allowed."""
        self.close_connection = True
        answer = plain(HTTPStatus(code), HTTPStatus(code).phrase.lower())
        self._parsed = _NOT_ALLOWED if code == HTTPStatus.NOT_IMPLEMENTED else answer

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Log no requests."""


class _Head(io.BytesIO):
    """A stream that reports its line as too long after a number of bytes; http.server then answers with 431."""

    def readline(self, size: int | None = -1) -> bytes:
        """Read a line."""
        line = super().readline(size)
        if self.tell() > MAX_REQUEST_BYTES:
            raise LineTooLong("request")
        return line


DEFAULT_TELEMETRY_PATH = "/metrics"
RUNBOOKS_PATH = "/runbooks"
INCIDENTS_PATH = "/incidents"

MIN_TTL_SECONDS = 1.0
MOST_PAGES = 16
"""How many rendered pages are stored. Each user has an own one, because all see the same but the kernels."""

MAX_RENDER_SHARE = 0.1
"""The largest part of the time that is spent on rendering one page. If a page takes long, its TTL is longer."""

_VARIES: Mapping[str, str] = MappingProxyType({"Vary": "Accept"})
_UNKNOWN_INCIDENT = f"""# Unknown incident

The exporter does not have this incident, or no longer has it. {INCIDENTS_PATH} lists the newest ones. Older faults
are in its log.
"""
_NOT_READY = plain(HTTPStatus.SERVICE_UNAVAILABLE, "the first collection is not complete")
_FORBIDDEN = (
    "this page names users and workloads, so it is shown to local or authenticated visitors only: open it on this"
    " machine, at http://localhost, or set up passwords or client certificates (--web.config.file)"
)
_FAILED = "internal error; the exporter's log describes it"
_UNKNOWN_CLIENT = "this client is not connected, and no recent incident names it; see / and /api/v1/incidents"
_PAGE_HEADERS = MappingProxyType(
    {
        "Cache-Control": "no-store",
        "Content-Security-Policy": (
            "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:;"
            " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        ),
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "X-Frame-Options": "DENY",
    }
)


class TtlCache:
    """A rendered page that is rendered again after its time to live. Safe to use from several threads.

    While one thread renders the page, the others wait for the result.
    """

    def __init__(self, render: Callable[[], bytes], monotonic: Callable[[], float]) -> None:
        self._render = render
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._page = b""
        self._expires = float("-inf")

    def page(self) -> bytes:
        """Return the page, at most its time to live old."""
        with self._lock:
            started = self._monotonic()
            if started >= self._expires:
                self._page = self._render()
                seconds = self._monotonic() - started
                self._expires = started + max(MIN_TTL_SECONDS, seconds / MAX_RENDER_SHARE)
            return self._page


@dataclass(eq=False)
class Site:
    """Answers requests by their path.

    `healthy` returns whether the main loop is running, and `status` the input of the pages with the status. A path of
    `extra_routes` that ends in `/*` stands for all paths one level below it. `runbooks` is the directory of the alerts'
    runbooks, by default that of this package. They are served so that `runbook_url` leads to those of the running
    version. If the directory does not exist, there are none. `monitoring` is that of `Page`.
    """

    exposition: Exposition
    _: KW_ONLY
    healthy: Callable[[], bool]
    status: Callable[[], StatusInput]
    monotonic: Callable[[], float]
    telemetry_path: str = DEFAULT_TELEMETRY_PATH
    extra_routes: Mapping[str, Route] = field(default_factory=dict)
    simulated: bool = False
    monitoring: Mapping[str, Any] = field(default_factory=dict)
    runbooks: Path | None = None

    def __post_init__(self) -> None:
        # The files are read once, so a request selects a name and never opens a path.
        directory = PACKAGE / "runbooks" if self.runbooks is None else self.runbooks
        files = sorted(directory.iterdir() if directory.is_dir() else (), key=lambda file: file.name)
        self._runbooks = {file.name: file.read_bytes() for file in files if file.name.endswith(".md")}
        self._caches = lru_cache(MOST_PAGES)(
            lambda render, viewer: TtlCache(lambda: render(replace(self.status(), viewer=viewer)), self.monotonic)
        )
        self._routes = {
            "/": Route(respond=self._landing_page, title="Node"),
            self.telemetry_path: Route(respond=self._metrics, title="Metrics", ready=self._written),
            "/status": Route(
                respond=lambda request: Answer(HTTPStatus.OK, self._rendered(_text, request), headers=_PAGE_HEADERS),
                private=True,
                title="Status",
            ),
            INCIDENTS_PATH: Route(respond=self._view("incidents"), private=True, title="Incidents"),
            f"{INCIDENTS_PATH}/*": Route(respond=self._incident, private=True),
            "/events": Route(respond=self._view("events"), private=True, title="Events"),
            **self.extra_routes,
            RUNBOOKS_PATH: Route(respond=self._runbook_list, title="Runbooks"),
            f"{RUNBOOKS_PATH}/*": Route(respond=self._runbook),
            "/clients/*": Route(respond=self._client, private=True),
            "/page.js": _static("page.js", "text/javascript"),
            "/page.css": _static("style.css", "text/css"),
            "/-/healthy": Route(respond=self._health, title="Healthy", ready=self._health),
            "/healthz": Route(respond=self._health, ready=self._health),
            "/-/ready": Route(respond=self._readiness, title="Ready", ready=self._readiness),
            "/readyz": Route(respond=self._readiness, ready=self._readiness),
        }

    def ready(self, request: Request) -> Answer | None:
        """Return the answer if nothing must be rendered for it, such as to a scrape in an encoding in use."""
        route = self._route(request)
        if route is None or (route.private and not request.may_see_private):
            return self.answer(request)
        return route.ready(request)

    def _route(self, request: Request) -> Route | None:
        return self._routes.get(request.page) or self._routes.get(f"{request.page.rpartition('/')[0]}/*")

    def answer(self, request: Request) -> Answer:
        """Answer a GET request."""
        route = self._route(request)
        if route is None:
            return plain(HTTPStatus.NOT_FOUND, f"not found; the metrics are at {self.telemetry_path}")
        if route.private and not request.may_see_private:
            return route.problem(HTTPStatus.FORBIDDEN, _FORBIDDEN)
        try:
            return route.respond(request)
        except BadRequestError as error:
            return route.problem(HTTPStatus.BAD_REQUEST, str(error))
        except Exception:  # noqa: BLE001 (an internal error ends this request alone)
            structlog.get_logger().exception("request_failed")
            return route.problem(HTTPStatus.INTERNAL_SERVER_ERROR, _FAILED)

    def _rendered(self, render: Callable[[StatusInput], bytes], request: Request) -> bytes:
        """Return a page as the visitor may see it."""
        return self._caches(render, request.viewer).page()

    def _written(self, request: Request, *, write: bool = False) -> Answer | None:
        codings = dict(offers(request.accept_encoding))
        parameters = codings.get("gzip", codings.get("*"))
        encodes = parameters is not None and quality_of(parameters) > 0
        encoded = self.exposition.get(request.accept, gzipped=encodes, write=write)
        return None if encoded is None else Answer(HTTPStatus.OK, *encoded)

    def _metrics(self, request: Request) -> Answer:
        return self._written(request, write=True) or _NOT_READY

    def _health(self, _request: Request) -> Answer:
        if self.healthy():
            return plain(HTTPStatus.OK, "healthy")
        return plain(HTTPStatus.SERVICE_UNAVAILABLE, "the main loop has stopped")

    def _readiness(self, _request: Request) -> Answer:
        return plain(HTTPStatus.OK, "ready") if self.exposition.ready else _NOT_READY

    def _landing_page(self, request: Request) -> Answer:
        """Return the node for visitors who can see names, links for all others."""
        body = self._rendered(self._page.node, request) if request.may_see_private else self._page.links()
        return _page_answer(body, "text/html")

    def _client(self, request: Request) -> Answer:
        """Return the page of a client. It is not stored: there are as many as clients."""
        name, data = unquote(request.page.rpartition("/")[2]), replace(self.status(), viewer=request.viewer)
        body = self._page.client(data, name)
        return plain(HTTPStatus.NOT_FOUND, _UNKNOWN_CLIENT) if body is None else _page_answer(body, "text/html")

    def _view(self, name: str) -> Callable[[Request], Answer]:
        """Return what answers with a page of the node."""
        return lambda request: _page_answer(self._rendered(getattr(self._page, name), request), "text/html")

    def _incident(self, request: Request) -> Answer:
        """Return an incident. It is not stored, because there are many, and a request can name any."""
        data = replace(self.status(), viewer=request.viewer)
        known = data.known_incidents.get(unquote(request.page.rpartition("/")[2]))
        if known is None:
            body = self._page.text("Unknown incident", _UNKNOWN_INCIDENT)
            return replace(_page_answer(body, "text/html"), status=HTTPStatus.NOT_FOUND)
        incident = incident_as_seen(data, known)
        if _accepts_html(request):
            return _page_answer(self._page.incident(data, incident), "text/html", _VARIES)
        return plain(HTTPStatus.OK, printable_lines(text_of(details(incident))), {**_PAGE_HEADERS, **_VARIES})

    def _runbook(self, request: Request) -> Answer:
        """Return a runbook. They are public, because they contain no names."""
        name = request.page.rpartition("/")[2]
        markdown = self._runbooks.get(name)
        if markdown is None:
            return plain(HTTPStatus.NOT_FOUND, f"unknown runbook; the runbooks are:\n{self._runbook_paths}")
        if not _accepts_html(request):
            return Answer(HTTPStatus.OK, markdown, headers=_VARIES)
        return _page_answer(self._page.text(name.removesuffix(".md"), markdown.decode()), "text/html", _VARIES)

    def _runbook_list(self, request: Request) -> Answer:
        if not _accepts_html(request):
            return plain(HTTPStatus.OK, self._runbook_paths, _VARIES)
        items = "\n".join(f"- [{name.removesuffix('.md')}]({name})" for name in self._runbooks)
        return _page_answer(self._page.text("Runbooks", f"# Runbooks\n\n{items}"), "text/html", _VARIES)

    @property
    def _runbook_paths(self) -> str:
        return "\n".join(f"{RUNBOOKS_PATH}/{name}" for name in self._runbooks)

    @cached_property
    def _page(self) -> "Page":
        """The templates, loaded at the first request. Most nodes are only scraped, and save this memory."""
        from exporter.page.page import Page

        links = {route.title: path for path, route in self._routes.items() if route.title}
        return Page(links, self.monitoring, simulated=self.simulated)


def _text(data: StatusInput) -> bytes:
    return printable_lines(text_of(status_lines(status_document(data)))).encode(errors="replace")


def _static(name: str, content_type: str) -> Route:
    answer = _page_answer((PACKAGE / "page" / name).read_bytes(), content_type)
    return Route(respond=lambda _: answer, ready=lambda _: answer)


def _page_answer(body: bytes, content_type: str, headers: Mapping[str, str] = MappingProxyType({})) -> Answer:
    content_type = f"{content_type}; charset=utf-8"
    return Answer(HTTPStatus.OK, body, content_type, headers={**_PAGE_HEADERS, **headers})


def _accepts_html(request: Request) -> bool:
    """Return whether the visitor is a browser; curl and other programs get text."""
    return "text/html" in dict(offers(request.accept))
