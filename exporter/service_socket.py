"""The service's unix socket for commands such as `status`: one request and one answer, each a line of JSON.

It serves only root and the service's user, whatever the modes of the socket and its directory are.
"""

import contextlib
import json
import os
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import structlog

from exporter.accept_failures import AcceptFailures
from exporter.status_client import NAME, read_line

TIMEOUT_SECONDS = 2.0
"""Time for a client to send its request, and then to read each part of the answer."""

MAX_REQUEST_BYTES = 4096

_CREDENTIALS = struct.Struct("3i")

Commands = Mapping[str, Callable[..., Mapping[str, Any]]]


class ServiceSocket:
    """Answers requests in its own thread, one at a time."""

    def __init__(self, directory: Path, commands: Commands, failures: AcceptFailures | None = None) -> None:
        """`commands` are functions by the name of the command; each returns the answer."""
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
        self._thread.join(TIMEOUT_SECONDS)
        self._socket.close()

    def _listen(self) -> socket.socket:
        self._path.parent.mkdir(mode=0o755, exist_ok=True)
        with _unix_socket() as other:
            other.settimeout(TIMEOUT_SECONDS)
            if other.connect_ex(str(self._path)) == 0:
                raise OSError(0, "another service answers there")
        self._path.unlink(missing_ok=True)
        listener = _unix_socket()
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
            connection.settimeout(TIMEOUT_SECONDS)
            send(connection, json.dumps(self._answer(connection)).encode() + b"\n")
        except OSError:
            pass  # the client has disconnected, or does not read
        except Exception:  # noqa: BLE001 (a defect in one command must not stop the thread)
            structlog.get_logger().exception("answer_failed")

    def _answer(self, connection: socket.socket) -> Mapping[str, Any]:
        # SO_PEERCRED (unix(7)): the kernel reports the client's user.
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        _, user, _ = _CREDENTIALS.unpack(credentials)
        if user not in (0, os.geteuid()):
            return {"problem": "this socket serves only root and the service's own user"}
        try:
            request = json.loads(read_line(connection, MAX_REQUEST_BYTES))
            command, arguments = self._commands[request["command"]], dict(request.get("arguments", {}))
        except (ValueError, KeyError, TypeError, RecursionError):
            return {"problem": f"unknown command; the commands are: {', '.join(self._commands)}"}
        try:
            return command(**arguments)
        except Exception as error:  # noqa: BLE001 (a defect in one command must not stop the thread)
            structlog.get_logger().exception("command_raised")
            return {"problem": f"unexpected {type(error).__name__}: {error}"}


def _unix_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)


def send(connection: socket.socket, answer: bytes) -> None:
    """Send an answer. The timeout applies to each part; `sendall` would apply it to the whole."""
    rest = memoryview(answer)
    while rest:
        rest = rest[connection.send(rest) :]
