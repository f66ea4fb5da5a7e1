"""The listeners of the service: the web server, and the unix socket for commands such as `status`.

The web server has connection slots. One thread receives all requests and sends all answers that are ready, such as a
scrape. What can take long has a thread of its own: a page, and with a web config file the whole connection. The socket
has one request and one answer, each a line of JSON. It serves only root and the service's user, whatever its mode is.
"""

import contextlib
import json
import os
import select
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from errno import EADDRINUSE, EAGAIN, ECONNABORTED, EINTR, EPROTO
from pathlib import Path
from typing import Any

import structlog

from exporter.clock import Clock, SystemClock
from exporter.errors import ConfigError, ListenError
from exporter.status_client import NAME, peer_of, read_line, unix_socket
from exporter.web.pages import Handler, Site
from exporter.web.slots import ConnectionSlots, Slot
from exporter.web.web_config import Protection, WebSecurity

BACKLOG = 1024
"""Connections that wait to be accepted. Of more, the first packets are dropped, and sent again after a second."""

IDLE_SECONDS = 5.0
"""Timeout for a client that sends nothing or reads nothing."""

SWEEP_SECONDS = 1.0
CHUNK_BYTES = 1 << 16
QUICK_BYTES = 1 << 13
"""A longer head of a request is parsed in a thread, as a page is rendered: it can take 50 ms."""

FIRST_ACTIVATED = 3
"""The first descriptor that systemd passes (sd_listen_fds(3))."""

_ALL_ADDRESSES = ("", "::", "0.0.0.0")  # noqa: S104 (these are compared, not bound)

SOCKET_SECONDS = 2.0
"""Time for a client of the service socket to send its request, and then to read each part of the answer."""

MAX_COMMAND_BYTES = 4096

WAIT_SECONDS = 0.25
LOG_EVERY = 240
"""Attempts to accept for each log record: about one record a minute while all attempts fail."""

