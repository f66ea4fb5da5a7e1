"""The web server: listeners, connection slots, and a thread for each connection, TLS handshake included."""

import contextlib
import errno
import os
import selectors
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from http.client import HTTPException
from typing import Any

import structlog

from exporter.accept_failures import AcceptFailures
from exporter.errors import ConfigError, ListenError
from exporter.web.handler import IDLE_SECONDS, Handler
from exporter.web.pages import Site
from exporter.web.web_config import Protection, WebSecurity

DEFAULT_MAX_REQUESTS = 40
BACKLOG = 128
FIRST_ACTIVATED = 3
"""The first descriptor that systemd passes (sd_listen_fds(3))."""

_ALL_ADDRESSES = ("", "::", "0.0.0.0")  # noqa: S104 (these are compared, not bound)


class Slot:
    """The slot of one connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection


class ConnectionSlots:
    """A fixed number of connection slots, so that clients cannot create threads without bound.

    If all slots are in use, a new connection replaces the one for which the server has waited longest. The server
    waits for a connection until the request is complete, and again while the client reads the answer.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._slots: dict[Slot, bool] = {}
        """Whether the server waits for the slot's client. The slots that have waited longest come first."""

    def take(self, connection: socket.socket) -> Slot | None:
        """Return a slot for a new connection; None if the server works on a request in each slot."""
        with self._lock:
            if len(self._slots) >= self._limit:
                longest = next((slot for slot, waits in self._slots.items() if waits), None)
                if longest is None:
                    return None
                del self._slots[longest]
                with contextlib.suppress(OSError):
                    # SSLSocket.shutdown() would discard the TLS state that the connection's own thread still uses.
                    socket.socket.shutdown(longest.connection, socket.SHUT_RDWR)
            slot = Slot(connection)
            self._slots[slot] = True
            return slot

    def replace_socket(self, slot: Slot, connection: socket.socket) -> None:
        """Use another socket for the connection, such as its TLS socket; OSError if the slot was taken away."""
        with self._lock:
            slot.connection = connection
            if slot not in self._slots:
                raise ConnectionAbortedError("a newer connection took the slot")

    def release(self, slot: Slot) -> None:
        """Free the slot of a connection that has ended."""
        with self._lock:
            self._slots.pop(slot, None)

    @contextlib.contextmanager
    def working(self, slot: Slot) -> Iterator[None]:
        """Protect a slot while the server itself works on the request."""
        self._set(slot, waits=False)
        try:
            yield
        finally:
            self._set(slot, waits=True)

    def _set(self, slot: Slot, *, waits: bool) -> None:
        """Make the slot the last one, unless it was taken away."""
        with self._lock:
            if self._slots.pop(slot, None) is not None:
                self._slots[slot] = waits


