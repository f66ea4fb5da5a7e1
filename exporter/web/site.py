"""What there is to see, by path. A scrape only sends bytes; a page is either open to all or private."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from http import HTTPStatus

from exporter.errors import ConfigError
from exporter.metrics.exposition import Exposition
from exporter.page import Sight
from exporter.web.access import may_see_private
from exporter.web.answer import NO_ROUTES, Answer, Request, Route, plain
from exporter.web.front import Front, files
from exporter.web.lately import Lately

TELEMETRY_PATH = "/metrics"

_PRIVATE = (
    "this page names users and workloads, so it is for this machine alone: ask for it there, at http://localhost,"
    " or have the exporter ask for passwords or client certificates (--web.config.file)"
)


class Site:
    """Answers requests by their path.

    `healthy` says whether the cycle still turns, `status` how the node is, as a table for a person, and `sight` what
    the page at `/` shows of it. `beside` has further pages; a path that ends in `/*` stands for all that are one step
    below it. What is costly to make is made once for all who ask within a second of `monotonic`.
    """

    def __init__(
        self,
        exposition: Exposition,
        *,
        healthy: Callable[[], bool],
        status: Callable[[], str],
        sight: Callable[[], Sight],
        monotonic: Callable[[], float],
        telemetry_path: str = TELEMETRY_PATH,
        beside: Mapping[str, Route] = NO_ROUTES,
    ) -> None:
        """ConfigError if the telemetry path is none, or another page's."""
        self._exposition = exposition
        self._healthy = healthy
        self._status = Lately(lambda: status().encode(errors="replace"), monotonic)
        self._telemetry_path = telemetry_path
        health, readiness = Route(respond=self._health), Route(respond=self._readiness)
        self._routes = {
            "/status": Route(respond=self._node, private=True, title="Status"),
            **beside,
            **files(),
            "/-/healthy": replace(health, title="Healthy"),
            "/healthz": health,
            "/-/ready": replace(readiness, title="Ready"),
            "/readyz": readiness,
        }
        if self._route(telemetry_path) or not telemetry_path.startswith("/") or "?" in telemetry_path:
            raise ConfigError(
                f"--web.telemetry-path: {telemetry_path!r} cannot be the path of the metrics; write a path that begins"
                f" with / and is none of {', '.join(self._routes)}"
            )
        titled = {each.title: path for path, each in self._routes.items() if each.title}
        self._routes["/"] = Route(respond=Front(sight, {"Metrics": telemetry_path, **titled}, monotonic).answer)
        self._routes[telemetry_path] = Route(respond=self._metrics)

    def answer(self, request: Request) -> Answer:
        """Answer a GET."""
        route = self._route(request.page)
        if route is None:
            return plain(HTTPStatus.NOT_FOUND, f"not found; metrics are at {self._telemetry_path}")
        if route.private and not may_see_private(request.visitor):
            return route.problem(HTTPStatus.FORBIDDEN, _PRIVATE)
        return route.respond(request)

    def _route(self, page: str) -> Route | None:
        return self._routes.get(page) or self._routes.get(f"{page.rpartition('/')[0]}/*")

    def _metrics(self, request: Request) -> Answer:
        encoded = self._exposition.get(request.accept, gzipped=_accepts_gzip(request.accept_encoding))
        if encoded is None:
            return _said("no cycle completed yet", ok=False)
        return Answer(HTTPStatus.OK, encoded.body, encoded.content_type, encoded.gzipped)

    def _health(self, _request: Request) -> Answer:
        return _said("healthy") if self._healthy() else _said("the cycle has stopped", ok=False)

    def _readiness(self, _request: Request) -> Answer:
        return _said("ready") if self._exposition.ready else _said("no cycle completed yet", ok=False)

    def _node(self, _request: Request) -> Answer:
        return Answer(HTTPStatus.OK, self._status.page(), headers={"Cache-Control": "no-store"})


def _said(text: str, *, ok: bool = True) -> Answer:
    return plain(HTTPStatus.OK if ok else HTTPStatus.SERVICE_UNAVAILABLE, text)


def _accepts_gzip(header: str) -> bool:
    for offered in header.split(","):
        coding, _, quality = offered.partition(";")
        if coding.strip().lower() in ("gzip", "*"):
            return quality.replace(" ", "").lower() not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False
