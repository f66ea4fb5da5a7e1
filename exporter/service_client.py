"""The client of the service's unix socket: commands like `status` ask the running service, in one request each.

`status` beside a running service imports this module, so it imports nothing that takes long to import.
"""

import contextlib
import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from exporter.errors import ServiceError
from exporter.parse.printable import printable_lines

NAME = "service.sock"

LONGEST_ANSWER = 1 << 26

SERVICE_SECONDS = 30.0
"""How long the running service may take to do as it is asked."""


def ask_service(directory: Path, command: str, timeout: float, **arguments: Any) -> Mapping[str, Any] | None:
    """Give the running service a command: its answer, or None where no service answers.

    ServiceError where it refuses, or does not answer within `timeout` seconds.
    """
    path = directory / NAME
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
        connection.settimeout(timeout)
        try:
            connection.connect(str(path))
        except PermissionError as error:
            raise ServiceError(f"{path}: only root and the service's own user may ask it; try sudo") from error
        except OSError:
            return None
        try:
            request = {"command": command, "arguments": arguments} if arguments else {"command": command}
            # Whoever is turned away may hear so before all is said.
            with contextlib.suppress(BrokenPipeError):
                connection.sendall(json.dumps(request).encode() + b"\n")
            answer = json.loads(read_line(connection, LONGEST_ANSWER))
        except (OSError, ValueError, RecursionError) as error:
            raise ServiceError(f"{path}: the service does not answer {command}: {error}") from error
    if not isinstance(answer, dict):
        raise ServiceError(f"{path}: the service's answer to {command} is not understood")
    answer = {key: printable_lines(value) if isinstance(value, str) else value for key, value in answer.items()}
    if "problem" in answer:
        raise ServiceError(f"{path}: {answer['problem']}")
    return answer


def read_line(connection: socket.socket, most: int) -> bytes:
    """Read up to the end of a line, the end of the connection, or `most` bytes."""
    said = bytearray()
    while not said.endswith(b"\n") and len(said) < most:
        more = connection.recv(1 << 16)
        if not more:
            break
        said += more
    return bytes(said)
