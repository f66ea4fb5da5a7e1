"""The client of the service socket. If no service answers, `status` collects once instead."""

import contextlib
import json
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from exporter.errors import ServiceError
from exporter.model.values import build
from exporter.parse.printable import printable_lines
from exporter.report.text import Line, Lines, StatusText

if TYPE_CHECKING:
    from exporter.model.node import Node
    from exporter.model.observation import DaemonName

NAME = "service.sock"

MAX_ANSWER_BYTES = 1 << 26

SERVICE_SECONDS = 30.0
"""How long the service can take to answer a command."""

Answer = Mapping[str, Any]
Value = TypeVar("Value")


def query_service(directory: Path, command: str, timeout: float, **arguments: Any) -> Answer | None:
    """Send a command to the service, and return its answer, or None if no service runs.

    ServiceError if the service refuses, or does not answer within `timeout` seconds.
    """
    path = directory / NAME
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
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


def read_line(connection: socket.socket, max_bytes: int) -> bytes:
    """Read until the end of a line or of the connection, or about `max_bytes` bytes."""
    line = bytearray()
    while not line.endswith(b"\n") and len(line) < max_bytes:
        part = connection.recv(1 << 16)
        if not part:
            break
        line += part
    return bytes(line)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusReport:
    """The state of the node as an object (`node`) or as text."""

    exit_code: int
    node: Answer | None = None
    text: StatusText | None = None


def status_report(
    query: Callable[..., Answer | None] | None,
    collect: "Callable[[], Node]",
    *,
    as_json: bool = False,
    daemon: "DaemonName | None" = None,
    width: int | None = None,
) -> StatusReport:
    """Return the state of the node, from the service, or by collecting if none answers; ServiceError if neither works.

    `query` queries the service; None: always collect. `daemon` restricts the report to one daemon. `width` is that of
    the terminal.
    """
    answer = None if query is None else query(as_json=as_json, daemon=daemon, width=width)
    if answer is None:
        # Imported only here, because it takes long. The service's answer is text already.
        from exporter.report import status_text

        answer = status_text.status_answer(collect(), as_json=as_json, daemon=daemon, width=width)
        if "problem" in answer:
            raise ServiceError(answer["problem"])
    return parse_answer(
        lambda: StatusReport(
            exit_code=int(answer["exit_code"]),
            node=answer.get("node"),
            text=None if "node" in answer else build(StatusText, answer["text"]),
        )
    )


def incident_lines(answer: Answer) -> Sequence[Line]:
    """Return the lines of an answer to `incidents`."""
    return parse_answer(lambda: build(Lines, answer["lines"]).lines)


def parse_answer(parse: Callable[[], Value]) -> Value:
    """Call a function that parses an answer; ServiceError if the answer does not have this version's form."""
    try:
        return parse()
    except (ValueError, KeyError, TypeError) as error:
        raise ServiceError("the service is of another version; restart it") from error
