"""One request of one connection: read within bounds, authenticated, answered. GET and HEAD, and nothing else."""

import io
import socketserver
from dataclasses import dataclass
from http import HTTPStatus
from http.client import LineTooLong
from http.server import BaseHTTPRequestHandler
from typing import Any, cast

from exporter import __version__
from exporter.web.access import Visitor
from exporter.web.answer import Answer, Request
from exporter.web.authentication import Verdict
from exporter.web.places import Place, Places
from exporter.web.security import Protection
from exporter.web.site import Site

SILENCE_SECONDS = 5.0
"""How long a client may say nothing, or read nothing."""

MOST_REQUEST_BYTES = 1 << 17
"""Of the request line and all headers. http.server itself bounds each line (64 KiB) and their number (100)."""

_PROXY_HEADERS = ("forwarded", "x-forwarded-", "x-real-ip", "via", "x-client-ip", "true-client-ip", "cf-connecting-ip")
"""How they begin. That one is there at all is enough: what it says is never believed."""

_UNAUTHORIZED = Answer(
    HTTPStatus.UNAUTHORIZED,
    b"unauthorized\n",
    headers={"WWW-Authenticate": 'Basic realm="cuda-mps-exporter", charset="UTF-8"'},
)
_BUSY = Answer(
    HTTPStatus.SERVICE_UNAVAILABLE, b"too many passwords to check at once; try again\n", headers={"Retry-After": "1"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """A connection that has a place, and what is in force for it."""

    site: Site
    places: Places
    place: Place
    peer: tuple[Any, ...]
    protection: Protection


class Handler(BaseHTTPRequestHandler):
    """Answers the one request of a visit."""

    timeout = SILENCE_SECONDS
    server_version = f"cuda-mps-exporter/{__version__}"
    sys_version = ""

    def __init__(self, visit: Visit, server: socketserver.BaseServer) -> None:
        self._visit = visit
        super().__init__(visit.place.connection, visit.peer, server)

    def setup(self) -> None:
        """Read from the connection, so much and no more."""
        super().setup()
        self.rfile = cast("io.BufferedReader", _Bounded(self.rfile, MOST_REQUEST_BYTES))

    def do_GET(self) -> None:
        """Answer with headers and body."""
        self._send(with_body=True)

    def do_HEAD(self) -> None:
        """Answer with the headers that GET would have."""
        self._send(with_body=False)

    def end_headers(self) -> None:
        """End the headers of any answer, an error's too, with those that are on all."""
        for name, value in ({"X-Content-Type-Options": "nosniff"} | dict(self._visit.protection.headers)).items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Scrapes are not news."""

    def _send(self, *, with_body: bool) -> None:
        with self._visit.places.at_work(self._visit.place):
            answer = self._answer()
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        for name, value in answer.headers.items():
            if name not in self._visit.protection.headers:
                self.send_header(name, value)
        if answer.gzipped:
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        if with_body:
            self.wfile.write(answer.body)

    def _answer(self) -> Answer:
        users = self._visit.protection.users
        if users is not None:
            match users.verdict(self.headers.get("Authorization", "")):
                case Verdict.REFUSED:
                    return _UNAUTHORIZED
                case Verdict.BUSY:
                    return _BUSY
                case Verdict.ADMITTED:
                    pass
        visitor = Visitor(
            peer=str(self._visit.peer[0]),
            host=self.headers.get("Host", ""),
            proxied=any(name.lower().startswith(_PROXY_HEADERS) for name in self.headers),
            authenticated=users is not None or self._visit.protection.authenticates_by_tls,
        )
        return self._visit.site.answer(
            Request(
                path=self.path,
                accept=self.headers.get("Accept", ""),
                accept_encoding=self.headers.get("Accept-Encoding", ""),
                visitor=visitor,
            )
        )


class _Bounded:
    """A stream that says that its line is too long once it has given so many bytes: http.server answers with 431."""

    def __init__(self, stream: io.BufferedIOBase, most: int) -> None:
        self._stream = stream
        self._left = most

    def readline(self, size: int = -1) -> bytes:
        """A line, as http.server reads them."""
        line = self._stream.readline(size)
        self._left -= len(line)
        if self._left < 0:
            raise LineTooLong("request")
        return line

    def close(self) -> None:
        """Close the stream."""
        self._stream.close()

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        return self._stream.closed
