"""Requests and answers: read one request of a connection within bounds, authenticate it, and send the answer.

`Request.may_see_private` is the access rule of private pages.
"""

import io
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import LineTooLong
from http.server import BaseHTTPRequestHandler
from ipaddress import IPv6Address, ip_address
from socket import socket
from types import MappingProxyType
from typing import Any, cast

from exporter import __version__
from exporter.web.web_config import Protection

IDLE_SECONDS = 5.0
"""Timeout for a client that sends nothing or reads nothing."""

MAX_REQUEST_BYTES = 1 << 17
"""Limit of the request line and all headers. http.server limits each line (64 KiB) and their number (100)."""

_PROXY_HEADERS = ("forwarded", "x-forwarded-", "x-real-ip", "via", "x-client-ip", "true-client-ip", "cf-connecting-ip")
"""Prefixes of headers that a proxy adds. Only their presence counts, not their value."""


@dataclass(frozen=True, slots=True, kw_only=True)
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

    @property
    def page(self) -> str:
        """The path without the query."""
        return self.path.partition("?")[0]

    @property
    def query(self) -> str:
        """The part after the question mark."""
        return self.path.partition("?")[2]

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


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class Route:
    """A page. A private page needs a local or authenticated visitor.

    `title` is the text of its link on the landing page; without a title there is no link. `problem` formats errors.
    """

    respond: Callable[[Request], Answer]
    private: bool = False
    title: str = ""
    problem: Callable[[HTTPStatus, str], Answer] = plain


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
    """Answers the one request of a connection. Only GET and HEAD exist.

    `respond` creates the answer while `working` marks the connection's slot as busy.
    """

    timeout = IDLE_SECONDS
    rbufsize = 0
    server_version = f"cuda-mps-exporter/{__version__}"
    sys_version = ""

    def __init__(
        self,
        connection: socket,
        peer: tuple[Any, ...],
        protection: Protection,
        respond: Callable[[Request], Answer],
        working: AbstractContextManager[None],
    ) -> None:
        self._protection = protection
        self._respond = respond
        self._working = working
        super().__init__(connection, peer, cast("Any", None))

    def setup(self) -> None:
        """Limit the bytes that are read."""
        super().setup()
        self.rfile = _BoundedReader(cast("io.RawIOBase", self.rfile))

    def do_GET(self) -> None:
        """Answer with headers and body, or to HEAD with the same headers only."""
        with self._working:
            answer = self._answer()
        self._write(answer)

    do_HEAD = do_GET  # noqa: N815 (http.server calls it)

    def end_headers(self) -> None:
        """Add the headers that each answer has, error answers too."""
        self.send_header("X-Content-Type-Options", "nosniff")
        super().end_headers()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer an invalid request with one line of text. Methods other than GET and HEAD are not allowed."""
        self.close_connection = True
        answer = plain(HTTPStatus(code), HTTPStatus(code).phrase.lower())
        self._write(_NOT_ALLOWED if code == HTTPStatus.NOT_IMPLEMENTED else answer)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Log no requests."""

    def _write(self, answer: Answer) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if answer.gzipped:
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def _answer(self) -> Answer:
        users = self._protection.users
        if users is not None:
            verdict = users.verdict(self.headers.get("Authorization", ""))
            if verdict in _REFUSALS:
                return _REFUSALS[verdict]
        return self._respond(
            Request(
                path=self.path,
                accept=self.headers.get("Accept", ""),
                accept_encoding=self.headers.get("Accept-Encoding", ""),
                peer=str(self.client_address[0]),
                host=self.headers.get("Host", ""),
                proxied=any(name.lower().startswith(_PROXY_HEADERS) for name in self.headers),
                authenticated=users is not None or self._protection.authenticates_by_tls,
            )
        )


class _BoundedReader(io.BufferedReader):
    """A stream that reports its line as too long after a number of bytes; http.server then answers with 431."""

    def __init__(self, raw: io.RawIOBase) -> None:
        super().__init__(raw)
        self._left = MAX_REQUEST_BYTES

    def readline(self, size: int | None = -1) -> bytes:
        """Read a line."""
        line = super().readline(size)
        self._left -= len(line)
        if self._left < 0:
            raise LineTooLong("request")
        return line
