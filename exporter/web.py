"""HTTP: /metrics, /-/healthy, /-/ready and a landing page. Nothing here acts, and a scrape only sends bytes."""

import contextlib
import socket
import socketserver
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from exporter import __version__
from exporter.errors import ListenError
from exporter.metrics.exposition import Exposition

MOST_REQUESTS = 40
"""Requests served at once, so that silent clients cannot pile up threads."""

POLL_SECONDS = 0.1
"""How soon the server notices that it is to end."""

SILENCE_SECONDS = 5.0
"""How long a client may say nothing."""

_TEXT = "text/plain; charset=utf-8"
_LANDING_PAGE = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>cuda-mps-exporter</title></head>
<body><h1>cuda-mps-exporter {__version__}</h1>
<p><a href="/metrics">Metrics</a> · <a href="/-/healthy">Healthy</a> · <a href="/-/ready">Ready</a></p>
</body></html>
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request gets."""

    status: HTTPStatus
    body: bytes
    content_type: str = _TEXT
    gzipped: bool = False


class Site:
    """Answers requests by their path. `healthy` says whether the cycle still turns."""

    def __init__(self, exposition: Exposition, healthy: Callable[[], bool]) -> None:
        self._exposition = exposition
        self._healthy = healthy

    def answer(self, path: str, accept: str, accept_encoding: str) -> Answer:
        """Answer a GET."""
        match path.partition("?")[0]:
            case "/metrics":
                return self._metrics(accept, gzipped=_accepts_gzip(accept_encoding))
            case "/-/healthy" | "/healthz":
                return _said("healthy") if self._healthy() else _said("the cycle has stopped", ok=False)
            case "/-/ready" | "/readyz":
                return _said("ready") if self._exposition.ready else _said("no cycle completed yet", ok=False)
            case "/":
                return Answer(HTTPStatus.OK, _LANDING_PAGE.encode(), "text/html; charset=utf-8")
            case _:
                return Answer(HTTPStatus.NOT_FOUND, b"not found; metrics are at /metrics\n")

    def _metrics(self, accept: str, *, gzipped: bool) -> Answer:
        encoded = self._exposition.get(accept, gzipped=gzipped)
        if encoded is None:
            return _said("no cycle completed yet", ok=False)
        return Answer(HTTPStatus.OK, encoded.body, encoded.content_type, encoded.gzipped)


def _said(text: str, *, ok: bool = True) -> Answer:
    return Answer(HTTPStatus.OK if ok else HTTPStatus.SERVICE_UNAVAILABLE, f"{text}\n".encode())


def _accepts_gzip(header: str) -> bool:
    for offered in header.split(","):
        coding, _, quality = offered.partition(";")
        if coding.strip().lower() in ("gzip", "*"):
            return quality.replace(" ", "").lower() not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


class WebServer:
    """Serves a site in threads of its own."""

    def __init__(self, site: Site, address: tuple[str, int]) -> None:
        """Listen at once; ListenError if the address cannot be had."""
        handler = type("SiteHandler", (_Handler,), {"site": site})
        host, port = address
        family = socket.AF_INET6 if ":" in host or not host else socket.AF_INET
        try:
            self._server = _listen(host, port, family, handler)
        except OSError as error:
            raise ListenError(f"--web.listen-address: cannot listen on {host}:{port}: {error.strerror}") from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": POLL_SECONDS}, name="web", daemon=True
        )

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return int(self._server.server_address[1])

    def open(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def close(self) -> None:
        """Serve no more."""
        self._server.shutdown()
        self._server.server_close()


def _listen(host: str, port: int, family: socket.AddressFamily, handler: Any) -> "_Server":
    try:
        return _Server((host, port), handler, family)
    except OSError:
        if host:
            raise
        return _Server((host, port), handler, socket.AF_INET)


class _Server(ThreadingHTTPServer):
    """Serves each connection in a thread, and no more than MOST_REQUESTS of them.

    When all places are taken, whoever has kept its request to itself the longest must leave for the newcomer.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: Any, family: socket.AddressFamily) -> None:
        self.address_family = family
        self._lock = threading.Lock()
        self._served: set[socket.socket] = set()
        self._unheard: dict[socket.socket, None] = {}
        super().__init__(address, handler)

    def server_bind(self) -> None:
        """Bind, IPv4 included where all addresses are meant, without HTTPServer's look-up of the host's name."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        socketserver.TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give a connection a place; turn it away if all are taken by requests that are being answered."""
        if self._take_place(request):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, and give the place back."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._served.discard(request)
                self._unheard.pop(request, None)

    def heard(self, request: socket.socket) -> None:
        """The request is complete: its connection stays until it is answered."""
        with self._lock:
            self._unheard.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in mid-answer is its own affair."""

    def _take_place(self, request: socket.socket) -> bool:
        with self._lock:
            if len(self._served) >= MOST_REQUESTS:
                longest = next(iter(self._unheard), None)
                if longest is None:
                    return False
                self._unheard.pop(longest)
                self._served.discard(longest)
                with contextlib.suppress(OSError):
                    longest.shutdown(socket.SHUT_RDWR)
            self._served.add(request)
            self._unheard[request] = None
            return True


class _Handler(BaseHTTPRequestHandler):
    site: Site
    server: _Server
    timeout = SILENCE_SECONDS
    server_version = f"cuda-mps-exporter/{__version__}"
    sys_version = ""

    def do_GET(self) -> None:
        self._send(with_body=True)

    def do_HEAD(self) -> None:
        self._send(with_body=False)

    def _send(self, *, with_body: bool) -> None:
        self.server.heard(self.connection)
        headers = self.headers
        answer = self.site.answer(self.path, headers.get("Accept", ""), headers.get("Accept-Encoding", ""))
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        if answer.gzipped:
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        if with_body:
            self.wfile.write(answer.body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Scrapes are not news."""
