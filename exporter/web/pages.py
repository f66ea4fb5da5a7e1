"""The site: a page for each path. The metrics, health, landing page and runbooks are defined here."""

import threading
from collections.abc import Callable, Mapping
from functools import cached_property
from http import HTTPStatus
from importlib import resources
from importlib.resources.abc import Traversable
from types import MappingProxyType
from typing import TYPE_CHECKING

from exporter.metrics.exposition import Exposition, offers, quality_of
from exporter.parse.printable import printable_lines
from exporter.report.node_status import StatusInput, status_document
from exporter.report.status_text import status_lines
from exporter.report.text import text_of
from exporter.web.handler import Answer, BadRequestError, Request, Route, plain

if TYPE_CHECKING:
    from exporter.page.page import Page

DEFAULT_TELEMETRY_PATH = "/metrics"
RUNBOOKS_PATH = "/runbooks"

MIN_TTL_SECONDS = 1.0
MAX_RENDER_SHARE = 0.1
"""The largest part of the time that is spent on rendering one page. If a page takes long, its TTL is longer."""

_NO_HEADERS: Mapping[str, str] = MappingProxyType({})
_VARIES: Mapping[str, str] = MappingProxyType({"Vary": "Accept"})
_NO_ROUTES: Mapping[str, Route] = MappingProxyType({})
_NOT_READY = plain(HTTPStatus.SERVICE_UNAVAILABLE, "the first collection is not complete")
_FORBIDDEN = (
    "this page names users and workloads, so it is shown to local or authenticated visitors only: open it on this"
    " machine, at http://localhost, or set up passwords or client certificates (--web.config.file)"
)
_LANDING_PAGE_HEADERS = MappingProxyType(
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


class Site:
    """Answers requests by their path.

    `healthy` returns whether the main loop is running, and `status` the input of the pages with the status. A path of
    `extra_routes` that ends in `/*` stands for all paths one level below it. `runbooks` is the directory of the alerts'
    runbooks, by default that of this package. They are served so that `runbook_url` leads to those of the running
    version. If the directory does not exist, there are none.
    """

    def __init__(
        self,
        exposition: Exposition,
        *,
        healthy: Callable[[], bool],
        status: Callable[[], StatusInput],
        monotonic: Callable[[], float],
        telemetry_path: str = DEFAULT_TELEMETRY_PATH,
        extra_routes: Mapping[str, Route] = _NO_ROUTES,
        simulated: bool = False,
        runbooks: Traversable | None = None,
    ) -> None:
        self._exposition = exposition
        self._healthy = healthy
        self._telemetry_path = telemetry_path
        self._simulated = simulated
        # The files are read once, so a request selects a name and never opens a path.
        directory = resources.files("exporter") / "runbooks" if runbooks is None else runbooks
        files = sorted(directory.iterdir() if directory.is_dir() else (), key=lambda file: file.name)
        self._runbooks = {file.name: file.read_bytes() for file in files if file.name.endswith(".md")}
        status_page = TtlCache(lambda: _text(status()), monotonic)
        self._node_page = TtlCache(lambda: self._page.node(status()), monotonic)
        self._routes = {
            "/status": Route(
                respond=lambda _: Answer(HTTPStatus.OK, status_page.page(), headers={"Cache-Control": "no-store"}),
                private=True,
                title="Status",
            ),
            **extra_routes,
            RUNBOOKS_PATH: Route(respond=self._runbook_list, title="Runbooks"),
            f"{RUNBOOKS_PATH}/*": Route(respond=self._runbook),
            "/page.js": _static("page.js", "text/javascript"),
            "/page.css": _static("style.css", "text/css"),
            "/-/healthy": Route(respond=self._health, title="Healthy"),
            "/healthz": Route(respond=self._health),
            "/-/ready": Route(respond=self._readiness, title="Ready"),
            "/readyz": Route(respond=self._readiness),
        }
        self._routes["/"] = Route(respond=self._landing_page)
        self._routes[telemetry_path] = Route(respond=self._metrics)

    def answer(self, request: Request) -> Answer:
        """Answer a GET request."""
        path = request.page
        route = self._routes.get(path) or self._routes.get(f"{path.rpartition('/')[0]}/*")
        if route is None:
            return plain(HTTPStatus.NOT_FOUND, f"not found; the metrics are at {self._telemetry_path}")
        if route.private and not request.may_see_private:
            return route.problem(HTTPStatus.FORBIDDEN, _FORBIDDEN)
        try:
            return route.respond(request)
        except BadRequestError as error:
            return route.problem(HTTPStatus.BAD_REQUEST, str(error))

    def _metrics(self, request: Request) -> Answer:
        encoded = self._exposition.get(request.accept, gzipped=_accepts_gzip(request.accept_encoding))
        if encoded is None:
            return _NOT_READY
        return Answer(HTTPStatus.OK, encoded.body, encoded.content_type, encoded.gzipped)

    def _health(self, _request: Request) -> Answer:
        if self._healthy():
            return plain(HTTPStatus.OK, "healthy")
        return plain(HTTPStatus.SERVICE_UNAVAILABLE, "the main loop has stopped")

    def _readiness(self, _request: Request) -> Answer:
        return plain(HTTPStatus.OK, "ready") if self._exposition.ready else _NOT_READY

    def _landing_page(self, request: Request) -> Answer:
        """Return the node for visitors who can see names, links for all others."""
        body = self._node_page.page() if request.may_see_private else self._page.links()
        return _page_answer(body, "text/html")

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
        return Page({"Metrics": self._telemetry_path, **links}, simulated=self._simulated)


def _text(data: StatusInput) -> bytes:
    return printable_lines(text_of(status_lines(status_document(data)))).encode(errors="replace")


def _accepts_gzip(header: str) -> bool:
    codings = dict(offers(header))
    parameters = codings.get("gzip", codings.get("*"))
    return parameters is not None and quality_of(parameters) > 0


def _static(name: str, content_type: str) -> Route:
    answer = _page_answer(resources.files("exporter.page").joinpath(name).read_bytes(), content_type)
    return Route(respond=lambda _: answer)


def _page_answer(body: bytes, content_type: str, headers: Mapping[str, str] = _NO_HEADERS) -> Answer:
    content_type = f"{content_type}; charset=utf-8"
    return Answer(HTTPStatus.OK, body, content_type, headers={**_LANDING_PAGE_HEADERS, **headers})


def _accepts_html(request: Request) -> bool:
    """Return whether the visitor is a browser; curl and other programs get text."""
    return "text/html" in dict(offers(request.accept))