_BUSY = memoryview(b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n")
"""The response if too many pages are pending. It has no body, because the method may be HEAD."""

_OPEN = Protection()  # without a web config file

_CLIENT_ERRORS = (EAGAIN, ECONNABORTED, EINTR, EPROTO)
"""After these errors the next accept() can succeed at once (accept(2)), so a client cannot use them to delay others."""


class AcceptFailures:
    """The failures of a server's listeners. Safe to use from several threads."""

    def __init__(self, listener: str) -> None:
        self.total = 0
        self._listener = listener
        self._until_logged = 0
        self._lock = threading.Lock()

    def failed(self, error: OSError, wait: Callable[[float], object]) -> None:
        """Count a failure, log some of them, and wait if the next attempt would fail too."""
        ours = error.errno not in _CLIENT_ERRORS
        with self._lock:
            self.total += 1
            logged = ours and self._until_logged == 0
            if ours:
                self._until_logged = LOG_EVERY if logged else self._until_logged - 1
        if logged:
            structlog.get_logger().warning(
                "accept_failed",
                listener=self._listener,
                problem=error.strerror or str(error),
                consequence="connections wait until accept() succeeds",
            )
        if ours:
            wait(WAIT_SECONDS)

    def succeeded(self) -> None:
        """Note an accepted connection. After enough of them, the next failure is logged again."""
        with self._lock:
            self._until_logged = max(0, self._until_logged - 1)


class WebServer:
    """Serves a site at several addresses, in threads of its own."""

    def __init__(
        self,
        site: Site,
        addresses: Sequence[tuple[str, int]],
        security: WebSecurity | None = None,
        listeners: Sequence[socket.socket] = (),
        failures: AcceptFailures | None = None,
        *,
        max_requests: int,
        clock: Clock | None = None,
    ) -> None:
        """Listen at the addresses and use the given listeners too; ListenError if an address cannot be used."""
        self._site = site
        self._security = security
        self._monotonic = (clock or SystemClock()).monotonic
        self._slots = ConnectionSlots(max_requests)
        self._failures = failures or AcceptFailures("web")
        self._most_pages = max(1, max_requests // 2)
        """Pages wait in half of the slots at most, so that the others are left for scrapes."""
        self._rendering = threading.Lock()
        """One page is rendered at a time, because each thread that computes takes time from scrapes."""
        self._closing = threading.Event()
        with contextlib.ExitStack() as stack:
            own = [stack.enter_context(contextlib.closing(listen(address))) for address in addresses]
            self._wakeup = os.eventfd(0)
            stack.pop_all()
        self._poll = select.epoll()
        self._waiting: dict[int, Slot] = {}
        """The slots for whose clients the thread that receives requests waits, by descriptor."""
        self._listeners = [*listeners, *own]
        self._names = [each.getsockname() for each in self._listeners]
        self._thread = threading.Thread(target=self._run, name="web", daemon=True)

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
        for slot in [*self._waiting.values()]:
            self._end(slot)
        self._poll.close()
        os.close(self._wakeup)
        for listener in self._listeners:
            listener.close()

    def _protection(self) -> Protection:
        return _OPEN if self._security is None else self._security.current()

    def _run(self) -> None:
        listeners = {each.fileno(): each for each in self._listeners}
        for listener in self._listeners:
            listener.setblocking(False)
            # The kernel holds a silent connection back for a second or more: it takes no slot from a scrape.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 1)
        for descriptor in (self._wakeup, *listeners):
            self._poll.register(descriptor, select.EPOLLIN)
        swept_at = self._monotonic()
        while not self._closing.is_set():
            for descriptor, _ in self._poll.poll(SWEEP_SECONDS if self._waiting else None):
                try:
                    if descriptor in listeners:
                        self._accept(listeners[descriptor])
                    elif descriptor in self._waiting:
                        self._do(self._continue, self._waiting[descriptor])
                except Exception:  # noqa: BLE001 (an error here must not end the loop)
                    structlog.get_logger().exception("connection_failed")
            now = self._monotonic()
            if now - swept_at >= SWEEP_SECONDS:
                swept_at = now
                for slot in [*self._waiting.values()]:
                    if slot.expires <= now:
                        self._end(slot)

    def _accept(self, listener: socket.socket) -> None:
        """Accept a connection. After a failure, wait: the listener stays readable, and the loop would spin."""
        try:
            connection, peer = listener.accept()
        except OSError as error:
            self._failures.failed(error, self._closing.wait)
            return
        self._failures.succeeded()
        slot, replaced = self._slots.take(connection, peer)
        if replaced is not None and not replaced.has_thread:
            self._end(replaced)
        if slot is None:
            connection.close()
        elif self._security is None:
            self._do(self._continue, slot)
        else:
            self._start(self._receive, slot)

    def _start(self, step: Callable[[Slot], object], slot: Slot) -> None:
        self._waiting.pop(slot.connection.fileno(), None)
        slot.has_thread = True
        try:
            threading.Thread(target=self._do, args=(step, slot), name="request", daemon=True).start()
        except RuntimeError:  # the process cannot start another thread
            self._end(slot)

    def _do(self, step: Callable[[Slot], object], slot: Slot) -> None:
        """Do a step for a connection. An error ends that connection alone."""
        try:
            step(slot)
        except OSError:
            self._end(slot)  # the client closed the connection
        except Exception:  # noqa: BLE001 (an internal error ends this request alone)
            structlog.get_logger().exception("request_failed")
            self._end(slot)

    def _continue(self, slot: Slot) -> None:
        """Receive a request and send its answer, as far as that needs no wait. A thread serves what takes long.

        In each system call, another thread can take the interpreter for its switch interval. So there are few calls.
        """
        with contextlib.suppress(BlockingIOError):
            if not slot.rest:
                slot.add(slot.connection.recv(CHUNK_BYTES, socket.MSG_DONTWAIT))
                if slot.is_whole:
                    slot.rest = self._ready_response(slot, _OPEN)
                    if not slot.rest and self._slots.protect(slot) <= self._most_pages:
                        self._start(self._serve, slot)
                        return
                    slot.rest = slot.rest or [_BUSY]
            if slot.rest:
                sent = slot.connection.sendmsg(slot.rest, (), socket.MSG_DONTWAIT)
                while slot.rest and sent >= len(slot.rest[0]):
                    sent -= len(slot.rest.pop(0))
                if not slot.rest:
                    self._end(slot)
                    return
                slot.rest[0] = slot.rest[0][sent:]
        slot.expires, descriptor = self._monotonic() + IDLE_SECONDS, slot.connection.fileno()
        wait = self._poll.modify if descriptor in self._waiting else self._poll.register
        # For one event: so there is nothing to remove when a thread gets the connection, or when it is closed while a
        # process that is just starting still has it.
        wait(descriptor, select.EPOLLONESHOT | (select.EPOLLOUT if slot.rest else select.EPOLLIN))
        self._waiting[descriptor] = slot

    def _receive(self, slot: Slot) -> None:
        """Receive and serve a request in a thread of its own, which can wait for the client and for a handshake."""
        protection = self._protection()
        slot.connection.settimeout(IDLE_SECONDS)
        if protection.tls is not None:
            secured = protection.tls.wrap_socket(slot.connection, server_side=True, do_handshake_on_connect=False)
            self._slots.replace_socket(slot, secured)
            protection.handshake(secured)
        while not slot.is_whole:
            slot.add(slot.connection.recv(CHUNK_BYTES))
        are_too_many = self._slots.protect(slot) > self._most_pages
        slot.rest = self._ready_response(slot, protection) or [_BUSY] * are_too_many
        self._serve(slot, protection)

    def _serve(self, slot: Slot, protection: Protection = _OPEN) -> None:
        """Send the response, which is made here if it was not ready."""
        slot.rest = slot.rest or self._page(slot, protection)
        self._slots.wait_for(slot)
        slot.connection.settimeout(IDLE_SECONDS)
        for part in slot.rest:
            send(slot.connection, part)
        self._end(slot)

    def _ready_response(self, slot: Slot, protection: Protection) -> list[memoryview]:
        """Return the response if it is ready, else nothing."""
        if len(slot.head) > QUICK_BYTES:
            return []
        slot.handler = Handler(slot.head, slot.connection, slot.peer, protection)
        answer = slot.handler.refusal() or self._site.ready(slot.handler.wanted)
        return [] if answer is None else slot.handler.response(answer)

    def _page(self, slot: Slot, protection: Protection) -> list[memoryview]:
        """Return the response that is not ready, after those of earlier requests."""
        with self._rendering:
            handler = slot.handler or Handler(slot.head, slot.connection, slot.peer, protection)
        refusal = handler.refusal()  # A password check lets pages go on.
        with self._rendering:
            return handler.response(refusal or self._site.answer(handler.wanted))

    def _end(self, slot: Slot) -> None:
        self._waiting.pop(slot.connection.fileno(), None)
        self._slots.release(slot)  # first, because `take` shuts down sockets of slots, and a descriptor is used again
        slot.connection.close()


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
        if error.errno == EADDRINUSE:
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


Commands = Callable[[int], Mapping[str, Callable[..., Mapping[str, Any]]]]
"""Returns the functions by the name of the command, for the user with a UID. Each returns the answer."""


class ServiceSocket:
    """Answers requests in its own thread, one at a time."""

    def __init__(self, directory: Path, commands: Commands, failures: AcceptFailures | None = None) -> None:
        self._failures = failures or AcceptFailures("service_socket")
        self._closing = threading.Event()
        self._path = directory / NAME
        self._commands = commands
        self._socket: socket.socket | None = None
        self._thread = threading.Thread(target=self._serve, name="service-socket", daemon=True)

    def open(self) -> None:
        """Start to answer. If the socket cannot be opened, log that, and let the service continue without it."""
        try:
            self._socket = self._listen()
            self._thread.start()
        except (OSError, RuntimeError) as error:
            structlog.get_logger().warning(
                "no_service_socket",
                path=str(self._path),
                problem=getattr(error, "strerror", None) or str(error),
                consequence=f"pause, resume, incidents and status do not reach this exporter (PID {os.getpid()})",
            )
            if self._socket is not None:
                self._socket.close()
                self._socket = None

    def close(self) -> None:
        """Stop the thread, and remove the socket."""
        if self._socket is None:
            return
        self._closing.set()
        with contextlib.suppress(OSError):
            self._path.unlink()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(SOCKET_SECONDS)
        self._socket.close()

    def _listen(self) -> socket.socket:
        self._path.parent.mkdir(mode=0o755, exist_ok=True)
        with unix_socket() as other:
            other.settimeout(SOCKET_SECONDS)
            if other.connect_ex(str(self._path)) == 0:
                raise OSError(0, "another service answers there")
        self._path.unlink(missing_ok=True)
        listener = unix_socket()
        try:
            listener.bind(str(self._path))
            self._path.chmod(0o600)
            listener.listen(8)
        except OSError:
            listener.close()
            raise
        return listener

    def _serve(self) -> None:
        while self._socket is not None and not self._closing.is_set():
            try:
                connection, _ = self._socket.accept()
            except OSError as error:
                if not self._closing.is_set():
                    self._failures.failed(error, self._closing.wait)
                continue
            self._failures.succeeded()
            with connection:
                self._serve_one(connection)

    def _serve_one(self, connection: socket.socket) -> None:
        try:
            connection.settimeout(SOCKET_SECONDS)
            send(connection, json.dumps(self._answer(connection)).encode() + b"\n")
        except OSError:
            pass  # the client has disconnected, or does not read
        except Exception:  # noqa: BLE001 (a defect in one command must not stop the thread)
            structlog.get_logger().exception("answer_failed")

    def _answer(self, connection: socket.socket) -> Mapping[str, Any]:
        _, uid = peer_of(connection)
        if uid not in (0, os.geteuid()):
            return {"problem": "this socket serves only root and the service's own user"}
        commands = self._commands(uid)
        try:
            request = json.loads(read_line(connection, MAX_COMMAND_BYTES))
            command, arguments = commands[request["command"]], dict(request.get("arguments", {}))
        except (ValueError, KeyError, TypeError, RecursionError):
            return {"problem": f"unknown command; the commands are: {', '.join(commands)}"}
        try:
            return command(**arguments)
        except Exception as error:  # noqa: BLE001 (a defect in one command must not stop the thread)
            structlog.get_logger().exception("command_raised")
            return {"problem": f"unexpected {type(error).__name__}: {error}"}


def send(connection: socket.socket, answer: bytes | memoryview) -> None:
    """Send an answer. The timeout applies to each part; `sendall`, and TLS, would apply it to the whole."""
    rest = memoryview(answer)
    while rest:
        rest = rest[connection.send(rest[:CHUNK_BYTES]) :]
