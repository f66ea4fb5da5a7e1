"""The client of the service socket, and its answers. They are untrusted: their texts become printable here."""

import contextlib
import json
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from exporter.errors import ServiceError
from exporter.model.values import build
from exporter.parse.printable import printable_lines, printable_value

if TYPE_CHECKING:
    # The commands that need no status do not import these.
    from exporter.report.document import StatusDocument
    from exporter.report.document_parts import IncidentStatus

NAME = "service.sock"

MAX_ANSWER_BYTES = 1 << 26

SERVICE_SECONDS = 30.0
"""How long the service can take to answer a command."""

OTHER_VERSION = "the service is of another version; restart it"

_CREDENTIALS = struct.Struct("3i")

Answer = Mapping[str, Any]
Value = TypeVar("Value")


def query_service(directory: Path, command: str, timeout: float, **arguments: Any) -> Answer | None:
    """Send a command to the service, and return its answer, or None if no service runs.

    ServiceError if the service refuses, or does not answer within `timeout` seconds.
    """
    path = directory / NAME
    with unix_socket() as connection:
        connection.settimeout(timeout)
        try:
            connection.connect(str(path))
        except PermissionError as error:
            raise ServiceError(f"{path}: only root and the service's own user can connect; try sudo") from error
        except OSError:
            return None
        try:
            request = {"command": command, "arguments": arguments} if arguments else {"command": command}
            # The service can answer and close the connection before it has read the whole request.
            with contextlib.suppress(BrokenPipeError):
                connection.sendall(json.dumps(request).encode() + b"\n")
            answer = json.loads(read_line(connection, MAX_ANSWER_BYTES))
        except (OSError, ValueError, RecursionError) as error:
            raise ServiceError(f"{path}: the service does not answer {command}: {error}") from error
    if not isinstance(answer, dict):
        raise ServiceError(f"{path}: invalid answer to {command}")
    answer = {key: printable_lines(value) if isinstance(value, str) else value for key, value in answer.items()}
    if "problem" in answer:
        raise ServiceError(f"{path}: {answer['problem']}")
    return answer


def unix_socket() -> socket.socket:
    """Return a stream socket that no child process inherits."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Return the PID and the UID at the other end, as the kernel reports them (SO_PEERCRED, unix(7))."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(credentials)
    return pid, uid


def read_line(connection: socket.socket, max_bytes: int) -> bytes:
    """Read until the end of a line or of the connection, or about `max_bytes` bytes."""
    line = bytearray()
    while not line.endswith(b"\n") and len(line) < max_bytes:
        part = connection.recv(1 << 16)
        if not part:
            break
        line += part
    return bytes(line)


def parse_status(answer: Answer) -> "StatusDocument":
    """Return the status in an answer, with printable texts."""
    from exporter.report.document import VERSION, StatusDocument

    document = parse_answer(lambda: build(StatusDocument, printable_value(answer["status"])))
    if document.version != VERSION:
        raise ServiceError(OTHER_VERSION)
    return document


def parse_incidents(answer: Answer) -> "Sequence[IncidentStatus]":
    """Return the incidents in an answer, with printable texts."""
    from exporter.report.document_parts import IncidentStatus

    return parse_answer(lambda: [build(IncidentStatus, printable_value(each)) for each in answer["incidents"]])


def parse_answer(parse: Callable[[], Value]) -> Value:
    """Call a function that parses an answer; ServiceError if the answer does not have this version's form."""
    try:
        return parse()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ServiceError(OTHER_VERSION) from error