class WebServer:
    """Serves a site at several addresses, in threads of its own."""

    def __init__(
        self,
        site: Site,
        addresses: Sequence[tuple[str, int]],
        security: WebSecurity | None = None,
        max_requests: int = DEFAULT_MAX_REQUESTS,
        listeners: Sequence[socket.socket] = (),
        failures: AcceptFailures | None = None,
    ) -> None:
        """Listen at the addresses and use the given listeners too; ListenError if an address cannot be used."""
        self._site = site
        self._security = security
        self._slots = ConnectionSlots(max_requests)
        self._failures = failures or AcceptFailures("web")
        self._closing = threading.Event()
        with contextlib.ExitStack() as stack:
            own = [stack.enter_context(contextlib.closing(listen(address))) for address in addresses]
            self._wakeup = os.eventfd(0)
            stack.pop_all()
        self._listeners = [*listeners, *own]
        self._names = [each.getsockname() for each in self._listeners]
        self._thread = threading.Thread(target=self._accept_connections, name="web", daemon=True)

    @property
    def addresses(self) -> Sequence[tuple[str, int]]:
        """The addresses as they are bound, with their real ports."""
        return [(str(host), port) for host, port, *_ in self._names]

    @property
    def origins(self) -> Sequence[str]:
        """The addresses as URLs for a browser on this machine."""
        scheme = "http" if self._protection().tls is None else "https"
        return [f"{scheme}://{url_host(host)}:{port}" for host, port in self.addresses]

    @property
    def port(self) -> int:
        """The port of the first listener."""
        return self.addresses[0][1]

    def open(self) -> None:
        """Start to serve."""
        self._thread.start()

    def close(self) -> None:
        """Accept no more connections."""
        self._closing.set()
        os.eventfd_write(self._wakeup, 1)
        if self._thread.is_alive():
            self._thread.join()
        os.close(self._wakeup)
        for listener in self._listeners:
            listener.close()

    def _protection(self) -> Protection:
        return Protection() if self._security is None else self._security.current()

    def _accept_connections(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._wakeup, selectors.EVENT_READ)
            for listener in self._listeners:
                listener.setblocking(False)
                selector.register(listener, selectors.EVENT_READ, listener)
            while not self._closing.is_set():
                for key, _ in selector.select():
                    if key.data is None:
                        continue
                    try:
                        self._accept(key.data)
                    except Exception:  # noqa: BLE001 (an error here must not end the accept loop)
                        structlog.get_logger().exception("connection_failed")

    def _accept(self, listener: socket.socket) -> None:
        """Accept a connection. After a failure, wait: the listener stays readable, and the loop would spin."""
        try:
            connection, peer = listener.accept()
        except OSError as error:
            self._failures.failed(error, self._closing.wait)
            return
        self._failures.succeeded()
        slot = self._slots.take(connection)
        if slot is None:
            _close(connection)
            return
        try:
            threading.Thread(target=self._serve, args=(slot, peer), name="request", daemon=True).start()
        except RuntimeError:  # the process cannot start another thread
            self._end(slot)

    def _serve(self, slot: Slot, peer: tuple[Any, ...]) -> None:
        try:
            protection = self._protection()
            if protection.tls is not None:
                slot.connection.settimeout(IDLE_SECONDS)
                secured = protection.tls.wrap_socket(slot.connection, server_side=True, do_handshake_on_connect=False)
                self._slots.replace_socket(slot, secured)
                protection.handshake(secured)
            Handler(slot.connection, peer, protection, self._site.answer, self._slots.working(slot))
        except (OSError, HTTPException):
            pass  # the client closed the connection or sent an invalid request
        except Exception:  # noqa: BLE001 (an internal error ends this request alone)
            structlog.get_logger().exception("request_failed")
        finally:
            self._end(slot)

    def _end(self, slot: Slot) -> None:
        _close(slot.connection)
        self._slots.release(slot)


def _close(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
    connection.close()


def url_host(host: str) -> str:
    """Return the host of a listen address as it stands in a URL."""
    if host in _ALL_ADDRESSES:
        return "localhost"
    return f"[{host}]" if ":" in host else host


def listen(address: tuple[str, int]) -> socket.socket:
    """Listen at an address, for IPv6 and IPv4 if the host is empty; ListenError if the address cannot be used now."""
    host, port = address
    try:
        if host:
            return _listener(socket.AF_INET6 if ":" in host else socket.AF_INET, address)
        try:
            return _listener(socket.AF_INET6, address)
        except OSError:
            return _listener(socket.AF_INET, address)
    except OSError as error:
        shown = f"[{host}]" if ":" in host else host
        problem = str(error.strerror).partition(" (while attempting")[0]  # the rest repeats the address
        advice = "choose another address"
        if error.errno == errno.EADDRINUSE:
            advice = "stop the program that listens there, or choose another port"
        raise ListenError(f"--web.listen-address: cannot listen on {shown}:{port}: {problem}; {advice}") from error


def _listener(family: socket.AddressFamily, address: tuple[str, int]) -> socket.socket:
    both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
    return socket.create_server(address, family=family, backlog=BACKLOG, dualstack_ipv6=both)


def activated_listeners(environment: Mapping[str, str], pid: int) -> Sequence[socket.socket]:
    """Return the listeners that systemd passed to this process; ConfigError if there are none that can be used."""
    count = environment.get("LISTEN_FDS", "")
    if environment.get("LISTEN_PID") != str(pid) or not (count.isascii() and count.isdigit() and int(count) > 0):
        raise ConfigError(
            "--web.systemd-socket: systemd passed no socket; start the .socket unit of this service,"
            " or use --web.listen-address"
        )
    listeners = []
    for descriptor in range(FIRST_ACTIVATED, FIRST_ACTIVATED + int(count)):
        try:
            os.set_inheritable(descriptor, False)
            listener = socket.socket(fileno=descriptor)
            listens = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        except OSError as error:
            problem = f"is not a socket: {error.strerror}"
            raise ConfigError(f"--web.systemd-socket: descriptor {descriptor} {problem}") from error
        if not listens or listener.family not in (socket.AF_INET, socket.AF_INET6):
            problem = "does not listen on TCP; use ListenStream=PORT"
            raise ConfigError(f"--web.systemd-socket: descriptor {descriptor} {problem}")
        listeners.append(listener)
    return listeners
