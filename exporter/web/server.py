"""Serves a site at several addresses, each connection in a thread of its own, handshake included."""

import contextlib
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import structlog

from exporter.accept_failures import AcceptFailures
from exporter.errors import ConfigError
from exporter.web.handler import SILENCE_SECONDS, Handler, Visit
from exporter.web.listeners import listen
from exporter.web.places import Place, Places
from exporter.web.security import Protection, WebSecurity
from exporter.web.site import Site
from exporter.web.tls import Tls

MOST_REQUESTS = 40
"""Requests served at once, unless told otherwise."""

POLL_SECONDS = 0.5
"""How soon the server notices that it is to end."""


_ALL_ADDRESSES = ("::", "0.0.0.0")  # noqa: S104 (nothing is bound to them here)


class WebServer:
    """Serves a site in threads of its own."""

    def __init__(
        self,
        site: Site,
        addresses: Sequence[tuple[str, int]],
        security: WebSecurity | None = None,
        max_requests: int = MOST_REQUESTS,
        listeners: Sequence[socket.socket] = (),
        failures: AcceptFailures | None = None,
    ) -> None:
        """Listen at once, on the listeners too that are there already.

        ListenError if an address cannot be had, ConfigError if no request is to be served at all.
        """
        if max_requests < 1:
            raise ConfigError(f"--web.max-requests: {max_requests} would serve nobody; write 1 or more")
        self._security = security
        self._closing = threading.Event()
        accepting = _Accepting(failures=failures or AcceptFailures("web"), closing=self._closing)
        places = Places(max_requests)
        with contextlib.ExitStack() as closing:
            own = [closing.enter_context(contextlib.closing(listen(address))) for address in addresses]
            self._servers = [_Server(site, listener, security, places, accepting) for listener in (*listeners, *own)]
            closing.pop_all()
        self._threads = [
            threading.Thread(
                target=server.serve_forever, kwargs={"poll_interval": POLL_SECONDS}, name="web", daemon=True
            )
            for server in self._servers
        ]

    @property
    def addresses(self) -> Sequence[tuple[str, int]]:
        """Where it listens: hosts as they are bound, with the ports that they have got."""
        return [(str(server.server_address[0]), server.server_port) for server in self._servers]

    @property
    def origins(self) -> Sequence[str]:
        """Where it is found, as a browser on this machine would write it."""
        return [f"{self.scheme}://{_written(host)}:{port}" for host, port in self.addresses]

    @property
    def scheme(self) -> str:
        """How it is spoken to: https or http."""
        return "http" if self._security is None or self._security.current().tls is None else "https"

    @property
    def port(self) -> int:
        """The first port that is listened on."""
        return self.addresses[0][1]

    def open(self) -> None:
        """Begin to serve."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Serve no more."""
        self._closing.set()
        for server, thread in zip(self._servers, self._threads, strict=True):
            if thread.is_alive():
                server.shutdown()
            server.server_close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Accepting:
    """What all listeners share: the failures of accept(), and whether the server ends."""

    failures: AcceptFailures
    closing: threading.Event


class _Server(HTTPServer):
    """Accepts connections on one listener. What takes time, or a client's goodwill, is done in its own thread."""

    def __init__(
        self,
        site: Site,
        listener: socket.socket,
        security: WebSecurity | None,
        places: Places,
        accepting: _Accepting,
    ) -> None:
        super().__init__(listener.getsockname(), BaseHTTPRequestHandler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.server_address = listener.getsockname()
        self.server_port = self.server_address[1]
        self._site = site
        self._security = security
        self._places = places
        self._accepting = accepting

    def get_request(self) -> tuple[Any, Any]:
        """Accept a connection. After a failure, wait: the listener stays readable, and the loop would spin."""
        try:
            accepted = super().get_request()
        except OSError as error:
            self._accepting.failures.failed(error, self._accepting.closing.wait)
            raise
        self._accepting.failures.succeeded()
        return accepted

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give a connection a place; turn it away if the server is at work for all that have one."""
        place = self._places.take(request)
        if place is None:
            self.shutdown_request(request)
            return
        try:
            threading.Thread(target=self._serve, args=(place, client_address), name="request", daemon=True).start()
        except RuntimeError:  # no more threads to be had
            self._end(place)

    def handle_error(self, _request: Any, _client_address: Any) -> None:
        """Tell what went wrong before the connection had its thread."""
        structlog.get_logger().exception("connection_failed")

    def _serve(self, place: Place, client_address: Any) -> None:
        try:
            protection = Protection() if self._security is None else self._security.current()
            if protection.tls is not None:
                self._secure(place, protection.tls)
            visit = Visit(site=self._site, places=self._places, place=place, peer=client_address, protection=protection)
            Handler(visit, self)
        except (OSError, HTTPException):
            pass  # a client that goes away, or makes no sense, is its own affair
        except Exception:  # noqa: BLE001 (an error of ours is told, and ends this request alone)
            structlog.get_logger().exception("request_failed")
        finally:
            self._end(place)

    def _secure(self, place: Place, tls: Tls) -> None:
        place.connection.settimeout(SILENCE_SECONDS)
        secured = tls.wrap(place.connection)
        self._places.exchange(place, secured)
        tls.shake_hands(secured)

    def _end(self, place: Place) -> None:
        self.shutdown_request(place.connection)
        self._places.give_back(place)


def _written(host: str) -> str:
    if host in _ALL_ADDRESSES:
        return "localhost"
    return f"[{host}]" if ":" in host else host
