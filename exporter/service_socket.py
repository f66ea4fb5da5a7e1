"""The service's unix socket, by which commands like `status` reach it: one request, one answer, as JSON lines.

Only root and the service's own user are answered, whatever the modes of the socket and its directory say.
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

PATIENCE_SECONDS = 2.0
"""How long a client may take to send its request, and then to read the next part of the answer."""

MOST_BYTES = 4096
"""A request is one short line: a command, and its arguments by name where it takes any."""

_CREDENTIALS = struct.Struct("3i")

Commands = Mapping[str, Callable[..., Mapping[str, Any]]]


class ServiceSocket:
    """Answers requests in a thread of its own, one at a time."""

    def __init__(self, directory: Path, commands: Commands, failures: AcceptFailures | None = None) -> None:
        """`commands` has what to do for each command; what it returns is the answer."""
        self._failures = failures or AcceptFailures("service_socket")
        self._closing = threading.Event()
        self._path = directory / NAME
        self._commands = commands
        self._socket: socket.socket | None = None
        self._thread = threading.Thread(target=self._serve, name="service-socket", daemon=True)

    def open(self) -> None:
        """Begin to answer. Where the socket cannot be had, the service goes on without, and says so."""
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
        """Answer no more."""
        if self._socket is None:
            return
        self._closing.set()
        with contextlib.suppress(OSError):
            self._path.unlink()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(PATIENCE_SECONDS)
        self._socket.close()

    def _listen(self) -> socket.socket:
        self._path.parent.mkdir(mode=0o755, exist_ok=True)
        if _answers(self._path):
            raise OSError(0, "another service answers there")
        self._path.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            listening.bind(str(self._path))
            self._path.chmod(0o600)
            listening.listen(8)
        except OSError:
            listening.close()
            raise
        return listening

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
            connection.settimeout(PATIENCE_SECONDS)
            _send(connection, json.dumps(self._answer(connection)).encode() + b"\n")
        except OSError:
            pass  # the client has gone, or does not read
        except Exception:  # noqa: BLE001 (a defect of ours costs this one answer, not all later ones)
            structlog.get_logger().exception("answer_failed")

    def _answer(self, connection: socket.socket) -> Mapping[str, Any]:
        if _user(connection) not in (0, os.geteuid()):
            return {"problem": "only root and the service's own user are answered here"}
        try:
            request = json.loads(read_line(connection, MOST_BYTES))
            command, arguments = self._commands[request["command"]], dict(request.get("arguments", {}))
        except (ValueError, KeyError, TypeError, RecursionError):
            return {"problem": f"no such command; there are {', '.join(self._commands)}"}
        try:
            return command(**arguments)
        except Exception as error:  # noqa: BLE001 (a defect of ours must cost this one answer, not all later ones)
            structlog.get_logger().exception("command_raised")
            return {"problem": f"unexpected {type(error).__name__}: {error}"}


def _send(connection: socket.socket, answer: bytes) -> None:
    """Send all of an answer. The timeout holds for each part: sendall() would cut a long answer off on a busy node."""
    left = memoryview(answer)
    while left:
        left = left[connection.send(left) :]


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
        connection.settimeout(PATIENCE_SECONDS)
        return connection.connect_ex(str(path)) == 0


def _user(connection: socket.socket) -> int:
    """Who has connected (SO_PEERCRED, unix(7)); the kernel says so, not they."""
    _, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(uid)
