"""A web server and its content for tests."""

import contextlib
import http.client
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, count
from pathlib import Path
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from exporter.clock import SystemClock
from exporter.config.settings import Config
from exporter.history import History
from exporter.metrics.exposition import Exposition
from exporter.report.document_parts import seen_by
from exporter.report.incident_status import incident_status
from exporter.report.node_status import status_document
from exporter.report.remedy import Address
from exporter.view import StatusInput
from exporter.web.api import Api
from exporter.web.pages import Answer as SiteAnswer
from exporter.web.pages import Request, Site
from exporter.web.server import WebServer
from exporter.web.web_config import WebSecurity
from tests.builders import AT, DAEMON, three_clients
from tests.ports import LOCALHOST

ENDING = {"600-10": (600,), "601-10": (601,)}
"""The processes of the clients of an incident."""

OPENMETRICS = "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"


@dataclass(slots=True)
class Counting(Collector):
    """A gauge that counts its collections."""

    value: int = 1
    renders: int = 0

    def collect(self) -> Iterable[Metric]:
        """Return the gauge."""
        self.renders += 1
        return [GaugeMetricFamily("answer", "The answer.", value=self.value)]


class ReplaceableSite(Site):
    """A site that a test can replace."""

    def __init__(self) -> None:
        self.site: Site | None = None

    def answer(self, request: Request) -> SiteAnswer:
        """Return the answer of that site."""
        assert self.site is not None
        return self.site.answer(request)

    def ready(self, request: Request) -> SiteAnswer | None:
        """Return the ready answer of that site."""
        return None if self.site is None else self.site.ready(request)


@contextlib.contextmanager
def serving(*addresses: tuple[str, int], config: Path | None = None, **options: Any) -> Iterator["Web"]:
    """Start a server with its content, by default at a free port. `config` is a web config file."""
    replaceable, security = ReplaceableSite(), None if config is None else WebSecurity(config)
    options = {"max_requests": Config().max_requests, **options}
    server = WebServer(replaceable, addresses or [(LOCALHOST, 0)], security, **options)
    web = Web(server, replaceable)
    web.show()
    web.server.open()
    try:
        yield web
    finally:
        web.server.close()


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer as a client receives it."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass(slots=True)
class Web:
    """A server and its content."""

    server: WebServer
    replaceable: ReplaceableSite
    exposition: Exposition = field(default_factory=lambda: Exposition(SystemClock()))
    healthy: bool = True
    sight: StatusInput = field(default_factory=lambda: StatusInput(node=three_clients(), at=AT + 3, host="node1"))
    history: History = field(default_factory=History)

    def site(self, telemetry_path: str = "/metrics", runbooks: Path | None = None) -> Site:
        """Return a site. Its clock advances a minute for each page, so each request renders again."""
        address = Address(pipe_directory=DAEMON, ending=ENDING)
        api = Api(
            self.history,
            status=lambda viewer: status_document(replace(self.sight, viewer=viewer)),
            incident=lambda viewer, each, clients: seen_by(
                viewer,
                incident_status(each, AT + 182, address if each.daemon == DAEMON else None, clients=clients),
            ),
        )
        return Site(
            self.exposition,
            healthy=lambda: self.healthy,
            status=lambda: self.sight,
            monotonic=chain.from_iterable((at, at) for at in count(step=60)).__next__,
            telemetry_path=telemetry_path,
            extra_routes=api.routes,
            runbooks=runbooks,
        )

    def show(self) -> None:
        """Serve the present content."""
        self.replaceable.site = self.site()

    def get(self, path: str = "/metrics", method: str = "GET", **headers: str) -> Answer:
        """Send one request; underscores in header names become hyphens."""
        with contextlib.closing(http.client.HTTPConnection(LOCALHOST, self.server.port, timeout=30)) as connection:
            return ask(connection, path, method, **headers)

    def connect(self) -> socket.socket:
        """Return a connection that has sent nothing."""
        return socket.create_connection((LOCALHOST, self.server.port), timeout=30)

    def raw(self, request: bytes) -> bytes:
        """Send any bytes and return the answer until the server closes the connection."""
        with self.connect() as connection:
            with contextlib.suppress(OSError):
                connection.sendall(request)
                connection.shutdown(socket.SHUT_WR)
            return read_all(connection)


def ask(connection: http.client.HTTPConnection, path: str, method: str = "GET", **headers: str) -> Answer:
    """Send one request on a connection; underscores in header names become hyphens."""
    connection.request(method, path, headers={name.replace("_", "-"): text for name, text in headers.items()})
    with connection.getresponse() as response:
        headers = dict(response.getheaders())
        assert len(headers) == len(response.getheaders()), "each header has one value"
        return Answer(response.status, headers, response.read())


def read_all(connection: socket.socket) -> bytes:
    """Return all bytes until the other side closes the connection."""
    chunks: list[bytes] = []
    with contextlib.suppress(ConnectionError):
        while chunk := connection.recv(1 << 16):
            chunks.append(chunk)
    return b"".join(chunks)
